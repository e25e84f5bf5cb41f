package mesh

import (
	"sync"

	"github.com/hearsay-project/hearsay/gossip"
)

// speech is what this node has to say to its peers: its latest rumor, told to each
// as the change since what it holds, or whole. The bytes are made by the first
// stream that sends them, so what is replaced before costs none, once for all that
// hold the same version, and those of a tree serve until it has changed.
type speech struct {
	whole bool // always: paper mode

	mu      sync.Mutex
	journal gossip.Journal
	latest  *spoken
}

type spoken struct {
	gossip.Rumor
	tree   func() []byte
	frames map[uint64]func() []byte // by the version that they start from; 0: whole
}

// say takes in the next rumor, which has the whole tree.
func (p *speech) say(r gossip.Rumor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &spoken{Rumor: r, tree: sync.OnceValue(func() []byte { return r.Tree.AppendBinary(nil) })}
	if p.latest != nil && p.latest.Tree == r.Tree {
		s.tree = p.latest.tree
	}
	s.frames = map[uint64]func() []byte{0: sync.OnceValue(func() []byte {
		return frame(frameRumor, append(r.AppendHead(make([]byte, frameHeader)), s.tree()...))
	})}
	if !p.whole {
		p.journal.Add(r)
	}
	p.latest = s
}

// since returns the latest rumor for who holds a version of the tree, 0 for nothing,
// and what makes its frame; nil before there is one.
func (p *speech) since(life, version uint64) (*spoken, func() []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.latest
	if s == nil {
		return nil, nil
	}
	if s.Life != life {
		version = 0
	}
	if made, ok := s.frames[version]; ok {
		return s, made
	}
	made := s.frames[0]
	if c := p.journal.Since(version); c != nil && !p.whole {
		r := s.Rumor
		r.Change = c
		made = sync.OnceValue(func() []byte { return frame(frameRumor, r.AppendBinary(make([]byte, frameHeader))) })
	}
	s.frames[version] = made
	return s, made
}
