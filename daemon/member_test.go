package daemon

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

func (c *cluster) ready(name string) bool {
	return c.do(c.t.Context(), name, http.MethodGet, "/readyz", "").status == 200
}

// believed is what one node believes of another.
func (c *cluster) believed(name, peer string) PeerStatus {
	for _, p := range c.nodes[name].Status().Peers {
		if p.Name == peer {
			return p
		}
	}
	return PeerStatus{}
}

// A node that starts is ready when it has heard what every peer has cached, however
// far away they are; and where seeds or peers do not answer, soon all the same.
func TestReadyOnceTreesAreHeard(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		far := func(c *Config) { c.Mesh.LinkDelay = 200 * time.Millisecond }
		c := newCluster(t, 2, s.engineOf, longest, far)
		c.complete("n1", prompt("law", 40))
		c.complete("n2", prompt("art", 40))
		time.Sleep(time.Second)
		c.start("n3", s.engineOf("n3"), longest, far)
		begun := time.Now()
		for !c.ready("n3") {
			time.Sleep(10 * time.Millisecond)
		}
		took := time.Since(begun)
		if took < 800*time.Millisecond || took > 4*time.Second {
			t.Errorf("ready after %v", took)
		}
		for _, peer := range []string{"n1", "n2"} {
			if p := c.believed("n3", peer); p.TreeBlocks == 0 {
				t.Errorf("ready, and of %s it knows %+v", peer, p)
			}
		}
		if r := c.complete("n3", prompt("art", 40)); r.header.Get(nodeHeader) != "n2" {
			t.Errorf("its first request went to %s", r.header.Get(nodeHeader))
		}
	})
	for name, cut := range map[string]bool{"refused": false, "silent": true} {
		inBubble(t, func(t *testing.T) {
			s := stubs{}
			c := newCluster(t, 1, s.engineOf)
			if cut {
				c.network.Cut(host("n9"))
			}
			c.start("n2", s.engineOf("n2"), func(c *Config) { c.Mesh.Join = []string{host("n9") + peerPort} })
			begun := time.Now()
			for !c.ready("n2") {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(begun); took > 6*time.Second || !cut && took > time.Second {
				t.Errorf("a seed that is %s keeps it from being ready for %v", name, took)
			}
			c.network.Heal()
		})
	}
}

// A peer that falls silent, without a sign, is sent nothing when three of its polls
// have passed; no request has to find out.
func TestSilentPeerIsSentNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		if r := c.complete("n1", prompt("law", 40)); r.header.Get(nodeHeader) != "n2" {
			t.Fatalf("served by %s", r.header.Get(nodeHeader))
		}
		c.network.Cut(host("n2"))
		time.Sleep(3*c.nodes["n1"].cfg.Node.Poll + 10*time.Millisecond)
		begun := time.Now()
		if r := c.complete("n1", prompt("law", 40)); r.header.Get(nodeHeader) == "n2" || time.Since(begun) > time.Second {
			t.Errorf("served by %s after %v", r.header.Get(nodeHeader), time.Since(begun))
		}
		if p := c.believed("n1", "n2"); p.State != string(node.Suspected) || p.Failures > 0 {
			t.Errorf("n1 believes %+v", p)
		}
		c.network.Heal()
		c.settle()
	})
}

// A node that leaves is forgotten at the word: its tree is gone with it.
func TestLeaverIsForgottenAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		go c.stop("n2")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if p := c.believed("n1", "n2"); p.State != mesh.StateLeft || p.TreeBlocks > 0 {
			t.Errorf("a moment after the goodbye n1 believes %+v", p)
		}
		if r := c.complete("n1", prompt("law", 40)); r.status != 200 || r.header.Get(nodeHeader) == "n2" {
			t.Errorf("%d from %s", r.status, r.header.Get(nodeHeader))
		}
		time.Sleep(10 * time.Second)
	})
}

// Nodes that differ in the cluster's key, or have no model in common, serve on and
// say in a sentence why nothing is routed between them.
func TestMismatchesAreTold(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string // at both
	}{
		{func(c *Config) { c.Key = prefix.Key(c.Node.Name) }, "n1 and n2 have different cluster keys: nothing is routed between them; give all nodes the same --cluster-key"},
		{func(c *Config) {
			if c.Node.Name == "n1" {
				c.Key = prefix.Key("key")
			}
		}, "nothing is routed between them; give all nodes the same --cluster-key"},
	} {
		inBubble(t, func(t *testing.T) {
			s := stubs{}
			cl := newCluster(t, 1, s.engineOf, longest, c.change)
			cl.start("n2", s.engineOf("n2"), longest, c.change)
			time.Sleep(10 * time.Second)
			cl.complete("n2", prompt("law", 40))
			time.Sleep(time.Second)
			for name, peer := range map[string]string{"n1": "n2", "n2": "n1"} {
				p := cl.believed(name, peer)
				told := strings.Contains(p.Trouble, c.want) || strings.Contains(p.Trouble, strings.Replace(c.want, "n1 and n2", "n2 and n1", 1))
				if p.State != stateRefused || !told || p.TreeBlocks > 0 {
					t.Errorf("%s believes %+v", name, p)
				}
				if r := cl.complete(name, prompt("law", 40)); r.header.Get(nodeHeader) != name {
					t.Errorf("%s had it served by %s", name, r.header.Get(nodeHeader))
				}
				if !cl.ready(name) {
					t.Errorf("%s is not ready", name)
				}
			}
		})
	}
}

// Models are told apart by name alone, and a sentence says where none is shared.
func TestModelTrouble(t *testing.T) {
	for _, c := range []struct {
		own, theirs []string
		want        string
	}{
		{[]string{"a", "b"}, []string{"b"}, ""},
		{nil, []string{"b"}, ""},
		{[]string{"a"}, nil, ""},
		{[]string{"*"}, []string{"b"}, ""},
		{[]string{"a"}, []string{"b", "c", "d", "e"}, "n2 serves b, c, d and 1 more and this node a: no model in common, so no prompts are routed between them; if they are one model, give it one name with --alias"},
	} {
		if got := modelTrouble("n2", c.own, c.theirs); got != c.want {
			t.Errorf("%v, %v: %q", c.own, c.theirs, got)
		}
	}
}

// A node whose clock has gone back by an hour over its restart is heard, and followed,
// by peers that remember it from the hour that is to come.
func TestClockThatWentBackOverARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		ahead := func(c *Config) {
			if c.Node.Name == "n2" {
				c.Node.Life += uint64(time.Hour)
			}
		}
		c := newCluster(t, 3, s.engineOf, longest, ahead)
		c.network.Kill(host("n2"))
		_ = c.take("n2")()
		c.start("n2", s.engineOf("n2"), longest)
		c.settle()
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		if r := c.complete("n1", prompt("law", 40)); r.header.Get(nodeHeader) != "n2" {
			t.Errorf("served by %s; n1 believes %+v", r.header.Get(nodeHeader), c.believed("n1", "n2"))
		}
	})
}

// A wiretap keeps what crosses the connections that a node dials, those of rumors apart.
type wiretap struct {
	mu          sync.Mutex
	rumors, all bytes.Buffer
}

type tapped struct {
	net.Conn
	tap    *wiretap
	rumors atomic.Bool
}

func (w *wiretap) dial(next func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := next(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &tapped{Conn: conn, tap: w}, nil
	}
}

func (c *tapped) keep(b []byte) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	c.tap.all.Write(b)
	if c.rumors.Load() {
		c.tap.rumors.Write(b)
	}
}

func (c *tapped) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("GET /hearsay/v1/rumors")) {
		c.rumors.Store(true)
	}
	c.keep(b)
	return c.Conn.Write(b)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.keep(b[:n])
	return n, err
}

// Rumors hold no piece of a prompt, of an answer or of a client's key, and nothing
// between nodes holds the cluster's.
func TestRumorsTellNoText(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const secret = "a-secret-of-the-cluster"
		s, tap := stubs{}, &wiretap{}
		c := newCluster(t, 2, s.engineOf, longest, func(c *Config) {
			c.Key = prefix.Key(secret)
			c.Mesh.Dial = tap.dial(c.Mesh.Dial)
		})
		text := prompt("law", 40)
		for _, at := range []string{"n1", "n2", "n1"} {
			if r := c.complete(at, text); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			time.Sleep(time.Second)
		}
		if c.believed("n2", "n1").TreeBlocks+c.believed("n1", "n2").TreeBlocks == 0 {
			t.Fatal("no tree was told")
		}
		tap.mu.Lock()
		defer tap.mu.Unlock()
		if !bytes.Contains(tap.all.Bytes(), []byte(text[:64])) {
			t.Error("the tap has not heard the forward")
		}
		for i := 0; i+8 <= len(text); i++ {
			if piece := []byte(text[i : i+8]); bytes.Contains(tap.rumors.Bytes(), piece) {
				t.Fatalf("a rumor tells %q", piece)
			}
		}
		if bytes.Contains(tap.rumors.Bytes(), []byte("ok from")) || bytes.Contains(tap.all.Bytes(), []byte(secret)) {
			t.Error("a rumor tells an answer, or somebody the cluster's key")
		}
	})
}
