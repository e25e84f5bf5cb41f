package mesh

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/cert"
)

const (
	// relayMax bounds a rumor that is passed on. A longer one is told to neighbours
	// alone, and the others fetch it from its author.
	relayMax = 64 << 10

	// signatureMax has room for RSA with 8192 bits.
	signatureMax = 1 << 10

	// asksEvery is how many questions a node asks in one poll interval.
	asksEvery = 2
	askMin    = 10 * time.Millisecond

	// askWait is how long an answer may take before another neighbour is asked.
	askWait = 2 * time.Second
)

// A relayed frame's payload is a rumor as its author made it, which is a change:
//
//	uvarint   bytes of the signature; 0 without certificates
//	bytes     the signature, by the key of the author's certificate, over what
//	          signed says
//	the rest  gossip.Rumor.AppendBinary
func appendRelayed(b, signature, rumor []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(signature))), signature...)
	return append(b, rumor...)
}

var errRelayed = errors.New("relayed rumor: too long, cut short, or of a whole tree")

// decodeRelayed reads what appendRelayed wrote. signature and rumor are parts of b.
func decodeRelayed(b []byte) (r gossip.Rumor, signature, rumor []byte, err error) {
	size, n := binary.Uvarint(b)
	if len(b) > relayMax || n <= 0 || size > signatureMax || size > uint64(len(b)-n) {
		return r, nil, nil, errRelayed
	}
	signature, rumor = b[n:n+int(size)], b[n+int(size):]
	if r, err = gossip.DecodeRumor(rumor); err == nil && r.Change == nil {
		err = errRelayed
	}
	return r, signature, rumor, err
}

// signed is what an author signs: the name of this use, how the cluster names
// prefixes, and the rumor, with a zero byte between. So what is said in one cluster
// cannot be told in another that has the same authority.
func (m *Mesh) signed(rumor []byte) []byte {
	b := append([]byte("hearsay/relay/1\x00"), m.cfg.Naming.String()...)
	return append(append(b, 0), rumor...)
}

// seal is the payload of this node's own rumor for others to pass on.
func (m *Mesh) seal(rumor []byte) []byte {
	var signature []byte
	if id := m.cfg.Identity; id != nil {
		var err error
		if signature, err = id.Sign(m.signed(rumor)); err != nil {
			m.log.Error("a rumor cannot be signed with --peer-key", "err", err)
		}
	}
	return appendRelayed(make([]byte, frameHeader), signature, rumor)
}

// genuine says whether a rumor is what p, its author, signed with the certificate that
// it has shown this node last. Without certificates nobody can tell.
func (m *Mesh) genuine(p *peer, signature, rumor []byte) bool {
	if m.cfg.Identity == nil {
		return true
	}
	m.mu.Lock()
	chain := p.chain
	m.mu.Unlock()
	return len(chain) > 0 && time.Now().Before(chain[0].NotAfter) && cert.Verify(chain[0], m.signed(rumor), signature)
}

// relayed takes in a rumor that came on s, of its peer or of a third node. What cannot
// be shown to be the author's changes nothing, but has the author asked.
func (s *stream) relayed(payload []byte) error {
	m := s.mesh
	r, signature, rumor, err := decodeRelayed(payload)
	if err != nil {
		return err
	}
	m.count(s.peer, 0, frameHeader+len(payload))
	if r.Author == s.peer.Name {
		if !m.genuine(s.peer, signature, rumor) {
			payload = nil // heard from itself, but not to be passed on
			m.want(s.peer, pullAgainMax)
		}
		s.take(r, payload)
		return nil
	}
	m.mu.Lock()
	p := m.peers[r.Author]
	news := p != nil && p.member && p.life > 0 && m.relay.News(r.Author, r.Life, r.Version)
	if !news {
		m.stats.RelayedOld++
	}
	m.mu.Unlock()
	if !news {
		return nil
	}
	if !m.genuine(p, signature, rumor) {
		m.port.turnAway(refusedForged, "a relayed rumor is not signed by its author, or with a certificate that it has replaced; asking the author", "peer", s.peer.Name, "author", r.Author)
		m.want(p, pullAgainMax)
		return nil
	}
	r.Relayed = true
	m.take(p, r, payload)
	return nil
}

// asked takes in what the peer has heard.
func (s *stream) asked(payload []byte) error {
	d, err := gossip.DecodeDigest(payload)
	if err == nil {
		s.give(func() { s.digest = &d })
	}
	return err
}

// take has the node hear a rumor of p, keeps the payload for others, and sees to it
// that what is missing is fetched. It reports whether its tree is held.
func (m *Mesh) take(p *peer, r gossip.Rumor, payload []byte) (held hold, ok bool) {
	m.cfg.OnRumor(r)
	life, told := m.cfg.Told(r.Author)
	ok = life == r.Life && told >= r.Version
	m.mu.Lock()
	if p.member {
		m.relay.Heard(r, payload)
	}
	if r.Relayed {
		m.stats.RelayedNews++
	}
	m.mu.Unlock()
	m.heard(p, r.Life)
	if !ok && r.Relayed {
		m.want(p, pullAgain)
	}
	return hold{life: life, told: told, answers: r.Version}, ok
}

// inquire asks one neighbour after the other, by chance, for what is later than this
// node has heard, as long as rumors are relayed. One question is open at a time, so
// that nothing is told twice.
func (m *Mesh) inquire() {
	var last *stream
	for {
		m.mu.Lock()
		if m.inquiring = m.relaying && m.ctx.Err() == nil && !m.leaving; !m.inquiring {
			m.mu.Unlock()
			return
		}
		s := m.neighbour(last)
		m.mu.Unlock()
		if sleep(m.ctx, m.askEvery()); s == nil || m.speech.room(time.Now(), 0) <= 0 {
			continue
		}
		last = s
		select {
		case <-s.answered: // late
		default:
		}
		s.give(func() { s.ask = true })
		wait := time.NewTimer(askWait + m.port.roundTrip())
		select {
		case <-s.answered:
		case <-s.gone:
		case <-wait.C:
		case <-m.ctx.Done():
		}
		wait.Stop()
	}
}

// neighbour draws a stream whose other end relays, not the last if there is another.
// It needs the lock.
func (m *Mesh) neighbour(last *stream) (drawn *stream) {
	n := 0
	for _, p := range m.peers {
		if s := p.stream; s != nil && s.speaks >= relaySpoken && s != last {
			if n++; rand.IntN(n) == 0 {
				drawn = s
			}
		}
	}
	if drawn == nil && last != nil && last.peer.stream == last {
		drawn = last
	}
	return drawn
}

func (m *Mesh) askEvery() time.Duration { return max(askMin, m.speech.every()/asksEvery) }

// sendDigest asks the peer.
func (s *stream) sendDigest() error {
	m := s.mesh
	m.mu.Lock()
	b := frame(frameDigest, m.relay.AppendDigest(make([]byte, frameHeader), rand.Uint64()))
	m.mu.Unlock()
	m.speech.room(time.Now(), len(b))
	m.count(s.peer, len(b), 0)
	return s.send(b)
}

// sendNewer answers, with as much as --rumor-bytes has room for.
func (s *stream) sendNewer(d gossip.Digest) error {
	m := s.mesh
	most := m.speech.room(time.Now(), 0)
	m.mu.Lock()
	all, size := m.relay.Newer(d, most)
	m.mu.Unlock()
	b := make([]byte, 0, size+(len(all)+1)*frameHeader)
	for _, payload := range all {
		b = appendFrame(b, frameRelayed, payload)
	}
	b = appendFrame(b, frameAnswered, nil)
	m.speech.room(time.Now(), len(b))
	m.count(s.peer, len(b), 0)
	return s.send(b)
}
