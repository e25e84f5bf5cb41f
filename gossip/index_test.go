package gossip

import (
	"slices"
	"testing"

	"github.com/hearsay-project/hearsay/prefix"
	"pgregory.net/rapid"
)

// chain names a text with one letter for each block. Names that share their upper
// bits share a shard.
func chain(letters string) (c prefix.Chain) {
	h := prefix.Hash(7)
	for _, l := range letters {
		h = (h*31 + prefix.Hash(l)) & (1<<58 - 1)
		c = append(c, h)
	}
	return c
}

// Whatever peers take and let go, the index knows who holds what, and finds in one
// go the match of each; and when all have gone nothing is left of them.
func TestIndexIsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, held := newIndex(), map[int]map[prefix.Hash]bool{}
		ids := rapid.SampledFrom([]int{0, 1, 2, 63, 64, 200})
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 9, -1)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				if held[id] == nil {
					held[id] = map[prefix.Hash]bool{}
				}
				for _, h := range chain(text.Draw(t, "text")) {
					if x.put(h, id) == held[id][h] {
						t.Fatalf("%d took %x, held before: %v", id, h, held[id][h])
					}
					held[id][h] = true
				}
			},
			"drop": func(t *rapid.T) { // a leaf, and what is above it and not shared
				id, c := ids.Draw(t, "id"), chain(text.Draw(t, "text"))
				for i := len(c) - 1; i >= 0; i-- {
					below := slices.ContainsFunc([]rune("ab"), func(l rune) bool {
						return held[id][(c[i]*31+prefix.Hash(l))&(1<<58-1)]
					})
					if below {
						break
					}
					if x.drop(c[i], id) != held[id][c[i]] {
						t.Fatalf("%d let go of %x, held before: %v", id, c[i], held[id][c[i]])
					}
					delete(held[id], c[i])
				}
			},
			"clear": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				x.clear(id)
				clear(held[id])
			},
			"tidy": func(*rapid.T) {
				for range 2 * indexShards {
					x.tidy()
				}
				if 4*x.owners.dead > x.blocks {
					t.Fatalf("%d of %d blocks are dead", x.owners.dead, x.blocks)
				}
			},
			"": func(t *rapid.T) {
				c, depths := chain(text.Draw(t, "text")), make([]int32, 201)
				x.matches(c, depths)
				for _, id := range []int{0, 1, 2, 63, 64, 200} {
					if want := c.Longest(func(h prefix.Hash) bool { return held[id][h] }); depths[id] != int32(want) {
						t.Fatalf("%d matches %d, want %d", id, depths[id], want)
					}
					if h := c[len(c)-1]; x.has(h, id) != held[id][h] {
						t.Fatalf("%d has %x: %v", id, h, x.has(h, id))
					}
				}
				checkRegister(t, x)
			},
		})
		mustEmpty(t, x, held)
	})
}

// mustEmpty lets all blocks go, after which no set is left.
func mustEmpty(t *rapid.T, x *index, held map[int]map[prefix.Hash]bool) {
	for id, blocks := range held {
		for h := range blocks {
			x.drop(h, id)
		}
	}
	for i := range x.shards {
		x.rebuild(&x.shards[i])
	}
	if x.blocks != 0 || x.owners.dead != 0 || len(x.owners.known) != 0 || len(x.owners.free) != len(x.owners.about)-1 {
		t.Fatalf("left: %d blocks, %d dead, %d sets known, %d of %d free", x.blocks, x.owners.dead, len(x.owners.known), len(x.owners.free), len(x.owners.about)-1)
	}
}

// checkRegister counts the blocks of each set again.
func checkRegister(t *rapid.T, x *index) {
	blocks, dead, uses := 0, 0, map[owners]int32{}
	for i := range x.shards {
		for k, h := range x.shards[i].names {
			if h != 0 {
				o := x.shards[i].owners[k]
				blocks++
				uses[o]++
				if x.owners.about[o].size == 0 {
					dead++
				}
			}
		}
	}
	if blocks != x.blocks || dead != x.owners.dead {
		t.Fatalf("%d blocks and %d dead, counted as %d and %d", blocks, dead, x.blocks, x.owners.dead)
	}
	for s, a := range x.owners.about {
		if s > 0 && a.blocks != uses[owners(s)] {
			t.Fatalf("set %d has %d blocks, counted as %d", s, uses[owners(s)], a.blocks)
		}
	}
}

// A wide cluster keeps few sets: a block costs no more for it.
func TestSetsAreShared(t *testing.T) {
	x := newIndex()
	for id := range 1000 {
		for i := range prefix.Hash(1000) {
			x.put(i*0x9e3779b97f4a7c15+1, id)
		}
	}
	if live := len(x.owners.known); x.blocks != 1000 || live != 1 {
		t.Errorf("%d blocks and %d sets", x.blocks, live)
	}
}
