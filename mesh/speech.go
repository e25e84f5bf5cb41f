package mesh

import (
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

// speech is what this node has to say to its peers: its latest rumor, told to each
// as the change since what it holds, or whole. The bytes are made by the first
// stream that sends them, so what is replaced before costs none, once for all that
// hold the same version, and those of a tree serve until it has changed.
type speech struct {
	whole bool    // always: paper mode
	rate  float64 // bytes a second; 0: no limit

	mu      sync.Mutex
	journal gossip.Journal
	latest  *spoken
	purse   float64   // bytes that may be sent; what is sent may leave a debt
	filled  time.Time // when it was; zero: it is full
}

type spoken struct {
	gossip.Rumor
	tree   func() []byte
	frames map[uint64]encoding // by the version that they start from; 0: whole
	bare   encoding            // with nothing of the tree: a change since now, which no peer can use
}

// An encoding is a frame, made when it is first sent.
type encoding struct {
	bytes int // it takes, about
	frame func() []byte
}

func encode(r gossip.Rumor, blocks int) encoding {
	return encoding{rumorHead + 8*blocks, sync.OnceValue(func() []byte {
		return frame(frameRumor, r.AppendBinary(make([]byte, frameHeader)))
	})}
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
	s.frames = map[uint64]encoding{0: {rumorHead + 9*r.Tree.Len(), sync.OnceValue(func() []byte {
		return frame(frameRumor, append(r.AppendHead(make([]byte, frameHeader)), s.tree()...))
	})}}
	bare := r
	bare.Change = &gossip.Change{Since: r.Version, Blocks: r.Tree.Len(), Digest: r.Tree.Digest()}
	s.bare = encode(bare, 0)
	if !p.whole {
		p.journal.Add(r)
	}
	p.latest = s
}

// since returns the latest rumor for who holds a version of the tree, its frame, and
// what is held when that has arrived; nil before there is one. A whole tree, or a
// change as large, waits until the limit leaves room: the rumor then has nothing of
// it, and what is held stays.
func (p *speech) since(now time.Time, held hold) (s *spoken, frame func() []byte, then hold) {
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
	if p.rate > 0 && !p.whole && e.bytes > smallTree && p.left(now) <= 0 {
		e, then = s.bare, held
	}
	p.purse -= float64(e.bytes)
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
	s.frames[held.told] = e
	return e, true
}

// left returns how many bytes the limit leaves, of at most a second's.
func (p *speech) left(now time.Time) float64 {
	if p.filled.IsZero() {
		p.purse += p.rate
	} else {
		p.purse += p.rate * now.Sub(p.filled).Seconds()
	}
	p.purse, p.filled = min(p.purse, p.rate), now
	return p.purse
}
