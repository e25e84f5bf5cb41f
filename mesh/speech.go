package mesh

import (
	"math"
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

// speech is what this node has to say to its peers: its latest rumor, told to each
// as the change since what it holds, or whole. The bytes are made by the first
// stream that sends them, so what is replaced before costs none, once for all that
// hold the same version, and those of a tree serve until it has changed.
type speech struct {
	whole bool                      // always: paper mode
	seal  func(rumor []byte) []byte // makes the payload of a relayed rumor, behind frameHeader bytes of room

	mu      sync.Mutex
	journal gossip.Journal
	latest  *spoken
	purse   purse // of what is sent
}

// A purse is what may be sent, or fetched: so many bytes a second, of which at most a
// second's are saved, and what is spent may leave a debt.
type purse struct {
	rate   float64 // 0: no limit
	bytes  float64
	filled time.Time // zero: it is full
}

type spoken struct {
	gossip.Rumor
	tree   func() []byte
	frames map[uint64]encoding // by the version that they start from; 0: whole
	bare   encoding            // with nothing of the tree: a change since now, which no peer can use
}

// An encoding is a frame, made when it is first sent.
type encoding struct {
	bytes   int // it takes, about
	frame   func() []byte
	relayed func() []byte // the frame in which others can pass it on; nil: they cannot
}

func encode(r gossip.Rumor, blocks int) encoding {
	return encoding{bytes: rumorHead + 8*blocks, frame: sync.OnceValue(func() []byte {
		return frame(frameRumor, r.AppendBinary(make([]byte, frameHeader)))
	})}
}

// encodeRelayed is a change for whoever passes it on. One that is too long nobody does.
func (p *speech) encodeRelayed(plain func() []byte) func() []byte {
	return sync.OnceValue(func() []byte {
		b := p.seal(plain()[frameHeader:])
		if len(b) > frameHeader+relayMax {
			return plain()
		}
		return frame(frameRelayed, b)
	})
}

// rumorHead is about what a rumor takes without the tree.
const rumorHead = 100

// smallTree is what a tree, or a change, may take without regard to the limit.
const smallTree = 4 << 10

// say takes in the next rumor, which has the whole tree.
func (p *speech) say(r gossip.Rumor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &spoken{Rumor: r, tree: sync.OnceValue(func() []byte { return r.Tree.AppendBinary(nil) })}
	if p.latest != nil && p.latest.Tree == r.Tree {
		s.tree = p.latest.tree
	}
	s.frames = map[uint64]encoding{0: {bytes: rumorHead + 9*r.Tree.Len(), frame: sync.OnceValue(func() []byte {
		return frame(frameRumor, append(r.AppendHead(make([]byte, frameHeader)), s.tree()...))
	})}}
	bare := r
	bare.Change = &gossip.Change{Since: r.Version, Blocks: r.Tree.Len(), Digest: r.Tree.Digest()}
	s.bare = encode(bare, 0)
	s.bare.relayed = p.encodeRelayed(s.bare.frame)
	if !p.whole {
		p.journal.Add(r)
	}
	p.latest = s
}

// since returns the latest rumor for who holds a version of the tree, its frame, and
// what is held when that has arrived; nil before there is one. A whole tree, or a
// change as large, waits until the limit leaves room: the rumor then has nothing of
// it, and what is held stays. A change is sealed where peers relay.
func (p *speech) since(now time.Time, held hold, relay bool) (s *spoken, frame func() []byte, then hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.latest; s == nil {
		return nil, nil, held
	}
	then = hold{life: s.Life, told: s.Version}
	e, ok := p.change(held)
	if !ok {
		e = s.frames[0]
	}
	if !p.whole && e.bytes > smallTree && p.purse.left(now) <= 0 {
		e, then = s.bare, held
	}
	p.purse.spend(e.bytes)
	if relay && e.relayed != nil {
		return s, e.relayed, then
	}
	return s, e.frame, then
}

// change returns the latest rumor as what has changed since what is held, if that
// can be told.
func (p *speech) change(held hold) (e encoding, ok bool) {
	s := p.latest
	if p.whole || s.Life != held.life || held.told == 0 {
		return e, false
	}
	if e, ok = s.frames[held.told]; ok {
		return e, true
	}
	r := s.Rumor
	if r.Change = p.journal.Since(held.told); r.Change == nil {
		return e, false
	}
	e = encode(r, len(r.Change.Gone)+len(r.Change.Come))
	e.relayed = p.encodeRelayed(e.frame)
	s.frames[held.told] = e
	return e, true
}

// room spends bytes and returns how many more may be sent now.
func (p *speech) room(now time.Time, bytes int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.purse.spend(bytes)
	return int(p.purse.left(now))
}

// every is the interval between rumors; a second before there is one.
func (p *speech) every() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == nil || p.latest.Every <= 0 {
		return time.Second
	}
	return p.latest.Every
}

// left returns how many bytes there are.
func (p *purse) left(now time.Time) float64 {
	if p.rate <= 0 {
		return math.MaxInt32
	}
	if p.filled.IsZero() {
		p.bytes += p.rate
	} else {
		p.bytes += p.rate * now.Sub(p.filled).Seconds()
	}
	p.bytes, p.filled = min(p.bytes, p.rate), now
	return p.bytes
}

func (p *purse) spend(bytes int) { p.bytes -= float64(bytes) }
