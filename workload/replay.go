package workload

import (
	"math/rand/v2"
	"strings"
)

// Prompts of traces that name blocks, not words. A block reads the same wherever it
// stands after the same blocks, so that prompts share text exactly as far as they
// share ids; what no id names is fresh for each request. A block of four tokens
// or more is as good as unique.
//
// Text is words that are one token each in cl100k_base with the space before them,
// and in most other vocabularies; so a prompt has the tokens that the trace says.
// Token ids lie in a range where the vocabularies of all known models have ordinary
// text: above the bytes and marks at their beginning, below the smallest's end.
const (
	firstID = 300
	manyIDs = 600
)

// replayed is the i-th request of a trace.
func (w *Workload) replayed(i int) Request {
	s := w.stream
	round, k := i/s.Round(), i%s.Round()
	q := &s.sequences[k]
	r := Request{Topic: q.topic, Output: q.output}
	var text strings.Builder
	left := q.tokens
	write := func(tokens int, rng *rand.Rand) {
		for range min(tokens, left) {
			left--
			if w.TokenIDs {
				r.Tokens = append(r.Tokens, firstID+rng.Int32N(manyIDs))
				continue
			}
			text.WriteByte(' ')
			text.WriteString(words[rng.IntN(len(words))])
		}
	}
	for n := range len(q.head) + len(q.tail) {
		again := 0
		if n >= len(q.head) {
			again = round // a repeat asks for something else in the same way
		}
		write(s.unit, newRand(uint64(q.symbol(n)), blockRounds+uint64(again)))
	}
	write(left, newRand(uint64(i), tailStream))
	r.Prompt = text.String()
	return r
}
