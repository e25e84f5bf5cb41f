package emulated

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/tiktoken-go/tokenizer/codec"
	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/prefix"
)

// cl100k is loaded when first asked for: its vocabulary takes 10 ms and 10 MB.
var cl100k = sync.OnceValue(codec.NewCl100kBase)

// tokens cuts text as the engine counts it. With cl100k_base it takes a second
// for 5 MB.
func (e *Engine) tokens(text []byte) []uint32 {
	if e.cfg.TokenBytes > 0 {
		return cut(text, e.cfg.TokenBytes)
	}
	ids, _, _ := cl100k().Encode(string(text)) // fails on a time limit of the pattern alone, and it has none
	tokens := make([]uint32, len(ids))
	for i, id := range ids {
		tokens[i] = uint32(id)
	}
	return tokens
}

// cut makes tokens of size bytes each, in the mean: where one ends depends on
// nothing but its place, so that texts share tokens as far as they agree.
func cut(text []byte, size float64) []uint32 {
	tokens := make([]uint32, 0, int(float64(len(text))/size)+1)
	for begin := 0; begin < len(text); {
		end := min(int(math.Round(float64(len(tokens)+1)*size)), len(text))
		tokens = append(tokens, uint32(xxh3.Hash(text[begin:end])))
		begin = end
	}
	return tokens
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
