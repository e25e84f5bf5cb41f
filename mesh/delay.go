package mesh

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// flightMax bounds the bytes one delayed connection holds: a long fat
	// pipe's worth, 20 MB/s at 200 ms. Beyond it Write waits.
	flightMax = 4 << 20

	// flightStep is the most that travels as one piece.
	flightStep = 64 << 10

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

	mu       sync.Mutex
	queue    []flight
	size     int       // bytes in queue
	last     time.Time // when the newest piece arrives; none may arrive before it
	err      error     // what the inner connection answered
	closed   bool
	deadline time.Time
	timer    *time.Timer
	changed  *sync.Cond
}

type flight struct {
	at   time.Time
	data []byte
}

// newDelayConn starts the goroutine that delivers, on wg. It ends some time
// after Close: when all is delivered, or linger later.
func newDelayConn(inner net.Conn, delay, jitter time.Duration, wg *sync.WaitGroup) *delayConn {
	c := &delayConn{Conn: inner, delay: delay, jitter: jitter}
	c.changed = sync.NewCond(&c.mu)
	wg.Go(c.deliver)
	return c
}

func (c *delayConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.arrival()
	for written := 0; ; {
		switch {
		case c.closed:
			return written, net.ErrClosed
		case c.err != nil:
			return written, c.err
		case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return written, os.ErrDeadlineExceeded
		case written == len(p):
			return written, nil
		case c.size >= flightMax:
			c.changed.Wait()
			at = c.arrival() // what waited for room leaves now
			continue
		}
		n := min(len(p)-written, flightStep, flightMax-c.size)
		c.queue = append(c.queue, flight{at, append([]byte(nil), p[written:written+n]...)})
		c.size += n
		c.last = at
		written += n
		c.changed.Broadcast()
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
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.closed && c.err == nil {
			c.changed.Wait()
		}
		if len(c.queue) == 0 || c.err != nil {
			c.mu.Unlock()
			return
		}
		next := c.queue[0]
		c.queue[0] = flight{}
		c.queue = c.queue[1:]
		c.mu.Unlock()
		time.Sleep(time.Until(next.at))
		_, err := c.Conn.Write(next.data)
		c.mu.Lock()
		c.size -= len(next.data)
		if err != nil {
			c.err, c.queue, c.size = err, nil, 0
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// Close ends reads and writes here at once. What is in flight is delivered on
// time, then the inner connection is closed.
func (c *delayConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	end := time.Now()
	if c.last.After(end) {
		end = c.last
	}
	c.changed.Broadcast()
	return errors.Join(c.Conn.SetReadDeadline(time.Unix(1, 0)), c.Conn.SetWriteDeadline(end.Add(linger)))
}

func (c *delayConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed {
			err = net.ErrClosed
		}
	}
	return n, err
}

func (c *delayConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline is the inner connection's, until Close has ended its reads.
func (c *delayConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline bounds how long a Write waits for room, not the flight.
func (c *delayConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.deadline = t
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		c.timer = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	c.changed.Broadcast()
	return nil
}
