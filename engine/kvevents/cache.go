package kvevents

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/prefix"
)

// A Cache holds what the engine has cached, as its events tell it, over blocks of
// its own size. A block's name is that of all tokens up to its end, as in package
// prefix, so what is cached of a prompt is found by its tokens alone, whatever the
// engine calls its blocks. A block counts as often as it was stored: vLLM stores
// equal blocks twice where two requests computed them at once, and tells of the
// removal of each. One that several ranks hold is cached until the last has let go.
//
// It is safe for concurrent use. A block costs about 80 bytes.
type Cache struct {
	forgot func(names []prefix.Hash)

	mu        sync.Mutex
	blockSize int
	ranks     map[int]*rankCache
	names     map[prefix.Hash]int32 // by how many ranks each is held
	counts    CacheStats
	gone      []prefix.Hash // since the lock was taken
}

// rankCache is the cache of one rank, by the engine's names.
type rankCache struct {
	group  int // the one group of layers that is followed, -1 until one was seen
	blocks map[uint64]held
}

type held struct {
	name   prefix.Hash
	copies int32
}

// CacheStats says what a Cache holds and could not. All but Blocks and Most only grow.
type CacheStats struct {
	Blocks   int   // held, equal ones of several ranks once
	Most     int   // held at a time, since there were none
	Stored   int64 // blocks that events stored and that were taken in
	Removed  int64 // and that they removed
	Orphans  int64 // blocks that follow one which is not known, stored before the first event that came: these have no name
	Overflow int64 // blocks that found no room
}

// maxBlocks bounds a Cache, at some 160 MB. SGLang's blocks are of one token unless
// it is told otherwise (--page-size).
const maxBlocks = 1 << 21

const defaultBlockSize = 16

// NewCache returns an empty cache. forgot is told the names of blocks that have just
// been evicted, in the order of their removal, outside of any lock and from the
// goroutine that applied the events; it may be nil.
func NewCache(forgot func(names []prefix.Hash)) *Cache {
	return &Cache{forgot: forgot, blockSize: defaultBlockSize, ranks: map[int]*rankCache{}, names: map[prefix.Hash]int32{}}
}

// A Space is what makes equal tokens different blocks of a cache.
type Space struct {
	Adapter string // LoRA adapter, empty for none
	Salt    string // cache_salt
}

// root is the name before the first block. It needs no key: these names are never
// told to anyone.
func (s Space) root(blockSize int) prefix.Hash {
	b := binary.LittleEndian.AppendUint64(nil, uint64(blockSize))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.Adapter)))
	return prefix.Hash(xxh3.HashString(string(b) + s.Adapter + s.Salt))
}

// after is the name of the block of these tokens after the one named.
func after(h prefix.Hash, tokens []uint32, extra uint64) prefix.Hash {
	var room [4 * 64]byte // blocks are seldom larger
	text := room[:0]
	for _, t := range tokens {
		text = binary.LittleEndian.AppendUint32(text, t)
	}
	if extra != 0 {
		text = binary.LittleEndian.AppendUint64(text, extra)
	}
	return prefix.Hash(xxh3.HashSeed(text, uint64(h)))
}

// BlockSize is how many tokens the engine's blocks have; until it has stored one, what
// vLLM's have by default.
func (c *Cache) BlockSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blockSize
}

// Stats returns what has been counted.
func (c *Cache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.counts
	s.Blocks = len(c.names)
	return s
}

// Names names the whole blocks of a prompt of these tokens, for blocks of BlockSize.
func (c *Cache) Names(s Space, tokens []uint32) prefix.Chain {
	size := c.BlockSize()
	chain := make(prefix.Chain, 0, len(tokens)/size)
	h := s.root(size)
	for block := range slices.Chunk(tokens, size) {
		if len(block) == size {
			h = after(h, block, 0)
			chain = append(chain, h)
		}
	}
	return chain
}

// Match returns how many leading blocks of names are cached: those that a request
// finds. An engine may hold a block without the one before it, which does not help.
func (c *Cache) Match(names prefix.Chain) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, h := range names {
		if c.names[h] == 0 {
			return i
		}
	}
	return len(names)
}

// Apply is for a Follower.
func (c *Cache) Apply(rank int, events []Event) {
	c.locked(func() {
		r := c.ranks[rank]
		if r == nil {
			r = &rankCache{group: -1, blocks: map[uint64]held{}}
			c.ranks[rank] = r
		}
		for i := range events {
			e := &events[i]
			switch {
			case !e.Counts:
			case e.Kind == Cleared:
				c.clear(r)
			case e.Kind == Stored && (r.group < 0 || r.group == e.Group):
				r.group = e.Group
				c.store(r, e)
			case e.Kind == Removed && (r.group < 0 || r.group == e.Group):
				c.remove(r, e)
			}
		}
	})
}

// Clear is for a Follower.
func (c *Cache) Clear(rank int) {
	c.locked(func() {
		if r := c.ranks[rank]; r != nil {
			c.clear(r)
		}
	})
}

// locked runs f and then tells what is gone.
func (c *Cache) locked(f func()) {
	c.mu.Lock()
	f()
	if c.counts.Most = max(c.counts.Most, len(c.names)); len(c.names) == 0 {
		c.counts.Most = 0
	}
	gone := c.gone
	c.gone = nil
	c.mu.Unlock()
	if len(gone) > 0 && c.forgot != nil {
		c.forgot(gone)
	}
}

func (c *Cache) store(r *rankCache, e *Event) {
	if len(c.names) == 0 {
		c.blockSize = e.BlockSize
	}
	h := Space{e.Adapter, e.Salt}.root(c.blockSize)
	if e.HasParent {
		parent, ok := r.blocks[e.Parent]
		if !ok {
			c.counts.Orphans += int64(len(e.Hashes))
			return
		}
		h = parent.name
	}
	for i, id := range e.Hashes {
		extra := uint64(0)
		if e.Extra != nil {
			extra = e.Extra[i]
		}
		h = after(h, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], extra)
		old, again := r.blocks[id]
		if !again && c.held() >= maxBlocks {
			c.counts.Overflow++
			continue
		}
		c.counts.Stored++
		if again && old.name == h {
			r.blocks[id] = held{h, old.copies + 1}
			continue
		}
		if again { // the engine uses a name again: of the old block no more is known
			c.drop(old.name)
		}
		r.blocks[id] = held{h, 1}
		c.names[h]++
	}
}

func (c *Cache) remove(r *rankCache, e *Event) {
	for _, id := range e.Hashes {
		b, ok := r.blocks[id]
		if !ok {
			continue
		}
		c.counts.Removed++
		if b.copies--; b.copies > 0 {
			r.blocks[id] = b
			continue
		}
		delete(r.blocks, id)
		c.drop(b.name)
	}
}

func (c *Cache) drop(name prefix.Hash) {
	if c.names[name]--; c.names[name] > 0 {
		return
	}
	delete(c.names, name)
	c.gone = append(c.gone, name)
}

func (c *Cache) clear(r *rankCache) {
	for _, b := range r.blocks {
		c.drop(b.name)
	}
	*r = rankCache{group: -1, blocks: map[uint64]held{}}
}

func (c *Cache) held() (n int) {
	for _, r := range c.ranks {
		n += len(r.blocks)
	}
	return n
}
