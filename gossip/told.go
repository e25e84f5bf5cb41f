package gossip

import (
	"slices"

	"github.com/hearsay-project/hearsay/prefix"
)

// What a peer has told of its tree takes one of two forms. A whole tree is kept as
// the snapshot that it came as. With the first change to it, it begins to be merged
// into the view's index, which in the end has its blocks and nothing else does: a
// change names what has gone, so no copy is needed to find that out. A peer that
// always tells the whole (paper mode) is never merged.
type told struct {
	id      int              // in the index
	version uint64           // 0: nothing, or nothing that a change can be applied to
	tree    *prefix.Snapshot // nil once merged
	page    int              // of tree, the next to be merged
	waiting []*Change        // for that to be done; version and the last digest are with them
	merged  bool
	blocks  int
	digest  prefix.Digest
	credits []prefix.Hash // blocks in the index that are not told
}

// mergeStep is how many blocks are merged with one rumor heard: some 0.3 ms, for
// which requests wait to be routed, and a cluster of 64 nodes with a million tokens
// each is merged within 20 polls.
const mergeStep = 4096

// hearTree applies what an accepted rumor says of the tree. A whole tree always
// holds. A change holds for the version that it starts from, or one after it; with
// anything else, and when its digest shows that the view has drifted, nothing is
// held that later changes could build on, until the whole comes.
func (v *View) hearTree(p *peer, r Rumor) {
	t, c := &p.told, r.Change
	if c != nil && (t.version == 0 || c.Since > t.version) {
		return
	}
	v.uncredit(t)
	t.version = r.Version
	switch {
	case r.Tree != nil || c == nil:
		v.unmerge(t)
		t.tree, t.blocks, t.digest = r.Tree, r.Tree.Len(), r.Tree.Digest()
		t.verify(c)
	case t.merged || len(c.Gone)+len(c.Come)+len(t.waiting) == 0:
		v.apply(t, c)
	default:
		if len(t.waiting) == 0 {
			v.merging = append(v.merging, p)
		}
		t.waiting = append(t.waiting, c)
	}
}

// merge goes on with moving whole trees into the index.
func (v *View) merge() {
	for left := v.mergeStep; left > 0 && len(v.merging) > 0; {
		p := v.merging[0]
		t := &p.told
		for ; left > 0 && t.page < t.tree.Pages(); t.page++ {
			for _, h := range t.tree.Page(t.page) {
				if h != 0 {
					v.index.put(h, t.id)
					left--
				}
			}
		}
		if t.page < t.tree.Pages() {
			return
		}
		v.merging = slices.Delete(v.merging, 0, 1)
		credits := slices.Clone(t.credits)
		v.uncredit(t)
		t.tree, t.page, t.merged = nil, 0, true
		for _, c := range t.waiting {
			v.apply(t, c)
			left -= len(c.Gone) + len(c.Come)
		}
		t.waiting = nil
		v.credit(p, credits)
	}
}

// unmerge takes what a peer told out of the index.
func (v *View) unmerge(t *told) {
	v.merging = slices.DeleteFunc(v.merging, func(p *peer) bool { return &p.told == t })
	if t.merged || t.page > 0 {
		v.index.clear(t.id)
	}
	t.tree, t.page, t.waiting, t.merged = nil, 0, nil, false
}

// verify holds what is told to what a change says that it leads to.
func (t *told) verify(c *Change) {
	if c != nil && (c.Digest != t.digest || c.Blocks != t.blocks) {
		t.version = 0
	}
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
	t.verify(c)
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
	v.unmerge(t)
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
