package mesh

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// A testNode is a mesh and what it was told.
type testNode struct {
	*Mesh
	name, host string

	mu     sync.Mutex
	heard  map[string][]uint64 // versions by author
	events []string
	logged strings.Builder
}

func (n *testNode) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.logged.Write(b)
}

func (n *testNode) note(what string) func(string) {
	return func(peer string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, what+" "+peer)
	}
}

func (n *testNode) saw() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

func (n *testNode) versions(author string) []uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.heard[author])
}

func (n *testNode) log() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.logged.String()
}

func (n *testNode) peer(name string) Peer {
	for _, p := range n.Peers() {
		if p.Name == name {
			return p
		}
	}
	return Peer{}
}

func (n *testNode) say(version uint64) {
	n.Broadcast(gossip.Rumor{Author: n.name, Life: 1, Version: version, Every: 500 * time.Millisecond})
}

// start opens node n<i> on network, joined to seeds; change may alter its Config.
// Its host is 127.0.0.<i>, loopback to the mesh and a host of its own to memnet.
func start(t *testing.T, network *memnet.Network, i int, seeds []string, change func(*Config)) *testNode {
	t.Helper()
	n := &testNode{name: fmt.Sprintf("n%d", i), host: fmt.Sprintf("127.0.0.%d", i), heard: map[string][]uint64{}}
	listener, err := network.Listen(n.host + ":7946")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Name: n.name, Listener: listener, Dial: network.DialFrom(n.host), Join: seeds,
		OnRumor: func(r gossip.Rumor) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.heard[r.Author] = append(n.heard[r.Author], r.Version)
		},
		OnJoin: n.note("join"), OnLeave: n.note("leave"), OnLost: n.note("lost"),
		Log: slog.New(slog.NewTextHandler(n, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	if n.Mesh, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

var seed = []string{"127.0.0.1:7946"}

// startAll opens n1 to n<count>, joined through n1, and waits for all streams.
func startAll(t *testing.T, network *memnet.Network, count int, change func(*Config)) []*testNode {
	t.Helper()
	var nodes []*testNode
	for i := 1; i <= count; i++ {
		nodes = append(nodes, start(t, network, i, seed, change))
	}
	eventually(t, time.Minute, "every pair has a stream", func() bool { return connected(nodes) })
	return nodes
}

func connected(nodes []*testNode) bool {
	for _, n := range nodes {
		up := 0
		for _, p := range n.Peers() {
			if p.Connected && p.State == "alive" {
				up++
			}
		}
		if up != len(nodes)-1 {
			return false
		}
	}
	return true
}

// eventually lets virtual time pass until ok, and returns how much did.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
	}
	return time.Since(began)
}

// Four nodes that know one seed all hear each other.
func TestRumorsReachEveryPeer(t *testing.T) {
	for _, count := range []int{2, 4} {
		synctest.Test(t, func(t *testing.T) {
			nodes := startAll(t, memnet.New(), count, nil)
			for _, n := range nodes {
				n.say(1)
			}
			synctest.Wait() // no time passes at all
			for _, n := range nodes {
				for _, author := range nodes {
					if got := n.versions(author.name); n != author && !slices.Equal(got, []uint64{1}) {
						t.Errorf("%s heard %v of %s, want version 1 once", n.name, got, author.name)
					}
				}
			}
		})
	}
}

