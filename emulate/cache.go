package emulate

import "github.com/hearsay-project/hearsay/prefix"

// A cache is an engine's set of KV blocks by the prefix they end. Blocks in use
// are pinned and cannot go; the others stand in a list by age, where the oldest
// goes first. A chain is pinned and released as a whole, from its head, and
// released from its deepest block up: so a block is never pinned or younger
// without its parent being so too, and the oldest block in the list is a leaf.
type cache struct {
	index  map[prefix.Hash]int32
	blocks []cacheBlock // blocks[0] is both ends of the list
	free   int32        // unused blocks, linked by newer

	record  bool // of changes, see Engine.Record
	changes []Change

	pinned int // blocks with pins
}

type cacheBlock struct {
	hash         prefix.Hash
	pins         int32
	newer, older int32
}

func (c *cache) reset() {
	*c = cache{record: c.record, index: map[prefix.Hash]int32{}, blocks: make([]cacheBlock, 1)}
}

func (c *cache) len() int { return len(c.index) }

func (c *cache) has(h prefix.Hash) bool {
	_, ok := c.index[h]
	return ok
}

// match returns how many leading blocks of chain are cached, and how many of
// these nothing pins.
func (c *cache) match(chain prefix.Chain) (held, idle int) {
	held = chain.Longest(c.has)
	// Pinned blocks are a head of the chain: what pins a block pins its parents.
	pinned := chain[:held].Longest(func(h prefix.Hash) bool { return c.blocks[c.index[h]].pins > 0 })
	return held, held - pinned
}

// pin pins the blocks of chain, which are cached.
func (c *cache) pin(chain prefix.Chain) {
	for _, h := range chain {
		c.hold(c.index[h])
	}
}

// insert adds and pins the blocks of chain from held on, while those that nothing
// pinned before are at most room. The blocks before held the caller has pinned
// already. It returns how many it now has.
func (c *cache) insert(chain prefix.Chain, held, room int) int {
	for _, h := range chain[held:] {
		i, ok := c.index[h]
		if !ok || c.blocks[i].pins == 0 {
			if room--; room < 0 {
				break
			}
		}
		if !ok {
			i = c.add(h)
		}
		c.hold(i)
		held++
	}
	return held
}

// release undoes one pin of each block of chain and makes those that nothing else
// pins the most recent.
func (c *cache) release(chain prefix.Chain) {
	for k := len(chain) - 1; k >= 0; k-- {
		i := c.index[chain[k]]
		if c.blocks[i].pins--; c.blocks[i].pins == 0 {
			c.pinned--
			c.link(i, c.blocks[0].older)
		}
	}
}

// evict forgets the oldest block that is not pinned and reports whether there was one.
func (c *cache) evict() bool {
	i := c.blocks[0].newer
	if i == 0 {
		return false
	}
	c.unlink(i)
	c.note(c.blocks[i].hash, false)
	delete(c.index, c.blocks[i].hash)
	c.blocks[i] = cacheBlock{newer: c.free}
	c.free = i
	return true
}

func (c *cache) hold(i int32) {
	if c.blocks[i].pins++; c.blocks[i].pins == 1 {
		c.pinned++
		c.unlink(i)
	}
}

// add returns a new block in the list, for its caller to pin.
func (c *cache) add(h prefix.Hash) int32 {
	i := c.free
	if i == 0 {
		i = int32(len(c.blocks))
		c.blocks = append(c.blocks, cacheBlock{})
	} else {
		c.free = c.blocks[i].newer
	}
	c.blocks[i] = cacheBlock{hash: h, newer: i, older: i}
	c.index[h] = i
	c.note(h, true)
	return i
}

func (c *cache) note(h prefix.Hash, stored bool) {
	if c.record {
		c.changes = append(c.changes, Change{h, stored})
	}
}

// link puts i into the list as the next newer one than older.
func (c *cache) link(i, older int32) {
	newer := c.blocks[older].newer
	c.blocks[i].older, c.blocks[i].newer = older, newer
	c.blocks[older].newer, c.blocks[newer].older = i, i
}

func (c *cache) unlink(i int32) {
	b := c.blocks[i]
	c.blocks[b.older].newer, c.blocks[b.newer].older = b.newer, b.older
}
