package kvevents

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hearsay-project/hearsay/prefix"
)

// stored is an event that stores blocks of two tokens: ids, after parent if not 0.
func stored(parent uint64, ids []uint64, tokens ...uint32) Event {
	return Event{Kind: Stored, Counts: true, Hashes: ids, Parent: parent, HasParent: parent != 0, Tokens: tokens, BlockSize: 2}
}

func removed(ids ...uint64) Event { return Event{Kind: Removed, Counts: true, Hashes: ids} }

// match is how many of the leading blocks of these tokens are cached.
func match(c *Cache, s Space, tokens ...uint32) int { return c.Match(c.Names(s, tokens)) }

// What is cached of a prompt is found by its tokens, from any parent down.
func TestCacheFollowsEvents(t *testing.T) {
	var gone []prefix.Hash
	c := NewCache(func(names []prefix.Hash) { gone = append(gone, names...) })
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7}
	if got := len(c.Names(Space{}, make([]uint32, 40))); got != 2 {
		t.Errorf("40 tokens are %d blocks before any was stored, want 2", got)
	}
	c.Apply(0, []Event{stored(0, []uint64{10, 11}, 1, 2, 3, 4)})
	c.Apply(0, []Event{stored(11, []uint64{12}, 5, 6), stored(99, []uint64{13}, 5, 6)})
	for _, tc := range []struct {
		space  Space
		tokens []uint32
		want   int
	}{
		{Space{}, prompt, 3},
		{Space{}, []uint32{1, 2, 3, 4, 5}, 2},
		{Space{}, []uint32{1, 2, 9, 4, 5, 6}, 1},
		{Space{}, []uint32{3, 4}, 0},
		{Space{Adapter: "a"}, prompt, 0},
		{Space{Salt: "a"}, prompt, 0},
	} {
		if got := match(c, tc.space, tc.tokens...); got != tc.want {
			t.Errorf("%v in %v: %d blocks, want %d", tc.tokens, tc.space, got, tc.want)
		}
	}
	names := c.Names(Space{}, prompt)
	c.Apply(0, []Event{removed(11, 77)})
	if got := match(c, Space{}, prompt...); got != 1 || !slices.Equal(gone, names[1:2]) {
		t.Errorf("after a removal %d blocks, %v gone, want 1, %v", got, gone, names[1:2])
	}
	c.Apply(0, []Event{stored(10, []uint64{20}, 3, 4)}) // under another name
	if got := match(c, Space{}, prompt...); got != 3 {
		t.Errorf("after it was stored again %d blocks, want 3", got)
	}
	c.Apply(0, []Event{removed(12)})
	c.Apply(0, []Event{stored(20, []uint64{12}, 5, 6)})
	if s := c.Stats(); s.Blocks != 3 || s.Most != 3 || s.Stored != 5 || s.Removed != 2 || s.Orphans != 1 {
		t.Errorf("%+v", s)
	}
	c.Apply(0, []Event{{Kind: Cleared, Counts: true}})
	if s := c.Stats(); s.Blocks != 0 || s.Most != 0 || len(gone) != 5 {
		t.Errorf("%+v and %d gone when all was cleared", s, len(gone))
	}
}

// An adapter, a salt and a picture each make another block of equal tokens, for
// what follows it too.
func TestEqualTokensOfAnotherSpaceDiffer(t *testing.T) {
	c := NewCache(nil)
	events := []Event{stored(0, []uint64{1}, 1, 2), stored(0, []uint64{2}, 1, 2), stored(0, []uint64{3, 4}, 5, 6, 7, 8)}
	events[0].Adapter, events[1].Salt, events[2].Extra = "sql", "tenant", []uint64{7, 0}
	c.Apply(0, events)
	for _, tc := range []struct {
		space Space
		first uint32
		want  int
	}{{Space{}, 1, 0}, {Space{Adapter: "sql"}, 1, 1}, {Space{Salt: "tenant"}, 1, 1}, {Space{Adapter: "sql", Salt: "tenant"}, 1, 0}, {Space{}, 5, 0}} {
		if got := match(c, tc.space, tc.first, tc.first+1, tc.first+2, tc.first+3); got != tc.want {
			t.Errorf("%+v from %d: %d blocks, want %d", tc.space, tc.first, got, tc.want)
		}
	}
}

// vLLM stores equal blocks twice where two requests computed them at once, and tells
// of the end of each.
func TestBlockIsCachedUntilItsLastCopyGoes(t *testing.T) {
	c := NewCache(nil)
	twice := stored(0, []uint64{1}, 1, 2)
	c.Apply(0, []Event{twice, twice, removed(1)})
	if match(c, Space{}, 1, 2) != 1 {
		t.Error("one copy of two went, and the block with it")
	}
	c.Apply(0, []Event{removed(1)})
	if match(c, Space{}, 1, 2) != 0 {
		t.Error("both copies went, but not the block")
	}
}

// Ranks hold caches of their own: a block is cached while one of them holds it.
func TestRanksHoldTheirOwn(t *testing.T) {
	gone := 0
	c := NewCache(func(names []prefix.Hash) { gone += len(names) })
	for rank := range 2 {
		c.Apply(rank, []Event{stored(0, []uint64{1, 2}, 1, 2, 3, 4)})
	}
	c.Apply(0, []Event{removed(1, 2)})
	if match(c, Space{}, 1, 2, 3, 4) != 2 || gone != 0 {
		t.Errorf("rank 0 lets go, and %d blocks are gone that rank 1 holds", gone)
	}
	c.Clear(1)
	if match(c, Space{}, 1, 2, 3, 4) != 0 || gone != 2 {
		t.Errorf("both have let go, and %d blocks are gone, want 2", gone)
	}
}

// Of several groups of layers one is followed, by its stores and by its removals.
func TestOneGroupOfLayersCounts(t *testing.T) {
	c := NewCache(nil)
	window := stored(0, []uint64{1}, 1, 2)
	window.Group, window.Counts = 1, false
	full := stored(0, []uint64{1}, 1, 2)
	gone := removed(1)
	gone.Group = 1
	c.Apply(0, []Event{window, full, gone})
	if match(c, Space{}, 1, 2) != 1 {
		t.Error("a window's removal took the whole prefix's block")
	}
	gone.Group = 0
	c.Apply(0, []Event{gone})
	if match(c, Space{}, 1, 2) != 0 {
		t.Error("the removal of the whole prefix's block is not seen")
	}
}

// Whatever comes, the cache holds what a simple model of it holds, and what it says
// is gone is what was there.
func TestCacheIsWhatAModelSays(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		there := map[prefix.Hash]bool{} // by what the cache says
		c := NewCache(func(names []prefix.Hash) {
			for _, h := range names {
				if !there[h] {
					t.Fatalf("seed %d: a block is gone that was not there", seed)
				}
				delete(there, h)
			}
		})
		model := map[uint64][]uint32{} // the tokens up to each block
		for range 300 {
			id := 1 + rnd.Uint64N(60)
			if _, ok := model[id]; ok {
				delete(model, id)
				c.Apply(0, []Event{removed(id)})
				continue
			}
			parent := rnd.Uint64N(id) // 0 is none
			path, ok := model[parent]
			if !ok && parent != 0 {
				continue
			}
			model[id] = append(slices.Clone(path), uint32(id), 0)
			c.Apply(0, []Event{stored(parent, []uint64{id}, uint32(id), 0)})
			names := c.Names(Space{}, model[id])
			there[names[len(names)-1]] = true
		}
		if s := c.Stats(); s.Blocks != len(model) {
			t.Errorf("seed %d: %d blocks, the engine has %d", seed, s.Blocks, len(model))
		}
		c.Clear(0)
		if len(there) != 0 {
			t.Errorf("seed %d: %d blocks are left of nothing", seed, len(there))
		}
	}
}
