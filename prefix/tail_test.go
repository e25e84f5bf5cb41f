package prefix

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// An agedTree is a tree beside the list of its prefixes, the least recently used
// first, by which its tail is counted anew each time.
type agedTree struct {
	tree *Tree
	held []Hash
	max  int // tokens
}

// tailTokens is what each block of an agedTree has.
const tailTokens = 8

// tail returns the oldest blocks that make a quarter, and no more than that takes.
func (a *agedTree) tail() []Hash { return a.held[:(len(a.held)+3)/4] }

// insert returns how many tokens of c stood in the tail.
func (a *agedTree) insert(c Chain) (revived int) {
	tail := slices.Clone(a.tail())
	for _, h := range slices.Backward(c) {
		if slices.Contains(tail, h) {
			revived += tailTokens
		}
		if i := slices.Index(a.held, h); i >= 0 {
			a.held = slices.Delete(a.held, i, i+1)
		}
		a.held = append(a.held, h)
	}
	a.tree.Insert(c, len(c)*tailTokens)
	a.fit()
	return revived
}

// fit drops what no longer fits; the oldest is always a leaf.
func (a *agedTree) fit() { a.held = a.held[max(0, len(a.held)-a.max/tailTokens):] }

// Whatever is inserted, pruned and evicted, the tail is the least recently used
// quarter, what was found there is told, and so is the room that is left.
func TestTailIsTheOldestQuarter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &agedTree{max: rapid.IntRange(0, 40).Draw(t, "blocks") * tailTokens}
		a.tree = NewTree(a.max, 1000)
		want := 0
		text := rapid.Custom(func(t *rapid.T) Chain {
			return chainOf(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 6, -1).Draw(t, "text"))
		})
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) { want = a.insert(text.Draw(t, "chain")) },
			"nothing": func(*rapid.T) {
				want = 0
				a.tree.Insert(nil, 0)
			},
			"prune": func(t *rapid.T) {
				c := text.Draw(t, "chain")
				keep := rapid.IntRange(0, len(c)-1).Draw(t, "keep")
				a.tree.Prune(c, keep)
				a.held = slices.DeleteFunc(a.held, func(h Hash) bool { return !a.tree.Has(h) })
			},
			"limit": func(t *rapid.T) {
				a.max = rapid.IntRange(0, 40).Draw(t, "blocks") * tailTokens
				a.tree.SetMaxTokens(a.max)
				a.fit()
			},
			"clear": func(*rapid.T) {
				want, a.held = 0, nil
				a.tree.Clear()
			},
			"": func(t *rapid.T) {
				if got := a.tree.Len(); got != len(a.held) {
					t.Fatalf("%d blocks, want %d", got, len(a.held))
				}
				if got := a.tree.TailTokens(); got != len(a.tail())*tailTokens {
					t.Fatalf("a tail of %d tokens, want %d of %d", got, len(a.tail())*tailTokens, len(a.held)*tailTokens)
				}
				if got := a.tree.Revived(); got != want {
					t.Fatalf("%d tokens revived, want %d", got, want)
				}
				if got, want := a.tree.Room(), a.max-len(a.held)*tailTokens; got != want {
					t.Fatalf("room for %d tokens, want %d", got, want)
				}
			},
		})
	})
}

// A tree that is full of blocks has no room, whatever tokens it could take.
func TestRoomEndsWithTheBlocks(t *testing.T) {
	tree := NewTree(1000, 3)
	tree.Insert(chainOf("ab"), 20)
	if got := tree.Room(); got != 980 {
		t.Errorf("room for %d tokens, want 980", got)
	}
	tree.Insert(chainOf("abc"), 30)
	if got := tree.Room(); got != 0 {
		t.Errorf("room for %d tokens in a tree that is full", got)
	}
}

// What a prompt has in common with others ends where the tree first holds something
// else, seen from its end.
func TestBranch(t *testing.T) {
	tree := NewTree(1000, 1000)
	for _, text := range []string{"abcde", "abcxy", "abcz", "abq"} {
		tree.Insert(chainOf(text), 10)
	}
	for _, test := range []struct {
		text          string
		depth, others int
	}{
		{"abcde", 5, 1}, // one that has ended there too
		{"abcd", 4, 1},  // e
		{"abcdf", 4, 1}, // e, though only four are held
		{"abcw", 3, 3},
		{"abc", 3, 3}, // all that goes on from it
		{"abq", 3, 1},
		{"abqr", 2, 1},
		{"ab", 2, 2},
		{"a", 1, 1},
		{"av", 1, 1},
		{"v", 0, 0},
		{"", 0, 0},
	} {
		if depth, others := tree.Branch(chainOf(test.text)); depth != test.depth || others != test.others {
			t.Errorf("%s: %d others after %d, want %d after %d", test.text, others, depth, test.others, test.depth)
		}
	}
	alone := NewTree(1000, 2)
	alone.Insert(chainOf("ab"), 10)
	if depth, others := alone.Branch(chainOf("abc")); depth != 0 || others != 0 {
		t.Errorf("alone: %d others after %d", others, depth)
	}
	alone.Insert(chainOf("abc"), 10) // has no room for its end
	alone.Prune(chainOf("ab"), 1)
	alone.Insert(chainOf("ab"), 10)
	alone.Prune(chainOf("ab"), 1)
	alone.Insert(chainOf("acd"), 10)
	if depth, others := alone.Branch(chainOf("ac")); depth != 0 || others != 0 {
		t.Errorf("none has ended there: %d others after %d", others, depth)
	}
}
