package mesh

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// connsMax bounds the connections accepted at one time. A peer keeps about
	// five, so this is 200 peers; what comes beyond is closed unread.
	connsMax = 1024

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

// An upgrade is an endpoint of the peer port that turns an HTTP/1.1 connection
// into a stream of bytes (RFC 9110, section 7.8):
//
//	GET /hearsay/v1/rumors HTTP/1.1
//	Host: 10.0.0.2:7946
//	Connection: Upgrade
//	Upgrade: hearsay-rumor/1
//	Hearsay-From: n1
//	Hearsay-To: n2              (rumors only: who should be at that address)
//	Hearsay-Addr: 10.0.0.1:7946 (rumors only: where the dialler itself is dialled)
//
// is answered 101 with the same Connection, Upgrade and a Hearsay-From of the
// answerer, or with another status and one sentence. The dialler speaks only
// after the 101. The number in the token is the protocol's version.
type upgrade struct{ path, token string }

var (
	upgradeRumors  = upgrade{"/hearsay/v1/rumors", "hearsay-rumor/1"}
	upgradeStreams = upgrade{"/hearsay/v1/streams", "hearsay-stream/1"}
)

const (
	headerFrom = "Hearsay-From"
	headerTo   = "Hearsay-To"
	headerAddr = "Hearsay-Addr"
)

// port opens and accepts every connection of a mesh, knows all that are open, and
// dresses them: link delay beneath, TLS above.
type port struct {
	name, addr    string
	raw           func(ctx context.Context, addr string) (net.Conn, error)
	client        *tls.Config     // of upgrades; nil: no TLS
	pool          *http.Transport // of HTTP/2 connections
	delay, jitter time.Duration
	log           *slog.Logger
	wg            *sync.WaitGroup
	ctx           context.Context // ends with the mesh

	mu       sync.Mutex
	open     map[*portConn]bool
	accepted int
	closed   bool
	said     map[string]bool // refusals logged as warnings
}

// portConn is a connection that the port knows until it is closed.
type portConn struct {
	net.Conn
	port    *port
	inbound bool
	once    sync.Once
}

func (c *portConn) Close() error {
	c.once.Do(func() {
		c.port.mu.Lock()
		defer c.port.mu.Unlock()
		delete(c.port.open, c)
		if c.inbound {
			c.port.accepted--
		}
	})
	return c.Conn.Close()
}

// admit takes a fresh connection in, or closes it and returns nil: when the port
// is closed, or full.
func (p *port) admit(c net.Conn, inbound bool) net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || inbound && p.accepted >= connsMax {
		c.Close()
		return nil
	}
	if p.delay > 0 || p.jitter > 0 {
		c = newDelayConn(c, p.delay, p.jitter, p.wg)
	}
	pc := &portConn{Conn: c, port: p, inbound: inbound}
	p.open[pc] = true
	if inbound {
		p.accepted++
	}
	return pc
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

// gate is the listener that the HTTP server accepts from.
type gate struct {
	net.Listener
	port *port
	full rate.Sometimes // says so
}

func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := g.port.admit(c, true); c != nil {
			return c, nil
		}
		g.full.Do(func() { g.port.log.Warn("peer port is full; closing what comes beyond", "connections", connsMax) })
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
// who should answer; empty is anyone.
func (p *port) upgrade(ctx context.Context, addr string, u upgrade, to string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.connectWait())
	defer cancel()
	c, err := p.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, reason(err)
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	up, err := p.ask(ctx, c, addr, u, to)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, reason(err)
	}
	return up, nil
}

// reason is err without the addresses of one connection, so that the same trouble
// reads the same each time.
func reason(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

func (p *port) ask(ctx context.Context, c net.Conn, addr string, u upgrade, to string) (net.Conn, error) {
	if p.client != nil {
		secure := tls.Client(c, p.client)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = secure
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+u.path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", u.token)
	req.Header.Set(headerFrom, p.name)
	if to != "" {
		req.Header.Set(headerTo, to)
		req.Header.Set(headerAddr, p.addr)
	}
	if err := req.Write(c); err != nil {
		return nil, err
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	switch from := resp.Header.Get(headerFrom); {
	case resp.StatusCode != http.StatusSwitchingProtocols:
		sentence, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		said := cmp.Or(strings.TrimSpace(string(sentence)), http.StatusText(resp.StatusCode))
		return nil, refusal{resp.StatusCode, said}
	case !strings.EqualFold(resp.Header.Get("Upgrade"), u.token):
		return nil, fmt.Errorf("it speaks %q, this node %s", resp.Header.Get("Upgrade"), u.token)
	case to != "" && from != to:
		return nil, fmt.Errorf("it is called %q, not %s", from, to)
	}
	return &upgraded{c, r}, nil
}

// refusal is another answer than 101.
type refusal struct {
	status int
	said   string
}

func (r refusal) Error() string { return fmt.Sprintf("refused with %d: %s", r.status, r.said) }

// upgraded is a connection of which a reader may have read ahead.
type upgraded struct {
	net.Conn
	r *bufio.Reader
}

func (c *upgraded) Read(b []byte) (int, error) { return c.r.Read(b) }

// fits says whether a request asks for u, in this version, of this node. If not, a
// refusal is written, and logged: it is some operator's mistake.
func (p *port) fits(w http.ResponseWriter, r *http.Request, u upgrade) bool {
	switch to, token := r.Header.Get(headerTo), r.Header.Get("Upgrade"); {
	case r.ProtoMajor != 1 || token == "" || !strings.EqualFold(r.Header.Get("Connection"), "upgrade"):
		p.refuse(w, r, http.StatusBadRequest, "this is an endpoint for peers: ask for Upgrade: "+u.token)
	case token != u.token:
		w.Header().Set("Upgrade", u.token)
		p.refuse(w, r, http.StatusUpgradeRequired, fmt.Sprintf("%s speaks %s, not %s; run one version on all nodes", p.name, u.token, token))
	case to != "" && to != p.name:
		p.refuse(w, r, http.StatusMisdirectedRequest, fmt.Sprintf("this is %s, not %s; is --advertise of one of them wrong?", p.name, to))
	default:
		return true
	}
	return false
}

// accept completes an upgrade that fits; nil if the dialler is gone or spoke
// before its turn.
func (p *port) accept(w http.ResponseWriter, u upgrade) net.Conn {
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.log.Warn("peer connection cannot be upgraded", "err", err)
		return nil
	}
	c.SetDeadline(time.Now().Add(p.connectWait()))
	_, err = fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %s\r\n\r\n", u.token, headerFrom, p.name)
	if err != nil || buffered.Reader.Buffered() > 0 {
		c.Close()
		return nil
	}
	c.SetDeadline(time.Time{})
	return c
}

// refuse answers with a sentence. A peer tries again for ever, so the same
// refusal warns once, or once more when very many were said since.
func (p *port) refuse(w http.ResponseWriter, r *http.Request, status int, sentence string) {
	from, level := r.Header.Get(headerFrom), slog.LevelDebug
	p.mu.Lock()
	if len(p.said) >= saidMax {
		clear(p.said)
	}
	if !p.said[from+sentence] {
		p.said[from+sentence], level = true, slog.LevelWarn
	}
	p.mu.Unlock()
	p.log.Log(r.Context(), level, "peer refused", "peer", from, "remote", r.RemoteAddr, "reason", sentence)
	http.Error(w, sentence, status)
}
