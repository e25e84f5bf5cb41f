package builtin

// pageTokens is the number of positions in a page: the unit in which KV memory
// is allocated, shared and evicted.
const pageTokens = 16

// A key is the tokens of one full page.
type key [pageTokens]int32

// A node of the radix tree owns one full page: the keys and values of its
// tokens after all tokens on the path above it. One token path has one node, so
// a page is never held twice.
type node struct {
	key          key
	parent       *node
	children     map[key]*node
	page         []float32
	refs         int   // sequences whose prefix runs through here
	newer, older *node // neighbours among the unreferenced, by time of last use
}

// A cache is the paged KV memory of an engine: a radix tree of full pages over
// a bounded pool. It belongs to one goroutine.
//
// A page is free, private to a sequence that fills it, referenced in the tree,
// or idle in the tree. Idle nodes stand in a list by last use. A sequence
// releases its path from the deepest node up, so that a node is always used
// later than its children and the oldest idle node is always a leaf: evicting
// is O(1), and what is in use is never evicted.
type cache struct {
	root   node
	idle   node // ring: idle.older is the most recent, idle.newer the oldest
	idles  int
	free   [][]float32
	made   int // pages that exist
	limit  int // pages that may
	floats int // size of a page
}

func newCache(pages, floats int) *cache {
	c := &cache{limit: pages, floats: floats}
	c.idle.newer, c.idle.older = &c.idle, &c.idle
	return c
}

// used is the number of pages that hold something.
func (c *cache) used() int { return c.made - len(c.free) }

// available is the number of pages that alloc could give before it fails.
func (c *cache) available() int { return c.limit - c.used() + c.idles }

// alloc gives a zeroed page, evicting the oldest idle leaf when all are used,
// or nil when every page is referenced. Pages are made on first use.
func (c *cache) alloc() []float32 {
	if len(c.free) == 0 && c.made < c.limit {
		c.made++
		return make([]float32, c.floats)
	}
	if len(c.free) == 0 {
		if c.idles == 0 {
			return nil
		}
		c.evict(c.idle.newer)
	}
	page := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	clear(page) // a product reads the whole page, and zero times an old NaN is NaN
	return page
}

// discard takes back a private page.
func (c *cache) discard(page []float32) { c.free = append(c.free, page) }

func (c *cache) evict(n *node) {
	c.unlink(n)
	delete(n.parent.children, n.key)
	c.discard(n.page)
	n.page = nil
}

// match acquires the node below n (nil: the root) that holds the first page of
// tokens, or gives nil.
func (c *cache) match(n *node, tokens []int32) *node {
	if len(tokens) < pageTokens {
		return nil
	}
	if n == nil {
		n = &c.root
	}
	child := n.children[key(tokens)]
	if child != nil {
		c.acquire(child)
	}
	return child
}

// insert puts a private page that holds the first page of tokens below n (nil:
// the root) and acquires its node. Where the tree has such a page already, the
// private one is discarded: the two are equal to the bit.
func (c *cache) insert(n *node, tokens []int32, page []float32) *node {
	if child := c.match(n, tokens); child != nil {
		c.discard(page)
		return child
	}
	if n == nil {
		n = &c.root
	}
	if n.children == nil {
		n.children = make(map[key]*node)
	}
	child := &node{key: key(tokens), parent: n, page: page, refs: 1}
	n.children[child.key] = child
	return child
}

func (c *cache) acquire(n *node) {
	if n.refs == 0 {
		c.unlink(n)
	}
	n.refs++
}

// release gives up a path from the root down, as match and insert returned it.
func (c *cache) release(path []*node) {
	for i := len(path) - 1; i >= 0; i-- {
		n := path[i]
		if n.refs--; n.refs > 0 {
			continue
		}
		n.newer, n.older = &c.idle, c.idle.older
		n.newer.older, n.older.newer = n, n
		c.idles++
	}
}

func (c *cache) unlink(n *node) {
	n.newer.older, n.older.newer = n.older, n.newer
	n.newer, n.older = nil, nil
	c.idles--
}
