package builtin

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A naiveCache is the cache as a list: every full page by its whole prefix,
// with who uses it and when it was last given up.
type naiveCache struct {
	pages map[string]*naivePage
	clock int
}

type naivePage struct {
	prefix []int32
	refs   int
	left   int // clock of the last release
}

func prefixName(tokens []int32) string {
	b := make([]byte, 0, len(tokens))
	for _, t := range tokens {
		b = append(b, byte(t))
	}
	return string(b)
}

func (c *naiveCache) match(tokens []int32) int {
	n := 0
	for n+pageTokens <= len(tokens) && c.pages[prefixName(tokens[:n+pageTokens])] != nil {
		n += pageTokens
	}
	return n
}

// evict drops the unreferenced leaf that was given up first.
func (c *naiveCache) evict() {
	var oldest string
	for name, p := range c.pages {
		leaf := true
		for _, other := range c.pages {
			if len(other.prefix) > len(p.prefix) && slices.Equal(other.prefix[:len(p.prefix)], p.prefix) {
				leaf = false
			}
		}
		if leaf && p.refs == 0 && (oldest == "" || p.left < c.pages[oldest].left) {
			oldest = name
		}
	}
	delete(c.pages, oldest)
}

// A user is what a sequence does to the cache, without computing.
type user struct {
	tokens []int32
	path   []*node
	tail   [][]float32
}

// checkCache walks the whole tree and proves what must always hold.
func checkCache(t *rapid.T, c *cache, users []*user) {
	t.Helper()
	refs := map[*node]int{}
	private := 0
	owner := map[*float32]bool{}
	own := func(page []float32) {
		if owner[&page[0]] {
			t.Fatal("a page is in two places")
		}
		owner[&page[0]] = true
	}
	for _, u := range users {
		private += len(u.tail)
		for _, p := range u.tail {
			own(p)
		}
		for _, n := range u.path {
			refs[n]++
		}
	}
	for _, p := range c.free {
		own(p)
	}
	nodes, idle := 0, 0
	var walk func(n *node)
	walk = func(n *node) {
		for key, child := range n.children {
			nodes++
			own(child.page)
			if child.refs != refs[child] || child.refs < 0 {
				t.Fatalf("a node counts %d references and has %d", child.refs, refs[child])
			}
			if child.refs == 0 {
				idle++
			}
			if child.parent != n || child.key != key {
				t.Fatal("a node is not where it says")
			}
			delete(refs, child)
			walk(child)
		}
	}
	walk(&c.root)
	if len(refs) > 0 {
		t.Fatal("a referenced page was evicted")
	}
	if c.used() > c.limit || c.used() != nodes+private || c.made != nodes+private+len(c.free) || c.idles != idle {
		t.Fatalf("%d made, %d free, %d in the tree of which %d idle (counted %d), %d private, limit %d",
			c.made, len(c.free), nodes, idle, c.idles, private, c.limit)
	}
	for n := c.idle.older; n != &c.idle; n = n.older {
		if n.parent.refs == 0 && n.parent.parent != nil {
			later := false
			for m := n.newer; m != &c.idle; m = m.newer {
				later = later || m == n.parent
			}
			if !later {
				t.Fatal("a child was used later than its parent")
			}
		}
	}
}

// A cacheTest does the same things to the cache and to the naive one.
type cacheTest struct {
	cache *cache
	naive *naiveCache
	users []*user
}

func (c *cacheTest) user(t *rapid.T) *user {
	if len(c.users) == 0 {
		t.Skip("nobody")
	}
	return rapid.SampledFrom(c.users).Draw(t, "user")
}

// join lets a sequence begin with what the cache has of it.
func (c *cacheTest) join(t *rapid.T) {
	u := &user{}
	for range rapid.IntRange(1, 5).Draw(t, "length") { // pages of one token each, so that prefixes meet
		u.tokens = append(u.tokens, slices.Repeat([]int32{rapid.Int32Range(0, 1).Draw(t, "token")}, pageTokens)...)
	}
	want := c.naive.match(u.tokens)
	var last *node
	for {
		n := c.cache.match(last, u.tokens[len(u.path)*pageTokens:])
		if n == nil {
			break
		}
		last, u.path = n, append(u.path, n)
		c.naive.pages[prefixName(u.tokens[:len(u.path)*pageTokens])].refs++
	}
	if got := len(u.path) * pageTokens; got != want {
		t.Fatalf("matched %d tokens, want %d", got, want)
	}
	c.users = append(c.users, u)
}

// fill lets a sequence take its next page, and mostly share it.
func (c *cacheTest) fill(t *rapid.T) {
	u := c.user(t)
	if (len(u.path)+1)*pageTokens > len(u.tokens) {
		t.Skip("full")
	}
	private := 0
	for _, u := range c.users {
		private += len(u.tail)
	}
	evicts := len(c.naive.pages)+private == c.cache.limit
	available := c.cache.available()
	page := c.cache.alloc()
	if (page != nil) != (available > 0) {
		t.Fatalf("%d pages were available and alloc gave one: %v", available, page != nil)
	}
	if page == nil {
		return
	}
	if page[0] != 0 {
		t.Fatal("a page was not zeroed")
	}
	page[0] = 1
	if evicts {
		c.naive.evict()
	}
	if len(u.tail) == 0 && rapid.IntRange(0, 3).Draw(t, "keep private") == 0 {
		u.tail = append(u.tail, page)
		return
	}
	var last *node
	if len(u.path) > 0 {
		last = u.path[len(u.path)-1]
	}
	at := len(u.path) * pageTokens
	u.path = append(u.path, c.cache.insert(last, u.tokens[at:], page))
	name := prefixName(u.tokens[:at+pageTokens])
	if c.naive.pages[name] == nil {
		c.naive.pages[name] = &naivePage{prefix: u.tokens[:at+pageTokens]}
	}
	c.naive.pages[name].refs++
}

// leave ends a sequence.
func (c *cacheTest) leave(t *rapid.T) {
	u := c.user(t)
	for _, p := range u.tail {
		c.cache.discard(p)
	}
	for n := len(u.path); n > 0; n-- {
		c.naive.clock++
		p := c.naive.pages[prefixName(u.tokens[:n*pageTokens])]
		p.refs, p.left = p.refs-1, c.naive.clock
	}
	c.cache.release(u.path)
	c.users = slices.DeleteFunc(c.users, func(other *user) bool { return other == u })
}

// Whatever sequences do, the tree matches what a list of prefixes would, counts
// its references and pages, and evicts the oldest leaf that nobody uses.
func TestCacheEqualsANaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &cacheTest{cache: newCache(rapid.IntRange(1, 12).Draw(t, "pages"), 1), naive: &naiveCache{pages: map[string]*naivePage{}}}
		t.Repeat(map[string]func(*rapid.T){
			"":      func(t *rapid.T) { checkCache(t, c.cache, c.users) },
			"join":  c.join,
			"fill":  c.fill,
			"leave": c.leave,
		})
	})
}
