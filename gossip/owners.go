package gossip

import "math/bits"

// owners names a set of peers; 0 is the empty set.
type owners uint32

// A register holds each set of peers that some block has, once, however many blocks
// have it: peers share prefixes by whole conversations, so there are far fewer sets
// than blocks. A peer goes by a small number, its id; a set is a bit for each id.
type register struct {
	width int      // words of a set
	words []uint64 // of set s: words[s*width:][:width]
	about []about
	free  []owners          // sets out of use
	known map[uint64]owners // by key
	dead  int               // blocks whose set has lost its last peer by clear
}

type about struct {
	key    uint64 // the sum of what stands for each id
	size   int32  // peers
	blocks int32  // that have the set
}

func newRegister() register {
	return register{width: 1, words: make([]uint64, 1), about: make([]about, 1), known: map[uint64]owners{}}
}

func (r *register) set(s owners) []uint64 { return r.words[int(s)*r.width:][:r.width] }

func (r *register) has(s owners, id int) bool {
	return r.words[int(s)*r.width+id/64]>>(id%64)&1 != 0
}

// keyOf stands for an id in the key of a set (splitmix64; Steele, Lea and Flood).
func keyOf(id int) uint64 {
	x := (uint64(id) + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// flip moves one block from set s to that with id, where s lacks it, or without it,
// where s has it, and returns that set.
func (r *register) flip(s owners, id int) owners {
	key, size := r.about[s].key, r.about[s].size
	if r.has(s, id) {
		key, size = key-keyOf(id), size-1
	} else {
		key, size = key+keyOf(id), size+1
	}
	to := owners(0)
	if size > 0 {
		var ok bool
		if to, ok = r.known[key]; !ok || !r.differ(s, to, id) {
			to = r.add(s, id, about{key: key, size: size})
		}
		r.about[to].blocks++
	}
	if s != 0 {
		r.release(s)
	}
	return to
}

// differ reports whether a and b differ in id and in nothing else.
func (r *register) differ(a, b owners, id int) bool {
	for i, w := range r.set(a) {
		if i == id/64 {
			w ^= 1 << (id % 64)
		}
		if w != r.set(b)[i] {
			return false
		}
	}
	return true
}

// add makes the set that differs from s in id.
func (r *register) add(s owners, id int, a about) owners {
	to := owners(len(r.about))
	if n := len(r.free); n > 0 {
		to, r.free = r.free[n-1], r.free[:n-1]
		r.about[to] = a
	} else {
		r.about = append(r.about, a)
		r.words = append(r.words, make([]uint64, r.width)...)
	}
	copy(r.set(to), r.set(s))
	r.words[int(to)*r.width+id/64] ^= 1 << (id % 64)
	r.known[a.key] = to
	return to
}

// release tells that one block has set s no more.
func (r *register) release(s owners) {
	a := &r.about[s]
	a.blocks--
	if a.size == 0 {
		r.dead--
	}
	if a.blocks == 0 {
		r.forgetKey(s)
		r.free = append(r.free, s)
	}
}

func (r *register) forgetKey(s owners) {
	if key := r.about[s].key; r.known[key] == s {
		delete(r.known, key)
	}
}

// clear takes id out of all sets, in time that depends on their number and not on
// that of the blocks. Two sets may become equal by it; each goes on until the last
// of its blocks has another. An empty one is a set of the dead.
func (r *register) clear(id int) {
	if id/64 >= r.width {
		return
	}
	for s := 1; s < len(r.about); s++ {
		a := &r.about[s]
		if a.blocks == 0 || !r.has(owners(s), id) {
			continue
		}
		r.forgetKey(owners(s))
		r.words[s*r.width+id/64] &^= 1 << (id % 64)
		a.key -= keyOf(id)
		if a.size--; a.size == 0 {
			r.dead += int(a.blocks)
		} else if _, taken := r.known[a.key]; !taken {
			r.known[a.key] = owners(s)
		}
	}
}

// widen makes room for an id in every set.
func (r *register) widen(id int) {
	if id/64 < r.width {
		return
	}
	width := max(id/64+1, 2*r.width)
	words := make([]uint64, width*len(r.about))
	for s := range r.about {
		copy(words[s*width:], r.set(owners(s)))
	}
	r.width, r.words = width, words
}

// without yields the ids that a has and b lacks.
func (r *register) without(a, b owners, yield func(id int)) {
	for i, w := range r.set(a) {
		for w &^= r.set(b)[i]; w != 0; w &= w - 1 {
			yield(64*i + bits.TrailingZeros64(w))
		}
	}
}
