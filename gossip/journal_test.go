package gossip_test

import (
	"slices"
	"testing"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"pgregory.net/rapid"
)

// An author is a tree that changes, and what it said of it.
type author struct {
	tree    *prefix.Tree
	life    uint64
	version uint64
	journal gossip.Journal
	trees   map[[2]uint64]*prefix.Snapshot // by life and version
}

func newAuthor() *author {
	return &author{tree: prefix.NewTree(1<<30, 12), life: 1, trees: map[[2]uint64]*prefix.Snapshot{}}
}

// speak makes the next rumor, whole.
func (a *author) speak() gossip.Rumor {
	a.version++
	r := gossip.Rumor{Author: "a", Life: a.life, Version: a.version, Every: poll, Tree: a.tree.Snapshot()}
	a.journal.Add(r)
	a.trees[[2]uint64{r.Life, r.Version}] = r.Tree
	return r
}

// since is r as it is told to one who holds a version.
func (a *author) since(r gossip.Rumor, version uint64) gossip.Rumor {
	if c := a.journal.Since(version); c != nil {
		r.Tree, r.Change = nil, c
	}
	return r
}

// mustBelieve checks that the view holds exactly the tree.
func mustBelieve(t *rapid.T, v *gossip.View, tree *prefix.Snapshot) {
	p := v.Peers(start)[0]
	if p.Blocks != tree.Len() {
		t.Fatalf("at version %d, tree of %d, %d blocks are held, want %d", p.Version, p.Told, p.Blocks, tree.Len())
	}
	for _, s := range []string{"aaaaaaaa", "abababab", "babababa", "bbbbbbbb"} {
		if got, want := v.Match("a", chainOf(s)), tree.Match(chainOf(s)); got != want {
			t.Fatalf("at version %d, tree of %d, %s matches %d, want %d", p.Version, p.Told, s, got, want)
		}
	}
}

// However changes are lost, doubled and reordered, and whatever earlier version each
// starts from, a view holds exactly the tree of the version that it says it holds,
// and a change since that version or an earlier one brings it to its own.
func TestChangesBringAViewForward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, v := newAuthor(), gossip.NewView(gossip.Config{})
		if rapid.Bool().Draw(t, "slowly merged") {
			v.SetMergeStep(1)
		}
		var sent []gossip.Rumor
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) { a.tree.Insert(chainOf(drawText(t, "text")), 10) },
			"prune":  func(t *rapid.T) { a.tree.Prune(chainOf(drawText(t, "text")), 1) },
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					a.tree.Clear()
					a.life, a.version = a.life+1, 0
				}
			},
			"speak": func(t *rapid.T) {
				r := a.speak()
				sent = append(sent, a.since(r, rapid.Uint64Range(0, r.Version).Draw(t, "since")))
			},
			"hear": func(t *rapid.T) {
				if len(sent) == 0 {
					return
				}
				var before gossip.Peer
				if all := v.Peers(start); len(all) > 0 {
					before = all[0]
				}
				r := rapid.SampledFrom(sent).Draw(t, "rumor")
				news := v.Hear(start, r)
				p := v.Peers(start)[0]
				holds := r.Change == nil || before.Life == r.Life && before.Told >= r.Change.Since && before.Told > 0
				if news && holds != (p.Told == r.Version) {
					t.Fatalf("%+v then %+v: the tree of %d is held", before, r, p.Told)
				}
				if v.Merging() == 0 && p.Credits == 0 {
					mustBelieve(t, v, a.trees[[2]uint64{p.Life, p.Told}])
				}
			},
			"credit": func(t *rapid.T) { v.Credit(start, "a", chainOf(drawText(t, "credit"))) },
		})
		v.Hear(start, a.speak())
		for range 20 { // of which each merges a block or more
			a.tree.Insert(chainOf(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 8, -1).Draw(t, "text")), 10)
			r := a.speak()
			v.Hear(start, a.since(r, r.Version-1))
			v.Credit(start, "a", chainOf(drawText(t, "credit")))
		}
		r := a.speak()
		v.Hear(start, a.since(r, r.Version-1))
		if p := v.Peers(start)[0]; p.Told != r.Version || v.Merging() > 0 {
			t.Fatalf("after %+v the tree of %d is held, %d still merging", r, p.Told, v.Merging())
		}
		mustBelieve(t, v, r.Tree)
	})
}

// A change is refused by who has nothing that it starts from, and its load is heard
// all the same.
func TestAGapLeavesTheLoad(t *testing.T) {
	a, v := newAuthor(), gossip.NewView(gossip.Config{})
	a.tree.Insert(chainOf("ab"), 10)
	v.Hear(start, a.speak())
	a.tree.Insert(chainOf("abc"), 10)
	lost := a.speak()
	a.tree.Insert(chainOf("abcd"), 10)
	r := a.since(a.speak(), lost.Version)
	r.Queue = 7
	if !v.Hear(start, r) {
		t.Error("a rumor with a gap is no news")
	}
	if p := v.Peers(start)[0]; p.Version != 3 || p.Told != 1 || p.Blocks != 2 || p.Queue != 7 {
		t.Errorf("%+v", p)
	}
	v.Hear(start, a.since(a.speak(), 1))
	if p := v.Peers(start)[0]; p.Told != 4 || v.Match("a", chainOf("abcd")) != 4 {
		t.Errorf("%+v", p)
	}
}

// A view that has drifted from what the author has notices, and asks for the whole.
func TestDriftIsNoticed(t *testing.T) {
	a, v := newAuthor(), gossip.NewView(gossip.Config{})
	a.tree.Insert(chainOf("ab"), 10)
	v.Hear(start, a.speak())
	a.tree.Insert(chainOf("abc"), 10)
	r := a.since(a.speak(), 1)
	r.Change.Come = nil
	v.Hear(start, r)
	if p := v.Peers(start)[0]; p.Told != 0 {
		t.Errorf("%+v", p)
	}
	v.Hear(start, a.since(a.speak(), 2))
	if p := v.Peers(start)[0]; p.Told != 0 || p.Version != 3 {
		t.Errorf("a change was applied to what had drifted: %+v", p)
	}
	v.Hear(start, a.speak())
	if p := v.Peers(start)[0]; p.Told != 4 || v.Match("a", chainOf("abc")) != 3 {
		t.Errorf("%+v", p)
	}
}

// A journal is no larger than the tree, and what it has forgotten it does not tell.
func TestJournalIsBounded(t *testing.T) {
	a := newAuthor()
	a.tree = prefix.NewTree(1<<30, 2000)
	for i := range 100 {
		for k := range 30 {
			a.tree.Insert(prefix.Chain{prefix.Hash(1 + i*30 + k)}, 1)
		}
		a.speak()
	}
	told := 0
	for since := uint64(1); since <= 100; since++ {
		if c := a.journal.Since(since); c != nil {
			told++
			if n := len(c.Come) + len(c.Gone); n > a.tree.Len() {
				t.Errorf("%d blocks in the change since %d, and %d in the tree", n, since, a.tree.Len())
			}
			if !slices.IsSorted(c.Come) || !slices.IsSorted(c.Gone) {
				t.Error("a change is out of order")
			}
		}
	}
	if told < 30 || told > 40 || a.journal.Since(0) != nil || a.journal.Since(101) != nil {
		t.Errorf("changes since %d versions are known", told)
	}
}
