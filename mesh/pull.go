package mesh

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

const (
	pullsMax     = 8                     // that this node makes at a time
	pulledMax    = 64                    // that it answers at a time
	pullEvery    = 20 * time.Millisecond // between two that it begins
	pullWait     = 30 * time.Second      // that one may take
	pullAgain    = time.Second           // between two of one author, at first
	pullAgainMax = 30 * time.Second      // and when they bring nothing, or only a signature is wrong
	pullStagger  = 20 * time.Millisecond // for each member: a newcomer pulls itself, and others leave it the time to
	silentPull   = 15 * time.Second      // a member silent for so long, and for ten polls, is asked directly
)

// want has p pulled, so long after its last pull at the least.
func (m *Mesh) want(p *peer, apart time.Duration) {
	m.mu.Lock()
	m.due(p, 0, apart)
	m.mu.Unlock()
	select {
	case m.pullable <- struct{}{}:
	default:
	}
}

// due has p pulled after some time and so long after its last pull at the least, if no
// pull is due before. An author whose pulls bring nothing waits longer each time. It
// needs the lock.
func (m *Mesh) due(p *peer, after, apart time.Duration) {
	at := time.Now().Add(after)
	if next := p.pulledAt.Add(max(p.pullAgain, apart)); at.Before(next) {
		at = next
	}
	if p.pullAt.IsZero() || at.Before(p.pullAt) {
		p.pullAt = at
	}
}

// pull pulls whoever is due, as long as rumors are relayed: so many at a time, one
// after the other where --rumor-bytes has no room.
func (m *Mesh) pull() {
	slots, pace := semaphore.NewWeighted(pullsMax), rate.NewLimiter(rate.Every(pullEvery), 1)
	pulled := purse{rate: float64(m.cfg.RumorBytes)}
	got := make(chan int, pullsMax)
	for {
		for len(got) > 0 {
			pulled.spend(<-got)
		}
		var p *peer
		wait := 100 * time.Millisecond
		m.mu.Lock()
		if m.pulling = m.relaying && m.ctx.Err() == nil && !m.leaving; !m.pulling {
			m.mu.Unlock()
			return
		}
		if pulled.left(time.Now()) > 0 {
			p, wait = m.nextPull(time.Now())
		}
		m.mu.Unlock()
		if p == nil {
			timer := time.NewTimer(wait)
			select {
			case <-m.pullable:
			case <-timer.C:
			case <-m.ctx.Done():
			}
			timer.Stop()
			continue
		}
		if pace.Wait(m.ctx) != nil || slots.Acquire(m.ctx, 1) != nil {
			return
		}
		m.wg.Go(func() {
			defer slots.Release(1)
			n := m.pullFrom(p)
			select {
			case got <- n:
			default:
			}
		})
	}
}

// nextPull returns who has been due for longest, or after what time to look again. It
// needs the lock.
func (m *Mesh) nextPull(now time.Time) (next *peer, wait time.Duration) {
	wait = time.Second
	for _, p := range m.peers {
		switch {
		case p.pullAt.IsZero():
		case !p.member:
			p.pullAt = time.Time{}
		case p.pullAt.After(now):
			wait = min(wait, p.pullAt.Sub(now))
		case next == nil || p.pullAt.Before(next.pullAt):
			next = p
		}
	}
	if next != nil {
		next.pullAt, next.pulledAt = time.Time{}, now
		next.pullAgain = min(max(2*next.pullAgain, pullAgain), pullAgainMax)
	}
	return next, wait
}

// pullFrom pulls from p and returns how many bytes that has brought.
func (m *Mesh) pullFrom(p *peer) (bytes int) {
	m.mu.Lock()
	addr, lived := p.Addr, p.life
	m.stats.Pulls++
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.ctx, pullWait+m.port.roundTrip())
	defer cancel()
	conn, heard, _, err := m.port.upgrade(ctx, addr, upgradePulls, p.Name, m.greeting(p.Name))
	if err != nil {
		no, ok := errors.AsType[refusal](err)
		old := ok && no.status == http.StatusHTTPVersionNotSupported
		m.mu.Lock()
		if old { // it is of the version before, which has streams and nothing else
			p.old = true
			m.relink()
		}
		m.mu.Unlock()
		if !old && ctx.Err() == nil {
			m.unlinked(p.Name, err)
			m.log.Debug("nothing pulled", "peer", p.Name, "addr", addr, "err", err)
		}
		m.retry(p, lived)
		return 0
	}
	defer conn.Close()
	m.remember(heard)
	x := m.newPulling(p, conn)
	bytes, err = x.ask()
	if err != nil {
		m.log.Debug("a pull broke off", "peer", p.Name, "err", err)
		m.retry(p, lived)
	}
	return bytes
}

// retry has p pulled again, if nothing was heard of it.
func (m *Mesh) retry(p *peer, lived uint64) {
	m.mu.Lock()
	again := p.member && (p.life == 0 || p.life == lived)
	m.mu.Unlock()
	if again {
		m.want(p, pullAgain)
	}
}

// acceptPull answers a peer that pulls, and hears it.
func (m *Mesh) acceptPull(w http.ResponseWriter, r *http.Request) {
	p, version := m.welcome(w, r, upgradePulls)
	if p == nil {
		return
	}
	if !m.pulled.TryAcquire(1) {
		http.Error(w, m.cfg.Name+" is being pulled from by many; try again", http.StatusServiceUnavailable)
		return
	}
	defer m.pulled.Release(1)
	conn := m.port.accept(w, upgradePulls, version, m.greeting(p.Name))
	if conn == nil {
		return
	}
	defer conn.Close()
	m.remember(r.Header)
	x := m.newPulling(p, conn)
	x.begin()
	defer x.end()
	if err := x.answer(); err != nil {
		m.log.Debug("a pull broke off", "peer", p.Name, "err", err)
	}
}

// begin ends the pull of the same peer that is still being answered: a peer makes one at
// a time, and holds one place of pulledMax.
func (x *pulling) begin() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.peer.pulling != nil {
		x.peer.pulling.SetDeadline(time.Unix(1, 0))
	}
	x.peer.pulling = x.conn
}

func (x *pulling) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.peer.pulling == x.conn {
		x.peer.pulling = nil
	}
}

// pulling is one end of a pull, by which a node gets what relayed rumors lack: an
// author's tree when it comes to know of it or has missed something, and the certificate
// that its signatures are held to. Each end tells the other what it holds of its tree,
// and then its latest rumor as the change since that, or whole: the one that is dialled
// first.
type pulling struct {
	*Mesh
	peer *peer
	conn net.Conn
	in   *bufio.Reader
}

func (m *Mesh) newPulling(p *peer, conn net.Conn) *pulling {
	conn.SetDeadline(time.Now().Add(pullWait + m.port.roundTrip()))
	m.mu.Lock()
	defer m.mu.Unlock()
	p.show(conn)
	return &pulling{m, p, conn, bufio.NewReader(conn)}
}

func (x *pulling) ask() (bytes int, err error) {
	asked := time.Now()
	if err = x.sayHold(); err != nil {
		return 0, err
	}
	held, err := x.readHold()
	if err != nil {
		return 0, err
	}
	x.observe(x.peer, time.Since(asked))
	if bytes, err = x.hear(); err != nil {
		return bytes, err
	}
	return bytes, x.tell(held)
}

func (x *pulling) answer() error {
	held, err := x.readHold()
	if err == nil {
		err = x.sayHold()
	}
	if err == nil {
		err = x.tell(held)
	}
	if err == nil {
		_, err = x.hear()
	}
	return err
}

func (x *pulling) sayHold() error {
	life, told := x.cfg.Told(x.peer.Name)
	_, err := x.conn.Write(hold{life: life, told: told}.frame())
	return err
}

func (x *pulling) readHold() (hold, error) {
	kind, payload, err := readFrame(x.in)
	if err == nil && kind != frameHold {
		err = badFrame{fmt.Errorf("frame of type %d in the place of a hold", kind)}
	}
	if err != nil {
		return hold{}, err
	}
	return decodeHold(payload)
}

// tell says the latest rumor, as far as the limit has room, or that there is none yet.
func (x *pulling) tell(held hold) error {
	frame := appendFrame(nil, frameAnswered, nil)
	if r, b, _ := x.speech.since(time.Now(), held, false); r != nil {
		frame = b()
	}
	_, err := x.conn.Write(frame)
	if err == nil {
		x.count(x.peer, len(frame), 0)
	}
	return err
}

// hear hears the other's. While its tree has to wait for room it is pulled again.
func (x *pulling) hear() (bytes int, err error) {
	kind, payload, err := readFrame(x.in)
	if err == nil && kind == frameAnswered {
		x.want(x.peer, pullAgain)
		return frameHeader, nil
	}
	if err == nil && kind != frameRumor {
		err = badFrame{fmt.Errorf("frame of type %d in the place of a rumor", kind)}
	}
	if err != nil {
		return 0, err
	}
	bytes = frameHeader + len(payload)
	r, err := x.peer.says(payload)
	if err != nil {
		x.port.turnAway(refusedFrame, "peer broke the protocol of rumors", "peer", x.peer.Name, "err", err)
		return bytes, err
	}
	x.count(x.peer, 0, bytes)
	if _, ok := x.take(x.peer, r, nil); ok {
		x.mu.Lock()
		x.peer.pullAgain, x.peer.pullAt = pullAgain/2, time.Time{}
		x.mu.Unlock()
		return bytes, nil
	}
	x.want(x.peer, pullAgain)
	return bytes, nil
}

// show keeps the certificate that p has shown on a connection: what it signs is held
// to that. It needs the lock.
func (p *peer) show(conn net.Conn) {
	if up, ok := conn.(*upgraded); ok {
		conn = up.Conn
	}
	if secure, ok := conn.(*tls.Conn); ok {
		p.chain = secure.ConnectionState().PeerCertificates
	}
}

// recheckAuthors has signatures by certificates that hold no more count no more.
func (m *Mesh) recheckAuthors() {
	m.mu.Lock()
	shown := map[*peer][]*x509.Certificate{}
	for _, p := range m.peers {
		if p.chain != nil {
			shown[p] = p.chain
		}
	}
	m.mu.Unlock()
	for p, chain := range shown {
		if m.cfg.Identity.Check(chain, p.Name) != nil {
			m.mu.Lock()
			p.chain = nil
			m.mu.Unlock()
		}
	}
}

// stagger is after what time a member pulls from a newcomer that has not pulled itself.
func stagger(members int) time.Duration {
	return rand.N(time.Duration(max(1, members)) * pullStagger)
}
