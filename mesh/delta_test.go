package mesh

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/memnet"
	"github.com/hearsay-project/hearsay/prefix"
)

// A teller is a node with a tree and a view, as the daemon has them.
type teller struct {
	*testNode
	mu      sync.Mutex // guards view
	view    *gossip.View
	tree    *prefix.Tree
	version uint64
}

const tellEvery = 100 * time.Millisecond

func startTellers(t *testing.T, network *memnet.Network, count int, change func(*Config)) (all []*teller) {
	all = tellers(t, network, 1, count, change)
	var nodes []*testNode
	for _, w := range all {
		nodes = append(nodes, w.testNode)
	}
	eventually(t, time.Minute, "every pair has a stream", func() bool { return connected(nodes) })
	return all
}

// tellers starts n<first> and those after it.
func tellers(t *testing.T, network *memnet.Network, first, count int, change func(*Config)) (all []*teller) {
	for i := first; i < first+count; i++ {
		w := &teller{view: gossip.NewView(gossip.Config{}), tree: prefix.NewTree(1<<30, 4000)}
		w.testNode = start(t, network, i, seed, func(c *Config) {
			c.OnRumor = func(r gossip.Rumor) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.view.Hear(time.Now(), r)
			}
			c.Told = func(peer string) (uint64, uint64) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.view.Told(peer)
			}
			if change != nil {
				change(c)
			}
		})
		all = append(all, w)
	}
	return all
}

// live lets all nodes serve and tell for so many polls.
func live(all []*teller, rng *rand.Rand, polls int) {
	for range polls {
		for _, w := range all {
			c := make(prefix.Chain, 20)
			for i := range c {
				c[i] = prefix.Hash(rng.Uint64())
			}
			w.tree.Insert(c, 320)
			w.tell()
		}
		time.Sleep(tellEvery)
	}
}

func (w *teller) tell() {
	w.version++
	w.Broadcast(gossip.Rumor{Author: w.name, Life: 1, Version: w.version, Every: tellEvery, Tree: w.tree.Snapshot()})
}

// mustKnow checks that every view holds exactly the trees of the others.
func mustKnow(t *testing.T, all []*teller) {
	t.Helper()
	synctest.Wait()
	for _, w := range all {
		for _, peer := range all {
			if peer == w {
				continue
			}
			w.mu.Lock()
			missing := 0
			for h := range peer.tree.Snapshot().All() {
				missing += 1 - w.view.Match(peer.name, prefix.Chain{h})
			}
			_, told := w.view.Told(peer.name)
			all := w.view.Peers(time.Now())
			i := slices.IndexFunc(all, func(p gossip.Peer) bool { return p.Name == peer.name })
			w.mu.Unlock()
			if i < 0 {
				t.Errorf("%s has not heard of %s: %+v", w.name, peer.name, w.peer(peer.name))
				continue
			}
			if told != peer.version || missing > 0 || all[i].Blocks != peer.tree.Len() {
				t.Errorf("%s holds version %d of %s, which is at %d: of %d blocks %d, %d missing",
					w.name, told, peer.name, peer.version, peer.tree.Len(), all[i].Blocks, missing)
			}
		}
	}
}

// Nodes know each other's trees, whichever way they tell them. In delta mode that
// costs what has changed, over a broken connection too: 20 new blocks and as many
// evicted are 320 bytes of names, where the whole tree is 36 kB.
func TestTreesAreToldByTheirChanges(t *testing.T) {
	for _, whole := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			network, rng := memnet.New(), rand.New(rand.NewPCG(1, 1))
			all := startTellers(t, network, 3, func(c *Config) { c.Whole = whole })
			live(all, rng, 250)
			mustKnow(t, all)
			before := all[0].Stats().RumorBytesSent
			live(all, rng, 100)
			mustKnow(t, all)
			network.Cut("127.0.0.2")
			live(all, rng, 20)
			network.Heal()
			eventually(t, time.Minute, "every pair has a stream", func() bool {
				return connected([]*testNode{all[0].testNode, all[1].testNode, all[2].testNode})
			})
			live(all, rng, 1)
			mustKnow(t, all)
			each := float64(all[0].Stats().RumorBytesSent-before) / 2 / 121
			t.Logf("whole: %v: %.0f bytes a rumor", whole, each)
			if least, most := 320.0, 400.0; !whole && (each < least || each > most) {
				t.Errorf("%.0f bytes a rumor, want %.0f to %.0f", each, least, most)
			}
		})
	}
}

// Who has lost what it knew of a peer says so, and has it again two polls later.
func TestWhatIsForgottenIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, rng := memnet.New(), rand.New(rand.NewPCG(1, 1))
		all := startTellers(t, network, 2, nil)
		live(all, rng, 10)
		all[0].mu.Lock()
		all[0].view.Forget("n2")
		all[0].mu.Unlock()
		live(all, rng, 2)
		mustKnow(t, all)
	})
}

// Whole trees come one after the other where they are limited, and meanwhile those
// who wait hear that the author lives.
func TestWholeTreesWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, rng := memnet.New(), rand.New(rand.NewPCG(1, 1))
		all := startTellers(t, network, 8, func(c *Config) { c.RumorBytes = 20_000 })
		a := all[0]
		for range 200 {
			c := make(prefix.Chain, 20)
			for i := range c {
				c[i] = prefix.Hash(rng.Uint64())
			}
			a.tree.Insert(c, 320)
		}
		began, before := time.Now(), a.Stats().RumorBytesSent
		knows := func() (n int) {
			for _, w := range all[1:] {
				w.mu.Lock()
				if _, told := w.view.Told(a.name); told > 0 {
					n++
				}
				if w.view.Suspected(time.Now(), a.name) {
					t.Fatalf("after %v %s thinks that %s is dead", time.Since(began), w.name, a.name)
				}
				w.mu.Unlock()
			}
			return n
		}
		for last := 0; last < 7; last = knows() {
			a.tell()
			time.Sleep(tellEvery)
			synctest.Wait()
			if n := knows(); n > last+1 {
				t.Errorf("after %v %d know the tree, %d before", time.Since(began), n, last)
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("%d know the tree", last)
			}
		}
		took := time.Since(began).Seconds()
		if rate := float64(a.Stats().RumorBytesSent-before) / took; rate > 30_000 || took < 9 {
			t.Errorf("%.0f bytes a second for %.0f s", rate, took)
		}
	})
}

// A tree of which four blocks in ten change with each poll takes no more than the limit: what
// has gone waits with what has come, and all is told once it rests.
func TestLargeChangesWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, rng := memnet.New(), rand.New(rand.NewPCG(1, 1))
		const limit = 20_000
		all := startTellers(t, network, 4, func(c *Config) { c.RumorBytes = limit })
		a := all[0]
		a.tree = prefix.NewTree(1<<30, 1000)
		turn := func() {
			for range 20 {
				c := make(prefix.Chain, 20)
				for i := range c {
					c[i] = prefix.Hash(rng.Uint64())
				}
				a.tree.Insert(c, 320)
			}
		}
		tell := func(polls int) {
			for range polls {
				a.tell()
				time.Sleep(tellEvery)
				synctest.Wait()
			}
		}
		live(all[1:], rng, 1)
		turn()
		tell(50)
		began, before := time.Now(), a.Stats().RumorBytesSent
		for range 100 {
			turn()
			tell(1)
		}
		took := time.Since(began).Seconds()
		// Beyond it there are a rumor's head each poll and one burst of a second.
		heads := float64(3 * 100 * (rumorHead + frameHeader))
		if sent := float64(a.Stats().RumorBytesSent - before); sent > limit*(took+1)+heads {
			t.Errorf("%.0f bytes in %.0f s, of %d a second", sent, took, limit)
		}
		tell(50)
		mustKnow(t, all)
	})
}
