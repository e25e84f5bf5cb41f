// Package mesh is the peer port of a node: the one TCP listener for everything
// that nodes say to each other, with one security model.
//
//	membership  memberlist (SWIM): its packets over pooled HTTP/2, a POST each,
//	            its streams on upgraded HTTP/1.1 connections
//	rumors      one persistent stream of frames per pair of nodes, upgraded likewise
//	forwards    every other request, over the same pool as packets, to Config.Handler
//
// With certificates the protocol is chosen by ALPN, and a node is who its certificate
// says; without, HTTP/2 by prior knowledge (RFC 9113, section 3.3). The bytes are
// described at the type upgrade and the constants of frame types. What comes for
// memberlist is checked for its shape before it is passed on.
// Nothing here waits for a slow peer but the goroutine that writes to it.
package mesh

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/cert"
)

// Config says who this node is and whom it trusts. Callbacks may be nil.
type Config struct {
	Name      string         // unique; 1 to gossip.MaxName of letters, digits, "-", "_" and "."
	Listener  net.Listener   // the peer port, bound; the mesh closes it
	Advertise string         // HOST:PORT that peers dial; empty: the listener's address
	Join      []string       // seeds, HOST:PORT or dns:NAME:PORT, resolved anew at each try
	Identity  *cert.Identity // certificates; nil: none, and then loopback only
	Insecure  bool           // let anyone in who reaches the port, beyond loopback and without certificates

	// Naming is told to peers; one who makes other names is refused, in a sentence.
	// Zero: this node says nothing and asks nothing.
	Naming Naming

	Dial   func(ctx context.Context, addr string) (net.Conn, error)     // nil: TCP
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error) // of a seed's name; nil: the system's resolver

	// Simulated one-way latency of every message this node sends to a peer, plus
	// or minus a uniform jitter: the paper's communication delay, for experiments.
	LinkDelay, LinkJitter time.Duration

	RelayAbove int  // nodes; where there are more, rumors are relayed; 0: never. The same on all nodes
	RumorBytes int  // a second: whole trees wait for it to leave room, one after the other, and what is passed on likewise; 0: no limit
	Whole      bool // every rumor has the whole tree, as the paper's broadcast, whatever peers hold of it

	Handler http.Handler // requests forwarded by peers; nil: 404

	// OnRumor is called by the stream that the rumor came on, which reads no further
	// until it returns. The others are called one at a time, in order, and must not block:
	// membership waits for them. None may call the mesh.
	OnRumor func(gossip.Rumor)
	// Told returns which version of peer's tree, and of which life, is held: what
	// the peer says from then on builds on that. 0, and nil: none, so it tells the
	// whole tree each time.
	Told    func(peer string) (life, version uint64)
	OnJoin  func(peer string)
	OnLeave func(peer string, died bool) // it said goodbye, or is declared dead
	OnLost  func(peer string)            // its rumor stream broke without a goodbye, the first since it was heard; a dead process shows so at once

	// OnRemembered is called as OnRumor is, with the latest life of this node that a
	// peer has heard. Later than its own, it was lived by a clock that was ahead.
	OnRemembered func(life uint64)

	Log *slog.Logger // nil: none
}

// Peer is another node as this one sees it now, or saw it within the last hour.
type Peer struct {
	Name, Addr string
	// State is "alive"; "suspect": alive for memberlist, but its rumor stream
	// broke; "dead"; or "left", after a goodbye.
	State string
	// Trouble is why nothing is heard of it, or that another bears its name, in a
	// sentence for its operator; empty where nobody has to do anything.
	Trouble string
	RTT     time.Duration // smoothed time from rumor to ack, so with the peer's decoding; 0: not measured yet
	Stats
}

// Stats counts since Open. The mesh's own do so whatever peers are forgotten.
type Stats struct {
	RumorBytesSent, RumorBytesReceived uint64 // frames that carry rumors or digests, headers included

	RelayedNews, RelayedOld uint64 // rumors of third nodes taken in, and those that said nothing new
	Pulls                   uint64 // begun
}

// Mesh is an open peer port. All its methods may be called from anywhere.
type Mesh struct {
	cfg         Config
	log         *slog.Logger
	port        *port
	transport   *transport
	members     *memberlist.Memberlist
	server      *http.Server
	carrying    carrying // the server's connections
	addr        string   // that peers dial, ip:port
	ctx         context.Context
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	parted      chan struct{}  // wakes seek
	leave       sync.Mutex     // held while leaving
	clashSeldom rate.Sometimes // says which names clash
	opened      time.Time
	speech      speech
	pulled      *semaphore.Weighted // pulls that are answered
	pullable    chan struct{}       // wakes pull
	turn        sync.Mutex          // held while a change of membership is made and told; before mu

	mu      sync.Mutex
	peers   map[string]*peer
	stats   Stats
	relay   gossip.Relay
	clashes map[string]*clash // by name
	sought  bool              // every seed was asked once
	settled bool
	leaving bool
	closed  bool

	relaying, inquiring, pulling bool // rumors are relayed; inquire and pull run
}

// Open serves the port and begins to join. It does not wait for seeds: they are
// tried until they answer, in the background. It owns the listener, in failure too.
func Open(cfg Config) (_ *Mesh, err error) {
	defer func() {
		if err != nil {
			cfg.Listener.Close()
		}
	}()
	ip, tcpPort, err := check(&cfg)
	if err != nil {
		return nil, err
	}
	m := &Mesh{
		cfg: cfg, log: cfg.Log, speech: speech{whole: cfg.Whole, purse: purse{rate: float64(cfg.RumorBytes)}}, peers: map[string]*peer{},
		addr:    net.JoinHostPort(ip.String(), strconv.Itoa(tcpPort)),
		clashes: map[string]*clash{}, clashSeldom: rate.Sometimes{Interval: time.Minute},
		parted: make(chan struct{}, 1), opened: time.Now(),
		pulled: semaphore.NewWeighted(pulledMax), pullable: make(chan struct{}, 1),
	}
	m.speech.seal = m.seal
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.port = newPort(&port{
		name: cfg.Name, addr: m.addr, raw: cfg.Dial, cert: cfg.Identity, delay: cfg.LinkDelay, jitter: cfg.LinkJitter,
		log: cfg.Log, wg: &m.wg, ctx: m.ctx,
	})
	m.transport = newTransport(m.port, ip, tcpPort)
	m.server = m.newServer()
	m.members, err = memberlist.Create(membership(cfg.Name, m.transport, &watcher{mesh: m, refused: rate.Sometimes{Interval: time.Minute}}))
	if err != nil {
		m.cancel()
		return nil, fmt.Errorf("membership: %w", err)
	}
	m.transport.outlive(cfg.Name, time.Now())
	m.wg.Go(m.serve)
	m.wg.Go(m.seek)
	if cfg.Identity != nil {
		m.wg.Go(m.watchCertificates)
	}
	return m, nil
}

func (cfg *Config) setDefaults() {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Handler == nil {
		cfg.Handler = http.NotFoundHandler()
	}
	for _, callback := range []*func(string){&cfg.OnJoin, &cfg.OnLost} {
		if *callback == nil {
			*callback = nothing
		}
	}
	if cfg.OnLeave == nil {
		cfg.OnLeave = func(string, bool) {}
	}
	if cfg.Told == nil {
		cfg.Told = func(string) (uint64, uint64) { return 0, 0 }
	}
	if cfg.OnRumor == nil {
		cfg.OnRumor = func(gossip.Rumor) {}
	}
	if cfg.OnRemembered == nil {
		cfg.OnRemembered = func(uint64) {}
	}
	if cfg.Lookup == nil {
		cfg.Lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if cfg.Dial == nil {
		dialer := &net.Dialer{}
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }
	}
}

// check fills in defaults and returns the address that peers dial.
func check(cfg *Config) (net.IP, int, error) {
	cfg.setDefaults()
	if !goodName.MatchString(cfg.Name) {
		return nil, 0, fmt.Errorf(`name %q is not 1 to %d letters, digits, "-", "_" or "."; give another with --name`, cfg.Name, gossip.MaxName)
	}
	for _, seed := range cfg.Join {
		if _, _, err := splitSeed(seed); err != nil {
			return nil, 0, err
		}
	}
	if cfg.Identity != nil && cfg.Identity.Name() != cfg.Name {
		return nil, 0, fmt.Errorf("this node is called %s and its certificate is opened for %s", cfg.Name, cfg.Identity.Name())
	}
	bound := cfg.Listener.Addr().String()
	if at, err := netip.ParseAddrPort(bound); (err != nil || !at.Addr().IsLoopback()) && cfg.Identity == nil {
		if !cfg.Insecure {
			return nil, 0, fmt.Errorf("peer port %s is not loopback and has no certificates; give --peer-cert, --peer-key and --peer-ca, or --insecure-peers to accept anyone", bound)
		}
		cfg.Log.Warn("INSECURE: whoever reaches the peer port is a peer, and prompts, answers and keys cross the network in the clear; `hearsay cert` makes certificates", "peers", bound)
	}
	if cfg.Advertise == "" {
		cfg.Advertise = bound
	}
	host, portName, err := net.SplitHostPort(cfg.Advertise)
	if err != nil {
		return nil, 0, fmt.Errorf("--advertise %s is not HOST:PORT", cfg.Advertise)
	}
	tcpPort, err := strconv.ParseUint(portName, 10, 16)
	if err != nil || tcpPort == 0 {
		return nil, 0, fmt.Errorf("--advertise %s has no port that peers could dial", cfg.Advertise)
	}
	// memberlist spreads IP addresses, so a host name becomes one here.
	ctx, cancel := context.WithTimeout(context.Background(), lookupWait)
	defer cancel()
	ips, err := lookup(ctx, cfg.Lookup, host)
	if err != nil {
		return nil, 0, fmt.Errorf("--advertise %s: %w", cfg.Advertise, err)
	}
	if !dialable(ips[0]) || ips[0].Is6() && ips[0].IsLinkLocalUnicast() { // whose zone is each machine's own
		return nil, 0, fmt.Errorf("peers cannot dial %s; give --advertise HOST:PORT with an address of this machine", cfg.Advertise)
	}
	return ips[0].AsSlice(), int(tcpPort), nil
}

// goodName admits what can stand in an HTTP header, a metric's label and a table.
var goodName = regexp.MustCompile(fmt.Sprintf(`^[A-Za-z0-9._-]{1,%d}$`, gossip.MaxName))

// GoodName says whether name may be a node's: 1 to gossip.MaxName letters, digits,
// "-", "_" and ".".
func GoodName(name string) bool { return goodName.MatchString(name) }

// Addr returns the address that peers dial, ip:port.
func (m *Mesh) Addr() string { return m.addr }

// Broadcast hands r, which has the whole tree, to every peer's stream and returns.
// Each tells its peer what has changed since what that holds. Where an earlier rumor
// still waits, r takes its place. Who connects later hears it first.
func (m *Mesh) Broadcast(r gossip.Rumor) {
	m.speech.say(r)
	m.tend(time.Now())
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		if p.stream != nil {
			p.stream.give(func() { p.stream.speak = true })
		}
	}
}

// Peers returns every other node, by name.
func (m *Mesh) Peers() []Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	peers := make([]Peer, 0, len(m.peers))
	for _, p := range m.peers {
		out := p.Peer
		out.Trouble = cmp.Or(out.Trouble, m.clashOf(p.Name))
		peers = append(peers, out)
	}
	slices.SortFunc(peers, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	return peers
}

// settleMax bounds how long a node waits for its peers' trees.
const settleMax = 5 * time.Second

// Settled says whether this node has looked for the others and heard each of them, so
// that it knows what they have cached. Where a seed or a peer does not answer, it is
// so after settleMax at the latest. Once it is so it stays.
func (m *Mesh) Settled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settled || time.Since(m.opened) >= settleMax {
		m.settled = true
		return true
	}
	if !m.sought {
		return false
	}
	for _, p := range m.peers {
		if p.member && p.life == 0 && p.Trouble == "" {
			return false
		}
	}
	m.settled = true
	return true
}

// Stats returns the counters.
func (m *Mesh) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

func (m *Mesh) count(p *peer, sent, received int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range []*Stats{&m.stats, &p.Stats} {
		s.RumorBytesSent += uint64(sent)
		s.RumorBytesReceived += uint64(received)
	}
}

// observe smooths round trips as TCP does (RFC 6298: an eighth of each new one), but
// takes half of one that is shorter: nothing but the link makes a trip short, and much
// may have made one long.
func (m *Mesh) observe(p *peer, rtt time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.RTT == 0 {
		p.RTT = rtt
	}
	if rtt < p.RTT {
		p.RTT += (rtt - p.RTT) / 2
		return
	}
	p.RTT += (rtt - p.RTT) / 8
}

func (m *Mesh) isLeaving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaving
}

// Close ends everything at once: streams, forwards, membership; to peers that
// heard no goodbye it looks like a crash. It returns when this package's goroutines
// have ended. memberlist's last ones end within a probe interval.
func (m *Mesh) Close() error {
	m.turn.Lock() // so that no callback runs when Close has returned
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	m.turn.Unlock()
	if closed {
		return nil
	}
	m.cancel()
	m.leave.Lock() // memberlist can be left or shut down, not both at once
	defer m.leave.Unlock()
	err := m.members.Shutdown()
	m.server.Close()
	m.port.shut()
	m.port.pool.CloseIdleConnections()
	m.wg.Wait()
	return err
}
