package kvevents

import (
	"slices"
	"sync"

	"github.com/hearsay-project/hearsay/prefix"
)

// A Memo remembers which of the engine's blocks of tokens cover which blocks of a
// prompt's text, as it was told of prompts that the engine itself has cut into
// tokens. So the eviction of the one is the eviction of the other, and what is
// cached of a text is known in tokens.
//
// Where in a prompt's tokens a block of text ends is not known but where two
// prompts part: those tokens that both begin with belong to the text that both
// begin with. Between such points tokens are spread evenly.
//
// It is safe for concurrent use, and holds maxTexts blocks of text, those that it
// was told of last. A block costs about 200 bytes, and more where the engine's are
// smaller.
type Memo struct {
	max int // of texts

	mu    sync.Mutex
	texts map[prefix.Hash]covered
	needs map[prefix.Hash][]prefix.Hash // by block of tokens: the first blocks of text that need it
	ring  []prefix.Hash                 // of texts, in the order in which they came
	next  int                           // place in the ring
}

// covered says what of its prompt's tokens a block of text needs that those before
// it do not.
type covered struct {
	names  prefix.Chain // of blocks
	tokens int32        // that a prompt finds cached which shares this block of text and no more
}

// noText stands in Memo.needs for the end of a prompt, where tokens are not of its
// text: a chat's next turn has other ones there. It is no block's hash.
const noText prefix.Hash = 0

const maxTexts = 1 << 17

// NewMemo returns an empty memo.
func NewMemo() *Memo {
	return &Memo{max: maxTexts, texts: map[prefix.Hash]covered{}, needs: map[prefix.Hash][]prefix.Hash{}}
}

// Learn takes in that the text which chain names, of so many bytes, is a prompt of so
// many tokens, whose whole blocks of blockSize have these names.
func (m *Memo) Learn(chain prefix.Chain, bytes int, names prefix.Chain, tokens, blockSize int) {
	if len(chain) == 0 || len(names) == 0 || bytes <= 0 || blockSize <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	most := (tokens - 1) / blockSize // an engine computes the last token again
	known := chain.Longest(m.has)
	if known > 0 {
		shared := 0
		for shared < len(names) && m.needs[names[shared]] != nil {
			shared++
		}
		part := m.texts[chain[known-1]]
		part.tokens = int32(min(shared, most) * blockSize)
		m.texts[chain[known-1]] = part
	}
	end := func(i int) int { return int(int64(tokens) * int64(i+1) * prefix.BlockBytes / int64(bytes)) }
	at := 0 // block of tokens
	if known > 0 {
		at = min((end(known-1)+blockSize-1)/blockSize, len(names))
	}
	for i := known; i < len(chain); i++ {
		from := at
		for at < len(names) && at*blockSize < end(i) {
			at++
		}
		m.add(chain[i], covered{slices.Clone(names[from:at]), int32(min(end(i)/blockSize, most) * blockSize)})
	}
	last := m.texts[chain[len(chain)-1]]
	if tail := names[at:]; known < len(chain) && len(tail) > 0 {
		last.names = append(last.names, tail...)
		m.texts[chain[len(chain)-1]] = last
		for _, name := range tail {
			m.needs[name] = append(m.needs[name], noText)
		}
	}
}

// Tokens is how many tokens a prompt finds cached of which the first so many blocks
// of text are, where that was learnt.
func (m *Memo) Tokens(chain prefix.Chain, blocks int) (tokens int, known bool) {
	if blocks <= 0 || blocks > len(chain) {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.texts[chain[blocks-1]]
	return int(c.tokens), ok
}

// Knows says whether the memo was told of all of the text.
func (m *Memo) Knows(chain prefix.Chain) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return chain.Longest(m.has) == len(chain)
}

// Evicted returns the blocks of text that need one of the blocks of tokens named,
// and so are no longer cached: neither they nor what follows them. One may be there
// more than once.
func (m *Memo) Evicted(names []prefix.Hash) (texts []prefix.Hash) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		for _, text := range m.needs[name] {
			if text != noText {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

func (m *Memo) has(h prefix.Hash) bool {
	_, ok := m.texts[h]
	return ok
}

// add is for a block of text that is new.
func (m *Memo) add(h prefix.Hash, c covered) {
	if len(m.ring) < m.max {
		m.ring = append(m.ring, h)
	} else {
		m.forget(m.ring[m.next])
		m.ring[m.next] = h
		m.next = (m.next + 1) % m.max
	}
	m.texts[h] = c
	for _, name := range c.names {
		m.needs[name] = append(m.needs[name], h)
	}
}

func (m *Memo) forget(h prefix.Hash) {
	for _, name := range m.texts[h].names {
		left := m.needs[name]
		i := slices.Index(left, h)
		if i < 0 {
			i = slices.Index(left, noText)
		}
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		if m.needs[name] = left; len(left) == 0 {
			delete(m.needs, name)
		}
	}
	delete(m.texts, h)
}
