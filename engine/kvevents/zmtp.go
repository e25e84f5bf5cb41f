package kvevents

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// What of ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) a subscriber needs, and a
// publisher: the greeting, the NULL mechanism, messages of frames. Everything that a
// peer announces has a bound, and memory is taken for what has come, not for what is
// announced.
const (
	maxMessage       = 16 << 20 // bytes; a batch of a million tokens has about 5
	maxFrames        = 16       // of a message; ours have three
	handshakeTimeout = 5 * time.Second
	dialTimeout      = 2 * time.Second
	sendTimeout      = 10 * time.Second
)

// The kinds of sockets, as they call themselves, and whom each may talk to.
const (
	socketPub    = "PUB"
	socketSub    = "SUB"
	socketDealer = "DEALER"
	socketRouter = "ROUTER"
)

var compatible = map[string][]string{
	socketPub:    {"SUB", "XSUB"},
	socketSub:    {"PUB", "XPUB"},
	socketDealer: {"ROUTER", "DEALER", "REP"},
	socketRouter: {"DEALER", "ROUTER", "REQ"},
}

// greeting is what either side begins with, 64 bytes: ff, 8 bytes, 7f | version 3.0 |
// mechanism, 20 bytes | as-server | 31 bytes of zeros.
var greeting = slices.Concat([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0}, []byte("NULL"), make([]byte, 48))

// The flags of a frame, its first byte. A size follows, in eight bytes if it is long
// and else in one, and the body.
const (
	flagMore = 1 << iota
	flagLong
	flagCommand
)

var errNoZMTP = errors.New("it does not speak ZMTP 3 with the NULL mechanism")

// A conn is one connection. One goroutine may receive and one send at a time.
type conn struct {
	net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	body []byte // of the message received last
}

// open makes a ZMTP connection of c, which it closes where that fails.
func open(c net.Conn, kind string) (*conn, error) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3})
	}
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout))
	z := &conn{Conn: c, in: bufio.NewReaderSize(c, 64<<10), out: bufio.NewWriterSize(c, 64<<10)}
	if err := z.shakeHands(kind); err != nil {
		c.Close()
		return nil, fmt.Errorf("ZeroMQ handshake: %w", err)
	}
	_ = c.SetDeadline(time.Time{})
	return z, nil
}

func (z *conn) shakeHands(kind string) error {
	_, _ = z.out.Write(greeting)
	z.frame(flagCommand, slices.Concat([]byte("\x05READY"), property("Socket-Type", kind), property("Identity", "")))
	if err := z.out.Flush(); err != nil {
		return err
	}
	var theirs [64]byte
	if _, err := io.ReadFull(z.in, theirs[:]); err != nil {
		return err
	}
	if theirs[0] != 0xff || theirs[9]&1 == 0 || theirs[10] < 3 || !bytes.Equal(theirs[12:32], greeting[12:32]) {
		return errNoZMTP
	}
	flags, err := z.readFrame()
	if err != nil {
		return err
	}
	properties, ready := bytes.CutPrefix(z.body, []byte("\x05READY"))
	if flags&flagCommand == 0 || !ready {
		return errNoZMTP
	}
	peer, err := socketType(properties)
	if err == nil && !slices.Contains(compatible[kind], peer) {
		err = fmt.Errorf("a %s socket was met where a %s wants one of %v", peer, kind, compatible[kind])
	}
	return err
}

// property is one of READY's: the length of its name in a byte, the name, that of its
// value in four, the value.
func property(name, value string) []byte {
	b := append([]byte{byte(len(name))}, name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

func socketType(properties []byte) (string, error) {
	for len(properties) > 0 {
		n := 1 + int(properties[0])
		if len(properties) < n+4 {
			break
		}
		name, rest := properties[1:n], properties[n+4:]
		size := binary.BigEndian.Uint32(properties[n:])
		if uint64(size) > uint64(len(rest)) {
			break
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			return string(rest[:size]), nil
		}
		properties = rest[size:]
	}
	return "", errNoZMTP
}

// receive waits for the next message. Its frames are good until the next call.
func (z *conn) receive() ([][]byte, error) {
	z.body = z.body[:0]
	var ends []int
	for {
		from := len(z.body)
		flags, err := z.readFrame()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := z.command(z.body[from:]); err != nil {
				return nil, err
			}
			z.body = z.body[:from]
			continue
		}
		if ends = append(ends, len(z.body)); flags&flagMore == 0 {
			break
		}
		if len(ends) == maxFrames {
			return nil, errors.New("a ZeroMQ message has too many frames to be of KV events")
		}
	}
	frames, from := make([][]byte, len(ends)), 0
	for i, end := range ends {
		frames[i], from = z.body[from:end:end], end
	}
	return frames, nil
}

// command answers a PING (ZMTP 3.1) with a PONG of its context. Others say nothing to
// us.
func (z *conn) command(body []byte) error {
	context, ok := bytes.CutPrefix(body, []byte("\x04PING"))
	if !ok || len(context) < 2 {
		return nil
	}
	z.frame(flagCommand, append([]byte("\x04PONG"), context[2:]...))
	return z.flush()
}

// readFrame appends a frame's body to z.body.
func (z *conn) readFrame() (flags byte, err error) {
	if flags, err = z.in.ReadByte(); err != nil {
		return 0, err
	}
	var header [8]byte
	size := header[7:]
	if flags&flagLong != 0 {
		size = header[:]
	}
	if _, err := io.ReadFull(z.in, size); err != nil {
		return 0, err
	}
	left := binary.BigEndian.Uint64(header[:])
	if flags&^(flagMore|flagLong|flagCommand) != 0 || left > uint64(maxMessage-len(z.body)) {
		return 0, errors.New("a ZeroMQ message is longer than any of KV events, or none")
	}
	const step = 64 << 10
	for left > 0 {
		n := int(min(left, step))
		from := len(z.body)
		z.body = slices.Grow(z.body, n)[:from+n]
		if _, err := io.ReadFull(z.in, z.body[from:]); err != nil {
			return 0, err
		}
		left -= uint64(n)
	}
	return flags, nil
}

// send sends a message of frames.
func (z *conn) send(frames ...[]byte) error {
	for i, body := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		z.frame(flags, body)
	}
	return z.flush()
}

func (z *conn) frame(flags byte, body []byte) {
	header := [9]byte{flags, byte(len(body))}
	n := 2
	if len(body) > 255 {
		header[0] |= flagLong
		binary.BigEndian.PutUint64(header[1:], uint64(len(body)))
		n = 9
	}
	_, _ = z.out.Write(header[:n])
	_, _ = z.out.Write(body)
}

func (z *conn) flush() error {
	_ = z.SetWriteDeadline(time.Now().Add(sendTimeout))
	return z.out.Flush()
}

// A dialer connects to bound sockets. It is Config.Dial.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

func (d dialer) dial(ctx context.Context, at place, kind string) (*conn, error) {
	if d == nil {
		d = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	c, err := d(ctx, at.network, at.addr)
	if err != nil {
		return nil, err
	}
	return open(c, kind)
}

// replay asks a ROUTER for the batches from the sequence number given, and hands them
// to each until that or the socket has enough. A DEALER asks: a REQ may take one reply
// only.
func (d dialer) replay(ctx context.Context, at place, from uint64, each func(seq uint64, payload []byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	z, err := d.dial(ctx, at, socketDealer)
	if err != nil {
		return err
	}
	defer z.Close()
	defer context.AfterFunc(ctx, func() { z.Close() })()
	if err := z.send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		frames, err := z.receive()
		if err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		seq, payload, err := batchFrames(frames)
		if err != nil {
			return err
		}
		if seq == endOfReplay {
			return nil
		}
		if err := each(seq, payload); err != nil {
			return err
		}
	}
}

const (
	endOfReplay   = ^uint64(0)
	replayTimeout = 10 * time.Second // for all of it: ten thousand batches take about one
)

// batchFrames reads [topic or empty, sequence number, payload].
func batchFrames(frames [][]byte) (seq uint64, payload []byte, err error) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return 0, nil, fmt.Errorf("a message of %d frames is no batch of KV events", len(frames))
	}
	return binary.BigEndian.Uint64(frames[1]), frames[2], nil
}
