package kvevents

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// A peer may say anything.
func FuzzConn(f *testing.F) {
	ready := append([]byte{flagCommand, 25}, "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...)
	f.Add(greeting, ready)
	f.Add(greeting, append(slices.Clone(ready), flagMore, 0, flagMore, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0xc0))
	f.Add(greeting, append(slices.Clone(ready), flagCommand, 9, 4, 'P', 'I', 'N', 'G', 0, 1, 'a', 'b'))
	f.Add(greeting, append(slices.Clone(ready), flagLong, 0, 0, 1, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, greeting, frames []byte) {
		z := &conn{Conn: said{bytes.NewReader(append(slices.Clone(greeting), frames...))}}
		z.in, z.out = bufio.NewReader(z.Conn), bufio.NewWriter(io.Discard)
		err := z.shakeHands(socketSub)
		for err == nil {
			_, err = z.receive()
		}
		if came := len(greeting) + len(frames); cap(z.body) > 2*came+128<<10 {
			t.Errorf("%d bytes are held", cap(z.body))
		}
	})
}

// said is a connection to somebody who has said all that he will.
type said struct{ io.Reader }

func (said) Write(p []byte) (int, error)      { return len(p), nil }
func (said) Close() error                     { return nil }
func (said) LocalAddr() net.Addr              { return nil }
func (said) RemoteAddr() net.Addr             { return nil }
func (said) SetDeadline(time.Time) error      { return nil }
func (said) SetReadDeadline(time.Time) error  { return nil }
func (said) SetWriteDeadline(time.Time) error { return nil }
