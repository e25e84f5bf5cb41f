package mesh

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/cert"
)

const (
	// headerWait bounds the TLS handshake and the request header of a connection.
	headerWait = 10 * time.Second

	// headerBytesMax has room for whatever a client may send to the API: HTTP/2
	// counts 32 bytes more for each field (RFC 9113, section 6.5.2), which makes
	// 64 KiB of the shortest fields, 3 bytes each, about 750 KiB.
	headerBytesMax = 1 << 20

	saidMax = 1000 // refusals remembered

	// connectWait bounds dialling, handshake and upgrade; simulated delay is added.
	connectWait = 5 * time.Second
)

// port opens and accepts every connection of a mesh, knows all that are open, and
// dresses them: link delay beneath, TLS above.
type port struct {
	name, addr    string
	raw           func(ctx context.Context, addr string) (net.Conn, error)
	cert          *cert.Identity  // nil: no TLS
	pool          *http.Transport // of HTTP/2 connections
	delay, jitter time.Duration
	log           *slog.Logger
	wg            *sync.WaitGroup
	ctx           context.Context // ends with the mesh

	mu        sync.Mutex
	open      map[*portConn]bool
	greetings []*portConn          // inbound, their handshakes under way, the oldest first
	accepted  int                  // inbound, others
	proven    map[netip.Prefix]int // by host, connections whose other end has shown a certificate
	strangers map[netip.Prefix]*rate.Limiter
	closed    bool
	refused   map[string]uint64          // by reason
	seldom    map[string]*rate.Sometimes // warns of connections that are turned away
	saying    map[string]*rate.Sometimes // warns of requests that are refused
	said      map[string]bool            // those of which it did, by their words
}

// newPort makes the port of a mesh; its log and context have to be set before.
func newPort(p *port) *port {
	p.open, p.proven, p.strangers, p.said = map[*portConn]bool{}, map[netip.Prefix]int{}, map[netip.Prefix]*rate.Limiter{}, map[string]bool{}
	p.refused, p.seldom, p.saying = map[string]uint64{}, map[string]*rate.Sometimes{}, map[string]*rate.Sometimes{}
	p.pool = p.newPool()
	return p
}

// portConn is a connection that the port knows until it is closed. The port's lock
// guards what it knows of it.
type portConn struct {
	net.Conn
	port    *port
	counted bool                // in port.accepted
	name    string              // of the node that was dialled, if known
	chain   []*x509.Certificate // that the other end has shown
	once    sync.Once
}

func (c *portConn) Close() error {
	c.once.Do(func() {
		c.port.mu.Lock()
		defer c.port.mu.Unlock()
		delete(c.port.open, c)
		c.port.greeted(c)
		if c.counted {
			c.port.accepted--
		}
		if c.chain != nil {
			c.port.ended(c)
		}
	})
	return c.Conn.Close()
}

// admit takes a fresh connection in, or closes it and returns nil: when the port
// is closed or full, or it comes from a host that fails too often.
func (p *port) admit(raw net.Conn, inbound bool) net.Conn {
	var c, oldest *portConn
	refused := ""
	p.mu.Lock()
	if inbound {
		refused = p.unwelcome(raw.RemoteAddr())
	}
	if !p.closed && refused == "" {
		c, oldest = p.take(raw, inbound)
	}
	p.mu.Unlock()
	if oldest != nil {
		p.turnAway(refusedFlood, "more handshakes than the peer port waits for; closing the oldest", "remote", oldest.RemoteAddr().String(), "handshakes", greetingsMax)
		oldest.Close()
	}
	switch refused {
	case refusedFlood:
		p.turnAway(refusedFlood, "handshakes from one host fail too often; closing what comes beyond", "remote", raw.RemoteAddr().String(), "per_second", strangerRate)
	case refusedFull:
		p.turnAway(refusedFull, "peer port is full; closing what comes beyond", "connections", connsMax)
	}
	if c == nil {
		raw.Close()
		return nil
	}
	return c
}

// take makes a connection one of the port's: dialled, greeted where there are
// certificates, or let in at once. If there are more to be greeted than are waited
// for, the oldest has to go. It needs the lock.
func (p *port) take(raw net.Conn, inbound bool) (c, oldest *portConn) {
	if p.delay > 0 || p.jitter > 0 {
		raw = newDelayConn(raw, p.delay, p.jitter, p.wg)
	}
	c = &portConn{Conn: raw, port: p}
	p.open[c] = true
	switch {
	case !inbound:
	case p.cert == nil:
		c.counted = true
		p.accepted++
	default:
		if len(p.greetings) >= greetingsMax {
			oldest = p.greetings[0]
			p.greetings = slices.Delete(p.greetings, 0, 1)
		}
		p.greetings = append(p.greetings, c)
	}
	return c, oldest
}

// shut closes every connection and lets no new one in.
func (p *port) shut() {
	p.mu.Lock()
	p.closed = true
	var open []*portConn
	for c := range p.open {
		open = append(open, c)
	}
	p.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

// roundTrip is what simulated delay adds to one question and its answer.
func (p *port) roundTrip() time.Duration { return 2 * (p.delay + p.jitter) }

// connectWait has room for TCP, TLS and the upgrade, and as much again.
func (p *port) connectWait() time.Duration { return connectWait + 6*p.roundTrip() }

// dial opens a bare connection, in the form that http.Transport wants.
func (p *port) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.connectWait())
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	c, err := p.raw(ctx, addr)
	if err != nil {
		return nil, err
	}
	if c = p.admit(c, false); c == nil {
		return nil, net.ErrClosed
	}
	return c, nil
}

// upgrade opens a connection to addr as a stream of bytes. Of the header, to names
// who should answer; empty is anyone. What say holds is said beside it, and what the
// other end says is returned, with the version that both speak.
func (p *port) upgrade(ctx context.Context, addr string, u upgrade, to string, say http.Header) (net.Conn, http.Header, int, error) {
	ctx, cancel := context.WithTimeout(ctx, p.connectWait())
	defer cancel()
	c, err := p.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, 0, reason(err)
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	up, said, version, err := p.ask(ctx, c, addr, u, to, say)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, nil, 0, reason(err)
	}
	return up, said, version, nil
}

// reason is err without the addresses of one connection, so that the same trouble
// reads the same each time, and in the operator's terms.
func reason(err error) error {
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("it speaks no TLS here (%s); give --peer-cert, --peer-key and --peer-ca to all nodes or to none", plain.Msg)
	}
	op, ok := errors.AsType[*net.OpError](err)
	switch {
	case !ok:
		return err
	case op.Op == "remote error":
		return fmt.Errorf("it refuses this node's certificate: %w", op.Err)
	default:
		return op.Err
	}
}

func (p *port) ask(ctx context.Context, c net.Conn, addr string, u upgrade, to string, say http.Header) (net.Conn, http.Header, int, error) {
	if p.cert != nil {
		var err error
		if c, err = p.secure(ctx, c, to, "http/1.1"); err != nil {
			return nil, nil, 0, err
		}
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+u.path, nil)
	if err != nil {
		return nil, nil, 0, err
	}
	req.Header = say.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", u.offer())
	req.Header.Set(headerFrom, p.name)
	if to != "" {
		req.Header.Set(headerTo, to)
	}
	req.Header.Set(headerAddr, p.addr)
	if err := req.Write(c); err != nil {
		return nil, nil, 0, err
	}
	r := bufio.NewReader(&io.LimitedReader{R: c, N: headerBytesMax})
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, nil, 0, err
	}
	from, version := resp.Header.Get(headerFrom), u.choose(resp.Header.Get("Upgrade"))
	switch {
	case resp.StatusCode != http.StatusSwitchingProtocols:
		sentence, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		said := cmp.Or(strings.TrimSpace(string(sentence)), http.StatusText(resp.StatusCode))
		return nil, nil, 0, refusal{resp.StatusCode, said}
	case version == 0:
		return nil, nil, 0, fmt.Errorf("it speaks %q, this node %s", resp.Header.Get("Upgrade"), u.offer())
	case to != "" && from != to:
		return nil, nil, 0, fmt.Errorf("it is called %q, not %s", from, to)
	}
	ahead, _ := r.Peek(r.Buffered())
	return &upgraded{c, bytes.NewReader(ahead)}, resp.Header, version, nil
}

// refusal is another answer than 101.
type refusal struct {
	status int
	said   string
}

func (r refusal) Error() string { return fmt.Sprintf("refused with %d: %s", r.status, r.said) }

// upgraded is a connection of which the beginning has been read ahead.
type upgraded struct {
	net.Conn
	ahead *bytes.Reader
}

func (c *upgraded) Read(b []byte) (int, error) {
	if c.ahead.Len() > 0 {
		return c.ahead.Read(b)
	}
	return c.Conn.Read(b)
}

// fits says whether a request asks for u, in a version that this node speaks, of this
// node, and by the one whose name it gives. If not, 0 is returned and a refusal is
// written, and logged: it is some operator's mistake.
func (p *port) fits(w http.ResponseWriter, r *http.Request, u upgrade) (version int) {
	offer := r.Header.Get("Upgrade")
	version = u.choose(offer)
	switch from, to := r.Header.Get(headerFrom), r.Header.Get(headerTo); {
	case r.ProtoMajor != 1 || offer == "" || !strings.EqualFold(r.Header.Get("Connection"), "upgrade"):
		p.refuse(w, r, http.StatusBadRequest, refusedRequest, "this is an endpoint for peers: ask for Upgrade: "+u.offer())
	case version == 0:
		w.Header().Set("Upgrade", u.offer())
		p.refuse(w, r, http.StatusUpgradeRequired, refusedVersion, fmt.Sprintf("%s speaks %s, not %s; upgrade nodes one version at a time", p.name, u.offer(), brief(offer)))
	case !p.bears(r, from):
		p.refuse(w, r, http.StatusForbidden, cert.Misfit, fmt.Sprintf("it calls itself %s, and its certificate is for %s", brief(from), strings.Join(cert.Names(r.TLS.PeerCertificates[0]), ", ")))
	case to != "" && to != p.name:
		p.refuse(w, r, http.StatusMisdirectedRequest, refusedName, fmt.Sprintf("this is %s, not %s; is --advertise of one of them wrong?", p.name, brief(to)))
	default:
		return version
	}
	return 0
}

// bears says whether the sender of r may call itself name. Without certificates
// anyone may.
func (p *port) bears(r *http.Request, name string) bool {
	return p.cert == nil || cert.Bears(r.TLS.PeerCertificates[0], name)
}

// brief bounds what a stranger can put into a line of the log.
func brief(s string) string {
	if len(s) > gossip.MaxName {
		s = strings.ToValidUTF8(s[:gossip.MaxName], "") + "..."
	}
	return s
}

// accept completes an upgrade that fits; nil if the dialler is gone or spoke
// before its turn. What say holds is said beside the answer.
func (p *port) accept(w http.ResponseWriter, u upgrade, version int, say http.Header) net.Conn {
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.log.Warn("peer connection cannot be upgraded", "err", err)
		return nil
	}
	c.SetDeadline(time.Now().Add(p.connectWait()))
	answer := bytes.NewBufferString("HTTP/1.1 101 Switching Protocols\r\n")
	say = say.Clone()
	if say == nil {
		say = http.Header{}
	}
	say.Set("Connection", "Upgrade")
	say.Set("Upgrade", u.token(version))
	say.Set(headerFrom, p.name)
	_ = say.Write(answer) // a buffer takes everything
	answer.WriteString("\r\n")
	_, err = c.Write(answer.Bytes())
	if err != nil || buffered.Reader.Buffered() > 0 {
		c.Close()
		return nil
	}
	c.SetDeadline(time.Time{})
	return c
}

// refuse answers with a sentence, and counts. A peer tries again for ever, so the
// same refusal warns once, or once more when very many were said since; and strangers
// make up names, so of each reason ten warn, and then one a minute.
func (p *port) refuse(w http.ResponseWriter, r *http.Request, status int, why, sentence string) {
	from, level := brief(r.Header.Get(headerFrom)), slog.LevelDebug
	p.mu.Lock()
	p.refused[why]++
	if len(p.said) >= saidMax {
		clear(p.said)
	}
	if p.saying[why] == nil {
		p.saying[why] = &rate.Sometimes{First: 10, Interval: time.Minute}
	}
	if !p.said[from+sentence] {
		p.said[from+sentence] = true
		p.saying[why].Do(func() { level = slog.LevelWarn })
	}
	p.mu.Unlock()
	p.log.Log(r.Context(), level, "peer refused", "peer", from, "remote", r.RemoteAddr, "reason", why, "err", sentence)
	http.Error(w, sentence, status)
}
