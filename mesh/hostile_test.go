package mesh

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/cert"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// hostile spoils a good message by chance, in some of the ways that find mistakes.
func hostile(chance *rand.Rand, good []byte) []byte {
	b := bytes.Clone(good)
	for range 1 + chance.IntN(4) {
		if len(b) == 0 {
			break
		}
		at := chance.IntN(len(b))
		switch chance.IntN(6) {
		case 0:
			b[at] ^= 1 << chance.IntN(8)
		case 1:
			b[at] = byte(chance.Uint32())
		case 2:
			b = b[:at]
		case 3:
			b = append(b[:at:at], bytes.Repeat([]byte{0xff}, chance.IntN(16))...)
		case 4:
			b = slices.Insert(b, at, bytes.Repeat([]byte{byte(chance.Uint32())}, chance.IntN(64))...)
		case 5:
			b = slices.Delete(b, at, min(len(b), at+1+chance.IntN(8)))
		}
	}
	return b
}

// hostileFrame is a frame of whatever kind with a spoilt payload, or one whose length
// is not that of what follows.
func hostileFrame(chance *rand.Rand, rumor []byte) []byte {
	change := gossip.Rumor{Author: "n1", Life: 1, Version: chance.Uint64(), Every: time.Second, Change: &gossip.Change{Since: chance.Uint64()}}
	payload := [][]byte{
		rumor, ack{chance.Uint64(), chance.Uint64()}.frame()[frameHeader:], nil, []byte("GET / HTTP/1.1\r\n\r\n"),
		appendRelayed(nil, []byte("signature"), change.AppendBinary(nil)), new(gossip.Relay).AppendDigest(nil, chance.Uint64()),
	}[chance.IntN(6)]
	b := frame(byte(chance.IntN(10)), append(make([]byte, frameHeader), hostile(chance, payload)...))
	if chance.IntN(8) == 0 {
		binary.BigEndian.PutUint32(b, chance.Uint32()>>chance.IntN(32))
	}
	return b
}

// held is the memory in use, and how many connections and goroutines there are.
func held(network *memnet.Network) (heap uint64, conns, goroutines int) {
	synctest.Wait()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, network.Conns(), runtime.NumGoroutine()
}

// forgetAll drops what the test itself has kept of nodes.
func forgetAll(nodes []*testNode) {
	for _, n := range nodes {
		n.mu.Lock()
		n.heard, n.events = map[string][]uint64{}, nil
		n.logged.Reset()
		n.mu.Unlock()
	}
}

// wantNoGrowth compares with what was held before.
func wantNoGrowth(t *testing.T, network *memnet.Network, heap uint64, conns, goroutines int) {
	t.Helper()
	nowHeap, nowConns, nowGoroutines := held(network)
	t.Logf("heap %d KiB, was %d KiB", nowHeap>>10, heap>>10)
	if nowHeap > heap+4<<20 || nowConns > conns+4 || nowGoroutines > goroutines+8 {
		t.Errorf("heap %d to %d, connections %d to %d, goroutines %d to %d", heap, nowHeap, conns, nowConns, goroutines, nowGoroutines)
	}
}

// A scripted connection gives what it holds, and ends.
type scripted struct {
	net.Conn
	script *bytes.Reader
}

func (c scripted) Read(b []byte) (int, error)      { return c.script.Read(b) }
func (c scripted) SetReadDeadline(time.Time) error { return nil }

// 100,000 hostile frames cost their streams and nothing else: nothing grows. And the
// peer they come from is heard when it speaks well.
func TestHostileFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, chance := memnet.New(), rand.New(rand.NewPCG(1, 2))
		nodes := startAll(t, network, 2, nil)
		rumor := gossip.Rumor{Author: "n1", Life: 1, Version: 1, Every: time.Second, Models: []string{"m"}, Tree: bigTree(1 << 10)}.AppendBinary(nil)
		heap, conns, goroutines := held(network)
		broken := 0
		for range 100_000 {
			conn := scripted{script: bytes.NewReader(hostileFrame(chance, rumor))}
			if err := nodes[1].newStream(nodes[1].Mesh.peers["n1"], conn, 1).read(); !errors.Is(err, io.EOF) {
				broken++
			}
		}
		if broken < 10_000 {
			t.Errorf("%d were too much for a stream", broken)
		}
		evil := dialler(t, network, "n1") // the same over the whole way, as far as the node reads
		evil.addr = nodes[0].Addr()
		for range 1000 {
			conn, _, _, err := evil.upgrade(t.Context(), nodes[1].Addr(), upgradeRumors, "n2", nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				conn.Write(hostileFrame(chance, rumor))
			}
			synctest.Wait()
			conn.Close()
		}
		synctest.Wait()
		if got := nodes[1].Refused()[refusedFrame]; got < 500 {
			t.Errorf("%d streams were refused", got)
		}
		eventually(t, time.Minute, "the peer is back", func() bool { return connected(nodes) })
		nodes[0].say(1<<63 + 2)
		synctest.Wait()
		if got := nodes[1].versions("n1"); got[len(got)-1] != 1<<63+2 {
			t.Errorf("what is said well is not heard")
		}
		forgetAll(nodes)
		wantNoGrowth(t, network, heap, conns, goroutines)
	})
}

// pushPull is memberlist's message of a whole exchange, with so many members.
func pushPull(members int) []byte {
	b := append([]byte{memberPushPull, 0x83}, "\xa5Nodes"...)
	b = binary.BigEndian.AppendUint32(append(b, 0xce), uint32(members))
	b = append(b, "\xacUserStateLen\x00\xa4Join\xc3"...)
	for i := range members {
		b = append(b, "\x87\xa4Name\xa2n"...)
		b = append(b, byte('0'+i%10))
		b = append(b, "\xa4Addr\xa4\x7f\x00\x00"...)
		b = append(b, byte(1+i))
		b = append(b, "\xa4Port\xcd\x1f\x0a\xa4Meta\xc0\xabIncarnation\x01\xa5State\x00\xa3Vsn\xa6\x01\x05\x02\x00\x00\x00"...)
	}
	return b
}

// Membership that is spoilt, packed, or of a million members on its own word, costs
// its sender an answer and this node nothing.
func TestHostileMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, chance := memnet.New(), rand.New(rand.NewPCG(1, 2))
		nodes := startAll(t, network, 2, nil)
		heap, conns, goroutines := held(network)
		million := append([]byte{memberPushPull, 0x83}, "\xa5Nodes\xce\x00\x10\x00\x00\xacUserStateLen\x00\xa4Join\xc3"...)
		nested := append([]byte{memberPushPull}, bytes.Repeat([]byte{0x91}, 1<<20)...)
		alive := aliveMessage("n1", []byte{127, 0, 0, 1}, 7946, 1, 5, 2, 0, 0, 0)
		for i := range 2000 {
			conn, err := nodes[0].transport.DialTimeout(nodes[1].Addr(), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			message := hostile(chance, pushPull(2))
			switch i % 20 {
			case 0:
				message = million
			case 1:
				message = nested[:1+chance.IntN(1<<10)]
			}
			conn.SetDeadline(time.Now().Add(time.Second))
			conn.Write(message)
			conn.Close()
		}
		for range 10_000 {
			nodes[0].transport.send(hostile(chance, alive), at(nodes[1]))
		}
		if refused := nodes[1].Refused(); refused[refusedMember] < 5000 {
			t.Errorf("refused %v", refused)
		}
		time.Sleep(2 * time.Minute)
		if !nodes[0].linked("n2") || !nodes[1].linked("n1") {
			t.Errorf("n1 sees %+v", nodes[0].Peers())
		}
		forgetAll(nodes)
		wantNoGrowth(t, network, heap, conns, goroutines)
	})
}

// Whatever comes on a rumor stream is a rumor of the peer's that a view takes in, or
// ends the stream.
func FuzzStream(f *testing.F) {
	tree := bigTree(200)
	whole := gossip.Rumor{Author: "n1", Life: 1, Version: 1, Every: time.Second, Models: []string{"m"}, Tree: tree}
	f.Add(frame(frameRumor, whole.AppendBinary(make([]byte, frameHeader))))
	change := whole
	change.Version, change.Change = 2, &gossip.Change{Since: 1, Blocks: tree.Len()}
	f.Add(append(ack{1, 2}.frame(), frame(frameRumor, change.AppendBinary(make([]byte, frameHeader)))...))
	f.Add(append(hold{1, 2, 3}.frame(), frame(frameGoodbye, make([]byte, frameHeader))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		view, now := gossip.NewView(gossip.Config{Self: "n2"}), time.Unix(1e9, 0)
		view.Hear(now, whole)
		m := &Mesh{cfg: Config{Name: "n2", Told: view.Told}}
		m.cfg.OnRumor = func(r gossip.Rumor) {
			if r.Author != "n1" {
				t.Errorf("heard %q", r.Author)
			}
			view.Hear(now, r)
		}
		m.cfg.setDefaults()
		m.port = newPort(&port{name: "n2", log: m.cfg.Log, wg: &m.wg, ctx: t.Context()})
		p := &peer{Peer: Peer{Name: "n1", State: StateAlive}}
		if err := m.newStream(p, scripted{script: bytes.NewReader(b)}, upgradeRumors.most).read(); err == nil {
			t.Error("it never ends")
		}
		view.Match("n1", nil)
	})
}

// What this node's own memberlist sends passes the sieve, to the last byte.
func TestSieveKnowsItsOwn(t *testing.T) {
	for _, members := range []int{0, 1, 9} {
		message := pushPull(members)
		s := sieve{in: bytes.NewReader(append(bytes.Clone(message), "rest"...)), most: exchangeMax}
		if err := s.exchange(); err != nil || !bytes.Equal(s.kept, message) {
			t.Errorf("%d members: kept %d of %d bytes, %v", members, len(s.kept), len(message), err)
		}
	}
	long := pushPull(membersMax + 1)
	s := sieve{in: bytes.NewReader(long), most: exchangeMax}
	if err := s.exchange(); err == nil || len(s.kept) > 100 {
		t.Errorf("read %d bytes for too many members: %v", len(s.kept), err)
	}
}

// No packet and no exchange makes the sieve keep what did not come, or pass what it
// has not read.
func FuzzSieve(f *testing.F) {
	f.Add(pushPull(2))
	f.Add(aliveMessage("n1", []byte{127, 0, 0, 1}, 7946, 1, 5, 2, 0, 0, 0))
	f.Add([]byte{memberCompound, 1, 0, 2, memberNack, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = checkPacket(b)
		s := sieve{in: bytes.NewReader(b), most: 1 << 12}
		err := s.exchange()
		if len(s.kept) > s.most || !bytes.HasPrefix(b, s.kept) || err == nil && len(s.kept) == 0 {
			t.Errorf("kept %d bytes of %d: %v", len(s.kept), len(b), err)
		}
	})
}

// Whatever the other end says in its hello, this node answers with a sentence or
// takes it as it is.
func FuzzHello(f *testing.F) {
	own := Naming{"hearsay/prefix/1", 64, "k"}
	f.Add("hearsay-rumor/2, hearsay-rumor/1", own.String())
	f.Add("hearsay-rumor/99999999999999999999", "a b")
	f.Fuzz(func(t *testing.T, offer, names string) {
		if v := upgradeRumors.choose(offer); v != 0 && (v < upgradeRumors.least || v > upgradeRumors.most || !strings.Contains(offer, upgradeRumors.token(v))) {
			t.Errorf("of %q version %d is taken", offer, v)
		}
		if sentence := own.differ("n1", "n2", names); (sentence == "") != (len(strings.Fields(names)) == 0 || slices.Equal(strings.Fields(own.String()), strings.Fields(names)[:min(3, len(strings.Fields(names)))])) {
			t.Errorf("%q: %q", names, sentence)
		}
	})
}

// A faltering connection carries a rumor stream until it is told to stop, in the
// middle of what comes next; all others it carries whole.
type faltering struct {
	net.Conn
	stop   *atomic.Bool
	rumors atomic.Bool
	passed int // bytes since
}

func (c *faltering) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("GET "+upgradeRumors.path)) {
		c.rumors.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *faltering) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if !c.rumors.Load() || !c.stop.Load() || err != nil {
			return n, err
		}
		if c.passed == 0 {
			c.passed = min(n, 100)
			return c.passed, nil
		}
	}
}

// A frame that stops half way is not waited for for ever; between frames a peer may be
// silent for as long as it likes.
func TestSlowFrameIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stop atomic.Bool
		nodes := startAll(t, memnet.New(), 2, func(c *Config) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := dial(ctx, addr)
				return &faltering{Conn: conn, stop: &stop}, err
			}
		})
		nodes[1].say(1)
		time.Sleep(5 * time.Minute)
		if nodes[0].Refused()[refusedSlow] != 0 || slices.Contains(nodes[0].saw(), "lost n2") {
			t.Errorf("a silent peer is lost: %v, %v", nodes[0].saw(), nodes[0].Refused())
		}
		stop.Store(true)
		nodes[1].Broadcast(gossip.Rumor{Author: "n2", Life: 1, Version: 2, Every: time.Second, Tree: bigTree(200 << 10)})
		time.Sleep(writeStall - time.Second)
		if nodes[0].Refused()[refusedSlow] != 0 {
			t.Error("a frame was given up before its time")
		}
		time.Sleep(2 * time.Second)
		if nodes[0].Refused()[refusedSlow] != 1 {
			t.Errorf("it still waits, and refused %v", nodes[0].Refused())
		}
		stop.Store(false)
		eventually(t, time.Minute, "they are connected", func() bool { return connected(nodes) })
	})
}

// Handshakes that stall, from many hosts, hold up no peer, and one host that fails at
// them is slowed down.
func TestFloodOfHandshakes(t *testing.T) {
	ca := newAuthority(t)
	n1, n2 := ca.identity("n1"), ca.identity("n2")
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		node := start(t, network, 1, nil, func(c *Config) { c.Identity = n1 })
		stall := func(i int) {
			conn, err := network.DialFrom(fmt.Sprintf("10.1.%d.%d", i>>8, i&255))(t.Context(), seed[0])
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
		}
		for i := range 3 * greetingsMax {
			stall(i)
			synctest.Wait()
		}
		peer := start(t, network, 2, seed, func(c *Config) { c.Identity = n2 })
		eventually(t, 5*time.Second, "a peer joins through the flood", func() bool { return connected([]*testNode{node, peer}) })
		if got := node.Refused()[refusedFlood]; got < 2*greetingsMax {
			t.Errorf("%d of the stalled had to go", got)
		}
		try := stranger(t, network, nil)
		for range 1000 {
			if try(upgradeRumors) == nil {
				t.Fatal("upgraded")
			}
		}
		if got := node.Refused()[refusedPlaintext]; got > 2*strangerBurst {
			t.Errorf("%d handshakes in one moment with a host that fails at them", got)
		}
		time.Sleep(headerWait + time.Second)
		if got, stalled := node.Refused()[refusedSlow], len(node.port.greetings); got == 0 || stalled > 0 {
			t.Errorf("%d of the stalled ended, %d are waited for", got, stalled)
		}
	})
}

// Handshakes that are broken off, as by nodes that start together and find no time for
// each other, shut out nobody behind an address that peers are connected with; who shows
// what is no certificate there is slowed down, and so is a host without peers.
func TestBrokenHandshakesShutOutNoPeer(t *testing.T) {
	ca := newAuthority(t)
	identities := map[string]*cert.Identity{"n1": ca.identity("n1"), "n2": ca.identity("n2"), "n3": ca.identity("n3")}
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 2, func(c *Config) { c.Identity = identities[c.Name] })
		give := func(host, said string) (flood uint64) {
			before := nodes[0].Refused()[refusedFlood]
			for range 10 * strangerBurst {
				conn, err := network.DialFrom(host)(t.Context(), seed[0])
				if err != nil {
					t.Fatal(err)
				}
				io.WriteString(conn, said)
				conn.Close()
				synctest.Wait()
			}
			return nodes[0].Refused()[refusedFlood] - before
		}
		const broken = "\x16\x03\x01\x02\x00\x01" // the beginning of a ClientHello
		if got := give(nodes[1].host, broken); got > 0 {
			t.Errorf("%d were shut out of a host of peers", got)
		}
		n3 := start(t, network, 3, seed, func(c *Config) { c.Identity, c.Dial = identities["n3"], network.DialFrom(nodes[1].host) })
		eventually(t, 5*time.Second, "another joins from there", func() bool { return connected(append(nodes, n3)) })
		if give(nodes[1].host, "GET / HTTP/1.1\r\n\r\n") == 0 || give("10.0.0.9", broken) == 0 {
			t.Error("strangers are not slowed down")
		}
		for _, n := range append(nodes[1:], n3) {
			n.Close()
		}
		synctest.Wait()
		if hosts := nodes[0].port.proven; len(hosts) > 0 {
			t.Errorf("hosts of %v are remembered", hosts)
		}
	})
}

// A label is the address and the name of one node, and of no other.
func TestLabels(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range []string{"", "n1", "10.0.0.1", "a.peer", "N1", "n1.peer"} {
		for _, addr := range []string{"10.0.0.1:7946", "[fd00::1]:7946", "10.0.0.1:7947"} {
			l := label(name, addr)
			if gotName, gotAddr := labelled(l); gotName != name || gotAddr != addr || seen[l] {
				t.Errorf("%s at %s is labelled %s, which reads as %s at %s", name, addr, l, gotName, gotAddr)
			}
			seen[l] = true
		}
	}
}
