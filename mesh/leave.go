package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// leaveWait is how long peers may take to answer a goodbye, and then memberlist's of
	// a few of them to hear of it; longer only where messages are delayed.
	leaveWait = 3 * time.Second
	// leaveTold peers' memberlists are told. They gossip it to the others.
	leaveTold = 3
	// flushWait is how long the last bytes of an answer may take to be acknowledged, before
	// its connection is closed; longer where messages are delayed.
	flushWait = 100 * time.Millisecond
)

// Leave says goodbye to every peer, sees that memberlist knows, and lets the forwards
// that peers have here end; new ones find the port closed. Where none runs it takes
// some round trips and a tenth of a second. This node's own forwards go on until Close.
// It returns an error when ctx ends first, or a peer does not answer in time.
func (m *Mesh) Leave(ctx context.Context) error {
	m.leave.Lock()
	defer m.leave.Unlock()
	m.mu.Lock()
	m.leaving = true
	closed := m.closed
	var streams []*stream
	for _, p := range m.peers {
		if s := p.stream; s != nil {
			s.give(func() { s.goodbye = true })
			streams = append(streams, s)
		}
	}
	m.mu.Unlock()
	if closed {
		return errors.New("leave: the mesh is closed")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)() // then Close waits for members.Leave alone
	served := make(chan error, 1)
	go func() { served <- m.server.Shutdown(ctx) }()
	answered, err := m.goodbyes(ctx, streams)
	err = errors.Join(err, m.tellLeft(ctx, answered))
	if e := m.served(ctx, served); e != nil {
		err = errors.Join(err, fmt.Errorf("forwards are still being served: %w", e))
	}
	if err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// served waits until nothing is being served, or the server has been shut down. That
// leaves idle connections of HTTP/2 open for a second, for what may be on its way; here
// it is known when the last answer went.
func (m *Mesh) served(ctx context.Context, shut <-chan error) error {
	wait := flushWait + 2*m.port.roundTrip()
	for {
		left := wait - m.carrying.idleFor()
		if left <= 0 {
			return nil
		}
		select {
		case err := <-shut:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(left):
		}
	}
}

// carrying are the connections of a server that carry requests now.
type carrying struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
	ended time.Time // when the last of them had none any more
}

// turn is told of each change (http.Server.ConnState). A connection of HTTP/2 turns
// idle when its last answer has been written.
func (c *carrying) turn(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateActive {
		if c.conns == nil {
			c.conns = map[net.Conn]struct{}{}
		}
		c.conns[conn] = struct{}{}
	} else if _, was := c.conns[conn]; was {
		delete(c.conns, conn)
		c.ended = time.Now()
	}
}

// idleFor is how long no connection has carried a request; 0 while one does.
func (c *carrying) idleFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) > 0 {
		return 0
	}
	return time.Since(c.ended)
}

// goodbyes waits until the goodbye that was given to streams has been answered, and
// returns where those are who did.
func (m *Mesh) goodbyes(ctx context.Context, streams []*stream) (answered []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaveWait+2*m.port.roundTrip())
	defer cancel()
	for _, s := range streams {
		select {
		case <-s.gone:
			m.mu.Lock()
			answered = append(answered, s.peer.Addr)
			m.mu.Unlock()
		case <-ctx.Done():
			err = errors.Join(err, fmt.Errorf("%s did not answer the goodbye", s.peer.Name))
		}
	}
	return answered, err
}

// tellLeft has memberlist take this node for one that has left, and tells it to the
// memberlists of a few peers by an exchange of their states (push/pull). Left to its
// gossip it would take some of its intervals, of half a second; and before a peer has
// the goodbye it must not hear of this, which it would take for a death. Of those who
// have it by now some may be gone themselves, as when a cluster ends: where nobody is
// left to be told, there is nothing to tell.
func (m *Mesh) tellLeft(ctx context.Context, peers []string) error {
	spread := leaveWait + 2*m.port.roundTrip()
	if end, ok := ctx.Deadline(); ok {
		spread = max(1, min(spread, time.Until(end)))
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case len(peers) == 0:
		return m.members.Leave(spread)
	}
	_ = m.members.Leave(1) // it marks this node at once, and says that gossip has not come around yet
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	tellers := min(leaveTold, len(peers))
	told := make(chan bool, tellers)
	for i := range tellers {
		m.wg.Go(func() { told <- m.tellOne(ctx, peers[i:], tellers) })
	}
	late := time.NewTimer(spread)
	defer late.Stop()
	for range tellers {
		select {
		case ok := <-told:
			if ok {
				return nil
			}
		case <-late.C:
			return errors.New("memberlist's peers took too long")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// tellOne tells the first of each step peers that can be reached.
func (m *Mesh) tellOne(ctx context.Context, peers []string, step int) bool {
	for i := 0; i < len(peers) && ctx.Err() == nil; i += step {
		if _, err := m.members.Join(peers[i : i+1]); err == nil {
			return true
		}
	}
	return false
}
