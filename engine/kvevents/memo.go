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
	size  int // of blocks of tokens
	texts map[prefix.Hash]covered
	needs map[prefix.Hash][]prefix.Hash // by block of tokens: the first blocks of text that need it
	ring  []prefix.Hash                 // of texts, in the order in which they came
	next  int                           // place in the ring

	shares, older map[prefix.Hash]int32 // tokens that prompts find cached which part after a block of text
}

// covered says what of its prompt's tokens a block of text needs that those before
// it do not.
type covered struct {
	names  prefix.Chain // of blocks that end in it
	tokens int32        // that a prompt finds cached which parts from this one in the next block, by an estimate; below 0 for none
	next   prefix.Hash  // block of text after it in the prompt that it was learnt from; 0 for none
}

// noText stands in Memo.needs for the end of a prompt, where tokens are not of its
// text: a chat's next turn has other ones there. It is no block's hash.
const noText prefix.Hash = 0

const maxTexts = 1 << 17

// NewMemo returns an empty memo.
func NewMemo() *Memo {
	return &Memo{max: maxTexts, texts: map[prefix.Hash]covered{}, needs: map[prefix.Hash][]prefix.Hash{}, shares: map[prefix.Hash]int32{}}
}

// A Prompt is one whose text the engine has cut into tokens.
type Prompt struct {
	Chain     prefix.Chain // names its text
	Bytes     int          // of the text
	Names     prefix.Chain // of its whole blocks of tokens
	Tokens    int          // in all
	BlockSize int          // tokens of a block

	// Weights say how much of the text each token is, in whatever unit. Without them
	// all are thought to be alike, and Tokens promises nothing but where prompts part.
	Weights []int
}

// Learn takes in a prompt.
func (m *Memo) Learn(p Prompt) {
	if len(p.Chain) == 0 || len(p.Names) == 0 || p.Bytes <= 0 || p.BlockSize <= 0 {
		return
	}
	ends := p.ends()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.size != p.BlockSize { // no name has a meaning any more
		m.size = p.BlockSize
		m.texts, m.needs = map[prefix.Hash]covered{}, map[prefix.Hash][]prefix.Hash{}
		m.ring, m.next = nil, 0
		m.shares, m.older = map[prefix.Hash]int32{}, nil
	}
	chain, names := p.Chain, p.Names
	most := (p.Tokens - 1) / p.BlockSize // an engine computes the last token again
	known, shared := chain.Longest(m.has), 0
	for shared < len(names) && m.needs[names[shared]] != nil {
		shared++
	}
	if known > 0 {
		m.share(chain[known-1], min(shared, most)*p.BlockSize)
		m.part(chain[:known], names[:shared])
	}
	if known == len(chain) {
		return
	}
	m.share(chain[len(chain)-1], most*p.BlockSize)
	// What is shared and that no block of text needs which is known already, the next
	// one does: the end of another prompt was taken for its template's.
	rest := append(m.unclaimed(chain[:known], names[:shared]), names[shared:]...)
	at, before := 0, len(names)-len(rest)
	for i := known; i < len(chain); i++ {
		from := at
		for at < len(rest) && (before+at+1)*p.BlockSize <= ends[i] {
			at++
		}
		c := covered{names: slices.Clone(rest[from:at]), tokens: -1}
		if i+1 < len(chain) {
			c.next = chain[i+1]
			if p.Weights != nil { // another prompt parts in the midst of the next, as likely as not
				c.tokens = int32(min((ends[i]+ends[i+1])/2/p.BlockSize, most) * p.BlockSize)
			}
		}
		m.add(chain[i], c)
	}
	m.claim(chain[len(chain)-1], rest[at:], noText)
}

// ends says how many tokens lie before the end of each block of text.
func (p Prompt) ends() []int {
	ends := make([]int, len(p.Chain))
	if len(p.Weights) != p.Tokens {
		for i := range ends {
			ends[i] = int(int64(p.Tokens) * int64(i+1) * prefix.BlockBytes / int64(p.Bytes))
		}
		return ends
	}
	total := 0
	for _, w := range p.Weights {
		total += w
	}
	at, sum := 0, 0
	for i := range ends {
		for at < p.Tokens && int64(sum+p.Weights[at])*int64(p.Bytes) <= int64(total)*int64(i+1)*prefix.BlockBytes {
			sum += p.Weights[at]
			at++
		}
		ends[i] = at
	}
	return ends
}

// part takes from blocks of text what they do not need after all: names that a prompt
// does not have which begins with the same text. Where that ended in tokens was
// thought to be later than it is, and the block of text after it needs them.
func (m *Memo) part(chain, names prefix.Chain) {
	has := make(map[prefix.Hash]bool, len(names))
	for _, name := range names {
		has[name] = true
	}
	for i, h := range chain {
		c := m.texts[h]
		var wrong prefix.Chain
		kept := c.names[:0]
		for _, name := range c.names {
			if has[name] || !slices.Contains(m.needs[name], h) { // or it is at a prompt's end
				kept = append(kept, name)
			} else {
				wrong = append(wrong, name)
			}
		}
		if len(wrong) == 0 {
			continue
		}
		to := c.next
		for j := i + 1; j < len(chain) && to == chain[j]; j++ {
			to = m.texts[chain[j]].next
		}
		c.names = kept
		m.texts[h] = c
		for _, name := range wrong {
			m.release(name, h)
		}
		if m.has(to) {
			m.claim(to, wrong, to)
		} else {
			m.claim(h, wrong, noText)
		}
	}
}

// unclaimed returns those names that no block of chain needs.
func (m *Memo) unclaimed(chain, names prefix.Chain) (rest prefix.Chain) {
	here := make(map[prefix.Hash]bool, len(chain))
	for _, h := range chain {
		here[h] = true
	}
	for _, name := range names {
		if !slices.ContainsFunc(m.needs[name], func(h prefix.Hash) bool { return here[h] }) {
			rest = append(rest, name)
		}
	}
	return rest
}

// claim adds names to those of a block of text, which needs them or, as noText, but
// ends with them.
func (m *Memo) claim(text prefix.Hash, names prefix.Chain, need prefix.Hash) {
	c := m.texts[text]
	c.names = append(c.names, names...)
	m.texts[text] = c
	for _, name := range names {
		m.needs[name] = append(m.needs[name], need)
	}
}

// release undoes a claim.
func (m *Memo) release(name, need prefix.Hash) {
	left := m.needs[name]
	if i := slices.Index(left, need); i >= 0 {
		left = slices.Delete(left, i, i+1)
	}
	if m.needs[name] = left; len(left) == 0 {
		delete(m.needs, name)
	}
}

// Tokens is how many tokens a prompt finds cached of which the first so many blocks of
// text are, and no more, where anything speaks for a number. It is parted where that
// was seen, and is no estimate.
func (m *Memo) Tokens(chain prefix.Chain, blocks int) (tokens int, known, parted bool) {
	if blocks <= 0 || blocks > len(chain) {
		return 0, false, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := chain[blocks-1]
	for _, shares := range []map[prefix.Hash]int32{m.shares, m.older} {
		if n, ok := shares[h]; ok {
			return int(n), true, true
		}
	}
	c, ok := m.texts[h]
	return max(0, int(c.tokens)), ok && c.tokens >= 0, false
}

// Found takes in that a prompt of which the first so many blocks of text were held, and
// no more, has found tokens cached: so will the next such prompt.
func (m *Memo) Found(chain prefix.Chain, blocks, tokens int) {
	if blocks > 0 && blocks <= len(chain) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.share(chain[blocks-1], tokens)
	}
}

// Knows says whether the memo was told of all of the text.
func (m *Memo) Knows(chain prefix.Chain) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return chain.Longest(m.has) == len(chain)
}

// share remembers what is found cached of prompts that part after a block of text.
func (m *Memo) share(h prefix.Hash, tokens int) {
	if m.shares[h] = int32(tokens); len(m.shares) > m.max/2 {
		m.shares, m.older = map[prefix.Hash]int32{}, m.shares
	}
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
	names := c.names
	c.names = nil
	m.texts[h] = c
	m.claim(h, names, h)
}

func (m *Memo) forget(h prefix.Hash) {
	for _, name := range m.texts[h].names {
		if slices.Contains(m.needs[name], h) {
			m.release(name, h)
		} else {
			m.release(name, noText)
		}
	}
	delete(m.texts, h)
}
