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
	"github.com/hearsay-project/hearsay/prefix"
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

// linked says whether there is a rumor stream.
func (n *testNode) linked(peer string) bool {
	n.Mesh.mu.Lock()
	defer n.Mesh.mu.Unlock()
	p := n.peers[peer]
	return p != nil && p.stream != nil
}

func (n *testNode) say(version uint64) {
	n.Broadcast(gossip.Rumor{Author: n.name, Life: 1, Version: version, Every: 500 * time.Millisecond})
}

// start opens node n<i> on network, joined to seeds; change may alter its Config.
// Its host is 127.0.0.<i>, loopback to the mesh and a host of its own to memnet.
func start(t *testing.T, network *memnet.Network, i int, seeds []string, change func(*Config)) *testNode {
	t.Helper()
	n := &testNode{name: nodeName(i), host: fmt.Sprintf("127.0.0.%d", i), heard: map[string][]uint64{}}
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
		OnJoin: n.note("join"), OnLost: n.note("lost"),
		OnLeave: func(peer string, died bool) { n.note(map[bool]string{false: "leave", true: "dead"}[died])(peer) },
		Log:     slog.New(slog.NewTextHandler(n, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	if n.Mesh, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Close()
		time.Sleep(2 * time.Minute) // of virtual time, for memberlist's last probe
	})
	return n
}

func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

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
			if n.linked(p.Name) && p.State == StateAlive {
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

// bigTree is a snapshot of about size bytes.
func bigTree(size int) *prefix.Snapshot {
	tree := prefix.NewTree(1<<30, 1<<20)
	text := make([]byte, 64*size/9)
	for i := range text {
		text[i] = byte(i * i >> 8)
	}
	tree.Insert(prefix.NewChain(1, text), 1)
	return tree.Snapshot()
}

// A peer that reads nothing delays no other, and however much is said meanwhile
// costs one slot; when it reads again it hears the newest.
func TestStuckPeerDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, release := memnet.New(), make(chan bool)
		a := start(t, network, 1, seed, func(c *Config) { c.Whole = true })
		b := start(t, network, 2, seed, nil)
		stuck := start(t, network, 3, seed, func(c *Config) {
			hear := c.OnRumor
			c.OnRumor = func(r gossip.Rumor) {
				<-release
				hear(r)
			}
		})
		eventually(t, time.Minute, "every pair has a stream", func() bool { return connected([]*testNode{a, b, stuck}) })
		tree := bigTree(200 << 10)
		const last = 40
		for v := uint64(1); v <= last; v++ {
			a.Broadcast(gossip.Rumor{Author: a.name, Life: 1, Version: v, Tree: tree})
			synctest.Wait()
			if got := b.versions(a.name); uint64(len(got)) != v {
				t.Fatalf("after rumor %d the other peer has heard %v", v, got)
			}
			time.Sleep(100 * time.Millisecond)
		}
		close(release)
		synctest.Wait()
		got := stuck.versions(a.name)
		if len(got) > 4 || got[len(got)-1] != last {
			t.Errorf("the stuck peer heard %v, want a few and then %d", got, last)
		}
	})
}

// A peer that takes nothing for long is lost, so that nothing is held for it for
// ever, be it that large rumors do not fit into the buffers of its connection or that
// no small one is acknowledged.
func TestStuckPeerIsLostInTheEnd(t *testing.T) {
	for _, whole := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			network, release := memnet.New(), make(chan bool)
			defer close(release)
			a := start(t, network, 1, seed, func(c *Config) { c.Whole = whole })
			stuck := start(t, network, 2, seed, func(c *Config) { c.OnRumor = func(gossip.Rumor) { <-release } })
			eventually(t, time.Minute, "a stream", func() bool { return connected([]*testNode{a, stuck}) })
			tree, v := bigTree(200<<10), uint64(0)
			took := eventually(t, time.Minute, "the stuck peer is lost", func() bool {
				v++
				a.Broadcast(gossip.Rumor{Author: a.name, Life: 1, Version: v, Tree: tree})
				return slices.Contains(a.saw(), "lost n2")
			})
			if took < writeStall-time.Second {
				t.Errorf("lost after %v, before %v", took, writeStall)
			}
		})
	}
}

// Who connects hears the last rumor at once, without waiting for the next.
func TestNewcomerHearsTheLatestRumor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		a := start(t, network, 1, nil, nil)
		a.say(1)
		a.say(2)
		nodes := []*testNode{a, start(t, network, 2, seed, nil)}
		eventually(t, time.Minute, "a stream", func() bool { return connected(nodes) })
		synctest.Wait()
		if got := nodes[1].versions("n1"); !slices.Equal(got, []uint64{2}) {
			t.Errorf("the newcomer heard %v, want version 2", got)
		}
	})
}

// A rumor takes one way's delay, its ack another: the round trip is twice the
// delay to the nanosecond, polls faster than it or not.
func TestRoundTripIsMeasured(t *testing.T) {
	const delay = 200 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 2, func(c *Config) { c.LinkDelay = delay })
		heard := func() bool { return len(nodes[1].versions("n1")) > 0 }
		nodes[0].say(1)
		time.Sleep(delay - time.Nanosecond)
		synctest.Wait()
		if heard() {
			t.Error("the rumor came early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !heard() {
			t.Error("the rumor came late")
		}
		for v := range uint64(100) {
			nodes[0].say(2 + v)
			time.Sleep(20 * time.Millisecond)
		}
		synctest.Wait()
		if got := nodes[0].peer("n2").RTT; got != 2*delay {
			t.Errorf("round trip %v, want %v", got, 2*delay)
		}
		if got := nodes[1].peer("n1").RTT; got != 0 {
			t.Errorf("n2 said nothing and measured %v", got)
		}
	})
}

// Counters agree between the two ends.
func TestStatsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 2, nil)
		nodes[0].say(1)
		synctest.Wait()
		sent, got := nodes[0].Stats(), nodes[1].Stats()
		want := uint64(frameHeader + len(gossip.Rumor{Author: "n1", Life: 1, Version: 1, Every: 500 * time.Millisecond}.AppendBinary(nil)))
		if sent.RumorBytesSent != want || got.RumorBytesReceived != want || nodes[0].peer("n2").RumorBytesSent != want {
			t.Errorf("sent %+v, received %+v, want %d bytes", sent, got, want)
		}
	})
}
