package prefix

// A tail is the quarter of a tree that would go first: its least recently used
// blocks. How much of what is asked for stands there tells what a little more room
// would be worth, or a little less cost.
type tail struct {
	newest  int32 // of its blocks; 0: it is empty
	units   int64 // of them
	revived int64 // units that the last Insert found there
}

// tailPart of a tree is its tail.
const tailPart = 4

// TailTokens is how many tokens the tail has.
func (t *Tree) TailTokens() int { return int(t.tail.units / unitsPerToken) }

// Revived returns how many tokens of the last chain inserted were found in the
// tail: they would not be cached if the tree held a quarter less.
func (t *Tree) Revived() int { return int(t.tail.revived / unitsPerToken) }

// Room returns how many tokens more the tree takes without evicting.
func (t *Tree) Room() int {
	if len(t.index) >= t.maxBlocks {
		return 0
	}
	return int(max(0, t.maxUnits-t.units) / unitsPerToken)
}

// level gives the tail its length: no less than its part of the tree, and no block
// more than that takes.
func (t *Tree) level() {
	for part := t.units / tailPart; ; {
		b := t.blocks[t.tail.newest]
		switch {
		case t.tail.units < part && b.newer != 0:
			t.blocks[b.newer].last = true
			t.tail.units += t.blocks[b.newer].units
			t.tail.newest = b.newer
		case t.tail.newest != 0 && t.tail.units-b.units >= part:
			t.shorten(t.tail.newest)
		default:
			return
		}
	}
}

// shorten takes block i out of the tail, if it stands there.
func (t *Tree) shorten(i int32) {
	b := &t.blocks[i]
	if !b.last {
		return
	}
	b.last = false
	t.tail.units -= b.units
	if t.tail.newest == i {
		t.tail.newest = b.older
	}
}

// Branch returns the depth, in blocks, of the deepest block of c after which the
// tree holds something other than c, and how many others: what c has in common
// with other prompts. A chain that ended where c does is one of them: a chain names
// whole blocks, and prompts may differ in what comes after the last.
func (t *Tree) Branch(c Chain) (depth, others int) {
	for depth = t.Match(c); depth > 0; depth-- {
		at := t.index[c[depth-1]]
		if depth == len(c) && t.blocks[at].ended {
			others++
		}
		for i := t.blocks[at].child; i != 0; i = t.blocks[i].next {
			if depth == len(c) || t.blocks[i].hash != c[depth] {
				others++
			}
		}
		if others > 0 {
			return depth, others
		}
	}
	return 0, 0
}
