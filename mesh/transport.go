package mesh

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/semaphore"
)

const (
	packetsPath = "/hearsay/v1/packets"

	// packetsMax bounds the packets on their way. memberlist sends some ten a
	// second, whatever the cluster's size, and one to the dead is given up after
	// connectWait; more than this means that they do not get through.
	packetsMax = 256

	// packetMax bounds a packet; memberlist itself stops at UDPBufferSize.
	packetMax = 64 << 10
)

// transport carries memberlist over the peer port: a packet as the body of a POST
// between the forwards, a stream on an upgraded connection of its own. Packets are
// best effort: one that is too many or does not get through in time is lost.
type transport struct {
	port    *port
	ip      net.IP
	tcpPort int
	sending *semaphore.Weighted
	packets chan *memberlist.Packet
	streams chan net.Conn
}

var _ memberlist.Transport = (*transport)(nil)

func newTransport(p *port, ip net.IP, tcpPort int) *transport {
	return &transport{
		port: p, ip: ip, tcpPort: tcpPort, sending: semaphore.NewWeighted(packetsMax),
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
	}
}

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.ip, t.tcpPort, nil
}

// WriteTo never blocks and never fails: memberlist takes an error here as its own
// fault and would not suspect the peer.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	if t.sending.TryAcquire(1) {
		b = bytes.Clone(b)
		go func() {
			defer t.sending.Release(1)
			t.send(b, addr)
		}()
	}
	return time.Now(), nil
}

func (t *transport) send(b []byte, addr string) {
	ctx, cancel := context.WithTimeout(t.port.ctx, t.port.connectWait())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, packetsPath, bytes.NewReader(b))
	if err != nil {
		return
	}
	if resp, err := t.port.forward(addr, req); err == nil {
		resp.Body.Close()
	}
}

func (t *transport) acceptPacket(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, packetMax))
	if err != nil {
		http.Error(w, "packet: "+err.Error(), http.StatusBadRequest)
		return
	}
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	select {
	case t.packets <- &memberlist.Packet{Buf: b, From: net.TCPAddrFromAddrPort(from), Timestamp: time.Now()}:
		w.WriteHeader(http.StatusNoContent)
	case <-t.port.ctx.Done():
	}
}

func (t *transport) acceptStream(w http.ResponseWriter) {
	conn := t.port.accept(w, upgradeStreams)
	if conn == nil {
		return
	}
	select {
	case t.streams <- conn: // memberlist's from here
	case <-t.port.ctx.Done():
		conn.Close()
	}
}

// outlive has memberlist begin this life's incarnations at the time in seconds.
// It counts from 1 in every life, so what peers remember of an earlier one, that
// it left above all, would hold against this. It cannot be told otherwise, but a
// node refutes a suspicion by an incarnation beyond it, and here it hears one.
func (t *transport) outlive(name string, now time.Time) {
	b := []byte{3, 0x83} // memberlist's suspect: a map of three in MessagePack
	text := func(s string) { b = append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(s))), s...) }
	text("Incarnation")
	b = binary.BigEndian.AppendUint32(append(b, 0xce), uint32(now.Unix()))
	text("Node")
	text(name)
	text("From")
	text(name)
	t.packets <- &memberlist.Packet{Buf: b, From: &net.TCPAddr{IP: t.ip, Port: t.tcpPort}, Timestamp: now}
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.port.ctx, timeout)
	defer cancel()
	return t.port.upgrade(ctx, addr, upgradeStreams, "")
}

// Shutdown returns when no packet is being sent, after the end of the context, and
// lets no more be. Mesh.Close ends the streams.
func (t *transport) Shutdown() error {
	return t.sending.Acquire(context.Background(), packetsMax)
}
