package gossip_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"pgregory.net/rapid"
)

const poll = 500 * time.Millisecond

var start = time.Unix(1_800_000_000, 0)

func rumor(author string, life, version uint64, texts ...string) gossip.Rumor {
	return gossip.Rumor{Author: author, Life: life, Version: version, Every: poll, Tree: treeOf(texts...)}
}

// drawRumors draws what a few authors said in a few lives: one rumor for each
// author, life and version, as each tree has a single writer.
func drawRumors(t *rapid.T) (said []gossip.Rumor) {
	for _, author := range []string{"a", "b"} {
		for life := uint64(1); life <= 2; life++ {
			for version := uint64(1); version <= rapid.Uint64Range(0, 3).Draw(t, "versions"); version++ {
				r := rumor(author, life, version, drawText(t, "text"), drawText(t, "text"))
				r.Queue = rapid.IntRange(0, 9).Draw(t, "queue")
				r.Pause = time.Duration(rapid.IntRange(0, 9).Draw(t, "pause")) * time.Second
				said = append(said, r)
			}
		}
	}
	return said
}

func shuffle(t *rapid.T, rumors []gossip.Rumor) []gossip.Rumor {
	rumors = slices.Clone(rumors)
	seed := rapid.Uint64().Draw(t, "order")
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(rumors), func(i, j int) { rumors[i], rumors[j] = rumors[j], rumors[i] })
	return rumors
}

// belief is all that can be seen of a view that has heard the rumors at start.
func belief(rumors []gossip.Rumor) (peers []gossip.Peer, matches []int) {
	v := gossip.NewView(gossip.Config{Self: "self"})
	for _, r := range rumors {
		v.Hear(start, r)
	}
	peers = v.Peers(start)
	for _, p := range peers {
		for _, s := range []string{"aaaaaaaa", "abababab", "babababa", "bbbbbbbb"} {
			matches = append(matches, v.Match(p.Name, chainOf(s)))
		}
	}
	return peers, matches
}

func mustAgree(t *rapid.T, a, b []gossip.Rumor) {
	peersA, matchesA := belief(a)
	peersB, matchesB := belief(b)
	if diff := cmp.Diff(peersA, peersB); diff != "" || !slices.Equal(matchesA, matchesB) {
		t.Fatalf("%v against %v: %s", matchesA, matchesB, diff)
	}
}

// Commutative: the order in which rumors come does not matter.
func TestHearIsCommutative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		said := drawRumors(t)
		mustAgree(t, said, shuffle(t, said))
	})
}

// Idempotent: a rumor heard again, at once or later, changes nothing.
func TestHearIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		said := drawRumors(t)
		mustAgree(t, said, shuffle(t, append(said, said...)))
		v := gossip.NewView(gossip.Config{})
		for _, r := range said {
			v.Hear(start, r)
			if v.Hear(start.Add(time.Hour), r) {
				t.Fatalf("%+v was news twice", r)
			}
		}
	})
}

// Loss is harmless: who has heard the last rumor of each author believes what one
// believes who has heard all.
func TestOnlyTheNewestRumorMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		said := drawRumors(t)
		newest := map[string]gossip.Rumor{}
		for _, r := range said { // in order of life and version
			newest[r.Author] = r
		}
		var heard []gossip.Rumor
		for _, r := range said {
			if newest[r.Author].Life == r.Life && newest[r.Author].Version == r.Version || rapid.Bool().Draw(t, "arrives") {
				heard = append(heard, r)
			}
		}
		mustAgree(t, said, shuffle(t, heard))
	})
}

// Monotone: what is held of an author never goes back, and Hear says whether it
// went forward.
func TestHearIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := gossip.NewView(gossip.Config{})
		held := map[string][2]uint64{}
		for _, r := range shuffle(t, drawRumors(t)) {
			before, now := held[r.Author], [2]uint64{r.Life, r.Version}
			newer := slices.Compare(now[:], before[:]) > 0
			if v.Hear(start, r) != newer {
				t.Fatalf("%v after %v: news is not %v", now, before, newer)
			}
			if newer {
				held[r.Author] = now
			}
			for _, p := range v.Peers(start) {
				if held[p.Name] != [2]uint64{p.Life, p.Version} {
					t.Fatalf("%s is held at %d %d, want %v", p.Name, p.Life, p.Version, held[p.Name])
				}
			}
		}
	})
}

// An estimate is the last rumor's tree and the credits since, no more and no less,
// and the next rumor replaces both.
func TestEstimateIsTreeAndCredits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := gossip.NewView(gossip.Config{})
		held := map[string]bool{}
		hold := func(s string) {
			for i := range len(s) {
				held[s[:i+1]] = true
			}
		}
		version, told := uint64(0), 0
		hear := func(t *rapid.T) {
			version++
			clear(held)
			texts := []string{drawText(t, "text"), drawText(t, "text")}
			for _, s := range texts {
				hold(s)
			}
			told = len(held)
			v.Hear(start, rumor("a", 1, version, texts...))
		}
		hear(t)
		t.Repeat(map[string]func(*rapid.T){
			"hear":   hear,
			"credit": func(t *rapid.T) { s := drawText(t, "text"); hold(s); v.Credit(start, "a", chainOf(s)) },
			"": func(t *rapid.T) {
				s := drawText(t, "text")
				want := 0
				for want < len(s) && held[s[:want+1]] {
					want++
				}
				if got := v.Match("a", chainOf(s)); got != want {
					t.Fatalf("%s matches %d, want %d", s, got, want)
				}
				if p := v.Peers(start)[0]; p.Blocks != told || p.Credits != len(held)-told {
					t.Fatalf("%d blocks and %d credits, want %d and %d", p.Blocks, p.Credits, told, len(held)-told)
				}
			},
		})
	})
}

// At their limit credits end a chain early and stay prefix-closed.
func TestCreditsAreBounded(t *testing.T) {
	v := gossip.NewView(gossip.Config{CreditsMax: 5})
	v.Hear(start, rumor("a", 1, 1, "ab"))
	v.Credit(start, "a", chainOf("abcde"))
	v.Credit(start, "a", chainOf("abxyz"))
	v.Credit(start, "a", chainOf("q"))
	for s, want := range map[string]int{"abcde": 5, "abxyz": 4, "q": 0} {
		if got := v.Match("a", chainOf(s)); got != want {
			t.Errorf("%s matches %d, want %d", s, got, want)
		}
	}
	if p := v.Peers(start)[0]; p.Credits != 5 {
		t.Errorf("%d credits", p.Credits)
	}
}

// Silence is measured by the author's own interval, with a floor for short ones.
func TestSilenceIsSuspected(t *testing.T) {
	for _, test := range []struct {
		every         time.Duration
		multiple      int
		still, silent time.Duration
	}{
		{poll, 0, 1500 * time.Millisecond, 1501 * time.Millisecond},
		{poll, 5, 2500 * time.Millisecond, 2501 * time.Millisecond},
		{20 * time.Millisecond, 0, 200 * time.Millisecond, 201 * time.Millisecond},
		{300 * time.Second, 0, 900 * time.Second, 901 * time.Second},
	} {
		v := gossip.NewView(gossip.Config{SuspectAfter: test.multiple})
		r := rumor("a", 1, 1, "ab")
		r.Every = test.every
		v.Hear(start, r)
		if v.Suspected(start.Add(test.still), "a") || !v.Usable(start.Add(test.still), "a") {
			t.Errorf("every %v: suspected after %v", test.every, test.still)
		}
		if !v.Suspected(start.Add(test.silent), "a") || v.Usable(start.Add(test.silent), "a") {
			t.Errorf("every %v: not suspected after %v", test.every, test.silent)
		}
		if v.Hear(start.Add(time.Hour), r); !v.Suspected(start.Add(time.Hour), "a") {
			t.Error("an old rumor counts as a sign of life")
		}
		r.Version++
		if v.Hear(start.Add(time.Hour), r); !v.Usable(start.Add(time.Hour), "a") {
			t.Error("still suspected when heard again")
		}
	}
	if v := gossip.NewView(gossip.Config{}); !v.Suspected(start, "a") || v.Usable(start, "a") {
		t.Error("a peer that was never heard is trusted")
	}
}

// A doubt is over when the peer has been heard and the backoff is over, whichever
// comes last; the backoff doubles with each failure in a row, up to 30 s.
func TestDoubt(t *testing.T) {
	v := gossip.NewView(gossip.Config{SuspectAfter: 1000})
	version := uint64(1)
	v.Hear(start, rumor("a", 1, version, "ab"))
	now := start
	fail := func(want time.Duration) {
		t.Helper()
		v.Fail(now, "a")
		if v.Usable(now.Add(want), "a") {
			t.Fatal("usable though unheard")
		}
		version++
		v.Hear(now, rumor("a", 1, version, "ab"))
		if v.Usable(now.Add(want-1), "a") || !v.Usable(now.Add(want), "a") {
			t.Fatalf("failure is not doubted for %v", want)
		}
		now = now.Add(want)
	}
	for _, seconds := range []float64{0.5, 1, 2, 4, 8, 16, 30, 30, 30} {
		fail(time.Duration(seconds * float64(time.Second)))
	}
	v.Succeed(now, "a")
	fail(poll)

	// Requests that fail together are one failure.
	v.Succeed(now, "a")
	for range 10 {
		v.Fail(now, "a")
	}
	version++
	v.Hear(now, rumor("a", 1, version, "ab"))
	if !v.Usable(now.Add(poll), "a") || v.Peers(now)[0].Failures != 1 {
		t.Errorf("ten failures together: %+v", v.Peers(now)[0])
	}

	// A late answer clears a doubt, and so does a new life.
	v.Fail(now, "a")
	v.Succeed(now, "a")
	if !v.Usable(now, "a") {
		t.Error("doubted though it answers")
	}
	v.Fail(now, "a")
	v.Hear(now, rumor("a", 2, 1))
	if p := v.Peers(now)[0]; !p.Usable() || p.Failures != 0 || p.Blocks != 0 {
		t.Errorf("in its new life %+v", p)
	}
}

// A lost peer is doubted until it has been heard and a poll interval is over, however
// often it was lost before; that neither lengthens the backoff of a failure nor is one.
func TestLoss(t *testing.T) {
	v := gossip.NewView(gossip.Config{SuspectAfter: 1000})
	v.Hear(start, rumor("a", 1, 1, "ab"))
	now, version := start, uint64(1)
	doubted := func(want time.Duration) {
		t.Helper()
		if v.Usable(now.Add(want), "a") {
			t.Fatal("usable though unheard")
		}
		version++
		v.Hear(now, rumor("a", 1, version, "ab"))
		if v.Usable(now.Add(want-1), "a") || !v.Usable(now.Add(want), "a") {
			t.Fatalf("is not doubted for %v", want)
		}
		now = now.Add(want)
	}
	for range 5 {
		v.Lose(now, "a")
		doubted(poll)
	}
	if p := v.Peers(now)[0]; p.Failures != 0 {
		t.Errorf("%d failures of requests", p.Failures)
	}
	for _, want := range []time.Duration{poll, 2 * poll, 4 * poll} { // of a peer that fails each time it is lost
		v.Lose(now, "a")
		v.Fail(now, "a")
		doubted(want)
	}
	v.Lose(now, "a")
	v.Succeed(now, "a")
	if !v.Usable(now, "a") {
		t.Error("doubted though it answers")
	}
	v.Lose(now, "b") // which is unknown
}

// What a restarted peer said and was credited with in its last life is gone at once.
func TestNewLife(t *testing.T) {
	v := gossip.NewView(gossip.Config{})
	v.Hear(start, rumor("a", 1, 9, "ab"))
	v.Credit(start, "a", chainOf("abc"))
	if !v.Hear(start, rumor("a", 2, 1)) || v.Match("a", chainOf("abc")) != 0 {
		t.Errorf("matches %d in its new life", v.Match("a", chainOf("abc")))
	}
	if v.Hear(start, rumor("a", 1, 10, "ab")) {
		t.Error("heard from a former life")
	}
}

func TestPause(t *testing.T) {
	v := gossip.NewView(gossip.Config{})
	r := rumor("a", 1, 1)
	r.Pause = time.Second
	v.Hear(start, r)
	if p := v.Peers(start)[0]; !p.PausedUntil.Equal(start.Add(time.Second)) || !p.Usable() {
		t.Errorf("%+v", p)
	}
	v.Hear(start, rumor("a", 1, 2))
	if p := v.Peers(start)[0]; p.PausedUntil.After(start) {
		t.Error("paused though the last rumor says nothing of it")
	}
}

// Nothing is known, or learnt, of strangers, of oneself and of those who have left.
func TestStrangers(t *testing.T) {
	v := gossip.NewView(gossip.Config{Self: "self"})
	if v.Hear(start, rumor("self", 9, 9, "ab")) || v.Hear(start, rumor("", 9, 9, "ab")) {
		t.Error("heard itself")
	}
	v.Hear(start, rumor("a", 5, 5, "ab"))
	v.Forget("a")
	for _, name := range []string{"a", "self", "x"} {
		v.Credit(start, name, chainOf("ab"))
		v.Fail(start, name)
		v.Succeed(start, name)
		v.Forget(name)
		if v.Match(name, chainOf("ab")) != 0 || len(v.Peers(start)) != 0 {
			t.Errorf("something is known of %q: %+v", name, v.Peers(start))
		}
	}
	if !v.Hear(start, rumor("a", 1, 1)) {
		t.Error("who comes back with an earlier clock is not heard")
	}
}

// A full view takes in a new peer in the place of the longest silent, and else not.
func TestPeersAreBounded(t *testing.T) {
	v := gossip.NewView(gossip.Config{PeersMax: 2})
	names := func() string {
		var all []string
		for _, p := range v.Peers(start) {
			all = append(all, p.Name)
		}
		return strings.Join(all, " ")
	}
	v.Hear(start, rumor("b", 1, 1))
	v.Hear(start.Add(time.Second), rumor("a", 1, 1))
	if v.Hear(start.Add(time.Second), rumor("c", 1, 1)) || names() != "a b" {
		t.Errorf("holds %s", names())
	}
	if !v.Hear(start.Add(2*time.Second), rumor("c", 1, 1)) || names() != "a c" {
		t.Errorf("holds %s", names())
	}
}

// One operation asks 63 peers of 10,000 blocks each for 100 blocks; a third hold half.
func BenchmarkMatches63(b *testing.B) {
	v := gossip.NewView(gossip.Config{})
	text := make([]byte, 100*prefix.BlockBytes)
	c := prefix.NewChain(1, text)
	for i := range 63 {
		tree := prefix.NewTree(1<<30, 10_000)
		if i%3 == 0 {
			tree.Insert(c[:50], 800)
		}
		for j := 0; tree.Len() < 9000; j++ {
			copy(text, fmt.Sprintf("%d/%d", i, j))
			tree.Insert(prefix.NewChain(1, text), 1600)
		}
		v.Hear(start, gossip.Rumor{Author: fmt.Sprintf("n%02d", i), Life: 1, Version: 1, Every: poll, Tree: tree.Snapshot()})
	}
	for b.Loop() {
		for range v.Matches(start, c) {
		}
	}
}

// One operation hears that 90 blocks have come and 90 gone in a tree of 62,500, a
// million tokens, beside those of 63 others.
func BenchmarkHearChange(b *testing.B) {
	v := gossip.NewView(gossip.Config{})
	text := make([]byte, 100*prefix.BlockBytes)
	var tree *prefix.Tree
	var journal *gossip.Journal
	r := gossip.Rumor{Life: 1, Every: poll}
	hear := func() {
		r.Version, r.Tree, r.Change = r.Version+1, tree.Snapshot(), nil
		journal.Add(r)
		if r.Change = journal.Since(r.Version - 1); r.Change != nil {
			r.Tree = nil
		}
		if !v.Hear(start, r) {
			b.Fatal("not heard")
		}
	}
	for i := range 64 {
		tree, journal = prefix.NewTree(1<<30, 62_500), &gossip.Journal{}
		for j := 0; tree.Len() < 62_500; j++ {
			copy(text[10*prefix.BlockBytes:], fmt.Sprintf("%d/%d", i, j))
			tree.Insert(prefix.NewChain(1, text), 1600)
		}
		r.Author, r.Version = fmt.Sprintf("n%02d", i), 0
		for range 20 {
			tree.Insert(prefix.NewChain(1, text[64*9:]), 1600)
			hear()
		}
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		copy(text[10*prefix.BlockBytes:], fmt.Sprintf("x%d", i))
		tree.Insert(prefix.NewChain(1, text), 1600)
		r.Version, r.Tree, r.Change = r.Version+1, tree.Snapshot(), nil
		journal.Add(r)
		r.Tree, r.Change = nil, journal.Since(r.Version-1)
		b.StartTimer()
		v.Hear(start, r)
	}
}
