package mesh

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// A killed process shows at once by its streams, and is gone once memberlist is sure.
func TestKilledNodeIsLostThenDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 4, nil)
		network.Kill("127.0.0.3")
		synctest.Wait()
		for _, n := range []*testNode{nodes[0], nodes[1], nodes[3]} {
			if !slices.Contains(n.saw(), "lost n3") || slices.Contains(n.saw(), "dead n3") {
				t.Errorf("%s saw %v at the moment of death", n.name, n.saw())
			}
			if p := n.peer("n3"); p.State != StateSuspect || n.linked("n3") {
				t.Errorf("%s says %+v", n.name, p)
			}
		}
		took := eventually(t, 30*time.Second, "n3 is dead for all", func() bool {
			return nodes[0].peer("n3").State == "dead" && nodes[1].peer("n3").State == "dead" && nodes[3].peer("n3").State == "dead"
		})
		t.Logf("dead for all after %v", took)
		for _, n := range []*testNode{nodes[0], nodes[1], nodes[3]} {
			if saw := strings.Join(n.saw(), ","); strings.Count(saw, "dead n3") != 1 || strings.Contains(saw, "leave") {
				t.Errorf("%s saw %v", n.name, saw)
			}
		}
	})
}

// A node that restarts under its name and address is a peer again within a second or so.
func TestRestartedNodeIsBack(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} { // before and after it is declared dead
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			nodes := startAll(t, network, 3, nil)
			network.Kill("127.0.0.2")
			nodes[1].Close()
			time.Sleep(wait)
			nodes[1] = start(t, network, 2, seed, nil)
			took := eventually(t, 15*time.Second, "n2 is back", func() bool { return connected(nodes) })
			if got := strings.Count(nodes[0].log(), `msg="peer is back" peer=n2`); got != 1 && wait == 0 || got != 0 && wait > 0 {
				t.Errorf("said %d times that n2 is back:\n%s", got, nodes[0].log())
			}
			t.Logf("down for %v: back after %v", wait, took)
			nodes[1].say(1)
			synctest.Wait()
			if got := nodes[2].versions("n2"); !slices.Equal(got, []uint64{1}) {
				t.Errorf("n3 heard %v of n2", got)
			}
		})
	}
}

// A node that said goodbye and comes back is a peer again, however soon it does.
func TestLeaverComesBack(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			nodes := startAll(t, network, 3, nil)
			if err := nodes[1].Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			nodes[1].Close()
			time.Sleep(wait)
			nodes[1] = start(t, network, 2, seed, nil)
			took := eventually(t, 15*time.Second, "n2 is back", func() bool { return connected(nodes) })
			t.Logf("away for %v: back after %v", wait, took)
		})
	}
}

// A node that was killed and comes back on another address is a peer again as soon as
// it would be on its own; where its old place is silent, not refused, a little later.
// Nobody speaks of two nodes.
func TestNameMovesToAnotherAddress(t *testing.T) {
	for what, within := range map[string]time.Duration{"refuses": back, "is silent": moveWait + back} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			nodes := startAll(t, network, 3, nil)
			if what == "is silent" {
				network.Cut("127.0.0.2")
			} else {
				network.Kill("127.0.0.2")
			}
			nodes[1].Close()
			nodes[1] = start(t, network, 9, seed, func(c *Config) { c.Name = "n2" })
			took := eventually(t, 20*time.Second, "n2 is back", func() bool { return connected(nodes) })
			t.Logf("its old place %s: back after %v", what, took)
			if got := nodes[2].peer("n2").Addr; got != "127.0.0.9:7946" || took > within {
				t.Errorf("n2 is at %s after %v, want %v", got, took, within)
			}
			time.Sleep(time.Minute)
			for _, n := range nodes {
				if !connected(nodes) || strings.Contains(n.log(), "two nodes have one name") {
					t.Errorf("%s says\n%s", n.name, n.log())
				}
			}
			network.Heal()
		})
	}
}

// The sides of a partition find each other again, though neither is alone, each
// has buried the other, and only one holds the seed.
func TestPartitionHeals(t *testing.T) {
	for _, cut := range []time.Duration{20 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			nodes := startAll(t, network, 4, nil)
			network.Cut("127.0.0.3", "127.0.0.4")
			time.Sleep(cut)
			synctest.Wait()
			if cut > time.Minute {
				for i, n := range nodes {
					if other := nodes[(i+2)%4]; n.peer(other.name).State != "dead" || !connected2(nodes[i/2*2:i/2*2+2]) {
						t.Errorf("%s says %+v", n.name, n.Peers())
					}
				}
			}
			network.Heal()
			took := eventually(t, 45*time.Second, "all are connected", func() bool { return connected(nodes) })
			t.Logf("cut for %v: whole again after %v", cut, took)
		})
	}
}

// connected2 says whether the two nodes of a side have each other.
func connected2(side []*testNode) bool {
	return side[0].linked(side[1].name) && side[1].linked(side[0].name)
}

// Seeds may start last.
func TestSeedThatStartsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		late := start(t, network, 2, seed, nil)
		time.Sleep(5 * time.Minute)
		nodes := []*testNode{late, start(t, network, 1, nil, nil)}
		eventually(t, 2*seekMax, "they joined", func() bool { return connected(nodes) })
		if got := strings.Count(late.log(), "cannot join through this seed"); got != 1 {
			t.Errorf("said %d times that the seed is down, want once", got)
		}
	})
}

// Nodes that start together, each a seed of the others, warn of nothing.
func TestSimultaneousStartIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		seeds := []string{"127.0.0.1:7946", "127.0.0.2:7946", "127.0.0.3:7946", "127.0.0.4:7946"}
		var nodes []*testNode
		for i := range seeds {
			nodes = append(nodes, start(t, network, i+1, seeds, nil))
			time.Sleep(600 * time.Millisecond)
		}
		eventually(t, time.Minute, "all are connected", func() bool { return connected(nodes) })
		for _, n := range nodes {
			if log := n.log(); strings.Contains(log, "level=WARN") {
				t.Errorf("%s says\n%s", n.name, log)
			}
		}
	})
}

// Whoever dies or leaves, be it the only seed, is worth a warning or two, not one a try.
func TestTheGoneAreNotLamented(t *testing.T) {
	for name, end := range map[string]func(*memnet.Network, *testNode){
		"killed": func(network *memnet.Network, n *testNode) { network.Kill(n.host) },
		"silent": func(network *memnet.Network, n *testNode) { network.Cut(n.host) },
		"left":   func(_ *memnet.Network, n *testNode) { n.Leave(context.Background()) },
	} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			nodes := startAll(t, network, 3, nil)
			end(network, nodes[0])
			nodes[0].Close()
			time.Sleep(10 * time.Minute)
			network.Heal()
			for _, n := range nodes[1:] {
				if got := strings.Count(n.log(), "level=WARN"); got > 2 {
					t.Errorf("%s: %s warned %d times:\n%s", name, n.name, got, n.log())
				}
			}
		})
	}
}

// Two nodes of one name are an operator's mistake, said at both and by all others once
// a minute at most, and shown for as long as it lasts. The first keeps its streams, and
// loses nothing when the second has come and gone.
func TestSecondOfANameTakesNothing(t *testing.T) {
	const sentence = "two nodes are called n2, at 127.0.0.2:7946 and at 127.0.0.9:7946; give one another --name"
	const other = "two nodes are called n2, at 127.0.0.9:7946 and at 127.0.0.2:7946; give one another --name"
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 4, nil)
		second := start(t, network, 9, seed, func(c *Config) { c.Name = "n2" })
		time.Sleep(3 * time.Minute)
		second.Broadcast(gossip.Rumor{Author: "n2", Life: 2, Version: 1})
		nodes[1].say(1)
		synctest.Wait()
		if nodes[1].Trouble() != sentence || second.Trouble() != other || nodes[0].peer("n2").Trouble != sentence || nodes[0].Trouble() != "" {
			t.Errorf("the first says %q, the second %q, n1 %+v", nodes[1].Trouble(), second.Trouble(), nodes[0].peer("n2"))
		}
		network.Kill(second.host)
		second.Close()
		time.Sleep(2 * time.Minute)
		nodes[1].say(2)
		synctest.Wait()
		if !connected(nodes) || nodes[1].Trouble() != "" || nodes[0].peer("n2").Trouble != "" {
			t.Errorf("some stream of the first is gone, or it is still troubled: %q", nodes[1].Trouble())
		}
		for _, n := range append(nodes, second) {
			log := n.log()
			if got := strings.Count(log, "level=WARN"); got < 1 || got > 6 || strings.Count(log, "two nodes have one name") > 5 || !strings.Contains(log, "two nodes have one name") {
				t.Errorf("%s warned %d times in five minutes:\n%s", n.name, got, log)
			}
			if got := n.versions("n2"); n != nodes[1] && n != second && (!slices.Equal(got, []uint64{1, 2}) || strings.Contains(log, "ended") || slices.Contains(n.saw(), "lost n2")) {
				t.Errorf("%s heard %v of n2 and saw %v:\n%s", n.name, got, n.saw(), log)
			}
		}
	})
}

// A goodbye is heard at once, by memberlist too, is no loss, and is told once.
func TestLeaveIsHeardAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 3, nil)
		began := time.Now()
		var left time.Duration
		done := make(chan error)
		go func() {
			err := nodes[1].Leave(context.Background())
			left = time.Since(began)
			done <- err
		}()
		synctest.Wait()
		for _, n := range []*testNode{nodes[0], nodes[2]} {
			if p := n.peer("n2"); !slices.Contains(n.saw(), "leave n2") || p.State != "left" {
				t.Errorf("%s saw %v and says %+v", n.name, n.saw(), p)
			}
		}
		if err := <-done; err != nil || left > 200*time.Millisecond {
			t.Errorf("Leave took %v: %v", left, err)
		}
		if alive := nodes[0].members.NumMembers() + nodes[2].members.NumMembers(); alive == 6 {
			t.Error("no memberlist has heard of it")
		}
		nodes[1].Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, n := range []*testNode{nodes[0], nodes[2]} {
			saw := strings.Join(n.saw(), ", ")
			if strings.Contains(saw, "lost") || strings.Contains(saw, "dead") || strings.Count(saw, "leave") != 1 || n.peer("n2").State != "left" {
				t.Errorf("%s saw %s", n.name, saw)
			}
		}
	})
}

// Where all leave at once nobody misses a goodbye: who has answered it and is gone
// needs to hear no more. One who stays knows that all others have left.
func TestAllLeaveAtOnce(t *testing.T) {
	for _, stay := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			nodes := startAll(t, memnet.New(), 8, nil)
			began := time.Now()
			var leaving sync.WaitGroup
			for _, n := range nodes[stay:] {
				leaving.Go(func() {
					if err := n.Leave(t.Context()); err != nil || time.Since(began) > 200*time.Millisecond {
						t.Errorf("%s left within %v: %v", n.name, time.Since(began), err)
					}
					n.Close()
				})
			}
			leaving.Wait()
			for _, n := range nodes[:stay] {
				for _, gone := range nodes[stay:] {
					if p := n.peer(gone.name); p.State != StateLeft {
						t.Errorf("%s says %+v", n.name, p)
					}
				}
			}
		})
	}
}

// Leave does not wait longer for a peer that does not answer than it may.
func TestLeaveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 2, nil)
		network.Cut("127.0.0.2")
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := nodes[0].Leave(ctx); err == nil || time.Since(began) > 2*time.Second {
			t.Errorf("Leave took %v: %v", time.Since(began), err)
		}
	})
}

// Probes have room for the simulated delay: nobody is suspected for being far away.
func TestDelayIsNotDeath(t *testing.T) {
	for _, delay := range []time.Duration{2 * time.Millisecond, 200 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			nodes := startAll(t, memnet.New(), 4, func(c *Config) { c.LinkDelay, c.LinkJitter = delay, delay/4 })
			time.Sleep(5 * time.Minute)
			for _, n := range nodes {
				if log := n.log(); strings.Contains(log, "Suspect") || strings.Contains(log, "level=WARN") || !connected(nodes) {
					t.Errorf("%v: %s says\n%s", delay, n.name, log)
				}
			}
		})
	}
}

// Close waits for what it started, callbacks included, and is a crash to others.
func TestCloseIsACrashToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 2, nil)
		nodes[1].Close()
		nodes[1].Close()
		synctest.Wait()
		if !slices.Contains(nodes[0].saw(), "lost n2") {
			t.Errorf("n1 saw %v", nodes[0].saw())
		}
		if err := nodes[1].Leave(context.Background()); err == nil {
			t.Error("left after Close")
		}
	})
}
