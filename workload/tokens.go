package workload

import (
	"sync"

	"github.com/tiktoken-go/tokenizer/codec"
	"github.com/zeebo/xxh3"
)

// cl100k is loaded when first asked for: its vocabulary takes 10 ms and 10 MB.
var cl100k = sync.OnceValue(codec.NewCl100kBase)

// encode gives the tokens of cl100k_base, which cuts English into pieces of the
// same length as the vocabularies of today's open models do. It takes a second
// for 5 MB. A prompt is encoded in the pieces of which it is put together, so
// that what prompts share is encoded once; MMLU's have the tokens of the whole.
func encode(text string) []uint32 {
	ids, _, _ := cl100k().Encode(text) // fails on a time limit of the pattern alone, and it has none
	tokens := make([]uint32, len(ids))
	for i, id := range ids {
		tokens[i] = uint32(id)
	}
	return tokens
}

// tokenBytes is how many bytes of an MMLU prompt are one token of cl100k_base
// in the mean. TestSyntheticTokens takes it anew.
const tokenBytes = 4.42

// cut makes tokens of that length from synthetic text, whose common words
// would otherwise give a fifth fewer than a real prompt of its size.
func cut(text string) []uint32 {
	tokens := make([]uint32, 0, int(float64(len(text))/tokenBytes)+1)
	for begin := 0; begin < len(text); {
		end := min(int(float64(len(tokens)+1)*tokenBytes), len(text))
		tokens = append(tokens, uint32(xxh3.HashString(text[begin:end])))
		begin = end
	}
	return tokens
}
