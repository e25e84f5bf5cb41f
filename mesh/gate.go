package mesh

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/hearsay-project/hearsay/mesh/cert"
)

const (
	// connsMax bounds the connections let in at one time. A peer keeps about
	// five, so this is 800 peers; what comes beyond is closed unread.
	connsMax = 4096

	// greetingsMax bounds the handshakes under way. All peers may come at once, when
	// this node has restarted; a handshake takes milliseconds, so where there are
	// more the oldest is of somebody who stalls, and is closed.
	greetingsMax = 1024

	// A host whose handshake failed may try again so often, until one succeeds.
	strangerRate, strangerBurst = 10, 10
	strangersMax                = 1024 // such hosts remembered
)

// The reasons for which the port turns away, besides those of a certificate.
const (
	refusedPlaintext = "plaintext" // no TLS where there should be
	refusedHandshake = "handshake" // a broken one, or the other side refused this node
	refusedSlow      = "slow"      // a handshake or a frame that did not go on
	refusedFlood     = "flood"     // a host that fails too often, or handshakes that stall
	refusedFull      = "full"      // connsMax
	refusedRequest   = "request"   // no request of a peer
	refusedVersion   = "version"   // no version of the protocol in common
	refusedName      = "name"      // not who should be there, or a name that another node bears
	refusedNaming    = "naming"    // another cluster key, or other names of prefixes
	refusedFrame     = "frame"     // a rumor stream that is none
	refusedMember    = "member"    // membership that no node would speak
	refusedForged    = "forged"    // a relayed rumor that its author has not signed
)

// Reasons are all for which the port turns away, as Mesh.Refused has them.
var Reasons = append([]string{
	refusedPlaintext, refusedHandshake, refusedSlow, refusedFlood, refusedFull, refusedRequest,
	refusedVersion, refusedName, refusedNaming, refusedFrame, refusedMember, refusedForged,
}, cert.Reasons...)

// turnAway counts what the port refuses, and warns of it once a minute for each
// reason: strangers may cause any number.
func (p *port) turnAway(reason, msg string, args ...any) {
	p.mu.Lock()
	p.refused[reason]++
	seldom := p.seldom[reason]
	if seldom == nil {
		seldom = &rate.Sometimes{Interval: time.Minute}
		p.seldom[reason] = seldom
	}
	p.mu.Unlock()
	level := slog.LevelDebug
	seldom.Do(func() { level = slog.LevelWarn })
	p.log.Log(context.Background(), level, msg, append(args, "reason", reason)...)
}

// Refused counts, by reason, what the peer port has turned away since Open.
func (m *Mesh) Refused() map[string]uint64 {
	m.port.mu.Lock()
	defer m.port.mu.Unlock()
	return maps.Clone(m.port.refused)
}

// gate is the listener that the HTTP server accepts from. Where there are
// certificates it lets in only who has shown one: strangers never hold a place of
// those that peers need.
type gate struct {
	net.Listener
	port  *port
	ready chan net.Conn // have shown theirs
	done  chan struct{} // closed when the listener is
	err   error         // why, then
}

func newGate(l net.Listener, p *port) *gate {
	return &gate{Listener: l, port: p, ready: make(chan net.Conn), done: make(chan struct{})}
}

func (g *gate) Accept() (net.Conn, error) {
	if g.port.cert == nil {
		return g.next()
	}
	select {
	case c := <-g.ready:
		return c, nil
	case <-g.done:
		return nil, g.err
	}
}

// next accepts until the port has room for what comes.
func (g *gate) next() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := g.port.admit(c, true); c != nil {
			return c, nil
		}
	}
}

// greetAll greets who comes, each in a goroutine of its own, until the listener closes.
func (g *gate) greetAll() {
	defer close(g.done)
	for {
		c, err := g.next()
		switch {
		case errors.Is(err, net.ErrClosed) || err != nil && g.port.ctx.Err() != nil:
			g.err = err
			return
		case err != nil: // out of descriptors, most likely
			g.port.turnAway(refusedFull, "peer port cannot accept", "err", err)
			sleep(g.port.ctx, 100*time.Millisecond)
		default:
			g.port.wg.Go(func() { g.greet(c) })
		}
	}
}

// greet shakes hands with who has connected and hands it on to Accept.
func (g *gate) greet(c net.Conn) {
	secure, err := g.port.shake(c)
	if err != nil {
		c.Close()
		return
	}
	select {
	case g.ready <- secure:
	case <-g.done:
		secure.Close()
	}
}

// shake is the server's side of a handshake.
func (p *port) shake(c net.Conn) (net.Conn, error) {
	secure := tls.Server(c, p.cert.Server("h2", "http/1.1"))
	c.SetDeadline(time.Now().Add(headerWait + 3*p.roundTrip()))
	err := secure.Handshake()
	c.SetDeadline(time.Time{})
	if err == nil {
		if !p.letIn(c, secure.ConnectionState().PeerCertificates) {
			return nil, errors.New("full")
		}
		return secure, nil
	}
	p.mu.Lock()
	here := p.open[c.(*portConn)] // else closed by this node, which said so
	p.mu.Unlock()
	if !here {
		return nil, err
	}
	p.distrust(c.RemoteAddr(), mistrust(err))
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil {
		c.SetDeadline(time.Now().Add(time.Second))
		fmt.Fprintf(c, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"+
			"%s speaks TLS here; give --peer-cert, --peer-key and --peer-ca to all nodes or to none\n", p.name)
	}
	p.turnAway(mistrust(err), "peer refused", "remote", c.RemoteAddr().String(), "err", reason(err))
	return nil, err
}

// mistrust is the reason for which a handshake failed with err.
func mistrust(err error) string {
	if no, ok := errors.AsType[*cert.Refusal](err); ok {
		return no.Reason
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return refusedPlaintext
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refusedSlow
	}
	return refusedHandshake
}

// secure is the dialler's side of a handshake, with the node called name; empty is any.
func (p *port) secure(ctx context.Context, c net.Conn, name, protocol string) (net.Conn, error) {
	secure := tls.Client(c, p.cert.Client(name, protocol))
	if err := secure.HandshakeContext(ctx); err != nil {
		if no, ok := errors.AsType[*cert.Refusal](err); ok {
			p.turnAway(no.Reason, "peer refused", "peer", name, "addr", c.RemoteAddr().String(), "err", no.Err)
		}
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pc := c.(*portConn)
	pc.name = name
	p.prove(pc, secure.ConnectionState().PeerCertificates)
	return secure, nil
}

// letIn takes c, which has shown chain, from those that are greeted to those that
// are in, if there is room.
func (p *port) letIn(c net.Conn, chain []*x509.Certificate) bool {
	p.mu.Lock()
	pc := c.(*portConn)
	p.greeted(pc)
	delete(p.strangers, host(c.RemoteAddr()))
	full := p.accepted >= connsMax
	if !full && p.open[pc] {
		p.prove(pc, chain)
		pc.counted = true
		p.accepted++
	}
	p.mu.Unlock()
	if full {
		p.turnAway(refusedFull, "peer port is full; closing what comes beyond", "connections", connsMax)
	}
	return !full
}

// prove keeps the certificates that the other end of c has shown. It needs the lock.
func (p *port) prove(c *portConn, chain []*x509.Certificate) {
	if p.open[c] {
		c.chain = chain
		p.proven[host(c.RemoteAddr())]++
	}
}

// ended forgets what was proven by c, which is closed. It needs the lock.
func (p *port) ended(c *portConn) {
	at := host(c.RemoteAddr())
	if p.proven[at]--; p.proven[at] == 0 {
		delete(p.proven, at)
	}
}

// greeted forgets a handshake that is over. It needs the lock.
func (p *port) greeted(c *portConn) {
	if i := slices.Index(p.greetings, c); i >= 0 {
		p.greetings = slices.Delete(p.greetings, i, i+1)
	}
}

// unwelcome is why nothing is accepted from addr now, or empty: with certificates
// because handshakes with its host fail too often, without because the port is full.
// It needs the lock.
func (p *port) unwelcome(addr net.Addr) (reason string) {
	if p.cert == nil {
		if p.accepted >= connsMax {
			return refusedFull
		}
		return ""
	}
	if limit := p.strangers[host(addr)]; limit != nil && !limit.Allow() {
		return refusedFlood
	}
	return ""
}

// distrust slows down the host of a handshake that failed for a reason. That it was
// broken off, or not done in time, says nothing against a host with which peers are
// connected: many may be behind one address, and all slow when they start together.
func (p *port) distrust(addr net.Addr, reason string) {
	at := host(addr)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.strangers[at] != nil || p.proven[at] > 0 && (reason == refusedSlow || reason == refusedHandshake) {
		return
	}
	if len(p.strangers) >= strangersMax {
		clear(p.strangers)
	}
	p.strangers[at] = rate.NewLimiter(strangerRate, strangerBurst)
}

// host is what one stranger can be held to: an IPv4 address, or the /64 of an IPv6 one.
func host(addr net.Addr) netip.Prefix {
	at, _ := netip.ParseAddrPort(addr.String())
	ip, bits := at.Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits)
	return prefix
}

// rereadEvery is how soon a changed certificate or revocation counts.
const rereadEvery = 5 * time.Second

// expiryWarning is how long before its end a certificate is warned of, once a day.
const expiryWarning = 14 * 24 * time.Hour

// watchCertificates reads the certificates again when they change, and parts from
// peers whose own counts no more: it was revoked, it has ended, or its authority is
// trusted no longer.
func (m *Mesh) watchCertificates() {
	id, log := m.cfg.Identity, m.log
	said, daily, checked := "", rate.Sometimes{Interval: 24 * time.Hour}, rate.Sometimes{Interval: time.Minute}
	for {
		if left := time.Until(id.Expires()); left < expiryWarning {
			daily.Do(func() {
				log.Warn("this node's certificate ends soon; replace the files of --peer-cert and --peer-key, it is read without a restart", "ends", id.Expires())
			})
		}
		if sleep(m.ctx, rereadEvery); m.ctx.Err() != nil {
			return
		}
		changed, err := id.Reread()
		switch {
		case err != nil && err.Error() != said: // it may be that of a moment between two files
			said = err.Error()
			log.Warn("peer certificates cannot be read again; what was read before counts", "err", err)
		case changed:
			said = ""
			log.Info("peer certificates read again", "ends", id.Expires())
		}
		m.port.recheck()
		if changed {
			m.recheckAuthors()
		} else {
			checked.Do(m.recheckAuthors)
		}
	}
}

// recheck closes the connections of those that are peers no more.
func (p *port) recheck() {
	type known struct {
		*portConn
		name  string
		chain []*x509.Certificate
	}
	var all []known
	p.mu.Lock()
	for c := range p.open {
		if c.chain != nil {
			all = append(all, known{c, c.name, c.chain})
		}
	}
	p.mu.Unlock()
	for _, c := range all {
		if err := p.cert.Check(c.chain, c.name); err != nil {
			p.turnAway(mistrust(err), "peer refused", "remote", c.RemoteAddr().String(), "err", err)
			c.Close()
		}
	}
}
