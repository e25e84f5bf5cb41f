package gossip

import (
	"math/bits"

	"github.com/hearsay-project/hearsay/prefix"
)

// An index tells which peers hold a block: the sets of all peers, merged. Since each
// peer's set is prefix-closed, the peers that hold the first d blocks of a chain get
// fewer as d grows, and where they do is found by halving: matching a chain costs
// look-ups in the number of different matches, not in that of peers.
//
// It is a hash table of names and the sets of their owners, 12 bytes a slot, cut
// into shards by the names' upper bits so that none takes long to grow.
type index struct {
	owners register
	shards [indexShards]shard
	blocks int // the dead included
	turn   int // the next shard to be rid of the dead
}

const indexShards = 256

// A shard is a table with open addressing and linear probing.
type shard struct {
	names  []prefix.Hash // 0: the slot is empty
	owners []owners
	n      int
	mul    uint64 // spreads the names
}

func newIndex() *index { return &index{owners: newRegister()} }

func (x *index) shard(h prefix.Hash) *shard { return &x.shards[h>>56] }

// at returns who holds h.
func (x *index) at(h prefix.Hash) owners {
	s := x.shard(h)
	if s.n == 0 {
		return 0
	}
	i := s.find(h)
	o := s.owners[i]
	if s.names[i] == 0 || x.owners.about[o].size == 0 {
		return 0
	}
	return o
}

// has reports whether the peer with that id holds h.
func (x *index) has(h prefix.Hash, id int) bool {
	return id/64 < x.owners.width && x.owners.has(x.at(h), id)
}

// put records that the peer with that id holds h, and reports whether it did not.
func (x *index) put(h prefix.Hash, id int) bool {
	s := x.shard(h)
	if 4*s.n >= 3*len(s.names) {
		x.rebuild(s)
	}
	i := s.find(h)
	x.owners.widen(id)
	if s.names[i] == 0 {
		s.names[i], s.owners[i] = h, 0
		s.n++
		x.blocks++
	} else if x.owners.has(s.owners[i], id) {
		return false
	}
	s.owners[i] = x.owners.flip(s.owners[i], id)
	return true
}

// drop records that the peer with that id does not hold h, and reports whether it did.
func (x *index) drop(h prefix.Hash, id int) bool {
	if !x.has(h, id) {
		return false
	}
	s := x.shard(h)
	i := s.find(h)
	if s.owners[i] = x.owners.flip(s.owners[i], id); s.owners[i] == 0 {
		s.remove(i)
		x.blocks--
	}
	return true
}

// clear records that the peer with that id holds nothing. What nobody holds any more
// is dead, and leaves the table as shards are rebuilt: when they grow, or in tidy.
func (x *index) clear(id int) { x.owners.clear(id) }

// tidy rids one shard of its dead when they are many.
func (x *index) tidy() {
	if 4*x.owners.dead > x.blocks {
		x.rebuild(&x.shards[x.turn])
		x.turn = (x.turn + 1) % indexShards
	}
}

// rebuild leaves the dead out and makes room for half as many blocks again. The
// multiplier is drawn from what the shard holds, so that names made to collide
// cannot make it slow.
func (x *index) rebuild(s *shard) {
	live, mul := 0, s.mul
	for i, h := range s.names {
		if h != 0 && x.owners.about[s.owners[i]].size > 0 {
			live++
			mul = bits.RotateLeft64(mul^uint64(h), 29) * 0x9e3779b97f4a7c15
		}
	}
	old := *s
	size := max(8, 2*live+1)
	*s = shard{names: make([]prefix.Hash, size), owners: make([]owners, size), n: live, mul: mul | 1}
	for i, h := range old.names {
		if h == 0 {
			continue
		}
		o := old.owners[i]
		if x.owners.about[o].size == 0 {
			x.owners.release(o)
			continue
		}
		j := s.find(h)
		s.names[j], s.owners[j] = h, o
	}
	x.blocks -= old.n - live
}

// matches sets depths, one for each id, to how many leading blocks of c the peer
// holds. It allocates nothing.
func (x *index) matches(c prefix.Chain, depths []int32) {
	clear(depths)
	if len(c) == 0 {
		return
	}
	if first := x.at(c[0]); first != 0 {
		x.split(c, 0, len(c), first, 0, depths)
	}
}

// split finds where between blocks lo and hi, whose owners differ, peers drop out.
func (x *index) split(c prefix.Chain, lo, hi int, atLo, atHi owners, depths []int32) {
	for hi-lo > 1 {
		mid := int(uint(lo+hi) / 2)
		at := x.at(c[mid])
		if at != atHi && at != atLo {
			x.split(c, lo, mid, atLo, at, depths)
		}
		if at != atHi {
			lo, atLo = mid, at
		} else {
			hi, atHi = mid, at
		}
	}
	x.owners.without(atLo, atHi, func(id int) { depths[id] = int32(hi) })
}

// home is the slot where h stands unless others were there before.
func (s *shard) home(h prefix.Hash) int {
	i, _ := bits.Mul64(uint64(h)*s.mul, uint64(len(s.names)))
	return int(i)
}

func (s *shard) after(i int) int {
	if i++; i < len(s.names) {
		return i
	}
	return 0
}

// find returns the slot of h, or the empty one that it would take. There is one: a
// shard is never full.
func (s *shard) find(h prefix.Hash) int {
	i := s.home(h)
	for s.names[i] != h && s.names[i] != 0 {
		i = s.after(i)
	}
	return i
}

// remove empties a slot. What stands behind it moves up, so that no empty slot parts
// a name from its home.
func (s *shard) remove(hole int) {
	for i := s.after(hole); s.names[i] != 0; i = s.after(i) {
		if s.way(s.home(s.names[i]), i) >= s.way(hole, i) {
			s.names[hole], s.owners[hole] = s.names[i], s.owners[i]
			hole = i
		}
	}
	s.names[hole], s.owners[hole] = 0, 0
	s.n--
}

// way is how many slots lie from one to another, around the end.
func (s *shard) way(from, to int) int {
	if to < from {
		to += len(s.names)
	}
	return to - from
}
