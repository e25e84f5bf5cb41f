package cases

import (
	"bytes"
	"context"
	"fmt"
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

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/mesh/memnet"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
)

// cluster is daemons A, B, ... of this process, each beside a scripted engine of
// its own. The daemon, its client of engines and its mesh are the real ones; only
// the network may be in memory.
type cluster struct {
	t       *testing.T
	at      string // the node that the case is to ask
	anyone  bool   // the case may be served by another node than B
	panics  bool   // the case has nodes panic
	wires   wires
	client  *http.Transport
	members map[string]*member
}

// member is one node with its engine.
type member struct {
	name   string
	api    string // its address
	peer   string // likewise
	daemon *daemon.Daemon
	engine *scripted
	log    *journal
	killed bool
	end    func() error
}

// wires is the network that a cluster runs on.
type wires interface {
	listen(t *testing.T, host, port string) net.Listener
	dialFrom(host string) func(ctx context.Context, addr string) (net.Conn, error)
	conns() int
}

const (
	apiPort    = "80"
	peerPort   = "7946"
	enginePort = "8000"
	clients    = "client" // the host of whoever asks

	clusterSecret = "the cluster's secret"
)

// hostOf returns the address of a node's machine, on a network in memory.
func hostOf(name string) string { return fmt.Sprintf("10.0.0.%d", name[0]-'A'+1) }

// engineHostOf is beside it: an engine may die alone.
func engineHostOf(name string) string { return fmt.Sprintf("10.0.1.%d", name[0]-'A'+1) }

type inMemory struct{ *memnet.Network }

func (n inMemory) listen(t *testing.T, host, port string) net.Listener {
	t.Helper()
	l, err := n.Listen(net.JoinHostPort(host, port))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (n inMemory) dialFrom(host string) func(context.Context, string) (net.Conn, error) {
	return n.DialFrom(host)
}

func (n inMemory) conns() int { return n.Conns() }

// network is the network of a cluster in virtual time.
func (c *cluster) network() *memnet.Network { return c.wires.(inMemory).Network }

// toward is a policy that sends everything to one node, whatever is cached.
type toward string

var _ route.Policy = toward("")

func (toward) Name() string { return "toward" }

func (to toward) Choose(cands []route.Candidate, _ *rand.Rand) (int, string) {
	self := 0
	for i, c := range cands {
		if c.Name == string(to) {
			return i, "as the test wants"
		}
		if c.Self {
			self = i
		}
	}
	return self, "as the test wants, the other was tried"
}

// policy sets the policy of every node, by the name that operators use.
func policy(t *testing.T, name string) func(*daemon.Config) {
	t.Helper()
	p, err := route.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *daemon.Config) { c.Node.Policy = p }
}

// eachWay runs a case twice in virtual time, in a cluster of A and B: asked at B,
// which serves it, and asked at A, which forwards it to B.
func eachWay(t *testing.T, answer func(*Request) Script, f func(t *testing.T, c *cluster), change ...func(*daemon.Config)) {
	t.Helper()
	for way, at := range map[string]string{"here": "B", "over a hop": "A"} {
		t.Run(way, func(t *testing.T) {
			virtual(t, 2, answer, func(t *testing.T, c *cluster) {
				c.at = at
				f(t, c)
				if n := len(c.members["A"].engine.asked()); n > 0 && !c.anyone {
					t.Errorf("A's engine was asked %d times", n)
				}
			}, slices.Insert(change, 0, sendTo("B"))...)
		})
	}
}

// sendTo makes every node send all that it may to the one named.
func sendTo(name string) func(*daemon.Config) {
	return func(c *daemon.Config) { c.Node.Policy = toward(name) }
}

// virtual runs f with a cluster in virtual time, and then sees that nothing is left.
func virtual(t *testing.T, size int, answer func(*Request) Script, f func(t *testing.T, c *cluster), change ...func(*daemon.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		c := newCluster(t, inMemory{memnet.New()}, size, answer, change...)
		f(t, c)
		c.finish()
	})
}

// inBubble runs a subtest in virtual time, for one that makes its own cluster.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func newCluster(t *testing.T, w wires, size int, answer func(*Request) Script, change ...func(*daemon.Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, at: "A", wires: w, members: map[string]*member{}}
	c.client = &http.Transport{
		DialContext:         func(ctx context.Context, _, addr string) (net.Conn, error) { return w.dialFrom(clients)(ctx, addr) },
		DisableCompression:  true,
		MaxIdleConnsPerHost: 1000,
	}
	for i := range size {
		name := string(rune('A' + i))
		e := newScripted(answer)
		e.Serve(w.listen(t, engineHostOf(name), enginePort))
		c.start(name, hostOf(name), e, change...)
	}
	c.settle()
	return c
}

// start runs a node. A name that ran before is restarted.
func (c *cluster) start(name, host string, e *scripted, change ...func(*daemon.Config)) *member {
	c.t.Helper()
	m := &member{name: name, engine: e, log: &journal{}}
	remote, err := engine.OpenRemote("http://" + e.addr())
	if err != nil {
		c.t.Fatal(err)
	}
	remote.Dial = c.wires.dialFrom(host)
	cfg := daemon.Config{
		Node:   node.Config{Name: name, Life: uint64(time.Now().UnixNano()), CapacityTokens: 1 << 20, Rand: rand.New(rand.NewPCG(1, uint64(name[0])))},
		Engine: remote,
		API:    c.wires.listen(c.t, host, apiPort),
		Mesh:   mesh.Config{Listener: c.wires.listen(c.t, host, peerPort), Dial: c.wires.dialFrom(host), Insecure: true},
		Key:    []byte(clusterSecret),
		Log:    slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, other := range slices.Sorted(maps.Keys(c.members)) {
		if other != name {
			cfg.Mesh.Join = append(cfg.Mesh.Join, c.members[other].peer)
		}
	}
	for _, f := range change {
		f(&cfg)
	}
	m.api, m.peer = cfg.API.Addr().String(), cfg.Mesh.Listener.Addr().String()
	if m.daemon, err = daemon.New(cfg); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan bool)
	go func() {
		defer close(ended)
		err = m.daemon.Run(ctx)
		remote.Close()
	}()
	m.end = func() error {
		cancel()
		<-ended
		return err
	}
	c.members[name] = m
	return m
}

// kill ends a node, and not its engine, as SIGKILL does.
func (c *cluster) kill(name string) {
	c.members[name].killed = true
	c.network().Kill(hostOf(name))
	_ = c.members[name].end() // what is left of it
}

// settle waits until every node has heard from every other.
func (c *cluster) settle() {
	c.t.Helper()
	for range 600 {
		if !slices.ContainsFunc(slices.Collect(maps.Values(c.members)), func(m *member) bool { return c.alive(m.name) < len(c.members)-1 }) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Fatal("the nodes did not find each other")
}

// alive counts the peers that a node would use.
func (c *cluster) alive(name string) (n int) {
	for _, p := range c.members[name].daemon.Status().Peers {
		if p.State == string(node.Alive) {
			n++
		}
	}
	return n
}

// gossip lets every node speak to every other.
func (c *cluster) gossip() { time.Sleep(2 * time.Second) }

// finish stops the cluster in virtual time and sees that no connection is left. That
// no goroutine is, the end of virtual time sees.
func (c *cluster) finish() {
	c.t.Helper()
	c.stop()
	time.Sleep(time.Minute) // memberlist's last probes
	if n := c.wires.conns(); n > 0 {
		c.t.Errorf("%d ends of connections are left open", n)
	}
}

// stop stops the cluster and sees that nothing is in flight.
func (c *cluster) stop() {
	c.t.Helper()
	c.client.CloseIdleConnections()
	time.Sleep(time.Second) // for a node to see that its client has left, and to say so
	for _, name := range slices.Sorted(maps.Keys(c.members)) {
		m := c.members[name]
		s := m.daemon.Status()
		if s.Queue != 0 {
			c.t.Errorf("%s has %d requests in flight", name, s.Queue)
		}
		for _, p := range s.Peers {
			if p.State == string(node.Alive) && p.Queue != 0 {
				c.t.Errorf("%s believes that %s has %d requests in flight", name, p.Name, p.Queue)
			}
		}
	}
	var leaving sync.WaitGroup
	for name, m := range c.members {
		leaving.Go(func() {
			if err := m.end(); err != nil && !m.killed {
				c.t.Errorf("%s stopped with %v", name, err)
			}
		})
	}
	leaving.Wait()
	for _, name := range slices.Sorted(maps.Keys(c.members)) {
		m := c.members[name]
		m.engine.Close()
		if log := m.log.String(); strings.Contains(log, "panic") && !c.panics {
			c.t.Errorf("%s panicked:\n%s", name, log)
		} else if c.t.Failed() {
			c.t.Logf("the log of %s:\n%s", name, log)
		}
	}
}

// scripted is the engine of a case: what every engine answers is answered, and
// what the case is about is kept apart.
type scripted struct {
	Engine
	mu     sync.Mutex
	answer func(*Request) Script
	models []string
	wants  string        // a key, for everything
	slowed int           // so many more probes
	delay  time.Duration // take so long
	trials int           // generations that a node asked for by itself
	cases  []*Request
}

func newScripted(answer func(*Request) Script) *scripted {
	e := &scripted{answer: answer, models: []string{"m-test", "lora-a", "lora-b", "m-embed"}}
	e.Answer = func(r *Request) Script {
		if key := e.wanted(); key != "" && r.Header.Get("Authorization") != "Bearer "+key {
			return JSON(401, `{"error":"unauthorized"}`)
		}
		switch r.Line {
		case "GET /v1/models HTTP/1.1":
			return e.modelList()
		case "GET /health HTTP/1.1":
			return JSON(200, "")
		}
		if answer := e.noted(r); answer != nil {
			return answer(r)
		}
		return JSON(404, `{"detail":"Not Found"}`) // of another kind of engine
	}
	return e
}

// noted keeps what the case is about, which has an id, and returns how it is answered.
func (e *scripted) noted(r *Request) func(*Request) Script {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case r.Header.Get("X-Request-Id") != "":
		e.cases = append(e.cases, r)
	case strings.HasPrefix(r.Line, "POST "):
		e.trials++
	default:
		return nil
	}
	return e.answer
}

func (e *scripted) modelList() Script {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []string
	for _, id := range e.models {
		list = append(list, fmt.Sprintf(`{"id":%q,"object":"model","created":1,"owned_by":"test","max_model_len":4096}`, id))
	}
	s := JSON(200, `{"object":"list","data":[`+strings.Join(list, ",")+`]}`)
	if e.slowed > 0 {
		s.Silence = e.delay
		e.slowed--
	}
	return s
}

// slow has the next n probes of the engine take their time.
func (e *scripted) slow(n int, delay time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slowed, e.delay = n, delay
}

// closeIdle has the engine close connections on which that long nothing comes.
func (e *scripted) closeIdle(after time.Duration) {
	e.Engine.mu.Lock()
	defer e.Engine.mu.Unlock()
	e.IdleClose = after
}

// key has the engine want a key for everything.
func (e *scripted) key(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wants = key
}

func (e *scripted) wanted() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wants
}

// serve changes which models the engine lists.
func (e *scripted) serve(models ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.models = models
}

// set changes how the engine answers from now on.
func (e *scripted) set(answer func(*Request) Script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

// asked returns what reached the engine of what the case sent.
func (e *scripted) asked() []*Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.cases)
}

// forget drops what was asked.
func (e *scripted) forget() {
	e.mu.Lock()
	e.cases = nil
	e.mu.Unlock()
	e.Engine.mu.Lock()
	e.requests = nil
	e.Engine.mu.Unlock()
}

func (e *scripted) addr() string {
	e.Engine.mu.Lock()
	defer e.Engine.mu.Unlock()
	return e.listener.Addr().String()
}

// always answers every request with the same script.
func always(s Script) func(*Request) Script { return func(*Request) Script { return s } }

// served returns the engine of the node that serves the case, B.
func (c *cluster) served() *scripted { return c.members["B"].engine }

// journal is the log of a node, all of it.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// metrics reads a node's metrics, by series: name and labels as they are written.
func (c *cluster) metrics(name string) map[string]float64 {
	c.t.Helper()
	r := c.get(name, "/metrics")
	series := map[string]float64{}
	for line := range strings.Lines(string(r.body)) {
		var v float64
		at := strings.LastIndexByte(line, ' ')
		if line[0] == '#' || at < 0 {
			continue
		}
		if _, err := fmt.Sscan(line[at+1:], &v); err == nil {
			series[line[:at]] = v
		}
	}
	return series
}

// requests counts those of a node that ended with outcome, on whatever way.
func (c *cluster) requests(name, outcome string) int {
	c.t.Helper()
	return c.sum(name, "hearsay_requests_total", `outcome="`+outcome+`"`)
}

// failures counts what a node holds against engines, its own and its peers'.
func (c *cluster) failures(name string) int {
	c.t.Helper()
	return c.sum(name, "hearsay_failures_total", "")
}

// sum adds up the series of a metric that have a label.
func (c *cluster) sum(name, metric, label string) (n int) {
	c.t.Helper()
	for series, v := range c.metrics(name) {
		if strings.HasPrefix(series, metric+"{") && strings.Contains(series, label) {
			n += int(v)
		}
	}
	return n
}
