// Package memnet is a network in memory for tests of programs that speak TCP.
// Its connections are buffered, bounded, full duplex and obey deadlines, its
// hosts can be cut off from each other and killed. Nothing in it sleeps or
// polls, so it runs in testing/synctest, in virtual time, without delay.
//
// An address is "host:port". A host exists by being named: the listeners and
// connections that carry its name are its own.
package memnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	bufferMax  = 64 << 10 // bytes one direction holds before a writer waits, as a socket's buffer
	backlogMax = 128      // connections that wait for Accept
	clientHost = "client" // the host that Network.Dial dials from
)

// Network connects hosts. Make it with New, inside the synctest bubble if there is one.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	conns     map[*conn]bool
	dead      map[string]bool // hosts killed and not listening again
	apart     map[string]bool // hosts on the far side of the cut
	healed    chan struct{}   // closed, and replaced, when the cut changes
	lastPort  int
}

// New returns a network without hosts.
func New() *Network {
	return &Network{
		listeners: map[string]*listener{}, conns: map[*conn]bool{},
		dead: map[string]bool{}, apart: map[string]bool{}, healed: make(chan struct{}),
		lastPort: 30000,
	}
}

// Listen opens addr; port 0 stands for a free one. A host that was killed lives
// again once it listens.
func (n *Network) Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: Addr(addr), Err: err}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		addr = n.freeAddr(host)
	}
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: Addr(addr), Err: syscall.EADDRINUSE}
	}
	l := &listener{network: n, addr: Addr(addr), backlog: make(chan *conn, backlogMax), done: make(chan struct{})}
	n.listeners[addr] = l
	delete(n.dead, host)
	return l, nil
}

// Dial connects a host outside the cluster to addr. See DialFrom.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return n.dial(ctx, clientHost, addr)
}

// DialFrom returns the dialer of a host. It is refused where nothing listens, and
// waits, until its context ends, where a cut is in the way.
func (n *Network) DialFrom(host string) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) { return n.dial(ctx, host, addr) }
}

func (n *Network) dial(ctx context.Context, from, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: Addr(addr), Err: err}
	}
	n.mu.Lock()
	for n.severed(from, hostOf(addr)) {
		healed := n.healed
		n.mu.Unlock()
		select {
		case <-healed:
		case <-ctx.Done():
			return fail(ctx.Err())
		}
		n.mu.Lock()
	}
	l := n.listeners[addr]
	if l == nil || n.dead[from] {
		n.mu.Unlock()
		return fail(syscall.ECONNREFUSED)
	}
	near, far := n.pair(Addr(n.freeAddr(from)), Addr(addr))
	n.mu.Unlock()
	waits, err := false, error(syscall.ECONNREFUSED)
	select {
	case l.backlog <- far:
		waits = true
	case <-l.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if waits && !l.closed {
		return near, nil
	}
	near.reset()
	far.reset()
	return fail(err)
}

// Cut parts the hosts of the given addresses from all others: what is sent
// across is held, as by a cable pulled out, and nobody is told. Hosts already
// cut off stay so, on the same side.
func (n *Network) Cut(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, addr := range addrs {
		n.apart[hostOf(addr)] = true
	}
}

// Heal ends every cut; what was held is delivered.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.apart)
	close(n.healed)
	n.healed = make(chan struct{})
	for c := range n.conns {
		c.in.wake.Broadcast()
	}
}

// Kill ends the host of addr as SIGKILL ends a process: its listeners are gone
// and all its connections reset, at once. Until it listens again it can neither
// dial nor be dialled.
func (n *Network) Kill(addr string) {
	host := hostOf(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead[host] = true
	for _, l := range n.listeners {
		if hostOf(string(l.addr)) == host {
			l.close()
		}
	}
	for c := range n.conns {
		if hostOf(string(c.local)) == host || hostOf(string(c.remote)) == host {
			c.reset()
		}
	}
}

// Conns returns how many ends of connections are open: a leak shows as a number
// that does not go back.
func (n *Network) Conns() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

func (n *Network) severed(a, b string) bool { return n.apart[a] != n.apart[b] }

func (n *Network) freeAddr(host string) string {
	n.lastPort++
	return net.JoinHostPort(host, strconv.Itoa(n.lastPort))
}

func (n *Network) pair(near, far Addr) (*conn, *conn) {
	there, back := newHalf(&n.mu), newHalf(&n.mu)
	a := &conn{network: n, local: near, remote: far, in: back, out: there}
	b := &conn{network: n, local: far, remote: near, in: there, out: back}
	n.conns[a], n.conns[b] = true, true
	return a, b
}

// Addr is an address as it was given to Listen or Dial.
type Addr string

// Network is "memnet".
func (Addr) Network() string { return "memnet" }

func (a Addr) String() string { return string(a) }

func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

type listener struct {
	network *Network
	addr    Addr
	backlog chan *conn
	done    chan struct{}
	closed  bool
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
	default:
		select {
		case c := <-l.backlog:
			return c, nil
		case <-l.done:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
}

func (l *listener) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	l.close()
	return nil
}

// close needs the network's lock. Connections nobody accepted are reset.
func (l *listener) close() {
	if l.closed {
		return
	}
	l.closed = true
	close(l.done)
	delete(l.network.listeners, string(l.addr))
	for {
		select {
		case c := <-l.backlog:
			c.reset()
		default:
			return
		}
	}
}

func (l *listener) Addr() net.Addr { return l.addr }

// half is one direction of a connection. The network's lock guards it.
type half struct {
	buf    bytes.Buffer
	eof    bool  // the writer closed
	unread bool  // the reader closed
	err    error // the connection was reset
	wake   *sync.Cond
}

func newHalf(mu *sync.Mutex) *half { return &half{wake: sync.NewCond(mu)} }

func (h *half) fail(err error) {
	h.err = err
	h.buf = bytes.Buffer{}
	h.wake.Broadcast()
}

type conn struct {
	network       *Network
	local, remote Addr
	in, out       *half
	closed        bool
	abort         bool // Close resets
	read, write   deadline
}

func (c *conn) Read(p []byte) (int, error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.fail("read", net.ErrClosed)
		case c.read.passed():
			return 0, c.fail("read", os.ErrDeadlineExceeded)
		case c.in.err != nil:
			return 0, c.fail("read", c.in.err)
		case len(p) == 0:
			return 0, nil
		case c.network.severed(hostOf(string(c.local)), hostOf(string(c.remote))):
		case c.in.buf.Len() > 0:
			c.in.wake.Broadcast()
			return c.in.buf.Read(p)
		case c.in.eof:
			return 0, io.EOF
		}
		c.in.wake.Wait()
	}
}

func (c *conn) Write(p []byte) (int, error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	written := 0
	for {
		switch {
		case c.closed:
			return written, c.fail("write", net.ErrClosed)
		case c.write.passed():
			return written, c.fail("write", os.ErrDeadlineExceeded)
		case c.out.err != nil:
			return written, c.fail("write", c.out.err)
		case c.out.unread:
			return written, c.fail("write", syscall.EPIPE)
		case written == len(p):
			return written, nil
		}
		if room := min(bufferMax-c.out.buf.Len(), len(p)-written); room > 0 {
			c.out.buf.Write(p[written : written+room])
			written += room
			c.out.wake.Broadcast()
			continue
		}
		c.out.wake.Wait()
	}
}

// SetLinger makes Close as abrupt as net.TCPConn.SetLinger does: after 0 the other
// end sees a reset, and what it has not read is lost; after -1 Close is as it was.
func (c *conn) SetLinger(sec int) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.abort = sec == 0
	return nil
}

// Close lets the other end read what was written, then the end of the stream.
func (c *conn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.closed {
		return c.fail("close", net.ErrClosed)
	}
	c.closed = true
	if c.abort {
		c.out.fail(syscall.ECONNRESET)
	}
	c.out.eof, c.in.unread = true, true
	c.in.buf = bytes.Buffer{}
	c.read.stop()
	c.write.stop()
	c.in.wake.Broadcast()
	c.out.wake.Broadcast()
	delete(c.network.conns, c)
	return nil
}

// reset needs the network's lock.
func (c *conn) reset() {
	c.in.fail(syscall.ECONNRESET)
	c.out.fail(syscall.ECONNRESET)
	delete(c.network.conns, c)
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error { return c.set(&c.read, c.in, t) }

func (c *conn) SetWriteDeadline(t time.Time) error { return c.set(&c.write, c.out, t) }

func (c *conn) set(d *deadline, h *half, t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.closed {
		return c.fail("set deadline", net.ErrClosed)
	}
	d.stop()
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, func() {
			c.network.mu.Lock()
			defer c.network.mu.Unlock()
			h.wake.Broadcast()
		})
	}
	h.wake.Broadcast()
	return nil
}

// fail makes the error that a socket would. What it wraps stays bare: net.OpError
// asks it, not what it might wrap, whether it is a timeout, and crypto/tls asks that.
func (c *conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
