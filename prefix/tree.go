package prefix

// A Tree records which prefixes the engine beside this node has cached, as far
// as the engine's reports tell, and forgets as the engine does: when it is full,
// the least recently used leaf goes (the paper's evictLRUTrie).
//
// One node writes it and nobody else: it is not safe for concurrent use. A block
// costs about 100 bytes. Create it with NewTree.
type Tree struct {
	maxUnits  int64
	maxBlocks int

	units  int64
	index  map[Hash]int32
	blocks []block // blocks[0] is h_0: parent of first blocks, and both ends of the age list
	free   int32   // removed blocks, linked by next
	tail   tail

	draft    draft     // of the next snapshot: the blocks that are told
	snapshot *Snapshot // of it, nil while none is taken
	gone     int       // blocks that were told and have gone since the last
}

type block struct {
	hash         Hash
	units        int64 // its tokens, in 1/unitsPerToken
	parent       int32
	child        int32 // newest child
	prev, next   int32 // siblings, newest first
	newer, older int32 // by last touch
	last         bool  // stands in the tail
	told         bool  // stands in the draft
	ended        bool  // a chain that was inserted ends here
}

// Tokens are counted in fixed point: a block's share of its text's tokens is a
// fraction, and adding and taking away floats for months would drift.
const unitsPerToken = 1 << 16

// maxTokens keeps the sum of all units inside an int64.
const maxTokens = 1 << 40

// MaxBlocks is the most blocks that a tree may hold and a decoder accepts:
// 64 MiB of distinct text, 9 MiB of rumor.
const MaxBlocks = 1 << 20

// NewTree returns an empty tree that will hold at most maxTokens tokens and
// maxBlocks blocks. A limit of zero or less holds nothing; no tree holds more
// than MaxBlocks.
func NewTree(maxTokens, maxBlocks int) *Tree {
	t := &Tree{maxBlocks: max(0, min(maxBlocks, MaxBlocks))}
	t.maxUnits = units(maxTokens)
	t.Clear()
	return t
}

// Clear forgets everything: the engine has restarted or dropped its cache.
func (t *Tree) Clear() {
	t.units, t.free = 0, 0
	t.index = map[Hash]int32{}
	t.blocks = make([]block, 1)
	t.draft, t.snapshot, t.gone, t.tail = draft{}, nil, t.gone+t.draft.n, tail{}
}

// Len returns the number of blocks held.
func (t *Tree) Len() int { return len(t.index) }

// Tokens returns the tokens of all blocks held, rounded up.
func (t *Tree) Tokens() int { return int((t.units + unitsPerToken - 1) / unitsPerToken) }

// Has reports whether the prefix that h names is cached.
func (t *Tree) Has(h Hash) bool {
	_, ok := t.index[h]
	return ok
}

// Match returns how many leading blocks of c are cached. Looking is not using:
// it leaves the blocks' ages alone.
func (t *Tree) Match(c Chain) int { return c.Longest(t.Has) }

// Insert records that the engine has computed c, whose text has the given number
// of tokens (the paper's updateTrie), and returns how many blocks had to go for
// it. The tokens are spread evenly over the blocks of c, also over those that are
// already here: the last word on a text's tokens is the best. A chain too long for
// the tree's limits leaves its head.
//
// Insert touches c from its deepest block up, so a block is always more recent
// than its children, the oldest block is always a leaf, and evicting is O(1).
func (t *Tree) Insert(c Chain, tokens int) (evicted int) {
	t.tail.revived = 0
	if len(c) == 0 || t.maxBlocks == 0 {
		return 0
	}
	share, rest := units(tokens)/int64(len(c)), units(tokens)%int64(len(c))
	at := int32(0)
	placed := 0
	for i, h := range c[:min(len(c), t.maxBlocks)] {
		j, ok := t.index[h]
		if !ok {
			j = t.add(at, h)
		} else if t.blocks[j].parent != at {
			// Two prefixes with one name, by chance once in 2^64: the
			// tree holds the elder, and of this chain what stands above.
			break
		}
		units := share
		if int64(i) < rest {
			units++
		}
		if t.blocks[j].last {
			t.tail.revived += units
			t.tail.units += units - t.blocks[j].units
		}
		t.units += units - t.blocks[j].units
		t.blocks[j].units = units
		at, placed = j, i+1
	}
	t.blocks[at].ended = t.blocks[at].ended || placed == len(c)
	for ; at != 0; at = t.blocks[at].parent {
		t.touch(at)
	}
	return t.evict()
}

// Prune removes block keep of c and every block below it, on other branches too:
// the engine has shown that it holds only the first keep blocks. It returns how
// many blocks went.
func (t *Tree) Prune(c Chain, keep int) (removed int) {
	keep = max(keep, 0)
	if keep >= len(c) {
		return 0
	}
	top, ok := t.index[c[keep]]
	if !ok {
		return 0
	}
	for i := top; ; {
		for t.blocks[i].child != 0 {
			i = t.blocks[i].child
		}
		parent := t.blocks[i].parent
		t.remove(i)
		removed++
		if i == top {
			t.level()
			return removed
		}
		i = parent
	}
}

// SetMaxTokens changes the limit, evicting at once what no longer fits.
func (t *Tree) SetMaxTokens(n int) (evicted int) {
	t.maxUnits = units(n)
	return t.evict()
}

func units(tokens int) int64 { return int64(max(0, min(tokens, maxTokens))) * unitsPerToken }

func (t *Tree) evict() (evicted int) {
	for len(t.index) > t.maxBlocks || t.units > t.maxUnits {
		t.remove(t.blocks[0].newer)
		evicted++
	}
	t.level()
	return evicted
}

// add makes h the newest child of parent and the most recent block.
func (t *Tree) add(parent int32, h Hash) int32 {
	i := t.free
	if i == 0 {
		i = int32(len(t.blocks))
		t.blocks = append(t.blocks, block{})
	} else {
		t.free = t.blocks[i].next
	}
	sibling := t.blocks[parent].child
	t.blocks[i] = block{hash: h, parent: parent, next: sibling, newer: i, older: i}
	if sibling != 0 {
		t.blocks[sibling].prev = i
	}
	t.blocks[parent].child = i
	t.touch(i)
	t.index[h] = i
	return i
}

// remove takes out a leaf.
func (t *Tree) remove(i int32) {
	b := t.blocks[i]
	if b.prev != 0 {
		t.blocks[b.prev].next = b.next
	} else {
		t.blocks[b.parent].child = b.next
	}
	if b.next != 0 {
		t.blocks[b.next].prev = b.prev
	}
	t.shorten(i)
	t.blocks[b.newer].older, t.blocks[b.older].newer = b.older, b.newer
	if b.told {
		t.untell(i)
		t.gone++
	}
	t.blocks[i] = block{next: t.free}
	t.free = i
	delete(t.index, b.hash)
	t.units -= b.units
}

// touch makes i the most recent block.
func (t *Tree) touch(i int32) {
	t.shorten(i)
	b := &t.blocks[i]
	t.blocks[b.newer].older, t.blocks[b.older].newer = b.older, b.newer
	first := t.blocks[0].older
	b.newer, b.older = 0, first
	t.blocks[0].older, t.blocks[first].newer = i, i
}
