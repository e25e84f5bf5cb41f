package mesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

const (
	// writeStep is written under one deadline: a slow peer may take long over a
	// large rumor, one that takes nothing for writeStall is stuck, and so is one
	// that acknowledges nothing for as long.
	writeStep  = 256 << 10
	writeStall = 30 * time.Second

	linkRetryMin = 50 * time.Millisecond // between two dials of one peer, at first
	linkRetryMax = 5 * time.Second
)

var (
	errLeft  = errors.New("peer said goodbye")
	errRest  = errors.New("rumors are relayed, and this stream is needed no more")
	errStuck = errors.New("peer acknowledges nothing")
)

// stream is the rumor connection to one peer. What waits to be sent is one slot of
// each kind, the newest wins, so nothing ever waits for the peer but its writer.
type stream struct {
	mesh   *Mesh
	peer   *peer
	conn   net.Conn
	speaks int           // version of the protocol that both ends speak
	wake   chan struct{} // the writer has something to look at
	done   chan struct{} // closed when reading has ended: the writer ends too
	gone   chan struct{} // closed when the stream has ended for everyone

	answered chan struct{} // the peer has told what this node asked

	mu      sync.Mutex
	hung    bool   // reading is to end
	speak   bool   // there is something new to say
	held    hold   // by the peer, when all that was sent has arrived
	sent    uint64 // version of the latest rumor sent
	amended uint64 // of the latest when held was put right
	ack     *ack
	hold    *hold
	goodbye bool
	ask     bool           // what the peer has heard later
	digest  *gossip.Digest // that the peer asks for what is later than
	rest    bool           // the stream is needed no more
	timed   ack            // the rumor whose ack gives the next round trip
	timedAt time.Time      // zero: none is under way
}

// give puts something into a slot under the stream's lock and wakes the writer.
func (s *stream) give(put func()) {
	s.mu.Lock()
	put()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run speaks and hears until the connection breaks, a goodbye is heard, or the
// mesh closes. If the peer or this node is gone by now it does nothing.
func (s *stream) run() {
	if !s.mesh.attach(s) {
		s.conn.Close()
		return
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.write()
	}()
	life, told := s.mesh.cfg.Told(s.peer.Name)
	s.give(func() { s.hold = &hold{life: life, told: told} })
	err := s.read()
	s.conn.Close()
	close(s.done)
	<-written
	s.mesh.detach(s, err)
}

// hangUp makes the reader end the stream, and unlike a close, which may have TLS
// to say farewell, never waits.
func (s *stream) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung = true
	s.conn.SetReadDeadline(time.Unix(1, 0))
}

func (s *stream) resting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rest
}

func (s *stream) hungUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hung
}

// expect sets until when the next bytes have to come; zero is for ever, as between
// two frames. One that has begun may take long and may not stop.
func (s *stream) expect(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hung {
		s.conn.SetReadDeadline(until)
	}
}

// A steady reader is the connection within a frame.
type steady struct {
	*stream
	begun bool
}

func (r *steady) Read(b []byte) (int, error) {
	if r.begun {
		r.expect(time.Now().Add(writeStall + r.mesh.port.roundTrip()))
	}
	return r.conn.Read(b)
}

// badFrame is an error of a peer's that no connection caused.
type badFrame struct{ error }

func (e badFrame) Unwrap() error { return e.error }

func (s *stream) write() {
	defer s.conn.Close() // a failed write ends the reader too
	for {
		select {
		case <-s.wake:
		case <-s.done:
			return
		}
		s.mu.Lock()
		a, h, speak, goodbye, rest := s.ack, s.hold, s.speak, s.goodbye, s.rest
		ask, digest := s.ask, s.digest
		s.ack, s.hold, s.speak, s.ask, s.digest = nil, nil, false, false, nil
		s.mu.Unlock()
		if a != nil && s.send(a.frame()) != nil {
			return
		}
		if h != nil && s.send(h.frame()) != nil {
			return
		}
		if speak && s.sendRumor() != nil {
			return
		}
		if ask && s.sendDigest() != nil {
			return
		}
		if digest != nil && s.sendNewer(*digest) != nil {
			return
		}
		if goodbye || rest {
			// The peer closes. Closing first could reset the connection, and the
			// goodbye with it, if something of the peer's lies here unread.
			last := frameGoodbye
			if !goodbye {
				last = frameRest
			}
			if s.send(appendFrame(nil, last, nil)) == nil {
				<-s.done
			}
			return
		}
	}
}

// sendRumor sends what the peer does not know yet. The stream loses nothing, so what
// was sent is what the peer holds, unless it says otherwise.
func (s *stream) sendRumor() error {
	relay := s.speaks >= relaySpoken && s.mesh.Relaying()
	s.mu.Lock()
	if !s.timedAt.IsZero() && time.Since(s.timedAt) > writeStall+s.mesh.port.roundTrip() {
		s.mu.Unlock()
		return errStuck // it takes small rumors into the buffers of its connection, and reads none
	}
	r, encode, held := s.mesh.speech.since(time.Now(), s.held, relay)
	if r == nil || r.Version == s.sent {
		s.mu.Unlock()
		return nil
	}
	s.held, s.sent = held, r.Version
	s.mu.Unlock()
	b := encode()
	tail := max(0, len(b)-writeStep)
	if err := s.send(b[:tail]); err != nil {
		return err
	}
	// The clock starts at the last piece, so that a large rumor does not read as
	// a long way, and on one rumor at a time, so that polls faster than the round
	// trip do not restart it for ever.
	s.mu.Lock()
	if s.timedAt.IsZero() {
		s.timed, s.timedAt = ack{r.Life, r.Version}, time.Now()
	}
	s.mu.Unlock()
	if err := s.send(b[tail:]); err != nil {
		return err
	}
	s.mesh.count(s.peer, len(b), 0)
	return nil
}

// send writes b piece by piece, each under its own deadline.
func (s *stream) send(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeStep)
		s.conn.SetWriteDeadline(time.Now().Add(writeStall + s.mesh.port.roundTrip()))
		if _, err := s.conn.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (s *stream) read() error {
	from := &steady{stream: s}
	in := bufio.NewReader(from)
	for {
		if _, err := in.Peek(1); err != nil {
			return err
		}
		from.begun = true
		kind, payload, err := readFrame(in)
		if err != nil {
			return err
		}
		from.begun = false
		s.expect(time.Time{})
		switch kind {
		case frameRumor:
			err = s.hear(payload)
		case frameAck:
			err = s.acked(payload)
		case frameHold:
			err = s.holds(payload)
		case frameGoodbye:
			return errLeft
		case frameRelayed:
			err = s.relayed(payload)
		case frameDigest:
			err = s.asked(payload)
		case frameAnswered:
			select {
			case s.answered <- struct{}{}:
			default:
			}
		case frameRest:
			return errRest
		}
		if err != nil {
			return badFrame{err}
		}
	}
}

func (s *stream) hear(payload []byte) error {
	r, err := s.peer.says(payload)
	if err != nil {
		return err
	}
	s.mesh.count(s.peer, 0, frameHeader+len(payload))
	s.take(r, nil)
	return nil
}

// take takes in a rumor of the peer's own, of which payload is what others may pass on.
func (s *stream) take(r gossip.Rumor, payload []byte) {
	s.give(func() { s.ack = &ack{r.Life, r.Version} })
	if held, ok := s.mesh.take(s.peer, r, payload); !ok {
		s.give(func() { s.hold = &held })
	}
}

// says reads a rumor that came from p itself.
func (p *peer) says(payload []byte) (gossip.Rumor, error) {
	r, err := gossip.DecodeRumor(payload)
	if err == nil && r.Author != p.Name {
		err = fmt.Errorf("rumor by %q, and a node speaks only for itself", r.Author)
	}
	return r, err
}

func (s *stream) acked(payload []byte) error {
	a, err := decodeAck(payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	at := s.timedAt
	hit := !at.IsZero() && a.life == s.timed.life && a.version >= s.timed.version
	if hit {
		s.timedAt = time.Time{}
	}
	s.mu.Unlock()
	if hit {
		s.mesh.observe(s.peer, time.Since(at))
	}
	return nil
}

// holds takes in what the peer holds: at first, when it is what the first rumor can
// build on, and later when a rumor was of no use to it, for what it has missed or
// forgotten. What was on its way by then is of no use either, and not answered anew.
func (s *stream) holds(payload []byte) error {
	h, err := decodeHold(payload)
	if err != nil {
		return err
	}
	s.give(func() {
		switch {
		case h.answers > s.amended:
			s.held, s.amended = h, s.sent
		case h.answers == 0 && s.sent == 0:
			s.held, s.speak = h, true
		}
	})
	return nil
}

// keepLink dials a peer's rumor stream again and again until ctx ends, which is
// when the peer is gone or the mesh closes.
func (m *Mesh) keepLink(ctx context.Context, p *peer, addr string) {
	wait, said := linkRetryMin, ""
	for ctx.Err() == nil && !m.isLeaving() {
		conn, heard, version, err := m.port.upgrade(ctx, addr, upgradeRumors, p.Name, m.greeting(p.Name))
		began := time.Now()
		if err == nil {
			m.remember(heard)
			m.newStream(p, conn, version).run()
		} else if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			m.log.Log(ctx, m.unlinked(p.Name, err), "no rumor stream yet", "peer", p.Name, "addr", addr, "err", err)
		}
		if no, ok := errors.AsType[refusal](err); ok && (no.status == http.StatusServiceUnavailable || no.status == http.StatusConflict) {
			m.members.Join([]string{addr}) // it does not know this node, or at another address: tell it
		}
		if time.Since(began) > linkRetryMax {
			wait, said = linkRetryMin, ""
		}
		sleep(ctx, jittered(wait))
		wait = longer(wait, linkRetryMax)
	}
}

// unlinked takes in why a peer that was dialled gave no stream, and returns how
// loudly to say so: what an operator has to mend is a warning.
func (m *Mesh) unlinked(name string, err error) slog.Level {
	no, ok := errors.AsType[refusal](err)
	if !ok {
		return slog.LevelInfo
	}
	switch no.status {
	case http.StatusForbidden, http.StatusPreconditionFailed, http.StatusUpgradeRequired:
		m.trouble(name, no.said)
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}

func (m *Mesh) newStream(p *peer, conn net.Conn, version int) *stream {
	return &stream{
		mesh: m, peer: p, conn: conn, speaks: version,
		wake: make(chan struct{}, 1), done: make(chan struct{}), gone: make(chan struct{}),
		answered: make(chan struct{}, 1),
	}
}

// attach makes s the stream of its peer, unless the peer or this node is gone. A
// stream it had before is stale, since the peer would not dial twice.
func (m *Mesh) attach(s *stream) bool {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	p := s.peer
	if m.closed || m.leaving || !p.member {
		m.mu.Unlock()
		return false
	}
	if p.stream != nil {
		p.stream.hangUp()
	}
	p.stream = s
	p.show(s.conn)
	if old := s.speaks < relaySpoken; p.old != old {
		p.old = old
		m.relink()
	}
	back := p.State == StateSuspect && p.Trouble == ""
	told := m.present(p)
	m.mu.Unlock()
	if back {
		m.log.Info("peer is back", "peer", p.Name)
	}
	told(p.Name)
	return true
}

func (m *Mesh) detach(s *stream, err error) {
	defer close(s.gone)
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	p, told, level := s.peer, nothing, slog.LevelInfo
	switch {
	case p.stream != s || m.closed || m.leaving: // a newer one took its place, or one side is gone
		level = slog.LevelDebug
	case errors.Is(err, errLeft):
		told = m.absent(p, StateLeft)
	case errors.Is(err, errRest) || s.resting(): // it is heard by relay
		level = slog.LevelDebug
	case p.lost: // again, and nothing was heard of it meanwhile
		p.State, level = StateSuspect, slog.LevelDebug
	default:
		p.State, p.lost, told = StateSuspect, true, m.cfg.OnLost
	}
	bad, broken := errors.AsType[badFrame](err)
	if p.stream == s {
		p.stream = nil
		if broken {
			p.Trouble = fmt.Sprintf("what %s says cannot be read: %v", p.Name, bad)
		}
	}
	stray := !p.heardLately(time.Now(), silentPull)
	m.mu.Unlock()
	if stray {
		m.part()
	}
	m.log.Log(context.Background(), level, "rumor stream ended", "peer", p.Name, "why", reason(err))
	if broken {
		m.port.turnAway(refusedFrame, "peer broke the protocol of rumors", "peer", p.Name, "err", bad)
	} else if errors.Is(err, os.ErrDeadlineExceeded) && !s.hungUp() {
		m.port.turnAway(refusedSlow, "peer stopped within a frame", "peer", p.Name)
	}
	told(p.Name)
}
