package prefix

import (
	"iter"
	"math/bits"
	"slices"
)

// A Snapshot is the set of blocks that a tree held at one moment, each with its
// parent. It never changes, so it may be read from anywhere and encoded outside
// of any lock. The nil Snapshot and the zero one are empty.
//
// It is a hash table with open addressing and linear probing, cut into pages.
// Snapshots of one tree share the pages in which nothing changed between them, so
// a new one costs what is new in it, and so does telling two apart.
type Snapshot struct {
	pages  []*page
	n      int
	mul    uint64 // spreads the hashes
	digest Digest
}

// A page is a stretch of the table's slots. Small pages make a change cheap, since
// it copies one; large ones make a snapshot cheap, which copies the list of them.
type page struct {
	hashes  [pageSlots]Hash // 0: the slot is empty
	parents [pageSlots]Hash // 0: the parent is h_0
}

const pageSlots = 32

// Len returns the number of blocks.
func (s *Snapshot) Len() int {
	if s == nil {
		return 0
	}
	return s.n
}

// Digest returns the digest of the blocks. It costs nothing.
func (s *Snapshot) Digest() Digest {
	if s == nil {
		return 0
	}
	return s.digest
}

// Has reports whether the snapshot holds the prefix that h names.
func (s *Snapshot) Has(h Hash) bool {
	if s.Len() == 0 {
		return false
	}
	_, held := s.find(h)
	return held
}

// Match returns how many leading blocks of c the snapshot holds.
func (s *Snapshot) Match(c Chain) int { return c.Longest(s.Has) }

// All yields the blocks, each with its parent or 0 where that is h_0, in an order
// that tells nothing.
func (s *Snapshot) All() iter.Seq2[Hash, Hash] { return s.Since(nil) }

// Pages returns in how many parts Page gives the blocks.
func (s *Snapshot) Pages() int {
	if s.Len() == 0 {
		return 0
	}
	return len(s.pages)
}

// Page returns some tens of blocks, for who takes them a few at a time; 0 is none.
// The caller must not change it.
func (s *Snapshot) Page(k int) []Hash { return s.pages[k].hashes[:] }

// Since yields those blocks of s, as All does, that old does not hold. Between two
// snapshots of one tree it costs time in what has changed, and some nanoseconds a
// page. What has gone is what old.Since(s) yields.
func (s *Snapshot) Since(old *Snapshot) iter.Seq2[Hash, Hash] {
	return func(yield func(h, parent Hash) bool) {
		if s.Len() == 0 {
			return
		}
		for k, p := range s.pages {
			if old.Len() > 0 && k < len(old.pages) && old.pages[k] == p {
				continue
			}
			for i, h := range p.hashes {
				if h != 0 && !old.Has(h) && !yield(h, p.parents[i]) {
					return
				}
			}
		}
	}
}

func (s *Snapshot) slots() uint { return uint(len(s.pages)) * pageSlots }

// home is the slot where h stands unless others were there before.
func (s *Snapshot) home(h Hash) uint {
	i, _ := bits.Mul64(uint64(h)*s.mul, uint64(s.slots()))
	return uint(i)
}

func (s *Snapshot) after(i uint) uint {
	if i++; i < s.slots() {
		return i
	}
	return 0
}

func (s *Snapshot) hash(i uint) Hash   { return s.pages[i/pageSlots].hashes[i%pageSlots] }
func (s *Snapshot) parent(i uint) Hash { return s.pages[i/pageSlots].parents[i%pageSlots] }

// find returns the slot of h, or the empty one that it would take. There is one:
// a table is never full.
func (s *Snapshot) find(h Hash) (slot uint, held bool) {
	i := s.home(h)
	for {
		if v := s.pages[i/pageSlots].hashes[i%pageSlots]; v == h || v == 0 {
			return i, v != 0
		}
		i = s.after(i)
	}
}

// A draft is a snapshot in the making. The pages that it shares with the last one
// taken are copied before they change.
type draft struct {
	Snapshot
	shared []*page
}

// take returns what the draft holds now. The draft may change on.
func (d *draft) take() *Snapshot {
	d.shared = slices.Clone(d.pages)
	s := d.Snapshot
	s.pages = d.shared
	return &s
}

// put adds a block and reports whether it was not held. A table is at most two
// thirds full, and a third once it had to grow.
func (d *draft) put(h, parent Hash) bool {
	if 3*uint(d.n) >= 2*d.slots() {
		mul := d.mul
		for h := range d.All() {
			mul = bits.RotateLeft64(mul^uint64(h), 29) * 0x9e3779b97f4a7c15
		}
		d.resize(2*d.n+1, mul)
	}
	i, held := d.find(h)
	if !held {
		d.set(i, h, parent)
		d.n++
		d.digest = d.digest.With(h)
	}
	return !held
}

// drop removes a block that is held. What stands behind it moves up, so that no
// empty slot parts a block from its home.
func (d *draft) drop(h Hash) {
	hole, _ := d.find(h)
	for i := d.after(hole); d.hash(i) != 0; i = d.after(i) {
		if d.way(d.home(d.hash(i)), i) >= d.way(hole, i) {
			d.set(hole, d.hash(i), d.parent(i))
			hole = i
		}
	}
	d.set(hole, 0, 0)
	d.n--
	d.digest = d.digest.Without(h)
}

// way is how many slots lie from one to another, around the end.
func (d *draft) way(from, to uint) uint {
	if to < from {
		to += d.slots()
	}
	return to - from
}

func (d *draft) set(i uint, h, parent Hash) {
	k := i / pageSlots
	if k < uint(len(d.shared)) && d.shared[k] == d.pages[k] {
		own := *d.pages[k]
		d.pages[k] = &own
	}
	d.pages[k].hashes[i%pageSlots], d.pages[k].parents[i%pageSlots] = h, parent
}

// resize makes a table for so many blocks. Its multiplier is to be drawn from what
// it will hold, so that hashes made to collide cannot make it slow.
func (d *draft) resize(blocks int, mul uint64) {
	old := d.Snapshot
	pages := make([]page, 3*blocks/2/pageSlots+1)
	*d = draft{Snapshot: Snapshot{pages: make([]*page, len(pages)), mul: mul | 1}}
	for k := range pages {
		d.pages[k] = &pages[k]
	}
	for h, parent := range old.All() {
		d.put(h, parent)
	}
}
