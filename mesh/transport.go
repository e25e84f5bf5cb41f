package mesh

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

const (
	packetsPath = "/hearsay/v1/packets"

	// packetsMax bounds the packets on their way. memberlist sends some ten a
	// second, whatever the cluster's size, and one to the dead is given up after
	// connectWait; more than this means that they do not get through.
	packetsMax = 256

	// packetMax bounds a packet; memberlist itself stops at UDPBufferSize.
	packetMax = 64 << 10

	// packetRate bounds the packets taken in a second. A node gets some ten; some
	// of them have memberlist start a goroutine and a timer each.
	packetRate = 2000
)

// transport carries memberlist over the peer port: a packet as the body of a POST
// between the forwards, a stream on an upgraded connection of its own. Packets are
// best effort: one that is too many or does not get through in time is lost.
type transport struct {
	port     *port
	ip       net.IP
	tcpPort  int
	sending  *semaphore.Weighted
	arriving *rate.Limiter
	packets  chan *memberlist.Packet
	streams  chan net.Conn
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(p *port, ip net.IP, tcpPort int) *transport {
	return &transport{
		port: p, ip: ip, tcpPort: tcpPort, sending: semaphore.NewWeighted(packetsMax), arriving: rate.NewLimiter(packetRate, packetRate),
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
	}
}

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.ip, t.tcpPort, nil
}

// WriteToAddress never blocks and never fails: memberlist takes an error here as its
// own fault and would not suspect the peer.
func (t *transport) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	if t.sending.TryAcquire(1) {
		b = bytes.Clone(b)
		go func() {
			defer t.sending.Release(1)
			t.send(b, to)
		}()
	}
	return time.Now(), nil
}

// WriteTo is WriteToAddress of a node whose name is not known.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (t *transport) send(b []byte, to memberlist.Address) {
	ctx, cancel := context.WithTimeout(t.port.ctx, t.port.connectWait())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, packetsPath, bytes.NewReader(b))
	if err != nil {
		return
	}
	if resp, err := t.port.forward(to.Name, to.Addr, req); err == nil {
		resp.Body.Close()
	}
}

func (t *transport) acceptPacket(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, packetMax))
	if err != nil {
		http.Error(w, "packet: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := checkPacket(b); err != nil {
		t.port.turnAway(refusedMember, "peer refused", "remote", r.RemoteAddr, "err", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !t.arriving.Allow() { // lost, as any packet may be
		http.Error(w, "too many packets", http.StatusTooManyRequests)
		return
	}
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	select {
	case t.packets <- &memberlist.Packet{Buf: b, From: net.TCPAddrFromAddrPort(from), Timestamp: time.Now()}:
		w.WriteHeader(http.StatusNoContent)
	case <-t.port.ctx.Done():
	}
}

func (t *transport) acceptStream(w http.ResponseWriter, version int) {
	conn := t.port.accept(w, upgradeStreams, version, nil)
	if conn == nil {
		return
	}
	select {
	case t.streams <- &sieved{Conn: conn, port: t.port}: // memberlist's from here
	case <-t.port.ctx.Done():
		conn.Close()
	}
}

// outlive has memberlist begin this life's incarnations at the time in seconds.
// It counts from 1 in every life, so what peers remember of an earlier one, that
// it left above all, would hold against this. It cannot be told otherwise, but a
// node refutes a suspicion by an incarnation beyond it, and here it hears one. Where
// a clock has gone back since, peers tell it so and it refutes them in turn.
func (t *transport) outlive(name string, now time.Time) { t.tell(memberSuspect, name, name, now) }

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialAddressTimeout opens a stream to the node at an address: where certificates
// say who that is, to no other.
func (t *transport) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.port.ctx, timeout)
	defer cancel()
	if t.port.cert == nil {
		to.Name = "" // who took another's address is met under its own name
	}
	conn, _, _, err := t.port.upgrade(ctx, to.Addr, upgradeStreams, to.Name, nil)
	if err != nil {
		return nil, err
	}
	return &sieved{Conn: conn, port: t.port}, nil
}

// DialTimeout is DialAddressTimeout of a node whose name is not known.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// Shutdown returns when no packet is being sent, after the end of the context, and
// lets no more be. Mesh.Close ends the streams.
func (t *transport) Shutdown() error {
	return t.sending.Acquire(context.Background(), packetsMax)
}
