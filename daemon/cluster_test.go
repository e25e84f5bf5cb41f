package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/mesh/memnet"
	"github.com/hearsay-project/hearsay/node"
)

// cluster is several daemons of one process on a network in memory, in virtual
// time: to be used inside a synctest bubble.
type cluster struct {
	t       *testing.T
	network *memnet.Network
	client  *http.Client
	mu      sync.Mutex // guards the maps
	nodes   map[string]*Daemon
	stops   map[string]func() error
}

const apiPort, peerPort = ":80", ":7946"

// host is the address of n1, n2, ... on the network in memory.
func host(name string) string { return "10.0.0." + strings.TrimPrefix(name, "n") }

// newCluster starts nodes n1, n2, ... joined through n1, each with the engine
// that engineOf gives, and waits until all have heard from all.
func newCluster(t *testing.T, size int, engineOf func(name string) http.RoundTripper, change ...func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, network: memnet.New(), nodes: map[string]*Daemon{}, stops: map[string]func() error{}}
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return c.network.Dial(ctx, addr) },
		DisableCompression: true, MaxIdleConnsPerHost: 100,
	}
	c.client = &http.Client{Transport: transport}
	for i := range size {
		name := fmt.Sprintf("n%d", i+1)
		c.start(name, engineOf(name), change...)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		c.mu.Lock()
		names := slices.Sorted(maps.Keys(c.stops))
		c.mu.Unlock()
		for _, name := range names {
			c.stop(name)
		}
		time.Sleep(time.Minute) // virtual: memberlist's own goroutines end after a probe
	})
	c.settle()
	return c
}

func (c *cluster) start(name string, engine http.RoundTripper, change ...func(*Config)) {
	c.t.Helper()
	cfg := Config{
		Node:   node.Config{Name: name, Life: uint64(time.Now().UnixNano()), CapacityTokens: 1 << 20, Rand: rand.New(rand.NewPCG(1, uint64(len(c.nodes))))},
		Engine: engine,
		Mesh:   mesh.Config{Dial: c.network.DialFrom(host(name)), Insecure: true},
		Log:    slog.New(slog.NewTextHandler(testLog{c.t, name}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if name != "n1" {
		cfg.Mesh.Join = []string{host("n1") + peerPort}
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if cfg.API, err = c.network.Listen(host(name) + apiPort); err != nil {
		c.t.Fatal(err)
	}
	if cfg.Mesh.Listener, err = c.network.Listen(host(name) + peerPort); err != nil {
		c.t.Fatal(err)
	}
	d, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	c.nodes[name] = d
	c.stops[name] = func() error { cancel(); return <-ended }
}

// kill ends a node as SIGKILL does: its connections break, and no goodbye is said.
func (c *cluster) kill(name string) {
	c.network.Kill(host(name))
	_ = c.take(name)() // whatever is left of it ends; its listeners are gone
}

// take removes a node and returns what stops it.
func (c *cluster) take(name string) func() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	stop := c.stops[name]
	delete(c.stops, name)
	delete(c.nodes, name)
	return stop
}

// stop shuts a node down as SIGTERM does.
func (c *cluster) stop(name string) {
	d := c.nodes[name]
	if err := c.take(name)(); err != nil {
		c.t.Errorf("%s stopped with %v", name, err)
	}
	if n := d.Status().Economy.Flights; n != 0 {
		c.t.Errorf("%s stopped and counts on %d requests", name, n)
	}
}

// settle waits until every node has heard from every other.
func (c *cluster) settle() {
	c.t.Helper()
	for range 200 {
		settled := true
		for _, d := range c.nodes {
			heard := 0
			for _, p := range d.Status().Peers {
				if p.State == string(node.Alive) || p.State == string(node.Down) { // down is heard too
					heard++
				}
			}
			settled = settled && heard == len(c.nodes)-1
		}
		if settled {
			return
		}
		time.Sleep(100 * time.Millisecond) // virtual
	}
	c.t.Fatal("the nodes did not find each other")
}

// reply is an answer as a client has it.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error // the body broke off

	trailer http.Header
}

func (c *cluster) do(ctx context.Context, name, method, path, body string) reply {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host(name)+apiPort+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, data, err, resp.Trailer}
}

// complete asks a node for a completion of one token.
func (c *cluster) complete(name, prompt string) reply {
	c.t.Helper()
	return c.do(c.t.Context(), name, http.MethodPost, "/v1/completions", completionBody(prompt, 1))
}

func completionBody(prompt string, tokens int) string {
	body, _ := json.Marshal(map[string]any{"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0})
	return string(body)
}

// testLog shows a node's warnings in the test's log.
type testLog struct {
	t    *testing.T
	name string
}

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s: %s", l.name, bytes.TrimSpace(p))
	return len(p), nil
}

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
