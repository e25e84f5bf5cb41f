package mesh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// A seed that is a name is looked up at each try: a node that has lost all others
// finds them again where the name leads by then.
func TestSeedsOfANameChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		answer, fails := []netip.Addr{netip.MustParseAddr("127.0.0.1")}, true
		names := func(c *Config) {
			c.Lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
				mu.Lock()
				defer mu.Unlock()
				if fails || name != "nodes.example" {
					return nil, errors.New("no such host")
				}
				return answer, nil
			}
		}
		network := memnet.New()
		first := start(t, network, 1, nil, nil)
		node := start(t, network, 2, []string{"dns:nodes.example:7946"}, names)
		time.Sleep(time.Minute)
		mu.Lock()
		fails = false // as when a name server comes up last
		mu.Unlock()
		eventually(t, time.Minute, "they joined", func() bool { return connected([]*testNode{first, node}) })
		first.Leave(context.Background())
		first.Close()
		next := start(t, network, 7, nil, nil)
		time.Sleep(time.Minute)
		mu.Lock()
		answer = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("127.0.0.7")}
		mu.Unlock()
		eventually(t, time.Minute, "they joined anew", func() bool { return node.linked("n7") && next.linked("n2") })
		if got := strings.Count(node.log(), "level=WARN"); got > 4 {
			t.Errorf("warned %d times:\n%s", got, node.log())
		}
	})
}

// A node behind a translated address is reached by the one that it advertises.
func TestAdvertisedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		outside := map[string]string{"192.0.2.1:17946": "127.0.0.1:7946", "192.0.2.2:17946": "127.0.0.2:7946", "192.0.2.3:17946": "127.0.0.3:7946"}
		var nodes []*testNode
		for i := 1; i <= 3; i++ {
			nodes = append(nodes, start(t, network, i, []string{"192.0.2.1:17946"}, func(c *Config) {
				c.Advertise = "192.0.2." + c.Name[1:] + ":17946"
				dial := c.Dial
				c.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, outside[addr]) }
			}))
		}
		eventually(t, time.Minute, "all are connected", func() bool { return connected(nodes) })
		nodes[2].say(1)
		synctest.Wait()
		if got := nodes[0].peer("n3").Addr; got != "192.0.2.3:17946" || len(nodes[0].versions("n3")) != 1 {
			t.Errorf("n3 is at %s and was heard %v", got, nodes[0].versions("n3"))
		}
	})
}

// Nodes on IPv6, and some on each, are a cluster as any.
func TestIPv6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		var nodes []*testNode
		for i, at := range []string{"[fd00::1]:7946", "[fd00::2]:7946", "10.0.0.3:7946"} {
			listener, err := network.Listen(at)
			if err != nil {
				t.Fatal(err)
			}
			host, _, _ := net.SplitHostPort(at)
			nodes = append(nodes, start(t, network, i+1, []string{"[fd00::1]:7946"}, func(c *Config) {
				c.Listener.Close()
				c.Listener, c.Dial, c.Insecure = listener, network.DialFrom(host), true
			}))
		}
		eventually(t, time.Minute, "all are connected", func() bool { return connected(nodes) })
		if got := nodes[2].peer("n2").Addr; got != "[fd00::2]:7946" {
			t.Errorf("n2 is at %s", got)
		}
		for _, n := range nodes {
			if !strings.Contains(n.log(), `level=WARN msg="INSECURE: whoever reaches the peer port is a peer`) {
				t.Errorf("%s does not warn of an open port", n.name)
			}
		}
	})
}

// A node whose clock went back over a restart is a member again as soon as any other,
// though its peers remember it from a time that is to come, alive or as one that left.
func TestMembershipOutlivesAClock(t *testing.T) {
	for how, end := range ends {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			nodes := startAll(t, network, 3, nil)
			nodes[1].transport.outlive("n2", time.Now().Add(24*time.Hour))
			time.Sleep(time.Minute)
			end(network, nodes[1])
			nodes[1] = start(t, network, 2, seed, nil)
			took := eventually(t, time.Minute, "n2 is back", func() bool { return connected(nodes) })
			if took > 2*back {
				t.Errorf("%s: back after %v", how, took)
			}
			time.Sleep(time.Minute)
			if !connected(nodes) {
				t.Errorf("%s: it did not last", how)
			}
		})
	}
}

// A node that comes back under another name is another node at the same address; the
// old name dies.
func TestAddressTakesAnotherName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 3, nil)
		network.Kill("127.0.0.2")
		nodes[1].Close()
		nodes[1] = start(t, network, 2, seed, func(c *Config) { c.Name = "n7" })
		eventually(t, 5*time.Second, "the new name is linked", func() bool { return nodes[0].linked("n7") && nodes[2].linked("n7") })
		eventually(t, 30*time.Second, "the old one is dead", func() bool { return nodes[0].peer("n2").State == StateDead && nodes[2].peer("n2").State == StateDead })
		if p := nodes[0].peer("n7"); p.State != StateAlive {
			t.Errorf("n1 says %+v", p)
		}
	})
}

// Two sides of which neither has a seed on the other find each other though each
// has long forgotten what was there.
func TestSidesWithoutSeedsFindEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := []*testNode{
			start(t, network, 1, nil, nil), start(t, network, 2, seed, nil),
			start(t, network, 3, nil, nil), start(t, network, 4, []string{"127.0.0.3:7946"}, nil),
		}
		nodes[0].join([]string{"127.0.0.3:7946"})
		eventually(t, time.Minute, "all are connected", func() bool { return connected(nodes) })
		network.Cut("127.0.0.3", "127.0.0.4")
		time.Sleep(forgetAfter + 2*time.Minute)
		if len(nodes[0].Peers()) != 1 {
			t.Errorf("n1 lists %+v", nodes[0].Peers())
		}
		network.Heal()
		took := eventually(t, 2*time.Minute, "all are connected", func() bool { return connected(nodes) })
		t.Logf("whole again after %v", took)
	})
}

// A member that only this node cannot reach, and hears, is not buried because another
// bears its name.
func TestUnreachableIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 4, func(c *Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				if c.Name == "n3" && addr == "127.0.0.2:7946" {
					return nil, errors.New("no route to host")
				}
				return dial(ctx, addr)
			}
		})
		start(t, network, 9, seed, func(c *Config) { c.Name = "n2" })
		for version := range uint64(240) {
			nodes[1].say(1 + version)
			time.Sleep(500 * time.Millisecond)
		}
		for _, n := range nodes {
			if saw := strings.Join(n.saw(), ", "); strings.Contains(saw, "dead") || strings.Contains(saw, "lost") || !connected(nodes) {
				t.Errorf("%s saw %s", n.name, saw)
			}
		}
		if got := nodes[2].peer("n2"); !strings.HasPrefix(got.Trouble, "two nodes are called n2") {
			t.Errorf("n3 says %+v", got)
		}
	})
}
