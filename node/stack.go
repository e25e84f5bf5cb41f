package node

import (
	"math"
	"slices"

	"github.com/hearsay-project/hearsay/prefix"
)

// A stack holds blocks in the order of their last use and tells the reuse distance
// of each: the tokens of all that were used since, its own included.
//
// Of many blocks it keeps those whose names fall below a threshold, which goes down
// as there are more, and counts each for as many as were left out (SHARDS,
// Waldspurger et al., FAST 2015). So it costs no more than sampledMax blocks, some
// 300 KiB, and of a cache of a thousand blocks or less it keeps every one.
type stack struct {
	reach     float64 // most tokens it goes back where no capacity is known
	threshold uint64  // blocks with a scattered name above it are left out
	index     map[prefix.Hash]int
	slots     []slot  // by last use, with gaps where a block was used again
	sums      []int64 // Fenwick tree over the units of slots
	oldest    int     // no slot before it is taken
	units     int64
}

type slot struct {
	hash  prefix.Hash
	units int64 // 0: free
}

const (
	sampledMax = 4096
	stackUnits = 1 << 10 // to a token
)

func newStack(maxBlocks int) stack {
	s := stack{reach: float64(stackReach * maxBlocks * prefix.BlockBytes / defaultBytesPerToken)}
	s.clear()
	return s
}

func (s *stack) clear() {
	s.threshold, s.index = math.MaxUint64, map[prefix.Hash]int{}
	s.slots, s.sums, s.oldest, s.units = nil, nil, 0, 0
}

// scatter spreads names evenly that are not (the finalizer of SplitMix64).
func scatter(h prefix.Hash) uint64 {
	x := uint64(h)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// scaled gives units of what is kept as tokens of all.
func (s *stack) scaled(units int64) float64 {
	return float64(units) / stackUnits / (float64(s.threshold) / math.MaxUint64)
}

// tokens is how far it goes back.
func (s *stack) tokens() float64 { return s.scaled(s.units) }

func (s *stack) distance(h prefix.Hash) (tokens float64, known bool) {
	i, known := s.index[h]
	if !known {
		return 0, false
	}
	return s.scaled(s.units - s.before(i)), true
}

// newest is the least distance of a block of c: of the first that is kept.
func (s *stack) newest(c prefix.Chain) (tokens float64, known bool) {
	for _, h := range c {
		if tokens, known = s.distance(h); known {
			return tokens, true
		}
	}
	return 0, false
}

// touch makes c, which has so many tokens, the most recent, its head before its
// tail as an engine does: the tail is to go first. What is farther back than limit,
// if that is not 0, is forgotten.
func (s *stack) touch(c prefix.Chain, tokens int, limit int) {
	if len(c) == 0 || tokens <= 0 {
		return
	}
	if s.sums == nil {
		s.sums = make([]int64, 2*sampledMax+1)
	}
	units := max(int64(tokens)*stackUnits/int64(len(c)), 1)
	for _, h := range slices.Backward(c) {
		if len(s.slots) == 2*sampledMax {
			s.compact()
		}
		if scatter(h) > s.threshold {
			continue
		}
		s.remove(h)
		s.index[h] = len(s.slots)
		s.slots = append(s.slots, slot{h, units})
		s.add(len(s.slots)-1, units)
	}
	far := s.reach
	if limit > 0 {
		far = float64(limit)
	}
	for s.tokens() > far && len(s.index) > 1 {
		s.dropOldest()
	}
	for len(s.index) > sampledMax {
		s.thin()
	}
}

func (s *stack) remove(h prefix.Hash) {
	if i, known := s.index[h]; known {
		s.add(i, -s.slots[i].units)
		s.slots[i] = slot{}
		delete(s.index, h)
	}
}

func (s *stack) dropOldest() {
	for s.slots[s.oldest].units == 0 {
		s.oldest++
	}
	s.remove(s.slots[s.oldest].hash)
}

// thin leaves out every second block, by name.
func (s *stack) thin() {
	s.threshold /= 2
	for _, at := range s.slots[s.oldest:] {
		if at.units > 0 && scatter(at.hash) > s.threshold {
			s.remove(at.hash)
		}
	}
}

// compact closes the gaps. It is due once in sampledMax uses or more, since that
// many slots are free then, but for a chain as long as the whole stack.
func (s *stack) compact() {
	if len(s.index) >= sampledMax {
		s.thin()
	}
	taken := s.slots[:0]
	for _, at := range s.slots {
		if at.units > 0 {
			s.index[at.hash] = len(taken)
			taken = append(taken, at)
		}
	}
	s.slots, s.oldest, s.units = taken, 0, 0
	clear(s.sums)
	for i, at := range taken {
		s.add(i, at.units)
	}
}

// add changes the units of slot i, and before sums those of the slots before it.
func (s *stack) add(i int, units int64) {
	s.units += units
	for i++; i < len(s.sums); i += i & -i {
		s.sums[i] += units
	}
}

func (s *stack) before(i int) (units int64) {
	for ; i > 0; i -= i & -i {
		units += s.sums[i]
	}
	return units
}
