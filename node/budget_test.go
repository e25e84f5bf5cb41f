package node

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
)

// fresh is a chain that nothing shares.
func fresh(rng *rand.Rand, blocks int) (c prefix.Chain) {
	for range blocks {
		c = append(c, prefix.Hash(rng.Uint64()))
	}
	return c
}

// However fast a tree changes, rumors cost no more than they may; what is not told is
// counted, and told when there is time. Where rumors are relayed there is room for
// signatures and digests.
func TestRumorsStayWithinTheirBytes(t *testing.T) {
	for _, relayed := range []bool{false, true} {
		n, rng, extra := newNode("a"), rand.New(rand.NewPCG(1, 1)), 0
		n.cfg.RumorBytes = 50_000
		if n.SetRelayed(relayed); relayed {
			extra = relayBytes
		}
		for i := range 10 {
			n.Hear(start, gossip.Rumor{Author: fmt.Sprint(i), Life: 1, Version: 1, Every: n.cfg.Poll})
		}
		var journal gossip.Journal
		journal.Add(n.Speak(start))
		sent, now, polls := 0, start, 40
		for range polls {
			n.tree.Insert(fresh(rng, 2000), 32_000)
			now = now.Add(n.cfg.Poll)
			r := n.Speak(now)
			journal.Add(r)
			if r.Tokens != 16*r.Tree.Len() {
				t.Fatalf("%d tokens of the %d blocks that are told", r.Tokens, r.Tree.Len())
			}
			r.Tree, r.Change = nil, journal.Since(r.Version-1)
			sent += 10 * (extra + len(r.AppendBinary(nil)))
		}
		if rate := float64(sent) / (float64(polls) * n.cfg.Poll.Seconds()); rate < 30_000 || rate > 55_000 {
			t.Errorf("relayed %v: %.0f bytes a second, of 50,000", relayed, rate)
		}
		if s := n.Status(now); s.TreeBlocks != 80_000 || s.Untold < 60_000 || s.Untold > 79_000 {
			t.Errorf("%d of %d blocks are untold", s.Untold, s.TreeBlocks)
		}
		for range 400 {
			now = now.Add(n.cfg.Poll)
			n.Speak(now)
		}
		if s := n.Status(now); s.Untold != 0 {
			t.Errorf("%d blocks are untold after a quiet time", s.Untold)
		}
	}
}

// A tree is told as far as every node has room for, the most recently used part; and
// without peers, or without a limit, whole.
func TestATreeIsToldAsFarAsThereIsRoom(t *testing.T) {
	n, rng := newNode("a"), rand.New(rand.NewPCG(1, 1))
	old, recent := fresh(rng, 600), fresh(rng, 600)
	n.tree.Insert(old, 9600)
	n.tree.Insert(recent, 9600)
	if got := n.Speak(start).Tree.Len(); got != 1200 {
		t.Errorf("without peers %d blocks are told", got)
	}
	for i := range 10 {
		n.Hear(start, gossip.Rumor{Author: fmt.Sprint(i), Life: 1, Version: 1, Every: n.cfg.Poll})
	}
	n.cfg.PeerBytes = 10 * 1000 * viewBytes
	s := n.Speak(start.Add(time.Second)).Tree
	if s.Len() != 1000 || s.Match(recent) != 600 || s.Match(old) != 400 || n.Status(start).Untold != 200 {
		t.Errorf("%d blocks are told, %d of the recent prompt and %d of the old", s.Len(), s.Match(recent), s.Match(old))
	}
	n.cfg.RumorBytes = -1
	if got := n.Speak(start).Tree.Len(); got != 1200 {
		t.Errorf("without a limit %d blocks are told", got)
	}
}
