package gossip

import (
	"slices"

	"github.com/hearsay-project/hearsay/prefix"
)

// What a peer has told of its tree takes one of two forms. A whole tree is kept as
// the snapshot that it came as. With the first change to it, it is merged into the
// view's index, which from then on has its blocks and nothing else does: a change
// names what has gone, so no copy is needed to find that out. A peer that always
// tells the whole (paper mode) is never merged.
type told struct {
	id      int              // in the index
	version uint64           // 0: nothing, or nothing that a change can be applied to
	tree    *prefix.Snapshot // nil once merged
	merged  bool
	blocks  int
	digest  prefix.Digest
	credits []prefix.Hash // blocks in the index that are not told
}

// hearTree applies what an accepted rumor says of the tree. A whole tree always
// holds. A change holds for the version that it starts from, or one after it; with
// anything else, and when its digest shows that the view has drifted, nothing is
// held that later changes could build on, until the whole comes.
func (v *View) hearTree(p *peer, r Rumor) {
	t := &p.told
	if r.Change != nil && (t.version == 0 || r.Change.Since > t.version) {
		return
	}
	v.uncredit(t)
	switch {
	case r.Tree != nil || r.Change == nil:
		if t.merged {
			v.index.clear(t.id)
		}
		t.tree, t.merged = r.Tree, false
		t.blocks, t.digest = r.Tree.Len(), r.Tree.Digest()
	case len(r.Change.Gone)+len(r.Change.Come) > 0:
		v.merge(t)
		v.apply(t, r.Change)
	}
	t.version = r.Version
	if c := r.Change; c != nil && (c.Digest != t.digest || c.Blocks != t.blocks) {
		t.version = 0
	}
}

// merge moves a whole tree into the index, some 100 ns a block.
func (v *View) merge(t *told) {
	for h := range t.tree.All() {
		v.index.put(h, t.id)
	}
	t.tree, t.merged = nil, true
}

func (v *View) apply(t *told, c *Change) {
	for _, h := range c.Gone {
		if v.index.drop(h, t.id) {
			t.blocks--
			t.digest = t.digest.Without(h)
		}
	}
	for _, h := range c.Come {
		if v.index.put(h, t.id) {
			t.blocks++
			t.digest = t.digest.With(h)
		}
	}
}

// credit adds blocks that are not told, up to CreditsMax. At it the rest is refused
// rather than older ones dropped: those are about to be replaced, and a set that
// loses heads of chains is no longer prefix-closed.
func (v *View) credit(p *peer, blocks []prefix.Hash) {
	for _, h := range blocks {
		if p.told.tree.Has(h) || v.index.has(h, p.told.id) {
			continue
		}
		if len(p.told.credits) >= v.cfg.CreditsMax {
			return
		}
		v.index.put(h, p.told.id)
		p.told.credits = append(p.told.credits, h)
	}
}

func (v *View) uncredit(t *told) {
	for _, h := range t.credits {
		v.index.drop(h, t.id)
	}
	t.credits = t.credits[:0]
}

// forgetTold drops what a peer told and was credited with.
func (v *View) forgetTold(p *peer) {
	t := &p.told
	v.uncredit(t)
	if t.merged {
		v.index.clear(t.id)
	}
	p.told = told{id: t.id}
}

// match returns how many leading blocks of c a peer holds, told or credited, which
// together are prefix-closed as each is.
func (v *View) match(p *peer, c prefix.Chain) int {
	if !p.told.merged && len(p.told.credits) == 0 {
		return p.told.tree.Match(c)
	}
	return c.Longest(func(h prefix.Hash) bool { return p.told.tree.Has(h) || v.index.has(h, p.told.id) })
}

// takeID returns an id that no peer has.
func (v *View) takeID() int {
	id := slices.Index(v.ids, false)
	if id < 0 {
		id = len(v.ids)
		v.ids, v.depths = append(v.ids, false), append(v.depths, 0)
	}
	v.ids[id] = true
	return id
}

// Told returns which version of a peer's tree, and of which life, is held, for the
// peer to tell what has changed since; 0: none that a change could be applied to.
func (v *View) Told(peer string) (life, version uint64) {
	if p := v.byName[peer]; p != nil {
		return p.life, p.told.version
	}
	return 0, 0
}
