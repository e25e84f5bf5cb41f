// Package tokens cuts text into tokens, as engines count them.
//
// CL100K cuts as OpenAI's cl100k_base does, whose pieces of English have the length
// that those of today's open models have. Cut makes tokens of one size, for text
// whose common words would give too few of cl100k_base's, and where two programs
// must count alike without a vocabulary. Both give equal texts equal tokens, which
// is all that a cache sees of them.
package tokens

import (
	"math"
	"sync"

	"github.com/tiktoken-go/tokenizer/codec"
	"github.com/zeebo/xxh3"
)

// cl100k is loaded when first asked for: its vocabulary takes 10 ms and 10 MB.
var cl100k = sync.OnceValue(codec.NewCl100kBase)

// CL100K gives the tokens of cl100k_base. It takes a second for 5 MB.
func CL100K(text string) []uint32 {
	ids, _, _ := cl100k().Encode(text) // fails on a time limit of the pattern alone, and it has none
	tokens := make([]uint32, len(ids))
	for i, id := range ids {
		tokens[i] = uint32(id)
	}
	return tokens
}

// CL100KPieces gives the texts of those tokens, which together are text.
func CL100KPieces(text string) []string {
	_, pieces, _ := cl100k().Encode(text)
	return pieces
}

// Cut makes tokens of size bytes each, in the mean, where size is at least 1. Where
// one ends depends on nothing but its place, so that texts share tokens as far as
// they agree.
func Cut(text string, size float64) []uint32 {
	tokens := make([]uint32, Count(len(text), size))
	begin := 0
	for i := range tokens {
		end := min(endOf(i, size), len(text))
		tokens[i] = uint32(xxh3.HashString(text[begin:end]))
		begin = end
	}
	return tokens
}

// Count is how many tokens Cut makes of so many bytes.
func Count(bytes int, size float64) int {
	n := int(float64(bytes) / size)
	for n > 0 && endOf(n-1, size) >= bytes {
		n--
	}
	for n == 0 && bytes > 0 || n > 0 && endOf(n-1, size) < bytes {
		n++
	}
	return n
}

// endOf is where the i-th token ends, in bytes.
func endOf(i int, size float64) int { return int(math.Round(float64(i+1) * size)) }
