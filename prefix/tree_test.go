package prefix

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// chainOf names a text with one letter for each block.
func chainOf(letters string) Chain {
	var text []byte
	for _, l := range []byte(letters) {
		text = append(text, bytes.Repeat([]byte{l}, BlockBytes)...)
	}
	return NewChain(1, text)
}

// A naiveTree holds prefixes as strings, one letter a block, and finds what to
// evict by looking at everything.
type naiveTree struct {
	maxTokens, maxBlocks int
	held                 map[string]*naiveBlock
	clock                int
}

type naiveBlock struct {
	units, touched int
}

func (n *naiveTree) match(s string) int {
	for i := range len(s) {
		if n.held[s[:i+1]] == nil {
			return i
		}
	}
	return len(s)
}

func (n *naiveTree) units() (sum int) {
	for _, b := range n.held {
		sum += b.units
	}
	return sum
}

func (n *naiveTree) isLeaf(s string) bool {
	for other := range n.held {
		if len(other) == len(s)+1 && strings.HasPrefix(other, s) {
			return false
		}
	}
	return true
}

func (n *naiveTree) insert(s string, tokens int) (evicted int) {
	for i := range len(s) {
		if n.held[s[:i+1]] == nil {
			n.held[s[:i+1]] = &naiveBlock{}
		}
		share := tokens * unitsPerToken / len(s)
		if i < tokens*unitsPerToken%len(s) {
			share++
		}
		n.held[s[:i+1]].units = share
	}
	for i := len(s); i > 0; i-- {
		n.clock++
		n.held[s[:i]].touched = n.clock
	}
	return n.evict()
}

func (n *naiveTree) evict() (evicted int) {
	for len(n.held) > n.maxBlocks || n.units() > n.maxTokens*unitsPerToken {
		oldest := ""
		for s, b := range n.held {
			if n.isLeaf(s) && (oldest == "" || b.touched < n.held[oldest].touched) {
				oldest = s
			}
		}
		delete(n.held, oldest)
		evicted++
	}
	return evicted
}

func (n *naiveTree) prune(s string, keep int) (removed int) {
	for other := range n.held {
		if keep < len(s) && strings.HasPrefix(other, s[:keep+1]) {
			delete(n.held, other)
			removed++
		}
	}
	return removed
}

// check compares tree and model, and what the tree promises of itself.
func check(t *rapid.T, tree *Tree, model *naiveTree) {
	want := map[Hash]int{} // to when it was last touched
	for s, b := range model.held {
		want[chainOf(s)[len(s)-1]] = b.touched
		if parent := s[:len(s)-1]; parent != "" && model.held[parent] == nil {
			t.Fatalf("model is not prefix-closed at %s", s)
		}
	}
	var byAge []Hash
	for i := tree.blocks[0].older; i != 0; i = tree.blocks[i].older {
		byAge = append(byAge, tree.blocks[i].hash)
	}
	newestFirst := slices.SortedFunc(maps.Keys(want), func(a, b Hash) int { return want[b] - want[a] })
	if !slices.Equal(byAge, newestFirst) {
		t.Fatalf("by age the tree holds %x, want %x", byAge, newestFirst)
	}
	for i := tree.blocks[0].older; i != 0; i = tree.blocks[i].older {
		if p := tree.blocks[i].parent; p != 0 && want[tree.blocks[p].hash] < want[tree.blocks[i].hash] {
			t.Fatalf("block %x is more recent than its parent", tree.blocks[i].hash)
		}
	}
	if units := model.units(); tree.Len() != len(want) || tree.Tokens() != (units+unitsPerToken-1)/unitsPerToken {
		t.Fatalf("tree holds %d blocks and %d tokens, want %d and %d units", tree.Len(), tree.Tokens(), len(want), units)
	}
	if tree.Len() > model.maxBlocks || tree.Tokens() > model.maxTokens {
		t.Fatalf("tree holds %d blocks and %d tokens, beyond its limits", tree.Len(), tree.Tokens())
	}
	snapshot := tree.Snapshot()
	if snapshot != tree.Snapshot() {
		t.Fatal("an unchanged tree has two snapshots")
	}
	if got := slices.Sorted(maps.Keys(maps.Collect(snapshot.All()))); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
		t.Fatalf("the snapshot holds %x, want %x", got, want)
	}
}

// Under any calls the tree holds what a naive one would, in the same order of
// age, prefix-closed, within its limits, with parents more recent than children.
func TestTreeIsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.IntRange(0, 40)
		model := &naiveTree{maxTokens: 10 * limits.Draw(t, "max tokens"), maxBlocks: limits.Draw(t, "max blocks"), held: map[string]*naiveBlock{}}
		tree := NewTree(model.maxTokens, model.maxBlocks)
		text := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 12, -1)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				s, tokens := text.Draw(t, "text"), rapid.IntRange(0, 200).Draw(t, "tokens")
				if got, want := tree.Insert(chainOf(s), tokens), insertClipped(model, s, tokens); got != want {
					t.Fatalf("insert of %s evicted %d, want %d", s, got, want)
				}
			},
			"prune": func(t *rapid.T) {
				s, keep := text.Draw(t, "text"), rapid.IntRange(0, 12).Draw(t, "keep")
				if got, want := tree.Prune(chainOf(s), keep), model.prune(s, keep); got != want {
					t.Fatalf("prune of %s at %d removed %d, want %d", s, keep, got, want)
				}
			},
			"limit": func(t *rapid.T) {
				model.maxTokens = 10 * limits.Draw(t, "max tokens")
				if got, want := tree.SetMaxTokens(model.maxTokens), model.evict(); got != want {
					t.Fatalf("a limit of %d evicted %d, want %d", model.maxTokens, got, want)
				}
			},
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					tree.Clear()
					clear(model.held)
				}
			},
			"match": func(t *rapid.T) {
				s := text.Draw(t, "text")
				c, want := chainOf(s), model.match(s)
				if tree.Match(c) != want || tree.Snapshot().Match(c) != want {
					t.Fatalf("%s matches %d in the tree, %d in its snapshot, want %d", s, tree.Match(c), tree.Snapshot().Match(c), want)
				}
			},
			"": func(t *rapid.T) { check(t, tree, model) },
		})
	})
}

// Told to those with little room, a tree is its most recently used part, reached by
// no more changes at a time than may be told: always a part of it, and prefix-closed.
func TestATreeIsToldInPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree, parents := NewTree(1<<20, rapid.IntRange(1, 60).Draw(t, "max blocks")), map[Hash]Hash{}
		most := rapid.IntRange(0, 60).Draw(t, "most")
		var last *Snapshot
		tell := func(t *rapid.T, changes int) {
			s, _ := tree.Tell(most, changes)
			come := 0
			for h, parent := range s.All() {
				if !tree.Has(h) || parent != parents[h] || parent != 0 && !s.Has(parent) {
					t.Fatalf("%x is told under %x; held: %v", h, parent, tree.Has(h))
				}
			}
			for range s.Since(last) {
				come++
			}
			if s.Len() > most || come > changes || tree.Untold() != tree.Len()-s.Len() {
				t.Fatalf("%d of %d blocks are told, of %d at most; %d came, of %d", s.Len(), tree.Len(), most, come, changes)
			}
			last = s
		}
		text := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 20, -1)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				c := chainOf(text.Draw(t, "text"))
				for i, h := range c {
					parents[h] = append(Chain{0}, c...)[i]
				}
				tree.Insert(c, 10*len(c))
			},
			"prune": func(t *rapid.T) { tree.Prune(chainOf(text.Draw(t, "text")), 2) },
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					tree.Clear()
				}
			},
			"tell": func(t *rapid.T) { tell(t, rapid.IntRange(0, 20).Draw(t, "changes")) },
		})
		for range 60 {
			tell(t, 3)
		}
		for i, place := tree.blocks[0].older, 0; i != 0; i, place = tree.blocks[i].older, place+1 {
			if last.Has(tree.blocks[i].hash) != (place < most) {
				t.Fatalf("block %d by age is told: %v; of %d at most", place, place >= most, most)
			}
		}
	})
}

// insertClipped inserts into the model, where blocks beyond maxBlocks come and go
// at once, and returns how many of the others were evicted.
func insertClipped(model *naiveTree, s string, tokens int) int {
	beyond := 0
	for i := range len(s) {
		if i >= model.maxBlocks && model.held[s[:i+1]] == nil {
			beyond++
		}
	}
	return model.insert(s, tokens) - beyond
}

// Adding and removing a third of a token many times leaves nothing behind.
func TestTokensDoNotDrift(t *testing.T) {
	tree := NewTree(1000, 1000)
	kept, passing := chainOf("aab"), chainOf("abc")
	tree.Insert(kept, 1)
	for range 100_000 {
		tree.Insert(passing, 1)
		tree.Prune(passing, 1)
	}
	tree.Prune(kept, 0)
	if tree.Tokens() != 0 || tree.Len() != 0 {
		t.Errorf("an empty tree holds %d tokens in %d blocks", tree.Tokens(), tree.Len())
	}
}

// Two texts with one name, which chance does not give but a client may construct,
// leave the tree sound: the elder keeps the name.
func TestOneNameForTwoPrefixes(t *testing.T) {
	tree := NewTree(1000, 1000)
	tree.Insert(Chain{1, 2, 3}, 30)
	tree.Insert(Chain{4, 5, 3, 6}, 40)
	tree.Insert(Chain{7, 7, 8}, 30)
	if got := slices.Sorted(maps.Keys(maps.Collect(tree.Snapshot().All()))); !slices.Equal(got, []Hash{1, 2, 3, 4, 5, 7}) {
		t.Errorf("tree holds %v", got)
	}
	for tree.Len() > 0 {
		before := tree.Len()
		tree.SetMaxTokens(tree.Tokens() - 1)
		if tree.Len() >= before {
			t.Fatal("nothing was evicted")
		}
	}
}

// bigTree holds n blocks: conversations of 100 blocks that share their first ten.
func bigTree(n int) (*Tree, []Chain) {
	tree, chains := NewTree(1<<30, n), []Chain(nil)
	text := make([]byte, 100*BlockBytes)
	for i := 0; tree.Len() < n; i++ {
		copy(text[10*BlockBytes:], fmt.Sprintf("%08d", i))
		chains = append(chains, NewChain(1, text))
		tree.Insert(chains[i], 1600)
	}
	return tree, chains
}

func BenchmarkTreeMatch100(b *testing.B) {
	tree, chains := bigTree(100_000)
	for i := 0; b.Loop(); i++ {
		tree.Match(chains[i%len(chains)])
	}
}

// One operation inserts a conversation of 100 blocks, 90 of them new, and evicts 90.
func BenchmarkTreeInsert100(b *testing.B) {
	tree, _ := bigTree(100_000)
	text := make([]byte, 100*BlockBytes)
	for i := 0; b.Loop(); i++ {
		copy(text[10*BlockBytes:], fmt.Sprintf("x%08d", i))
		tree.Insert(NewChain(1, text), 1600)
	}
}

func BenchmarkTreeTouch100(b *testing.B) {
	tree, chains := bigTree(100_000)
	for i := 0; b.Loop(); i++ {
		tree.Insert(chains[i%len(chains)], 1600)
	}
}
