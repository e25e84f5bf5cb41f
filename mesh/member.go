package mesh

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"
)

const (
	seekMin     = 500 * time.Millisecond // between two rounds of joining, at first
	seekMax     = 15 * time.Second       // also how soon a healed partition is noticed
	seedGrace   = 3 * time.Second        // nodes that start together are down for each other at first
	seekMost    = 8                      // asked in one round besides seeds, drawn at random
	lookupWait  = 5 * time.Second        // for a name server's answer
	forgetAfter = time.Hour              // a member gone so long is not listed
	strayAfter  = 7 * 24 * time.Hour     // and one that died, not asked again
	straysMax   = 64
)

// The states of a Peer.
const (
	StateAlive   = "alive"
	StateSuspect = "suspect"
	StateDead    = "dead"
	StateLeft    = "left"
)

// peer is what the mesh knows of another node. Mesh.mu guards it, Name aside.
type peer struct {
	Peer
	member bool // memberlist says alive or suspect
	goneAt time.Time
	unlink context.CancelFunc // ends keepLink, on the side that dials
	stream *stream
	life   uint64 // the latest heard since it came

	old       bool                // speaks no version that relays
	spareAt   time.Time           // since when no stream with it is needed; zero: one is
	chain     []*x509.Certificate // that it has shown last
	pullAt    time.Time           // when it is to be pulled; zero: it is not
	pulledAt  time.Time           // when it last was
	pullAgain time.Duration       // and how long after that it is not
	pulling   net.Conn            // on which it pulls from this node

	heardAt time.Time // the last rumor of it
	lost    bool      // OnLost was told, and nothing heard since
}

// here says whether OnJoin was told and OnLeave not yet.
func (p *peer) here() bool { return p.State == StateAlive || p.State == StateSuspect }

// membership is memberlist's configuration. Its own defaults for a LAN stand
// where nothing is said; every one of its timeouts has room for the simulated delay.
func membership(name string, t *transport, events *watcher) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = name
	c.Transport = t
	c.Events, c.Conflict, c.Alive = events, events, events
	// What it has to say the mesh says in its own words; the rest is detail.
	c.Logger = slog.NewLogLogger(t.port.log.Handler(), slog.LevelDebug)
	c.AdvertiseAddr, c.AdvertisePort = t.ip.String(), t.tcpPort
	c.EnableCompression = false // a few hundred bytes each second do not pay for LZW
	// News rides on probes first; gossip of its own is for the rest. At 500 ms an
	// idle node wakes twice a second for it, not five times.
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
type watcher struct {
	mesh    *Mesh
	refused rate.Sometimes // says so
}

var _ interface {
	memberlist.AliveDelegate
	memberlist.ConflictDelegate
	memberlist.EventDelegate
} = (*watcher)(nil)

// NotifyAlive refuses a member that memberlist would take in: with a name that no
// node may bear, an address that no node can dial, or other versions of
// memberlist's protocol, which would keep all nodes from joining.
func (e *watcher) NotifyAlive(n *memberlist.Node) error {
	const version, delegateVersion = memberlist.ProtocolVersion2Compatible, 0
	ip, ok := netip.AddrFromSlice(n.Addr)
	var err error
	switch {
	case !goodName.MatchString(n.Name):
		err = fmt.Errorf("%q is no name for a node", n.Name)
	case !ok || !dialable(ip) || n.Port == 0:
		err = fmt.Errorf("%s is at %s, which nobody can dial", n.Name, n.Address())
	case n.PCur != version || n.PMin > version || n.PMax < version, n.DCur != delegateVersion || n.DMin > delegateVersion:
		err = fmt.Errorf("%s speaks memberlist %d of %d to %d and %d of %d to %d", n.Name, n.PCur, n.PMin, n.PMax, n.DCur, n.DMin, n.DMax)
	default:
		return nil
	}
	e.refused.Do(func() { e.mesh.log.Warn("a peer speaks of a member that cannot be", "err", err) })
	return err
}

// dialable says whether ip can be the address of one node.
func dialable(ip netip.Addr) bool {
	ip = ip.Unmap()
	return !ip.IsUnspecified() && !ip.IsMulticast()
}

func (e *watcher) NotifyJoin(n *memberlist.Node) {
	m := e.mesh
	if n.Name == m.cfg.Name {
		return
	}
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	p := m.peers[n.Name]
	if p == nil {
		p = &peer{Peer: Peer{Name: n.Name}}
		m.peers[n.Name] = p
	}
	p.Addr, p.member, p.old, p.spareAt, p.pullAgain = n.Address(), true, false, time.Time{}, 0
	told := m.present(p)
	m.relink()
	m.mu.Unlock()
	told(p.Name)
}

func (e *watcher) NotifyLeave(n *memberlist.Node) {
	m := e.mesh
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	p := m.peers[n.Name]
	if p == nil {
		m.mu.Unlock()
		return
	}
	p.member, p.chain = false, nil
	m.relay.Forget(p.Name)
	m.unlink(p)
	if p.stream != nil {
		p.stream.hangUp()
		p.stream = nil
	}
	told := m.absent(p, StateDead)
	m.relink()
	m.mu.Unlock()
	m.part()
	told(p.Name)
}

func (*watcher) NotifyUpdate(*memberlist.Node) {}

// NotifyConflict hears of it again and again, and also, for a moment, when a node
// comes back on another address.
func (e *watcher) NotifyConflict(here, other *memberlist.Node) {
	e.mesh.clash(here.Name, here.Address(), other.Address())
}

// present and absent keep OnJoin and OnLeave in turn, whoever noticed first:
// memberlist, or the stream. They need both locks, and return what to call with
// the peer's name once mu is released.
func (m *Mesh) present(p *peer) func(string) {
	was := p.here()
	p.State = StateAlive
	if was || m.closed {
		return nothing
	}
	return m.cfg.OnJoin
}

func (m *Mesh) absent(p *peer, state string) func(string) {
	if !p.here() || m.closed {
		return nothing
	}
	p.State, p.goneAt, p.RTT, p.Trouble, p.life, p.lost = state, time.Now(), 0, "", 0, false
	return func(peer string) { m.cfg.OnLeave(peer, state == StateDead) }
}

func nothing(string) {}

// seek joins the cluster, and goes on looking for those who are missing: seeds that
// no linked member stands for, members without a stream, and those that died
// without a goodbye. So seeds may start last; the sides of a partition find each
// other however long it lasted, whichever side a node is on; and a process that
// took the place of another, and knows nobody, is told of this node.
func (m *Mesh) seek() {
	wait, seeds := seekMin, seedTroubles{mesh: m, said: map[string]bool{}}
	var lost []stray
	for m.ctx.Err() == nil && !m.isLeaving() {
		missing, count, err := m.missing(&lost)
		seeds.say(append(m.join(missing)[:count], err))
		m.mu.Lock()
		m.sought = true
		m.mu.Unlock()
		pause := wait
		wait = longer(wait, seekMax)
		if len(missing) == 0 && err == nil {
			pause, wait = seekMax, seekMin
		}
		select {
		case <-time.After(jittered(pause)):
		case <-m.parted:
			wait = seekMin
		case <-m.ctx.Done():
		}
	}
}

// part has seek look at once for a peer that was here a moment ago.
func (m *Mesh) part() {
	select {
	case m.parted <- struct{}{}:
	default:
	}
}

// seedTroubles warns once of each trouble with seeds, when seedGrace has passed
// since all was well.
type seedTroubles struct {
	mesh  *Mesh
	since time.Time // zero: all is well
	said  map[string]bool
}

func (s *seedTroubles) say(troubles []error) {
	log := s.mesh.log
	troubles = slices.DeleteFunc(troubles, func(err error) bool { return err == nil })
	switch {
	case s.mesh.ctx.Err() != nil:
		return
	case len(troubles) == 0:
		if len(s.said) > 0 {
			log.Info("joined through every seed")
		}
		s.since, s.said = time.Time{}, map[string]bool{}
		return
	case s.since.IsZero():
		s.since = time.Now()
	}
	if time.Since(s.since) < seedGrace {
		return
	}
	for _, err := range troubles {
		if s.said[err.Error()] {
			continue
		}
		s.said[err.Error()] = true
		hint := "does a node run there?"
		if s.mesh.cfg.Identity != nil {
			hint = "does a node run there, under the same CA?"
		}
		log.Warn("cannot join through this seed, trying again; "+hint, "err", err)
	}
}

// join asks all addresses at once, for one that does not answer takes seconds, and
// returns the error of each. It asks twice: where each side took the other for
// dead, the first exchange tells them so and the second carries their denials.
func (m *Mesh) join(addrs []string) []error {
	errs := make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			if _, err := m.members.Join([]string{addr}); err != nil {
				errs[i] = errors.Unwrap(err) // of a list of one
				return
			}
			m.members.Join([]string{addr})
		})
	}
	wg.Wait()
	return errs
}

// A stray is where a member was that died and is listed no more: the other side of a
// long partition may have no seed on this one.
type stray struct {
	addr   string
	goneAt time.Time
}

// missing resolves who ought to be a member and is not, the seeds first, and
// forgets who has been gone for long. The error is the last seed's that could not
// be resolved.
func (m *Mesh) missing(lost *[]stray) (addrs []string, seeds int, err error) {
	for _, seed := range m.cfg.Join {
		found, e := resolve(m.ctx, m.cfg.Lookup, seed)
		if e != nil {
			err = e
		}
		addrs = append(addrs, found...)
	}
	var others []string
	known := []string{m.Addr()}
	now, patience := time.Now(), m.patience()
	m.mu.Lock()
	for name, p := range m.peers {
		switch {
		case p.stream != nil || p.member && p.heardLately(now, patience):
			known = append(known, p.Addr)
		case !p.member && time.Since(p.goneAt) > forgetAfter:
			if p.State == StateDead {
				*lost = append(*lost, stray{p.Addr, p.goneAt})
			}
			delete(m.peers, name)
		case p.member || p.State == StateDead:
			others = append(others, p.Addr)
		}
	}
	m.mu.Unlock()
	*lost = slices.DeleteFunc(*lost, func(s stray) bool {
		return time.Since(s.goneAt) > strayAfter || slices.Contains(known, s.addr) || slices.Contains(others, s.addr)
	})
	*lost = (*lost)[max(0, len(*lost)-straysMax):]
	for _, s := range *lost {
		others = append(others, s.addr)
	}
	slices.Sort(addrs)
	addrs = slices.DeleteFunc(slices.Compact(addrs), func(a string) bool { return slices.Contains(known, a) })
	others = slices.DeleteFunc(others, func(a string) bool { return slices.Contains(addrs, a) })
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return append(addrs, others[:min(seekMost, len(others))]...), len(addrs), err
}

func splitSeed(seed string) (host, portName string, err error) {
	host, portName, err = net.SplitHostPort(strings.TrimPrefix(seed, "dns:"))
	if n, e := strconv.ParseUint(portName, 10, 16); err != nil || e != nil || n == 0 || host == "" {
		return "", "", fmt.Errorf("--join %s is neither HOST:PORT nor dns:NAME:PORT", seed)
	}
	return host, portName, nil
}

// resolve turns a seed into ip:port addresses.
func resolve(ctx context.Context, names lookups, seed string) ([]string, error) {
	host, portName, err := splitSeed(seed)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	ips, err := lookup(ctx, names, host)
	if err != nil {
		return nil, fmt.Errorf("--join %s: %w", seed, err)
	}
	var addrs []string
	for _, ip := range ips {
		addrs = append(addrs, net.JoinHostPort(ip.String(), portName))
	}
	return addrs, nil
}

// lookups is the type of Config.Lookup.
type lookups = func(ctx context.Context, name string) ([]netip.Addr, error)

func lookup(ctx context.Context, names lookups, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	ips, err := names(ctx, host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	if err == nil && len(ips) == 0 {
		err = fmt.Errorf("%s has no address", host)
	}
	return ips, err
}

// longer is the next wait after d between tries. Who is back is found within about
// a quarter of the time that it was away, as long as that is below four times most.
func longer(d, most time.Duration) time.Duration { return min(d+d/4, most) }

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
