package gossip

import (
	"slices"

	"github.com/hearsay-project/hearsay/prefix"
)

// A Journal is what an author remembers of its tree's past, so as to tell each peer
// what has changed since the version that the peer holds. It names each block that
// came or went, once a rumor, and whether it stands in the tree now: so a change
// since one version holds for whoever has any later one as well, and acks may be
// late, lost or out of order.
//
// It names no more blocks than the tree has, or some thousand: who holds a version
// from before gets the whole, which is smaller. The zero Journal is ready.
type Journal struct {
	life, version uint64 // of the last rumor
	tree          *prefix.Snapshot
	from          uint64 // the oldest version since which all is known
	steps         []step // oldest first
	size          int    // blocks that they name
}

type step struct {
	version uint64 // of the rumor that told them
	blocks  []prefix.Hash
}

const journalFloor = 1024

// Add takes in the author's next rumor, which has the whole tree. It costs what has
// changed since the last.
func (j *Journal) Add(r Rumor) {
	if r.Life != j.life {
		*j = Journal{life: r.Life, tree: r.Tree, from: r.Version}
	}
	var s step
	for h := range r.Tree.Since(j.tree) {
		s.blocks = append(s.blocks, h)
	}
	for h := range j.tree.Since(r.Tree) {
		s.blocks = append(s.blocks, h)
	}
	j.tree, j.version = r.Tree, r.Version
	if len(s.blocks) > 0 {
		s.version = r.Version
		j.steps, j.size = append(j.steps, s), j.size+len(s.blocks)
	}
	gone := 0
	for ; j.size > max(j.tree.Len(), journalFloor); gone++ {
		j.from, j.size = j.steps[gone].version, j.size-len(j.steps[gone].blocks)
	}
	j.steps = slices.Delete(j.steps, 0, gone)
}

// Since returns what has changed since a version, or nil when the journal does not
// go back so far. It starts from the first version of which that holds as well: of a
// tree that stood still, from when it began to. The caller may keep it.
func (j *Journal) Since(version uint64) *Change {
	if version < j.from || version > j.version || version == 0 {
		return nil
	}
	c := &Change{Since: version, Blocks: j.tree.Len(), Digest: j.tree.Digest()}
	first, _ := slices.BinarySearchFunc(j.steps, version+1, func(s step, v uint64) int { return int(int64(s.version - v)) })
	if c.Since = j.from; first > 0 {
		c.Since = j.steps[first-1].version
	}
	var touched []prefix.Hash
	for _, s := range j.steps[first:] {
		touched = append(touched, s.blocks...)
	}
	slices.Sort(touched)
	for _, h := range slices.Compact(touched) {
		if j.tree.Has(h) {
			c.Come = append(c.Come, h)
		} else {
			c.Gone = append(c.Gone, h)
		}
	}
	return c
}
