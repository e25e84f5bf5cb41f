package kvevents

import (
	"slices"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/prefix"
)

// text is n blocks of text, each of its letter, and their names.
func text(letters string) (prefix.Chain, int) {
	var b strings.Builder
	for _, l := range letters {
		b.WriteString(strings.Repeat(string(l), prefix.BlockBytes))
	}
	return prefix.NewChain(1, []byte(b.String())), b.Len()
}

// tokens are ten a letter, which is about what text has.
func tokensOf(letters string) (ids []uint32) {
	for _, l := range letters {
		for i := range uint32(10) {
			ids = append(ids, uint32(l)*10+i)
		}
	}
	return ids
}

// A memo of texts whose tokens are known, and the names of those for blocks of size.
func learn(m *Memo, c *Cache, letters string) (prefix.Chain, prefix.Chain) {
	chain, bytes := text(letters)
	ids := tokensOf(letters)
	names := c.Names(Space{}, ids)
	m.Learn(Prompt{Chain: chain, Bytes: bytes, Names: names, Tokens: len(ids), BlockSize: c.BlockSize()})
	return chain, names
}

// sized is a cache whose engine has blocks of so many tokens.
func sized(blockSize int) *Cache {
	c := NewCache(nil)
	c.Apply(0, []Event{{Kind: Stored, Counts: true, Hashes: []uint64{1}, Tokens: make([]uint32, blockSize), BlockSize: blockSize}})
	return c
}

// When a block of tokens is evicted, those blocks of text go that need it, and no
// other: in each prompt that has it the first, with which all behind it go.
func TestEvictionReachesTheText(t *testing.T) {
	for _, size := range []int{1, 4, 10, 16, 32} {
		c, m := sized(size), NewMemo()
		first, a := learn(m, c, "abcdef")
		other, b := learn(m, c, "abcxyz")
		if got := m.Evicted([]prefix.Hash{99}); len(got) != 0 {
			t.Errorf("blocks of %d: a block that no text needs evicts %v", size, got)
		}
		for i, name := range a {
			got := m.Evicted([]prefix.Hash{name})
			block := ((i+1)*size - 1) / 10 // that the last token of name is of
			if !slices.Contains(got, first[block]) {
				t.Errorf("blocks of %d: the end of block %d takes %v, not block %d of the text", size, i, got, block)
			}
			if shared := (i+1)*size <= 30; shared != slices.Contains(b, name) {
				t.Fatalf("blocks of %d: block %d is shared: %v", size, i, !shared)
			} else if !shared && slices.ContainsFunc(got, func(h prefix.Hash) bool { return slices.Contains(other, h) && !slices.Contains(first, h) }) {
				t.Errorf("blocks of %d: the end of block %d, of one text, takes %v of another", size, i, got)
			}
		}
	}
}

// Text that many prompts begin with needs no tokens but theirs: the eviction of one
// prompt's takes nothing of the others', wherever its end in tokens was thought to be.
func TestSharedTextNeedsSharedTokens(t *testing.T) {
	for _, size := range []int{1, 4, 16, 32} {
		c, m := sized(size), NewMemo()
		learned := func(letters, tokens string) (prefix.Chain, prefix.Chain) {
			chain, bytes := text(letters)
			ids := tokensOf(tokens)
			names := c.Names(Space{}, ids)
			m.Learn(Prompt{Chain: chain, Bytes: bytes, Names: names, Tokens: len(ids), BlockSize: size})
			return chain, names
		}
		// Of "ab" with 5 tokens each is thought to have many more, in what follows.
		chains, names := make([]prefix.Chain, 3), make([]prefix.Chain, 3)
		chains[0], names[0] = learned("abcdef", "acdefghijklmn")
		chains[1], names[1] = learned("abxyzu", "axyzuvwrstmno")
		chains[2], names[2] = learned("abxpqr", "axpqrstuvwbcd")
		for p := range chains {
			for i, name := range names[p] {
				got := m.Evicted([]prefix.Hash{name})
				for other := range chains {
					gone := slices.ContainsFunc(chains[other], func(h prefix.Hash) bool { return slices.Contains(got, h) })
					if needs := slices.Contains(names[other], name); gone != needs {
						t.Errorf("blocks of %d: the end of block %d of prompt %d takes of prompt %d: %v, want %v", size, i, p, other, gone, needs)
					}
				}
			}
		}
	}
}

// Where two prompts part, what both find cached is known to the token, however
// unevenly tokens are spread.
func TestSharedTokensAreKnownWherePromptsPart(t *testing.T) {
	c, m := sized(4), NewMemo()
	chain, bytes := text("abcd")
	ids := slices.Concat(tokensOf("aaaab"), []uint32{7, 7, 7}) // 50 of 53 tokens in the first half
	m.Learn(Prompt{Chain: chain, Bytes: bytes, Names: c.Names(Space{}, ids), Tokens: len(ids), BlockSize: 4})
	if got, ok, _ := m.Tokens(chain, 2); ok {
		t.Errorf("half a text is thought to have %d tokens, which nothing has shown", got)
	}
	fork, bytes := text("abxy")
	ids = append(tokensOf("aaaab"), 8, 8, 8)
	m.Learn(Prompt{Chain: fork, Bytes: bytes, Names: c.Names(Space{}, ids), Tokens: len(ids), BlockSize: 4})
	if got, ok, _ := m.Tokens(fork, 2); !ok || got != 48 {
		t.Errorf("two texts share %d tokens, %v, want 48, the whole blocks of 50", got, ok)
	}
	if got, _, _ := m.Tokens(fork, 4); got != 52 {
		t.Errorf("a text of 53 tokens finds %d of them cached, want 52", got)
	}
	if _, ok, _ := m.Tokens(fork, 5); ok || !m.Knows(fork) {
		t.Error("what was learnt is not what is known")
	}
	m.Found(fork, 3, 49)
	if got, _, ok := m.Tokens(fork, 3); !ok || got != 49 {
		t.Errorf("an engine found 49 tokens, and %d, %v, are expected next", got, ok)
	}
	// Told how much text each token is, it knows where every block ends.
	even, bytes := text("efgh")
	ids = tokensOf("eeeefgh")
	p := Prompt{Chain: even, Bytes: bytes, Names: c.Names(Space{}, ids), Tokens: len(ids), BlockSize: 4, Weights: make([]int, len(ids))}
	for i := range ids {
		if p.Weights[i] = 4; i < 40 {
			p.Weights[i] = 1
		}
	}
	m.Learn(p)
	if got, ok, parted := m.Tokens(even, 1); !ok || parted || got != 44 {
		t.Errorf("who parts in the second block, after 40 to 50 tokens, is thought to share %d, %v, %v", got, ok, parted)
	}
}

// An engine computes a prompt's last token in any case.
func TestWholePromptIsNeverCached(t *testing.T) {
	c, m := sized(10), NewMemo()
	learn(m, c, "abcd")
	chain, _ := learn(m, c, "abcd") // again
	if got, ok, _ := m.Tokens(chain, 4); !ok || got != 30 {
		t.Errorf("40 tokens in blocks of 10, asked again: %d cached, want 30", got)
	}
}

// A memo holds so many blocks of text, those that came last, and nothing else of the
// others.
func TestMemoIsBounded(t *testing.T) {
	c, m := sized(1), NewMemo()
	m.max = 100
	ids := make([]uint32, 32)
	chain := make(prefix.Chain, 2)
	for i := range uint32(1000) {
		ids[0] = i
		chain[0], chain[1] = prefix.Hash(2*i+1), prefix.Hash(2*i+2)
		m.Learn(Prompt{Chain: chain, Bytes: 3 * prefix.BlockBytes, Names: c.Names(Space{}, ids), Tokens: len(ids), BlockSize: 1})
	}
	if len(m.texts) != m.max || len(m.ring) != m.max || len(m.needs) != m.max/2*len(ids) {
		t.Errorf("%d texts, %d in the ring, %d blocks of tokens", len(m.texts), len(m.ring), len(m.needs))
	}
	if !m.Knows(chain) || m.Knows(prefix.Chain{1}) {
		t.Error("not the last ones are held")
	}
}
