package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	seekMin     = 500 * time.Millisecond // between two rounds of joining, doubled
	seekMax     = 15 * time.Second       // also how soon a healed partition is noticed
	seekDead    = 4                      // dead members asked in one round, drawn at random
	lookupWait  = 5 * time.Second        // for a name server's answer
	forgetAfter = time.Hour              // a member gone so long is not asked again nor listed
)

// The states of a Peer.
const (
	StateAlive   = "alive"
	StateSuspect = "suspect"
	StateDead    = "dead"
	StateLeft    = "left"
)

// peer is what the mesh knows of another node. Mesh.mu guards it, name aside.
type peer struct {
	name, addr     string
	member         bool   // memberlist says alive or suspect
	here           bool   // OnJoin was told, OnLeave not yet
	lost           bool   // the last rumor stream broke and none is back
	gone           string // StateDead or StateLeft when not here
	goneAt         time.Time
	unlink         context.CancelFunc // ends keepLink, on the side that dials
	stream         *stream
	rtt            time.Duration
	sent, received uint64
}

// membership is memberlist's configuration. Its own defaults for a LAN stand
// where nothing is said; every one of its timeouts has room for the simulated delay.
func membership(name string, t *transport, events memberlist.EventDelegate, logger *log.Logger) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = name
	c.Transport = t
	c.Events = events
	c.Logger = logger
	c.AdvertiseAddr, c.AdvertisePort = t.ip.String(), t.tcpPort
	c.EnableCompression = false // a few hundred bytes each second do not pay for LZW
	// News rides on probes first; gossip of its own is for the rest. At 500 ms an
	// idle node wakes twice a second for it, not five times, and a leave, which
	// is gossiped twice, is still out within a second.
	c.GossipInterval = 500 * time.Millisecond
	// A node that was restarted on another address gets its name back as soon as
	// the old one is seen to be dead.
	c.DeadNodeReclaimTime = time.Millisecond
	// A first packet waits for its connection: TLS and the upgrade, then the ping.
	rtt := t.port.roundTrip()
	c.ProbeTimeout += 3 * rtt
	c.ProbeInterval += 6 * rtt
	c.TCPTimeout = t.port.connectWait() + 5*time.Second + 2*rtt
	return c
}

// watcher hears from memberlist, which holds its own lock meanwhile: nothing here
// may call it back.
type watcher struct{ mesh *Mesh }

var _ memberlist.EventDelegate = watcher{}

func (e watcher) NotifyJoin(n *memberlist.Node) {
	m := e.mesh
	if n.Name == m.cfg.Name {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[n.Name]
	if p == nil {
		p = &peer{name: n.Name}
		m.peers[n.Name] = p
	}
	p.addr, p.member, p.lost = n.Address(), true, false
	m.present(p)
	if m.cfg.Name < p.name && !m.closed && !m.leaving && p.unlink == nil {
		ctx, cancel := context.WithCancel(m.ctx)
		p.unlink = cancel
		addr := p.addr
		m.wg.Go(func() { m.keepLink(ctx, p, addr) })
	}
}

func (e watcher) NotifyLeave(n *memberlist.Node) {
	m := e.mesh
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[n.Name]
	if p == nil {
		return
	}
	p.member = false
	if p.unlink != nil {
		p.unlink()
		p.unlink = nil
	}
	if p.stream != nil {
		p.stream.hangUp()
		p.stream = nil
	}
	m.absent(p, StateDead)
}

func (watcher) NotifyUpdate(*memberlist.Node) {}

// present and absent keep OnJoin and OnLeave in turn, whoever noticed first:
// memberlist, or the stream. They need the lock.
func (m *Mesh) present(p *peer) {
	if !p.here {
		p.here, p.gone = true, ""
		m.tell(m.cfg.OnJoin, p.name)
	}
}

func (m *Mesh) absent(p *peer, state string) {
	if p.here {
		p.here, p.gone, p.goneAt, p.rtt = false, state, time.Now(), 0
		m.tell(m.cfg.OnLeave, p.name)
	}
}

// tell queues a callback. The queue holds one entry per change of membership, and
// Mesh.told empties it in order. It needs the lock.
func (m *Mesh) tell(callback func(string), name string) {
	if callback == nil || m.closed {
		return
	}
	m.news = append(m.news, func() { callback(name) })
	select {
	case m.newsReady <- struct{}{}:
	default:
	}
}

// told runs the callbacks until the mesh closes.
func (m *Mesh) told() {
	for {
		select {
		case <-m.newsReady:
		case <-m.ctx.Done():
			return
		}
		m.mu.Lock()
		news := m.news
		m.news = nil
		m.mu.Unlock()
		for _, callback := range news {
			if m.ctx.Err() == nil {
				callback()
			}
		}
	}
}

// seek joins the cluster, and goes on looking for those who are missing: seeds
// that no living member stands for, and members that died without a goodbye. So
// seeds may start last, and the sides of a partition find each other however
// long it lasted, whichever side a node is on.
func (m *Mesh) seek() {
	wait, said := seekMin, ""
	for m.ctx.Err() == nil && !m.isLeaving() {
		missing, err := m.missing()
		if len(missing) == 0 && err == nil {
			sleep(m.ctx, jittered(seekMax))
			wait, said = seekMin, ""
			continue
		}
		joined, e := m.join(missing)
		if err = errors.Join(err, e); joined == 0 && err.Error() != said && m.ctx.Err() == nil {
			said = err.Error()
			m.log.Warn("cannot join yet; trying again", "seeds", m.cfg.Join, "err", err)
		}
		sleep(m.ctx, jittered(wait))
		wait = min(2*wait, seekMax)
	}
}

// join asks all addresses at once, for one that does not answer takes seconds, and
// returns how many answered. It asks twice: where each side took the other for
// dead, the first exchange tells them so and the second carries their denials.
func (m *Mesh) join(addrs []string) (joined int, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, addr := range addrs {
		wg.Go(func() {
			n, e := m.members.Join([]string{addr})
			if n > 0 {
				_, e = m.members.Join([]string{addr})
			}
			mu.Lock()
			defer mu.Unlock()
			joined += n
			err = errors.Join(err, e)
		})
	}
	wg.Wait()
	return joined, err
}

// missing resolves who ought to be a member and is not, and forgets who has been
// gone for long. The error is the last seed's that could not be resolved.
func (m *Mesh) missing() (addrs []string, err error) {
	for _, seed := range m.cfg.Join {
		found, e := resolve(m.ctx, seed)
		if e != nil {
			err = e
		}
		addrs = append(addrs, found...)
	}
	var dead []string
	known := []string{m.Addr()}
	m.mu.Lock()
	for name, p := range m.peers {
		switch {
		case p.member:
			known = append(known, p.addr)
		case time.Since(p.goneAt) > forgetAfter:
			delete(m.peers, name)
		case p.gone == StateDead:
			dead = append(dead, p.addr)
		}
	}
	m.mu.Unlock()
	rand.Shuffle(len(dead), func(i, j int) { dead[i], dead[j] = dead[j], dead[i] })
	addrs = append(addrs, dead[:min(seekDead, len(dead))]...)
	slices.Sort(addrs)
	return slices.DeleteFunc(slices.Compact(addrs), func(a string) bool { return slices.Contains(known, a) }), err
}

// resolve turns a seed into ip:port addresses.
func resolve(ctx context.Context, seed string) ([]string, error) {
	host, portName, err := net.SplitHostPort(strings.TrimPrefix(seed, "dns:"))
	if err != nil {
		return nil, fmt.Errorf("--join %s is neither HOST:PORT nor dns:NAME:PORT", seed)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	ips, err := lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("--join %s: %w", seed, err)
	}
	var addrs []string
	for _, ip := range ips {
		addrs = append(addrs, net.JoinHostPort(ip.String(), portName))
	}
	return addrs, nil
}

func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

// lines turns the lines that memberlist and net/http log into records: a level in
// brackets leads memberlist's.
type lines struct {
	log   *slog.Logger
	level slog.Level // of a line that names none
	seen  func(line []byte)
}

func (l lines) Write(b []byte) (int, error) {
	line, level := bytes.TrimSpace(b), l.level
	if l.seen != nil {
		l.seen(line)
	}
	if rest, ok := bytes.CutPrefix(line, []byte("[")); ok {
		if name, text, ok := bytes.Cut(rest, []byte("] ")); ok {
			line = bytes.TrimPrefix(text, []byte("memberlist: "))
			switch string(name) {
			case "DEBUG":
				level = slog.LevelDebug
			case "INFO":
				level = slog.LevelInfo
			default: // its errors are a peer's silence, nothing this node cannot bear
				level = slog.LevelWarn
			}
		}
	}
	l.log.Log(context.Background(), level, string(line))
	return len(b), nil
}

// jittered draws a wait around d, so that nodes that failed together do not
// try again together.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
