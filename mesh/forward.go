package mesh

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/hearsay-project/hearsay/mesh/cert"
)

const (
	// silenceMax is how long a connection with a forward on it may be silent
	// before it is asked for a sign of life, and how long the answer may take.
	// Prefill can be silent for longer; a host without power always is.
	silenceMax = 5 * time.Second

	// receiveBuffer is the window of one request body: a long prompt goes out in
	// one flight. receiveBuffers is that of all bodies on a connection that no
	// handler has read yet; 4 MiB and more net/http replaces by its default.
	receiveBuffer  = 1 << 20
	receiveBuffers = 4<<20 - 1

	// forwardsMax is the streams a peer may have open on one connection.
	forwardsMax = 1000

	idleMax = 2 * time.Minute

	headerHop = "Hearsay-Hop" // of a forward: the node that sends it
)

// newServer is the HTTP server of the peer port. Bodies have no deadline here: a
// forward lasts as long as its generation, and Config.Handler bounds it.
func (m *Mesh) newServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(m.cfg.Identity != nil)
	protocols.SetUnencryptedHTTP2(m.cfg.Identity == nil)
	return &http.Server{
		Handler:           http.HandlerFunc(m.route),
		Protocols:         protocols,
		ReadHeaderTimeout: headerWait + m.port.roundTrip()*3,
		IdleTimeout:       idleMax,
		MaxHeaderBytes:    headerBytesMax,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          forwardsMax,
			MaxReceiveBufferPerStream:     receiveBuffer,
			MaxReceiveBufferPerConnection: receiveBuffers,
			SendPingTimeout:               silenceMax, // so that work for a dead peer is given up
			PingTimeout:                   silenceMax + m.port.roundTrip(),
		},
		ErrorLog: log.New(&serverLog{log: m.log, seldom: rate.Sometimes{Interval: time.Minute}}, "", 0),
		// The server closes its connections but waits for none of them; this does.
		ConnState: func(c net.Conn, state http.ConnState) {
			m.carrying.turn(c, state)
			switch state {
			case http.StateNew:
				m.wg.Add(1)
			case http.StateHijacked, http.StateClosed:
				m.wg.Done()
			}
		},
	}
}

// serverLog takes what net/http logs. Strangers at the TLS handshake and dead peers
// may cause any number of lines, so one a minute is a warning, besides panics.
type serverLog struct {
	log    *slog.Logger
	seldom rate.Sometimes
}

func (l *serverLog) Write(line []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(line, []byte("panic")) {
		level = slog.LevelError
	} else {
		l.seldom.Do(func() { level = slog.LevelWarn })
	}
	l.log.Log(context.Background(), level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// serve serves until the port is closed. Where there are certificates the gate has
// shaken hands before the server sees a connection.
func (m *Mesh) serve() {
	l := newGate(m.cfg.Listener, m.port)
	if m.cfg.Identity != nil {
		m.wg.Go(l.greetAll)
	}
	err := m.server.Serve(l)
	if !errors.Is(err, http.ErrServerClosed) && m.ctx.Err() == nil {
		m.log.Error("peer port stopped serving", "addr", m.cfg.Listener.Addr().String(), "err", err)
	}
}

// route is the handler of every request on the peer port.
func (m *Mesh) route(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		http.Error(w, m.cfg.Name+" is closing", http.StatusServiceUnavailable)
		return
	}
	m.wg.Add(1)
	m.mu.Unlock()
	defer m.wg.Done()
	switch path := r.URL.Path; {
	case path == upgradeRumors.path:
		m.acceptRumors(w, r)
	case path == upgradePulls.path:
		m.acceptPull(w, r)
	case path == upgradeStreams.path:
		if version := m.port.fits(w, r, upgradeStreams); version > 0 {
			m.meet(r.Header.Get(headerFrom), r.Header.Get(headerAddr))
			m.transport.acceptStream(w, version)
		}
	case r.ProtoMajor < 2:
		// No browser speaks HTTP/2 without TLS, so no web page can reach what
		// follows through a loopback port.
		http.Error(w, "forwards come over HTTP/2", http.StatusHTTPVersionNotSupported)
	case path == packetsPath:
		m.transport.acceptPacket(w, r)
	case r.Header.Get(headerHop) != "" && !m.port.bears(r, r.Header.Get(headerHop)):
		m.port.refuse(w, r, http.StatusForbidden, cert.Misfit, "it forwards for "+brief(r.Header.Get(headerHop))+", and its certificate is for another")
	default:
		m.cfg.Handler.ServeHTTP(w, r)
	}
}

// newPool is the client side of forwards and packets: pooled HTTP/2 and nothing
// else. The request's own context bounds what the pings do not.
func (p *port) newPool() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(p.cert != nil)
	protocols.SetUnencryptedHTTP2(p.cert == nil)
	t := &http.Transport{
		DialContext:         p.dial,
		TLSHandshakeTimeout: p.connectWait(),
		DisableCompression:  true,
		IdleConnTimeout:     idleMax / 2, // before the server does
		Protocols:           protocols,
		// The windows are left as they are, 4 MiB of 1 GiB: an answer that its
		// client reads slowly must not hold up the others.
		HTTP2: &http.HTTP2Config{SendPingTimeout: silenceMax, PingTimeout: silenceMax + p.roundTrip()},
	}
	if p.cert != nil {
		t.DialTLSContext = p.dialPeer
	}
	return t
}

// dialPeer opens a connection to a node under a label of its own.
func (p *port) dialPeer(ctx context.Context, _, label string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.connectWait())
	defer cancel()
	name, addr := labelled(label)
	c, err := p.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	secure, err := p.secure(ctx, c, name, "h2")
	if err != nil {
		c.Close()
		return nil, reason(err)
	}
	return secure, nil
}

// labelSuffix ends a label, and no IP address.
const labelSuffix = ".peer"

// label is a host under which the pool keeps connections to the node called name
// at addr apart from those to any other, though it had been at that address.
func label(name, addr string) string {
	if name == "" {
		return addr
	}
	host, portName, _ := net.SplitHostPort(addr)
	return net.JoinHostPort(name+"."+hex.EncodeToString([]byte(host))+labelSuffix, portName)
}

// labelled is the inverse of label.
func labelled(label string) (name, addr string) {
	host, portName, _ := net.SplitHostPort(label)
	host, ok := strings.CutSuffix(host, labelSuffix)
	i := strings.LastIndexByte(host, '.')
	if !ok || i < 0 {
		return "", label
	}
	ip, err := hex.DecodeString(host[i+1:])
	if err != nil {
		return "", label
	}
	return host[:i], net.JoinHostPort(string(ip), portName)
}

// RoundTrip sends req to a peer's Config.Handler. The path and query of req.URL
// are kept; scheme and host are set here. As with any http.RoundTripper the body
// is closed in every case, redirects are the caller's, and so is the body of the
// answer. An error means that no answer began.
func (m *Mesh) RoundTrip(peer string, req *http.Request) (*http.Response, error) {
	m.mu.Lock()
	p := m.peers[peer]
	addr := ""
	if p != nil {
		addr = p.Addr
	}
	m.mu.Unlock()
	if addr == "" {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("%s is no member of this mesh", peer)
	}
	return m.port.forward(peer, addr, req)
}

// forward sends req, whatever its host, to the node at addr. Where there are
// certificates it has to be the one called name; empty is any.
func (p *port) forward(name, addr string, req *http.Request) (*http.Response, error) {
	out, to := req.WithContext(req.Context()), *req.URL
	to.Scheme, to.Host = "http", addr
	if p.cert != nil {
		to.Scheme, to.Host = "https", label(name, addr)
	}
	out.URL, out.Host, out.RequestURI = &to, addr, ""
	return p.pool.RoundTrip(out)
}
