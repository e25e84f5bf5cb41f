package emulated

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/tokens"
)

// cut gives the tokens of text as the engine counts them.
func (e *Engine) cut(text string) []uint32 {
	if e.cfg.TokenBytes > 0 {
		ids := tokens.Cut(text, e.cfg.TokenBytes)
		for i := range ids {
			ids[i] &= math.MaxInt32 // as the ids of a vocabulary
		}
		return ids
	}
	return tokens.CL100K(text)
}

// name names the whole blocks of a prompt. Each block is laid out in as many
// blocks of package prefix as hold its ids, filled up with zeros, and has the
// name of the last.
func name(root prefix.Hash, tokens []uint32, blockTokens int) prefix.Chain {
	const idBytes = 4
	pieces := (blockTokens*idBytes + prefix.BlockBytes - 1) / prefix.BlockBytes
	blocks := len(tokens) / blockTokens
	text := make([]byte, 0, blocks*pieces*prefix.BlockBytes)
	for i := range blocks {
		for _, id := range tokens[i*blockTokens : (i+1)*blockTokens] {
			text = binary.LittleEndian.AppendUint32(text, id)
		}
		text = text[:(i+1)*pieces*prefix.BlockBytes] // never written to: zeros
	}
	all := prefix.NewChain(root, text)
	chain := make(prefix.Chain, blocks)
	for i := range chain {
		chain[i] = all[(i+1)*pieces-1]
	}
	return chain
}

// words are what filler is made of, as printers have filled pages for centuries.
var words = [...]string{
	"lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit",
	"sed", "do", "eiusmod", "tempor", "incididunt", "ut", "labore", "et",
	"dolore", "magna", "aliqua", "enim", "ad", "minim", "veniam", "quis",
	"nostrud", "exercitation", "ullamco", "laboris", "nisi", "aliquip", "ex", "ea",
}

// filler is the i-th token of the answer to the prompt with this seed: the same
// on every engine. It is a word and, but for the first, the space before it.
func filler(seed uint64, i int) string {
	var key [8]byte
	binary.LittleEndian.PutUint64(key[:], uint64(i))
	word := words[xxh3.HashSeed(key[:], seed)%uint64(len(words))]
	if i == 0 {
		return word
	}
	return " " + word
}

// A script is an answer as it will be: filler up to a number of tokens or to the
// first stop string, which is not part of it.
type script struct {
	seed   uint64
	tokens int
	bytes  int    // of the text before the stop string; -1: all of it
	reason string // why it ends, as OpenAI's API says it
}

func newScript(seed uint64, most int, stops []string) script {
	s := script{seed: seed, tokens: most, bytes: -1, reason: "length"}
	if len(stops) == 0 {
		return s
	}
	var text strings.Builder
	for i := range most {
		before := text.Len()
		text.WriteString(filler(seed, i))
		for _, stop := range stops {
			from := max(0, before-len(stop)+1)
			if at := strings.Index(text.String()[from:], stop); at >= 0 && (s.bytes < 0 || from+at < s.bytes) {
				s.tokens, s.bytes, s.reason = i+1, from+at, "stop"
			}
		}
		if s.bytes >= 0 {
			break
		}
	}
	return s
}
