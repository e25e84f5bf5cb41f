package mesh

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// packetQueue is how many packets wait for one destination. memberlist sends
	// a few a second; more than this means that they do not get through.
	packetQueue = 64

	// packetLinksMax bounds the destinations with a connection of their own.
	packetLinksMax = 256

	packetIdle     = time.Minute            // an unused packet connection is closed after this
	packetStall    = 10 * time.Second       // a packet not written in this time breaks the connection
	packetRetryMin = 500 * time.Millisecond // between two dials of one destination, doubled
	packetRetryMax = 8 * time.Second
)

// transport carries memberlist over the peer port. A stream of memberlist's is an
// upgraded connection; its packets to one destination share one, a frame each.
// Packets are best effort: one that finds its queue full, or no connection, is lost.
type transport struct {
	ctx     context.Context // ends with the mesh
	port    *port
	wg      *sync.WaitGroup
	ip      net.IP
	tcpPort int
	packets chan *memberlist.Packet
	streams chan net.Conn
	dropped atomic.Uint64

	mu    sync.Mutex
	links map[string]chan []byte // frames on their way, by destination
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(ctx context.Context, p *port, wg *sync.WaitGroup, ip net.IP, tcpPort int) *transport {
	return &transport{
		ctx: ctx, port: p, wg: wg, ip: ip, tcpPort: tcpPort,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		links: map[string]chan []byte{},
	}
}

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.ip, t.tcpPort, nil
}

// WriteTo never blocks and never fails: memberlist takes an error here as its own
// fault and would not suspect the peer.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	f := frame(framePacket, append(make([]byte, frameHeader, frameHeader+len(b)), b...))
	t.mu.Lock()
	defer t.mu.Unlock()
	link := t.links[addr]
	if link == nil && len(t.links) < packetLinksMax && t.ctx.Err() == nil {
		link = make(chan []byte, packetQueue)
		t.links[addr] = link
		t.wg.Go(func() { t.deliver(addr, link) })
	}
	select {
	case link <- f: // a nil link is never ready
	default:
		t.dropped.Add(1)
	}
	return time.Now(), nil
}

func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// deliver owns the connection to one destination until it is idle.
func (t *transport) deliver(addr string, link chan []byte) {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.links, addr)
	}()
	var conn net.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	retry, notBefore := packetRetryMin, time.Time{}
	for {
		var f []byte
		select {
		case f = <-link:
		case <-time.After(packetIdle):
			return
		case <-t.ctx.Done():
			return
		}
		if conn != nil && t.send(conn, f) == nil {
			continue
		}
		// No connection, or the other end closed it, say because it restarted.
		if conn != nil {
			conn.Close()
			conn = nil
		}
		if time.Now().Before(notBefore) {
			t.dropped.Add(1)
			continue
		}
		fresh, err := t.port.upgrade(t.ctx, addr, upgradePackets, "")
		if err != nil {
			t.dropped.Add(1)
			notBefore = time.Now().Add(jittered(retry))
			retry = min(2*retry, packetRetryMax)
			continue
		}
		conn, retry = fresh, packetRetryMin
		t.wg.Go(func() { // the other end says nothing but that it is gone
			io.Copy(io.Discard, fresh)
			fresh.Close()
		})
		if t.send(conn, f) != nil {
			t.dropped.Add(1)
		}
	}
}

func (t *transport) send(conn net.Conn, f []byte) error {
	conn.SetWriteDeadline(time.Now().Add(packetStall))
	_, err := conn.Write(f)
	return err
}

// acceptPackets reads a peer's packets until it closes or falls silent.
func (t *transport) acceptPackets(w http.ResponseWriter) {
	conn := t.port.accept(w, upgradePackets)
	if conn == nil {
		return
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		conn.SetReadDeadline(time.Now().Add(2 * packetIdle))
		kind, b, err := readFrame(in, packetMax)
		if err != nil {
			return
		}
		if kind != framePacket {
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: b, From: conn.RemoteAddr(), Timestamp: time.Now()}:
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *transport) acceptStream(w http.ResponseWriter) {
	conn := t.port.accept(w, upgradeStreams)
	if conn == nil {
		return
	}
	select {
	case t.streams <- conn: // memberlist's from here
	case <-t.ctx.Done():
		conn.Close()
	}
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	return t.port.upgrade(ctx, addr, upgradeStreams, "")
}

func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// Shutdown returns once no new connection can be begun; Mesh.Close, which calls it
// after the end of the context, ends those that there are.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return nil
}
