package mesh

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

var record = flag.Bool("record", false, "write what a node of this protocol says to testdata; once for each version")

// What a node of a protocol's version has said: as n1, which joins n2 and dials its
// rumor stream, and as n2, which accepts that. Each is a hello, and what follows once
// the other end has answered.
const (
	tapeJoin     = "rumor%d.join"
	tapeDialler  = "rumor%d.dialler"
	tapeAcceptor = "rumor%d.acceptor"
)

// tapes keep what is written to each of a node's connections.
type tapes struct {
	net.Listener
	mu  sync.Mutex
	all []*tape
}

type tape struct {
	net.Conn
	tapes *tapes
	said  bytes.Buffer
}

func (t *tapes) keep(c net.Conn) net.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, &tape{Conn: c, tapes: t})
	return t.all[len(t.all)-1]
}

func (t *tapes) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return t.keep(c), nil
}

func (c *tape) Write(b []byte) (int, error) {
	c.tapes.mu.Lock()
	c.said.Write(b)
	c.tapes.mu.Unlock()
	return c.Conn.Write(b)
}

// with returns what was said on the first connection that began so.
func (t *tapes) with(words ...string) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.all {
		if head, _, _ := bytes.Cut(c.said.Bytes(), []byte("\r\n\r\n")); !slices.ContainsFunc(words, func(w string) bool { return !bytes.Contains(head, []byte(w)) }) {
			return bytes.Clone(c.said.Bytes())
		}
	}
	return nil
}

// TestRecordPeers writes the tapes. It is for whoever makes a version of the protocol.
func TestRecordPeers(t *testing.T) {
	if !*record {
		t.Skip("run with -record once the protocol has a new version")
	}
	save := func(name string, b []byte) {
		name = filepath.Join("testdata", fmt.Sprintf(name, upgradeRumors.most))
		if len(b) == 0 {
			t.Fatalf("nothing for %s", name)
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		network, dialled, accepted := memnet.New(), &tapes{}, &tapes{}
		naming := Naming{"hearsay/prefix/1", 64, "6b6579"}
		n2 := start(t, network, 2, nil, func(c *Config) {
			accepted.Listener = c.Listener
			c.Listener, c.Naming, c.RelayAbove = accepted, naming, 1
		})
		n1 := start(t, network, 1, []string{n2.Addr()}, func(c *Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := dial(ctx, addr)
				if err != nil {
					return nil, err
				}
				return dialled.keep(conn), nil
			}
			c.Naming, c.RelayAbove = naming, 1
		})
		eventually(t, time.Minute, "they are connected", func() bool { return connected([]*testNode{n1, n2}) })
		for i, tree := range []int{200, 300, 300} {
			for life, n := range []*testNode{n1, n2} {
				n.Broadcast(gossip.Rumor{
					Author: n.name, Life: uint64(1000 + life), Version: uint64(1 + i), Every: 500 * time.Millisecond, Queue: i,
					Tokens: tree, Models: []string{"m", "m-2"}, Tree: bigTree(tree),
				})
			}
			time.Sleep(500 * time.Millisecond)
		}
		var leaving sync.WaitGroup // both at once: the first goodbye to be read ends the stream
		leaving.Go(func() { n1.Leave(context.Background()) })
		leaving.Go(func() { n2.Leave(context.Background()) })
		leaving.Wait()
		save(tapeJoin, dialled.with("GET "+upgradeStreams.path))
		save(tapeDialler, dialled.with("GET "+upgradeRumors.path))
		save(tapeAcceptor, accepted.with("101 Switching", "Upgrade: "+upgradeRumors.protocol))
	})
}

// play says the hello of a tape, waits for the answer's head, and says the rest.
func play(t *testing.T, conn net.Conn, tape []byte) {
	t.Helper()
	hello, rest, _ := bytes.Cut(tape, []byte("\r\n\r\n"))
	fmt.Fprintf(conn, "%s\r\n\r\n", hello)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the hello is answered by %v, %v", resp, err)
	}
	conn.Write(rest)
}

// A node of any version that was ever recorded and is still spoken joins, is heard
// and says goodbye, as dialler and as the one that is dialled.
func TestRecordedPeers(t *testing.T) {
	if upgradeRumors.most-upgradeRumors.least > 1 {
		t.Error("more than the version before is spoken: say so in docs/protocol.md")
	}
	for version := upgradeRumors.least; version <= upgradeRumors.most; version++ {
		said := map[string][]byte{}
		for _, name := range []string{tapeJoin, tapeDialler, tapeAcceptor} {
			b, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf(name, version)))
			if err != nil {
				t.Fatal(err)
			}
			said[name] = b
		}
		naming := func(c *Config) { c.Naming = Naming{"hearsay/prefix/1", 64, "6b6579"} }
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			node := start(t, network, 2, nil, naming)
			node.say(1)
			for _, name := range []string{tapeJoin, tapeDialler} {
				conn, err := network.DialFrom("127.0.0.1")(t.Context(), node.Addr())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				play(t, conn, said[name])
				synctest.Wait()
			}
			wantRecorded(t, node, "n1")
		})
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			node := start(t, network, 1, nil, naming)
			node.say(1)
			l, err := network.Listen("127.0.0.2:7946")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			node.transport.packets <- &memberlist.Packet{Buf: aliveMessage("n2", []byte{127, 0, 0, 2}, 7946, 1, 5, 2, 0, 0, 0), From: &net.TCPAddr{}}
			for {
				conn, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err == nil && req.URL.Path == upgradeRumors.path {
					conn.Write(said[tapeAcceptor])
					break
				}
			}
			synctest.Wait()
			wantRecorded(t, node, "n2")
		})
	}
}

func wantRecorded(t *testing.T, node *testNode, peer string) {
	t.Helper()
	if got := node.versions(peer); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("%s heard %v", node.name, got)
	}
	if !slices.Contains(node.saw(), "leave "+peer) || len(node.Refused()) > 0 {
		t.Errorf("%s saw %v and refused %v:\n%s", node.name, node.saw(), node.Refused(), node.log())
	}
}

// A node of the next version, which offers this one's too and says more than this one
// knows, is spoken to in this version; what it sends of a later kind is skipped.
func TestNextVersionIsSpokenTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 2, func(c *Config) { c.Naming = Naming{"hearsay/prefix/1", 64, "k"} })
		next := dialler(t, network, "n1")
		next.addr = nodes[0].Addr()
		u := upgradeRumors
		u.most++
		say := http.Header{headerNames: {"hearsay/prefix/1 64 k later"}, "Hearsay-Later": {"x"}, headerHeard: {"-7"}}
		conn, said, version, err := next.upgrade(t.Context(), nodes[1].Addr(), u, "n2", say)
		if err != nil || version != upgradeRumors.most || said.Get(headerNames) != "hearsay/prefix/1 64 k" {
			t.Fatalf("version %d, %v, %v", version, said, err)
		}
		defer conn.Close()
		conn.Write(frame(200, append(make([]byte, frameHeader), "later"...)))
		rumor := gossip.Rumor{Author: "n1", Life: 1, Version: 7, Every: time.Second}
		conn.Write(frame(frameRumor, rumor.AppendBinary(make([]byte, frameHeader))))
		synctest.Wait()
		if got := nodes[1].versions("n1"); !slices.Contains(got, 7) || nodes[1].Refused()[refusedFrame] > 0 {
			t.Errorf("heard %v, refused %v", got, nodes[1].Refused())
		}
	})
}

// Nodes without a version in common, or that name prefixes in different ways, serve on
// without each other and say why, once, in log and status, at both ends.
func TestMismatchIsTold(t *testing.T) {
	for what, c := range map[string]struct {
		names [2]Naming
		want  string
	}{
		"key":    {[2]Naming{{"s", 64, "a"}, {"s", 64, "b"}}, "n2 and n1 have different cluster keys: nothing is routed between them; give all nodes the same --cluster-key"},
		"no key": {[2]Naming{{"s", 64, "a"}, {"s", 64, ""}}, "n2 has no cluster key and n1 has one: nothing is routed between them"},
		"a key":  {[2]Naming{{"s", 64, ""}, {"s", 64, "b"}}, "n2 has a cluster key and n1 has none: nothing is routed between them"},
		"blocks": {[2]Naming{{"s", 64, "a"}, {"s", 128, "a"}}, "n2 names blocks of 128 bytes, n1 of 64: nothing is routed between them; run one version on all nodes"},
		"scheme": {[2]Naming{{"s", 64, "a"}, {"z", 64, "a"}}, "n2 names prefixes by z, n1 by s: nothing is routed between them; run one version on all nodes"},
	} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			var nodes []*testNode
			for i, naming := range c.names {
				nodes = append(nodes, start(t, network, i+1, seed, func(cfg *Config) { cfg.Naming = naming }))
			}
			nodes[0].say(1)
			time.Sleep(5 * time.Minute)
			for i, n := range nodes {
				peer := n.peer(nodes[1-i].name)
				if !strings.HasPrefix(peer.Trouble, c.want) || peer.State != StateAlive || len(n.versions(peer.Name)) > 0 {
					t.Errorf("%s: %s says %+v", what, n.name, peer)
				}
				if got := strings.Count(n.log(), "level=WARN"); got != 1 || !strings.Contains(n.log(), c.want) || !n.Settled() {
					t.Errorf("%s: %s warns %d times:\n%s", what, n.name, got, n.log())
				}
			}
			if got := nodes[1].Refused()[refusedNaming]; got < 10 {
				t.Errorf("%s: counted %d", what, got)
			}
		})
	}
}

// A peer whose rumors cannot be read, as of a version that nobody speaks any more, is
// told of until they can be.
func TestUnreadableRumorsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 2, nil)
		old := dialler(t, network, "n1")
		old.addr = nodes[0].Addr()
		for range 10 {
			conn, _, _, err := old.upgrade(t.Context(), nodes[1].Addr(), upgradeRumors, "n2", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.Write(frame(frameRumor, append(make([]byte, frameHeader), 1, 2, 'n', '1')))
			synctest.Wait()
		}
		if p := nodes[1].peer("n1"); !strings.Contains(p.Trouble, "run one version on all nodes") || nodes[1].Refused()[refusedFrame] != 10 {
			t.Errorf("n2 says %+v and refused %v", p, nodes[1].Refused())
		}
		if got := strings.Count(strings.Join(nodes[1].saw(), ","), "lost n1"); got != 1 || strings.Count(nodes[1].log(), "level=WARN") != 1 {
			t.Errorf("n2 lost it %d times:\n%s", got, nodes[1].log())
		}
		eventually(t, time.Second, "they are connected again", func() bool { return connected(nodes) })
		if nodes[1].peer("n1").Trouble == "" {
			t.Error("a stream is taken for a rumor")
		}
		nodes[0].say(1)
		synctest.Wait()
		if p := nodes[1].peer("n1"); p.Trouble != "" {
			t.Errorf("n2 still says %q", p.Trouble)
		}
	})
}
