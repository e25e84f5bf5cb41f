package prefix

import "math"

// Snapshot returns the blocks held now. While they do not change it returns the
// same pointer; touching a block is not a change. A new one costs what was touched
// since the last, some 300 ns a block, and a copy of the list of pages, 8 bytes for
// every 10 to 20 blocks held.
func (t *Tree) Snapshot() *Snapshot {
	s, _ := t.Tell(MaxBlocks, math.MaxInt)
	return s
}

// Tell is Snapshot where others have room for only so many blocks, and are told of
// only so many that came or went since the last call. What it leaves out is what was
// used least recently, and so of each chain what is deepest; it is told later, when
// there is room. What has gone is always told: a view may know less, not more. It
// returns how many blocks came or went.
func (t *Tree) Tell(most, changes int) (s *Snapshot, changed int) {
	most = max(most, 0)
	changes, changed = changes-t.gone, t.gone
	t.gone = 0
	place := 0
	for i := t.blocks[0].older; i != 0 && t.Untold() > 0 && changes > 0 && place < most; i = t.blocks[i].older {
		place++
		b := &t.blocks[i]
		if b.told {
			continue
		}
		cost := 1
		if t.draft.n >= most {
			cost = 2 // with the one that makes room
		}
		changes, changed = changes-cost, changed+cost
		b.told, t.snapshot = true, nil
		t.draft.put(b.hash, t.blocks[b.parent].hash)
	}
	for i := t.blocks[0].newer; t.draft.n > most; i = t.blocks[i].newer {
		if t.blocks[i].told {
			t.untell(i)
		}
	}
	if t.snapshot == nil {
		t.snapshot = t.draft.take()
	}
	return t.snapshot, changed
}

// Untold returns how many of the blocks held were not in the last snapshot.
func (t *Tree) Untold() int { return len(t.index) - t.draft.n }

func (t *Tree) untell(i int32) {
	t.draft.drop(t.blocks[i].hash)
	t.blocks[i].told, t.snapshot = false, nil
}
