package mesh

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A delayed connection holds at most flightsMax pieces of flightStep bytes:
	// 16 MiB, or five thousand small writes a second at 200 ms. Beyond that
	// Write waits.
	flightsMax = 1024
	flightStep = 16 << 10

	// linger bounds how long a closed connection still tries to deliver what is
	// in flight to an end that does not read.
	linger = 5 * time.Second
)

// delayConn is a connection whose written bytes arrive late: each by the link's
// delay plus a jitter drawn per write, in order. It delays one way; the other
// way is the other end's to delay. Reads are the inner connection's own.
type delayConn struct {
	net.Conn
	delay, jitter time.Duration
	flights       chan flight
	ctx           context.Context // ends by Close or the inner connection's error, with that as its cause
	cancel        context.CancelCauseFunc

	deadline atomic.Pointer[time.Time] // of a Write; nil or zero for none

	writing sync.Mutex // held by Write
	last    time.Time  // when the newest piece arrives; none may arrive before it
	closed  bool
}

type flight struct {
	at   time.Time
	data []byte
}

// newDelayConn starts the goroutine that delivers, on wg. It ends some time
// after Close: when all is delivered, or linger later.
func newDelayConn(inner net.Conn, delay, jitter time.Duration, wg *sync.WaitGroup) *delayConn {
	c := &delayConn{Conn: inner, delay: delay, jitter: jitter, flights: make(chan flight, flightsMax)}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	wg.Go(c.deliver)
	return c
}

func (c *delayConn) Write(p []byte) (int, error) {
	ctx := c.ctx
	if end := c.deadline.Load(); end != nil && !end.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, *end, os.ErrDeadlineExceeded)
		defer cancel()
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	c.last = c.arrival()
	for written := 0; ; {
		switch {
		case ctx.Err() != nil:
			return written, context.Cause(ctx)
		case written == len(p):
			return written, nil
		}
		n := min(len(p)-written, flightStep)
		select {
		case c.flights <- flight{c.last, bytes.Clone(p[written : written+n])}:
			written += n
		case <-ctx.Done():
		}
	}
}

// arrival draws when what leaves now arrives: after the delay plus or minus up
// to the jitter, never before now, never before what left earlier.
func (c *delayConn) arrival() time.Time {
	trip := c.delay
	if c.jitter > 0 {
		trip = max(0, c.delay-c.jitter+rand.N(2*c.jitter+1))
	}
	if at := time.Now().Add(trip); at.After(c.last) {
		return at
	}
	return c.last
}

func (c *delayConn) deliver() {
	defer c.Conn.Close()
	for f := range c.flights {
		time.Sleep(time.Until(f.at))
		if _, err := c.Conn.Write(f.data); err != nil {
			c.cancel(err)
			return
		}
	}
}

// Close ends reads and writes here at once. What is in flight is delivered on
// time, then the inner connection is closed.
func (c *delayConn) Close() error {
	c.cancel(net.ErrClosed) // and so a Write that waits
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	close(c.flights)
	c.Conn.SetReadDeadline(time.Unix(1, 0))
	return c.Conn.SetWriteDeadline(time.Now().Add(c.delay + c.jitter + linger))
}

func (c *delayConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && context.Cause(c.ctx) == net.ErrClosed {
		err = net.ErrClosed
	}
	return n, err
}

func (c *delayConn) SetDeadline(t time.Time) error {
	c.SetWriteDeadline(t)
	return c.SetReadDeadline(t)
}

// SetWriteDeadline bounds how long a Write that begins later waits for room, not
// the flight.
func (c *delayConn) SetWriteDeadline(t time.Time) error {
	c.deadline.Store(&t)
	return nil
}
