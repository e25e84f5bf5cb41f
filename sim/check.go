package sim

import (
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// A checker holds a run to what the design promises. It keeps its own account of
// what each node may believe, from the rumors that reached it and the answers it
// got, and compares: it shares no code with gossip.View.
//
// That a request is answered once, and after one hop at most, finish sees to.
type checker struct {
	c       *cluster
	nodes   []account
	parents map[prefix.Hash]prefix.Hash // of every block that a request named; 0 above the first
}

// An account is what one node in its present life may believe, and what it said.
type account struct {
	said  *spoken
	peers []belief
}

type belief struct {
	rumor   *spoken // the newest that came, nil before the first
	heard   time.Time
	tree    *prefix.Snapshot     // of the newest rumor that was of use, for it was whole or since what was held
	told    uint64               // its version, 0 before the first
	credits map[prefix.Hash]bool // blocks beyond the tree
	failed  bool                 // a request to the peer was lost, and nothing good heard since
}

func newChecker(c *cluster) *checker {
	return &checker{c: c, nodes: make([]account, c.cfg.Nodes), parents: map[prefix.Hash]prefix.Hash{}}
}

func (k *checker) started(m *member) {
	k.nodes[m.index] = account{peers: make([]belief, k.c.cfg.Nodes)}
}

func (k *checker) came(chain prefix.Chain) {
	parent := prefix.Hash(0)
	for _, h := range chain {
		k.parents[h] = parent
		parent = h
	}
}

// spoke: rumors of a life go forward, and a tree has every block's parent.
func (k *checker) spoke(m *member, r *spoken) {
	last := k.nodes[m.index].said
	if last != nil && (r.Life != last.Life || r.Version <= last.Version) {
		k.c.fail("%s says version %d after %d", m.name, r.Version, last.Version)
	}
	if last == nil || last.Tree != r.Tree {
		for h := range r.Tree.All() {
			if parent := k.parents[h]; parent != 0 && !r.Tree.Has(parent) {
				k.c.fail("%s holds block %x without its parent", m.name, h)
			}
		}
	}
	k.nodes[m.index].said = r
}

// heard: a node takes in what is newer and nothing else.
func (k *checker) heard(m *member, r *spoken, news bool) {
	b := &k.nodes[m.index].peers[r.author.index]
	newer := b.rumor == nil || r.Life > b.rumor.Life || r.Life == b.rumor.Life && r.Version > b.rumor.Version
	if news != newer {
		k.c.fail("%s takes version %d of %s for news: %v, want %v", m.name, r.Version, r.Author, news, newer)
	}
	if b.rumor != nil && r.Life > b.rumor.Life {
		*b = belief{}
	}
	fits := r.wire.Change == nil || b.told > 0 && r.wire.Change.Since <= b.told
	if fits && (newer || r.Life == b.rumor.Life && r.Version > b.told) {
		b.tree, b.told, b.credits = r.Tree, r.Version, nil
	}
	if !newer {
		return
	}
	b.rumor, b.heard, b.failed = r, k.c.now, false
	k.believe(b, r.Computing)
}

// answered: a peer that has answered a request is well, and holds its prompt.
func (k *checker) answered(m *member, peer int, chain prefix.Chain) {
	k.nodes[m.index].peers[peer].failed = false
	k.credited(m, peer, chain)
}

func (k *checker) credited(m *member, peer int, chain prefix.Chain) {
	b := &k.nodes[m.index].peers[peer]
	if b.rumor == nil {
		return // what was never heard of is not believed in
	}
	k.believe(b, chain)
}

// believe: what a peer is computing counts as held.
func (k *checker) believe(b *belief, blocks []prefix.Hash) {
	for _, h := range blocks {
		if !b.tree.Has(h) {
			if b.credits == nil {
				b.credits = map[prefix.Hash]bool{}
			}
			b.credits[h] = true
		}
	}
}

// uncredited: what a node was thought to be computing it may not have computed.
func (k *checker) uncredited(m *member, peer int) { k.nodes[m.index].peers[peer].credits = nil }

func (k *checker) failed(m *member, peer int) { k.nodes[m.index].peers[peer].failed = true }

// routed: a forward goes to a peer that was heard of lately, has not failed since
// and has not asked for a pause, for the match that it is believed to have.
func (k *checker) routed(call *call, d node.Decision) {
	if d.Self {
		return
	}
	c := k.c
	b := &k.nodes[call.origin].peers[c.index[d.Node]]
	if b.rumor == nil || b.failed {
		c.fail("request %d is sent to %s: never heard of, or not since it failed", call.index, d.Node)
		return
	}
	if silence := c.now.Sub(b.heard); silence > max(3*b.rumor.Every, 200*time.Millisecond) {
		c.fail("request %d is sent to %s, silent for %v", call.index, d.Node, silence)
	}
	if c.mode.name == "longest+pushback" && c.now.Before(b.heard.Add(b.rumor.Pause)) {
		c.fail("request %d is sent to %s, which asked for a pause", call.index, d.Node)
	}
	match := call.Chain.Longest(func(h prefix.Hash) bool { return b.tree.Has(h) || b.credits[h] })
	if match != d.Match {
		c.fail("request %d is sent to %s for %d blocks; what is known of it are %d", call.index, d.Node, d.Match, match)
	}
}

// after looks at the nodes that an event touched.
func (k *checker) after(e *event) {
	if e.what != hear {
		k.holds(k.c.members[e.node])
		return
	}
	for i := e.first; i < e.last; i++ {
		k.holds(k.c.members[i])
	}
}

// holds: trees and caches are within their bounds, and an estimate is what the
// peer said last and what it has been credited with since.
func (k *checker) holds(m *member) {
	c := k.c
	if !m.up {
		return
	}
	s := m.Status(c.now)
	if s.TreeTokens > c.cfg.TreeTokens || s.TreeBlocks > maxBlocks(c.cfg) {
		c.fail("%s: a tree of %d tokens in %d blocks, capacity %d tokens", m.name, s.TreeTokens, s.TreeBlocks, c.cfg.TreeTokens)
	}
	if held := m.engine.Tokens(); held > c.cfg.CapacityTokens {
		c.fail("%s: the engine has %d tokens cached, capacity %d", m.name, held, c.cfg.CapacityTokens)
	}
	known := 0
	for _, p := range s.Peers {
		b := k.nodes[m.index].peers[c.index[p.Name]]
		if b.rumor == nil || p.Life != b.rumor.Life || p.Version != b.rumor.Version || p.TreeBlocks != b.tree.Len() || p.Credits != len(b.credits) {
			c.fail("%s believes of %s version %d, %d blocks and %d credits; it cannot know that", m.name, p.Name, p.Version, p.TreeBlocks, p.Credits)
			return
		}
	}
	for _, b := range k.nodes[m.index].peers {
		if b.rumor != nil {
			known++
		}
	}
	if known != len(s.Peers) {
		c.fail("%s knows %d peers, heard of %d", m.name, len(s.Peers), known)
	}
}

// atEnd: two polls after the last fault every estimate is its owner's tree.
func (k *checker) atEnd() {
	c := k.c
	if c.stats.requests != c.pulled {
		c.fail("%d requests, %d answers", c.pulled, c.stats.requests)
	}
	if !c.mode.rumors {
		return
	}
	for _, peer := range c.members {
		if !peer.up || peer.stuck != nil {
			continue
		}
		tree := peer.Speak(c.now).Tree
		for _, m := range c.members {
			b := k.nodes[m.index].peers[peer.index]
			if m.up && m != peer && (b.rumor == nil || b.tree != tree || len(b.credits) > 0) {
				c.fail("%s does not know the tree of %s two polls after the last fault", m.name, peer.name)
			}
		}
	}
}
