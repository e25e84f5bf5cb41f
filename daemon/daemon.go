// Package daemon is the thin shell around a node.Node: the goroutines, the
// clock, the one lock, HTTP in and out. A request goes through it in a straight
// line (serve.go):
//
//	read and bound the body -> dialect.Read -> prefix.NewChain -> node.Route
//	-> here: the engine | there: forward once, with the hop header
//	-> no answer worth passing on: set aside, and Route again without that node
//	-> relay to the client -> node.Served
//
// Three rules make every answer right whatever the peers' trees are thought to
// hold: a request that came over a hop is served where it is; once a body byte has
// gone to the client the request is run again only to go on where the bytes were the
// same so far; serving here is always possible.
package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// Config is what a daemon is made of. The daemon owns what it is given here:
// Run closes both listeners.
type Config struct {
	Node   node.Config       // its Rand may be nil: chance from the system
	Mesh   mesh.Config       // Name, Handler, Log and the callbacks are the daemon's to set
	Engine http.RoundTripper // the LLM server beside this node, such as engine.Remote

	EngineKind   probe.Kind      // what that is; default OpenAI: nothing is asked but OpenAI's API
	KVEvents     kvevents.Config // where that publishes what it stores and evicts; no Endpoint: nowhere
	CapacityFrom string          // whose word Node.CapacityTokens is, FromFlag or FromEngine; default FromFlag

	API net.Listener // where clients come in
	Key prefix.Key   // the cluster's secret: nodes with different keys share no names

	APIKeys     []string          // of which a client has to send one; none: anyone may come in
	ForwardKeys bool              // send a client's key on to its engine all the same
	EngineKey   string            // sent to the engine in the place of a client's; none: the client's
	Aliases     map[string]string // names for models of the engine
	AnyModel    bool              // the engine serves whatever name it is asked for

	BodyMax          int64         // bytes of one request's body; default 32 MiB
	BodiesMax        int64         // bytes of all requests that wait for an answer to begin, or whose answer could be resumed; default 512 MiB
	InFlightMax      int           // requests at the engine at a time, waiting and running; default 256
	ForwardsMax      int           // peers tried for one request before it is served here; default 3
	NoReplay         bool          // never repeat what an engine may have worked on
	FirstByteTimeout time.Duration // from a request to its answer's first body byte, or all of a short answer; default 10 min
	IdleTimeout      time.Duration // from one piece of an answer to the next; default 5 min
	DrainTimeout     time.Duration // how long a shutdown waits for running requests; default 30 s

	HealthInterval  time.Duration // between two probes of the engine; default 2 s
	HealthFailures  int           // probes in a row that have to fail before it counts as down; default 3
	HealthSuccesses int           // probes in a row that have to succeed before it is back; default 1

	Log *slog.Logger // default slog.Default()
}

func (c *Config) setDefaults() {
	c.BodyMax = cmp.Or(c.BodyMax, 32<<20)
	c.BodiesMax = max(cmp.Or(c.BodiesMax, 512<<20), c.BodyMax)
	c.InFlightMax = cmp.Or(c.InFlightMax, 256)
	c.ForwardsMax = cmp.Or(c.ForwardsMax, 3)
	c.FirstByteTimeout = cmp.Or(c.FirstByteTimeout, 10*time.Minute)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Minute)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.HealthInterval = cmp.Or(c.HealthInterval, 2*time.Second)
	c.HealthFailures = cmp.Or(c.HealthFailures, 3)
	c.HealthSuccesses = cmp.Or(c.HealthSuccesses, 1)
	c.EngineKind = cmp.Or(c.EngineKind, probe.OpenAI)
	c.Node.LearnCapacity = c.Node.LearnCapacity && c.KVEvents.Endpoint == "" // what events tell is better
	c.Log = cmp.Or(c.Log, slog.Default())
	c.Node = c.Node.WithDefaults()
	if c.Node.Rand == nil {
		c.Node.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
}

// Limits that nobody tunes.
const (
	headerTimeout = 10 * time.Second // a client's request header
	bodyTimeout   = 60 * time.Second // a client's request body
	stallTimeout  = 60 * time.Second // a client that takes nothing of its answer
	idleTimeout   = 2 * time.Minute  // a kept-alive connection without a request
	headerBytes   = 64 << 10

	goodbyeTimeout = 5 * time.Second // of a node that leaves, once nothing runs or its time to drain is over
)

// Daemon is one running node. Use New, then Run.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	mesh    *mesh.Mesh
	api     *http.Server
	metrics *metrics
	bodies  *semaphore.Weighted // of Config.BodiesMax
	apiKeys map[[sha256.Size]byte]struct{}
	prober  *probe.Prober // for the goroutine that probes
	events  *events       // nil without Config.KVEvents
	wake    chan struct{} // has the engine probed at once
	toWarm  chan struct{} // has warming looked at
	urgent  chan struct{} // has a rumor spoken out of turn
	gone    *sync.Cond    // on mu: a request has ended

	// mu guards what follows. It is taken in the method locked, and never held
	// across I/O.
	mu       sync.Mutex
	node     *node.Node
	health   health
	insight  insight
	running  int                   // requests at this node
	inFlight int                   // of them, those at its engine
	forwards map[*forward]struct{} // of them, those waiting for a peer's first byte
	closing  bool                  // leaving: not ready
	warming  *warming              // under way, or about to be; nil else
	spare    spare
	bounces  int // of this node's forwards, by peers
	recent   decisions
	drained  bool // the time for what runs is over
	closed   bool // takes no request
}

// New checks the configuration and joins the mesh: rumors and forwarded
// requests may come in before Run. On failure both listeners are closed.
func New(cfg Config) (*Daemon, error) {
	d, err := newDaemon(cfg)
	if err != nil {
		cfg.API.Close()
		cfg.Mesh.Listener.Close()
		return nil, err
	}
	return d, nil
}

func newDaemon(cfg Config) (*Daemon, error) {
	cfg.setDefaults()
	if err := cfg.Node.Validate(); err != nil {
		return nil, err
	}
	d := &Daemon{
		cfg:      cfg,
		log:      cfg.Log,
		node:     node.New(cfg.Node),
		bodies:   semaphore.NewWeighted(cfg.BodiesMax),
		apiKeys:  map[[sha256.Size]byte]struct{}{},
		wake:     make(chan struct{}, 1),
		toWarm:   make(chan struct{}, 1),
		urgent:   make(chan struct{}, 1),
		forwards: map[*forward]struct{}{},
	}
	d.prober = probe.New(cfg.Engine, cfg.EngineKind, d.authorize)
	d.insight = insight{
		facts: probe.Facts{Kind: cfg.EngineKind, Running: -1, Waiting: -1, KVUse: -1}, told: cfg.Node.CapacityTokens,
		telling: map[telling]bool{}, said: map[string]bool{},
	}
	d.gone = sync.NewCond(&d.mu)
	for _, key := range cfg.APIKeys {
		d.apiKeys[sha256.Sum256([]byte(key))] = struct{}{}
	}
	var err error
	if cfg.KVEvents.Endpoint != "" {
		if d.events, err = newEvents(d); err != nil {
			return nil, err
		}
	}
	d.metrics = newMetrics(d)
	d.api = &http.Server{
		Handler:           d.apiHandler(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	m := cfg.Mesh
	m.Name, m.Log = cfg.Node.Name, cfg.Log
	m.Handler = http.HandlerFunc(d.serveForwarded)
	m.OnRumor = func(r gossip.Rumor) {
		d.careful("a rumor", func() {
			d.locked(func(now time.Time, n *node.Node) { n.Hear(now, r) })
		})
	}
	m.OnRemembered = d.remembered
	m.Naming = mesh.Naming{Scheme: prefix.Scheme, BlockBytes: prefix.BlockBytes, Key: cfg.Key.Fingerprint()}
	m.Told = func(peer string) (life, version uint64) {
		d.locked(func(_ time.Time, n *node.Node) { life, version = n.Told(peer) })
		return life, version
	}
	m.OnLeave = func(peer string, died bool) {
		what := "peer left"
		if died {
			what = "peer died"
		}
		d.log.Info(what, "peer", peer)
		d.locked(func(_ time.Time, n *node.Node) { n.Forget(peer) })
	}
	m.OnJoin = func(peer string) { d.log.Info("peer joined", "peer", peer) }
	m.OnLost = func(peer string) {
		d.log.Warn("peer lost", "peer", peer)
		d.locked(func(now time.Time, n *node.Node) { n.Lost(now, peer) })
	}
	d.mesh, err = mesh.Open(m)
	return d, err
}

// Run serves until ctx is done, then says goodbye, finishes what runs for up
// to DrainTimeout, and returns after every goroutine that it started.
func (d *Daemon) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := d.api.Serve(d.cfg.API); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the API on %s: %w", d.cfg.API.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		d.speakEvery(ctx, d.cfg.Node.Poll)
		return nil
	})
	group.Go(func() error {
		d.probeEvery(ctx)
		return nil
	})
	if d.events != nil {
		group.Go(func() error { return d.events.follower.Run(ctx) })
		group.Go(func() error {
			d.events.cutPrompts(ctx)
			return nil
		})
	}
	group.Go(func() error {
		d.warmEvery(ctx)
		return nil
	})
	group.Go(func() error {
		d.tellTroubles(ctx)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return d.shutdown()
	})
	return group.Wait()
}

// speakEvery is the heartbeat of the node, and tells out of turn what is urgent.
func (d *Daemon) speakEvery(ctx context.Context, poll time.Duration) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		d.careful("the heartbeat", d.speak)
		select {
		case <-tick.C:
		case <-d.urgent:
		case <-ctx.Done():
			return
		}
	}
}

// speak says what the tree holds (the paper's sendTrie), and gives up on forwards
// to peers that have fallen silent (section 3.3).
func (d *Daemon) speak() {
	var rumor gossip.Rumor
	peers := d.mesh.Peers()
	leaving, relaying := leaving(peers), d.mesh.Relaying()
	d.locked(func(now time.Time, n *node.Node) {
		for _, p := range peers {
			if p.RTT > 0 {
				n.SetTrip(p.Name, p.RTT)
			}
		}
		n.SetRelayed(relaying)
		rumor = n.Speak(now)
		for f := range d.forwards {
			if n.Suspected(now, f.peer) && !leaving[f.peer] {
				f.cancel(errSilent)
			}
		}
	})
	d.mesh.Broadcast(rumor)
}

// careful runs f, and survives a fault of this program in it.
func (d *Daemon) careful(where string, f func()) {
	defer d.survived(where)
	f()
}

// survived is to be deferred.
func (d *Daemon) survived(where string) {
	if v := recover(); v != nil {
		d.panicked(where, v)
	}
}

// leaving are those that said goodbye: silent, but they finish what they were sent.
func leaving(peers []mesh.Peer) map[string]bool {
	left := map[string]bool{}
	for _, p := range peers {
		if p.State == mesh.StateLeft {
			left[p.Name] = true
		}
	}
	return left
}

// shutdown tells peers at once to send nothing more, waits for what runs as long as
// DrainTimeout allows, says goodbye, and then ends everything. While it waits, what
// clients still send is served by peers where they can.
func (d *Daemon) shutdown() error {
	running := 0
	d.locked(func(_ time.Time, n *node.Node) {
		d.closing, running = true, d.running
		n.SetDown(true)
	})
	d.log.Info("leaving", "requests", running, "timeout", d.cfg.DrainTimeout.String())
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.DrainTimeout)
	defer cancel()
	d.api.SetKeepAlivesEnabled(false) // so that clients look for another node
	d.drain(ctx)
	var sides errgroup.Group
	sides.Go(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
		defer cancel()
		if err := d.mesh.Leave(ctx); err != nil {
			d.log.Info("not every peer heard the goodbye", "err", err)
		}
		return nil
	})
	sides.Go(func() error {
		if d.api.Shutdown(ctx) == nil {
			return nil
		}
		d.log.Warn("requests cut off at the drain timeout", "timeout", d.cfg.DrainTimeout.String())
		d.locked(func(time.Time, *node.Node) { d.drained = true })
		return d.api.Close()
	})
	err := sides.Wait()
	d.locked(func(time.Time, *node.Node) { d.drained = true })
	err = errors.Join(err, d.mesh.Close())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for d.running > 0 {
		d.gone.Wait()
	}
	return err
}

// drain speaks on until no request is left, or ctx is done.
func (d *Daemon) drain(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var speaking sync.WaitGroup
	speaking.Go(func() { d.speakEvery(ctx, d.cfg.Node.Poll) })
	defer speaking.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { d.locked(func(time.Time, *node.Node) { d.gone.Broadcast() }) })()
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.running > 0 && ctx.Err() == nil {
		d.gone.Wait()
	}
}

// enter admits a request, which calls leave at its end.
func (d *Daemon) enter() (ok bool) {
	d.locked(func(time.Time, *node.Node) {
		if ok = !d.closed; ok {
			d.running++
		}
	})
	return ok
}

func (d *Daemon) leave() {
	d.locked(func(time.Time, *node.Node) { d.running-- })
	d.gone.Broadcast()
}

// locked runs f with the node, at one instant. f must not block.
func (d *Daemon) locked(f func(now time.Time, n *node.Node)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(time.Now(), d.node)
}
