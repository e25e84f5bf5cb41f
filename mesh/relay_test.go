package mesh

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/cert"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// startRelay starts nodes that relay above 4, and waits until all know of all.
func startRelay(t *testing.T, network *memnet.Network, count int, change func(*Config)) []*teller {
	all := tellers(t, network, 1, count, func(c *Config) {
		c.RelayAbove = 4
		if change != nil {
			change(c)
		}
	})
	t.Cleanup(func() { // all at once, before each waits for memberlist
		for _, w := range all {
			w.Close()
		}
	})
	eventually(t, time.Minute, "all are members", func() bool {
		settle(all)
		return !slices.ContainsFunc(all, func(w *teller) bool { return len(w.alive()) != count-1 })
	})
	return all
}

// alive are the members that a node sees.
func (n *testNode) alive() (names []string) {
	for _, p := range n.Peers() {
		if p.State == StateAlive {
			names = append(names, p.Name)
		}
	}
	return names
}

// settle lets all say the same for some time, and what is said last arrive.
func settle(all []*teller) {
	for range 20 {
		for _, w := range all {
			w.tell()
		}
		time.Sleep(tellEvery)
	}
	time.Sleep(10 * tellEvery)
}

func (n *testNode) links() (count int) {
	n.Mesh.mu.Lock()
	defer n.Mesh.mu.Unlock()
	for _, p := range n.peers {
		if p.stream != nil {
			count++
		}
	}
	return count
}

// Above the threshold a node speaks to some neighbours, and all hear all: what changes
// by relay, what they have no part of from its author. Who is killed is forgotten, who
// comes later catches up, and the sides of a partition find each other again.
func TestRelayedRumorsReachEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, rng := memnet.New(), rand.New(rand.NewPCG(1, 1))
		all := startRelay(t, network, 20, nil)
		live(all, rng, 20)
		settle(all)
		mustKnow(t, all)
		for began := time.Now(); time.Since(began) < spareWait; time.Sleep(10 * tellEvery) {
			for _, w := range all {
				w.tell()
			}
		}
		before := all[0].Stats()
		live(all, rng, 50)
		for _, w := range all {
			if n := w.links(); n > 14 || w.Stats().RelayedNews == 0 {
				t.Errorf("%s has %d streams and was told %+v", w.name, n, w.Stats())
			}
		}
		if s := all[0].Stats(); s.RelayedOld-before.RelayedOld > (s.RelayedNews-before.RelayedNews)/4 {
			t.Errorf("much is told twice: %+v, before %+v", s, before)
		}

		dead := all[3]
		network.Kill(dead.host)
		rest := slices.Concat(all[:3], all[4:])
		gone := func() bool {
			live(rest, rng, 5)
			return !slices.ContainsFunc(rest, func(w *teller) bool { return !slices.Contains(w.saw(), "dead "+dead.name) })
		}
		eventually(t, time.Minute, "the killed one is gone", gone)
		for _, w := range rest {
			if w.Mesh.mu.Lock(); !w.relay.News(dead.name, 1, 1) {
				t.Errorf("%s keeps what %s said", w.name, dead.name)
			}
			w.Mesh.mu.Unlock()
		}

		var hosts []string
		for _, w := range rest[:10] {
			hosts = append(hosts, w.host)
		}
		network.Cut(hosts...)
		live(rest, rng, 200)
		network.Heal()
		eventually(t, time.Minute, "all are members again", func() bool {
			live(rest, rng, 5)
			return !slices.ContainsFunc(rest, func(w *teller) bool { return len(w.alive()) != len(rest)-1 })
		})
		live(rest, rng, 100)
		settle(rest)
		mustKnow(t, rest)
	})
}

// A node's last words reach those that it has no stream with.
func TestGoodbyeIsRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := startRelay(t, memnet.New(), 24, nil)
		settle(all)
		leaver := all[5]
		leaver.version++
		leaver.Broadcast(gossip.Rumor{Author: leaver.name, Life: 1, Version: leaver.version, Every: tellEvery, Tree: leaver.tree.Snapshot(), Down: true})
		time.Sleep(5 * tellEvery)
		for _, w := range all {
			w.mu.Lock()
			peers := w.view.Peers(time.Now())
			if i := slices.IndexFunc(peers, func(p gossip.Peer) bool { return p.Name == leaver.name }); w != leaver && (i < 0 || !peers[i].Down) {
				t.Errorf("%s has not heard that %s is down", w.name, leaver.name)
			}
			w.mu.Unlock()
		}
		if err := leaver.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		leaver.Close()
		eventually(t, 10*time.Second, "nobody counts on it", func() bool {
			return !slices.ContainsFunc(all, func(w *teller) bool { return w != leaver && slices.Contains(w.alive(), leaver.name) })
		})
	})
}

// far returns two nodes without a stream between them.
func far(t *testing.T, all []*teller) (a, b *teller) {
	t.Helper()
	for _, a := range all {
		for _, b := range all {
			if a != b && !a.linked(b.name) && !b.linked(a.name) {
				return a, b
			}
		}
	}
	t.Fatal("all are linked")
	return nil, nil
}

// identities are those of n1 to n<count>, with an empty list of revocations.
func (a *authority) identities(count int, list string) map[string]*cert.Identity {
	a.t.Helper()
	if err := os.WriteFile(list, nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
	all := map[string]*cert.Identity{}
	for i := range count {
		f := a.issue(nodeName(i+1), long(1))
		f.Revoked = list
		all[nodeName(i+1)] = a.open(f)
	}
	return all
}

// With certificates a relayed rumor counts when its author has signed it, and nothing
// else does: what a relay makes up, however far ahead, changes nothing and silences
// nobody. An author that renews its certificate is heard on; one whose is revoked not.
func TestForgedRumorsChangeNothing(t *testing.T) {
	ca := newAuthority(t)
	list := filepath.Join(t.TempDir(), "revoked")
	identities := ca.identities(18, list)
	synctest.Test(t, func(t *testing.T) {
		network, rng := memnet.New(), rand.New(rand.NewPCG(1, 1))
		all := startRelay(t, network, 18, func(c *Config) { c.Identity = identities[c.Name] })
		live(all, rng, 20)
		settle(all)
		mustKnow(t, all)
		victim, author := far(t, all)
		version := func() uint64 {
			victim.mu.Lock()
			defer victim.mu.Unlock()
			_, told := victim.view.Told(author.name)
			return told
		}
		victim.Mesh.mu.Lock()
		relay := victim.neighbour(nil)
		p := victim.peers[author.name]
		victim.Mesh.mu.Unlock()
		ahead := gossip.Rumor{Author: author.name, Life: 2, Version: 1 << 40, Every: tellEvery, Down: true, Change: &gossip.Change{Since: 1}}
		b := ahead.AppendBinary(nil)
		others := all[0]
		if others == author || others == victim {
			others = all[1]
		}
		foreign, err := others.cfg.Identity.Sign(victim.signed(b))
		if err != nil {
			t.Fatal(err)
		}
		before := version()
		for _, signature := range [][]byte{nil, make([]byte, 71), foreign} {
			if err := relay.relayed(appendRelayed(nil, signature, b)); err != nil {
				t.Error(err)
			}
		}
		own, err := author.cfg.Identity.Sign(b) // of another use
		if err != nil || victim.genuine(p, own, b) {
			t.Error("a signature of something else is taken")
		}
		if got := victim.Refused()[refusedForged]; got != 3 || version() != before {
			t.Errorf("%d are refused, the tree of version %d is held, was %d", got, version(), before)
		}
		live(all, rng, 10)
		settle(all)
		mustKnow(t, all)

		ca.issue(author.name, long(1)) // over the old
		time.Sleep(pullAgainMax)
		live(all, rng, 20)
		settle(all)
		mustKnow(t, all)

		if err := os.WriteFile(list, []byte("name "+author.name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * rereadEvery)
		good, err := author.cfg.Identity.Sign(victim.signed(b))
		if err != nil || victim.genuine(p, good, b) {
			t.Errorf("who is revoked is believed, %v", err)
		}
	})
}

// Where nobody is known by a certificate, an older rumor, one of an older life, one of
// who is no member and one of this node itself change nothing all the same.
func TestOldRelaysChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, rng := memnet.New(), rand.New(rand.NewPCG(1, 1))
		all := startRelay(t, network, 20, nil)
		live(all, rng, 20)
		settle(all)
		victim, author := far(t, all)
		victim.Mesh.mu.Lock()
		relay := victim.neighbour(nil)
		victim.Mesh.mu.Unlock()
		before := victim.Stats()
		for _, r := range []gossip.Rumor{
			{Author: author.name, Life: 1, Version: author.version},
			{Author: author.name, Life: 0, Version: 1 << 40},
			{Author: "nobody", Life: 1, Version: 1},
			{Author: victim.name, Life: 9, Version: 9},
		} {
			r.Change = &gossip.Change{Since: 1, Gone: nil}
			if err := relay.relayed(appendRelayed(nil, nil, r.AppendBinary(nil))); err != nil {
				t.Error(err)
			}
		}
		mustKnow(t, all)
		if s := victim.Stats(); s.RelayedOld-before.RelayedOld != 4 || s.RelayedNews != before.RelayedNews {
			t.Errorf("counted %+v, before %+v", s, before)
		}
		for _, bad := range [][]byte{
			nil,
			{5, 1},
			appendRelayed(nil, make([]byte, signatureMax+1), nil), make([]byte, relayMax+1),
			appendRelayed(nil, nil, gossip.Rumor{Author: author.name, Life: 1, Version: 1 << 40}.AppendBinary(nil)),
		} {
			if relay.relayed(bad) == nil {
				t.Errorf("%d bytes are taken for a relayed rumor", len(bad))
			}
		}
		million := make([]byte, 8)
		for i := range uint32(1_000_000) {
			million = append(binary.LittleEndian.AppendUint32(million, i), 0, 1)
		}
		if relay.asked(million) == nil {
			t.Error("a digest of a million authors is read")
		}
	})
}

// A peer that pulls again and again and says nothing holds up nobody else.
func TestPullsOfOnePeerLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 3, nil)
		pull := func(from *testNode) error {
			conn, _, _, err := from.port.upgrade(t.Context(), nodes[0].Addr(), upgradePulls, nodes[0].name, nil)
			if err == nil {
				t.Cleanup(func() { conn.Close() })
			}
			synctest.Wait()
			return err
		}
		for range pulledMax {
			if err := pull(nodes[1]); err != nil {
				t.Fatal(err)
			}
		}
		if err := pull(nodes[2]); err != nil {
			t.Errorf("while another is silent: %v", err)
		}
		if !nodes[0].pulled.TryAcquire(pulledMax - 2) {
			t.Error("its pulls are all waited for")
		}
		time.Sleep(pullWait + time.Second)
		synctest.Wait()
		for name, p := range nodes[0].peers {
			if p.pulling != nil {
				t.Errorf("the pull of %s never ends", name)
			}
		}
	})
}

// A node of the version before, which knows neither relays nor pulls, has a stream with
// every node: who cannot pull from it dials it.
func TestOldNodeKeepsItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		all := startRelay(t, network, 20, nil)
		l, err := network.Listen("127.0.0.99:7946")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, w := range all {
			w.transport.packets <- &memberlist.Packet{Buf: aliveMessage("z", []byte{127, 0, 0, 99}, 7946, 1, 5, 2, 0, 0, 0), From: &net.TCPAddr{}}
		}
		dialled := map[string]bool{}
		for len(dialled) < len(all) {
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.ReadRequest(bufio.NewReader(conn))
			switch {
			case err != nil:
			case req.URL.Path == upgradeRumors.path && strings.Contains(req.Header.Get("Upgrade"), upgradeRumors.token(1)):
				dialled[req.Header.Get(headerFrom)] = true
			case req.URL.Path == upgradePulls.path:
				resp := http.Response{StatusCode: http.StatusHTTPVersionNotSupported, ProtoMajor: 1, ProtoMinor: 1}
				resp.Write(conn)
			}
			conn.Close()
		}
	})
}

// Whatever is said to be relayed is read as what it is, or refused.
func FuzzDecodeRelayed(f *testing.F) {
	r := gossip.Rumor{Author: "n1", Life: 1, Version: 2, Every: time.Second, Change: &gossip.Change{Since: 1}}
	f.Add(appendRelayed(nil, []byte("signature"), r.AppendBinary(nil)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, signature, rumor, err := decodeRelayed(b)
		if err == nil && (r.Change == nil || !bytes.HasSuffix(b, rumor) || len(signature)+len(rumor) >= len(b)) {
			t.Fatalf("%d bytes of signature and %d of rumor in %d", len(signature), len(rumor), len(b))
		}
	})
}
