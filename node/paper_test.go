package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
	"pgregory.net/rapid"
)

// Each test here quotes the sentence of sections 2 and 3 of "Towards Distributed
// Inference of LLMs on a P2P Network" (arXiv 2606.17059) that it holds us to.

// 2: "This would lead to each node storing one such trie for itself, as well as
// N-1 for the others."
func TestPaper2OneTreeForItselfAndOneForEachOther(t *testing.T) {
	c := newCluster(t, 4, Config{Policy: route.Local{}})
	for i, topic := range []string{"a", "bb", "ccc", "dddd"} {
		c.ask(fmt.Sprintf("n%d", i+1), topic)
	}
	c.pass(2 * poll)
	c.mustFollow()
	c.mustConverge()
	for _, m := range c.members {
		s := m.Status(c.now)
		total := s.TreeBlocks
		for _, p := range s.Peers {
			total += p.TreeBlocks
		}
		if len(s.Peers) != 3 || total != 10 {
			t.Errorf("%s holds %d trees of peers, %d blocks in all", s.Name, len(s.Peers), total)
		}
	}
}

// 2: "Then when a particular node receives an input request, it can decide which
// node to reroute the request to based on the largest prefix match between the
// input request and Tries of the remaining nodes."
// Algorithm 1, line 5: k <- argmax over j in {1..N} of PrefixMatch(r, Trie_j).
func TestPaper2ArgmaxOverAllTrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 8, -1)
		c := newCluster(t, 4, Config{Policy: route.Local{}}) // so that each keeps what it was asked
		for _, m := range c.members {
			for _, s := range rapid.SliceOfN(text, 0, 4).Draw(t, m.cfg.Name) {
				c.ask(m.cfg.Name, s)
			}
		}
		c.pass(2 * poll)
		prompt := text.Draw(t, "prompt")
		best := 0
		for _, m := range c.members {
			best = max(best, m.tree.Match(request(prompt).Chain))
		}
		for _, m := range c.members {
			m.cfg.Policy = route.Longest{}
			d := m.Route(c.now, request(prompt))
			own := m.tree.Match(request(prompt).Chain)
			if d.Match != best || c.node(d.Node).tree.Match(request(prompt).Chain) != best || d.Self != (own == best) {
				t.Fatalf("%s with a match of %d chooses %+v, the longest is %d", m.cfg.Name, own, d, best)
			}
		}
	})
}

// Algorithm 1, lines 6-13, k = i: EvictLRUTrie while memory is short, RunInfer,
// UpdateKVCache, UpdateTrie.
// 2: "evictLRUTrie(): Removes one least-recently-used leaf token from the local
// trie"; "updateTrie(req): Inserts request req into node P_i's local prefix trie."
func TestPaperAlgorithm1ServedHere(t *testing.T) {
	cfg := longest
	cfg.CapacityTokens = 6 * blockTokens
	c := newCluster(t, 2, cfg)
	for _, step := range []struct{ prompt, cache string }{
		{"abc", "abc ab a"},
		{"xy", "abc ab a xy x"},
		{"abd", "abc xy x abd ab a"},    // room for one more
		{"abe", "xy x abd abe ab a"},    // abc, the oldest leaf, goes
		{"x", "xy abd abe ab a x"},      // using x makes xy no younger
		{"abdq", "abe x abdq abd ab a"}, // and it goes first
	} {
		if a := c.ask("n1", step.prompt); a.by != "n1" {
			t.Fatalf("%s is served by %s", step.prompt, a.by)
		}
		if got := strings.Join(c.node("n1").engine.cache, " "); got != step.cache {
			t.Fatalf("after %s the engine holds %s, want %s", step.prompt, got, step.cache)
		}
		c.mustFollow()
	}
}

// Algorithm 1, lines 14-18, k != i: SendRequest, and if ack.status = success then
// UpdateTrieEstimate.
// 2: "updateTrieEstimate(req, k): Updates node P_i's estimate of node P_k's trie by
// inserting the request req."
func TestPaperAlgorithm1ServedThere(t *testing.T) {
	c := newCluster(t, 3, longest)
	c.ask("n2", "law1")
	c.pass(2 * poll)
	if a := c.ask("n1", "law2"); a.by != "n2" || a.cached != 3 {
		t.Fatalf("served by %s with %d blocks cached", a.by, a.cached)
	}
	if !c.knows("n1", "n2") || c.knows("n3", "n2") || c.node("n1").tree.Len() != 0 {
		t.Error("n1 and only n1 is to credit n2, and to keep its own tree")
	}
	// No success, no credit.
	c.node("n2").up = false
	if a := c.ask("n1", "law3"); a.by != "n1" || a.route[0].Node != "n2" {
		t.Fatalf("served by %s after %+v", a.by, a.route)
	}
	if got := c.node("n1").view.Match("n2", request("law3").Chain); got != 3 {
		t.Errorf("n2 is credited with %d blocks of a request that it failed", got)
	}
}

// 2: "This achieves eventual consistency, wherein in the absence of new requests,
// all nodes would eventually have an up-to-date estimate of other nodes' KV caches."
// "sendTrie(): Broadcasts node P_i's local trie structure to all other nodes."
// 3.1: "cache state converges eventually whenever broadcasts are eventually delivered."
func TestPaper2EventualConsistency(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]route.Policy{route.Local{}, route.Longest{}, route.LongestPushback{}}).Draw(t, "policy")
		c := newCluster(t, 4, Config{Policy: policy, CapacityTokens: 20 * blockTokens})
		c.chaos(t)
		c.pass(2 * poll)
		c.mustConverge()
		c.mustFollow()
	})
}

// chaos asks at random while rumors are lost, doubled, late and out of order, nodes
// crash and return, and cuts open and close. At its end all is well again, and what
// is under way is delivered.
func (c *cluster) chaos(t *rapid.T) {
	quiet := *c
	late := rapid.SampledFrom([]time.Duration{1, poll / 2, 5 * poll}).Draw(t, "late")
	c.delay = func() time.Duration { return time.Duration(c.rng.Int64N(int64(late))) }
	c.loss = rapid.SampledFrom([]float64{0, 0.3, 0.9}).Draw(t, "loss")
	c.double = rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "double")
	text := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 6, -1)
	for _, step := range rapid.SliceOfN(rapid.IntRange(0, 19), 0, 60).Draw(t, "steps") {
		i := rapid.IntRange(0, len(c.members)-1).Draw(t, "member")
		m := c.members[i]
		switch {
		case step == 0:
			m.up = false
		case step == 1:
			c.restart(i)
		case step == 2:
			away := m.cfg.Name
			c.cut = func(from, to string) bool { return (from == away) != (to == away) }
		case step == 3:
			c.cut = quiet.cut
		case step == 4:
			m.Queued(c.now, rapid.IntRange(0, 20).Draw(t, "queue"))
		case step < 9:
			c.pass(time.Duration(rapid.Int64Range(0, int64(2*poll)).Draw(t, "time")))
		case m.up:
			c.ask(m.cfg.Name, text.Draw(t, "prompt"))
			c.mustFollow()
		}
	}
	for i, m := range c.members {
		if !m.up {
			c.restart(i)
		}
	}
	c.loss, c.double, c.delay, c.cut = 0, 0, quiet.delay, quiet.cut
	c.pass(late)
}

// 2: "When a node fails, its KV cache is not persisted and is instead completely
// lost. This does not violate the safety constraints as requests can be processed
// without any KV cache (just slower)."
func TestPaper2CrashRecovery(t *testing.T) {
	c := newCluster(t, 2, longest)
	c.ask("n2", "law")
	c.pass(2 * poll)
	c.restart(1)
	// It did not say goodbye: n1 still believes in the old cache, and pays a miss.
	if a := c.ask("n1", "law"); a.by != "n2" || a.route[0].Match != 3 || a.cached != 0 {
		t.Errorf("served by %s, promised %d, found %d", a.by, a.route[0].Match, a.cached)
	}
	c.restart(1)
	c.pass(2 * poll)
	if got := c.node("n1").view.Match("n2", request("law").Chain); got != 0 {
		t.Errorf("n1 believes in %d blocks of a former life", got)
	}
}

// 3.1: "Routing decisions are made entirely from local state and produce a result in
// bounded time regardless of network conditions". Two nodes that heard the same
// decide the same, one with a network and one without; the tries are at most N.
func TestPaper31DecisionsFromLocalState(t *testing.T) {
	var decisions [2][]Decision
	for i := range decisions {
		c := newCluster(t, 3, longest)
		c.ask("n2", "law1")
		c.ask("n3", "art1")
		c.pass(2 * poll)
		if i == 1 {
			c.cut = func(string, string) bool { return true }
		}
		for _, prompt := range []string{"law2", "art2", "new"} {
			decisions[i] = append(decisions[i], c.ask("n1", prompt).route[0])
		}
	}
	if !slices.Equal(decisions[0], decisions[1]) {
		t.Errorf("with a network %+v, without %+v", decisions[0], decisions[1])
	}
}

// 3.1: "the single-writer invariant on each trie T_i is enforced by construction".
// Nothing that is heard or served elsewhere changes a node's own tree, and a rumor
// changes the estimate of its author alone.
func TestPaper31SingleWriter(t *testing.T) {
	c := newCluster(t, 3, longest)
	c.ask("n1", "law")
	c.pass(2 * poll)
	n1 := c.node("n1")
	tree := n1.tree.Snapshot()
	forged := c.node("n2").Speak(c.now)
	for _, life := range []uint64{0, n1.cfg.Life, ^uint64(0)} {
		forged.Author, forged.Life, forged.Version = "n1", life, 99
		if n1.Hear(c.now, forged) {
			t.Error("a node hears from others what it has cached")
		}
	}
	n1.Served(c.now, request("art"), "n2", Outcome{})
	if n1.tree.Snapshot() != tree {
		t.Error("what others do has changed a node's own tree")
	}
	if got := n1.Status(c.now).NameClashes; got != 2 {
		t.Errorf("%d rumors under its own name, of other lives, were counted", got)
	}
	if got := n1.view.Match("n3", request("art").Chain); got != 0 {
		t.Error("what n2 served is credited to n3")
	}
}

// 3.1: "a request routed to a peer whose trie estimate is arbitrarily out of date
// will still yield a correct inference result, with only the prefill cost re-incurred."
func TestPaper31ArbitrarilyWrongEstimates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 6, -1)
		c := newCluster(t, 3, longest)
		for version := range rapid.Uint64Range(1, 20).Draw(t, "lies") {
			lie := prefix.NewTree(1<<20, 1000)
			lie.Insert(request(text.Draw(t, "lie")).Chain, 0)
			r := c.node("n2").Speak(c.now)
			r.Version, r.Tree = version+1, lie.Snapshot()
			c.node("n1").Hear(c.now, r)
			c.ask("n1", text.Draw(t, "prompt")) // checks the answer
		}
		c.mustFollow()
	})
}

// 3.1: "safety holds even if our timeout-based error detector is inaccurate. In this
// case, the system falls back to local execution using a timeout."
func TestPaper31InaccurateDetector(t *testing.T) {
	c := newCluster(t, 2, longest)
	c.ask("n2", "law1")
	c.pass(2 * poll)
	c.node("n1").Failed(c.now, "n2") // it is well, only slow
	if a := c.ask("n1", "law2"); a.by != "n1" {
		t.Errorf("a doubted peer serves: %+v", a)
	}
	c.pass(2 * poll)
	if a := c.ask("n1", "law11"); a.by != "n2" {
		t.Errorf("a peer heard again does not serve: %+v", a)
	}
}
