package node

import (
	"math"

	"github.com/hearsay-project/hearsay/prefix"
)

// rates learns how many bytes of canonical text make a token, for each model. The
// usage that engines report counts the chat template's tokens too, so short
// prompts seem dense; sums rather than a mean of ratios give them little weight.
// Of a model of which nothing was reported yet it takes what a peer's tree tells.
type rates struct {
	preset float64
	models map[string]*rate
	heard  map[string]float64 // as a peer's tree has it; up to maxModels
	uses   uint64
}

type rate struct {
	bytes, tokens float64
	used          uint64 // when it was last learnt, in uses
}

const (
	// maxModels bounds what clients, or peers, can make a node remember by naming
	// models. Beyond it the one that was learnt longest ago is forgotten; of more
	// that peers name nothing is taken.
	maxModels    = 64
	maxModelName = 256 // bytes; a longer one keeps the preset rate

	// heardMin bytes of a peer's tree are some hundred tokens, of which its own first
	// answer has told.
	heardMin = 512

	// rateWindow tokens seen, the past counts half: a model's mix of languages
	// and formats changes over hours, not over requests.
	rateWindow = 1 << 17

	// maxBytesPerToken is above any tokenizer's longest common token; what
	// reports more (a prompt the engine cut off, say) is not believed.
	maxBytesPerToken = 64
)

func (r *rates) bytesPerToken(model string) float64 {
	if m, ok := r.models[model]; ok {
		return m.bytes / m.tokens
	}
	if heard, ok := r.heard[model]; ok {
		return heard
	}
	return r.preset
}

// knows reports whether usage of the model was reported.
func (r *rates) knows(model string) bool { return r.models[model] != nil }

// hear takes in how many tokens a peer counts for so many bytes of prompts to model.
// No tokenizer makes more than one of a byte.
func (r *rates) hear(model string, bytes, tokens int) {
	_, again := r.heard[model]
	if bytes < max(heardMin, tokens) || tokens <= 0 || bytes > tokens*maxBytesPerToken || len(model) > maxModelName || !again && len(r.heard) >= maxModels {
		return
	}
	if r.heard == nil {
		r.heard = map[string]float64{}
	}
	r.heard[model] = float64(bytes) / float64(tokens)
}

// tokens estimates the tokens of so many bytes of a model's prompt.
func (r *rates) tokens(model string, bytes int) int {
	return int(float64(bytes) / r.bytesPerToken(model))
}

func (r *rates) learn(model string, bytes, tokens int) {
	if bytes <= 0 || tokens <= 0 || bytes > tokens*maxBytesPerToken || len(model) > maxModelName {
		return
	}
	m, ok := r.models[model]
	if !ok {
		if len(r.models) >= maxModels {
			r.forgetOldest()
		}
		if r.models == nil {
			r.models = map[string]*rate{}
		}
		m = &rate{}
		r.models[model] = m
	}
	m.add(bytes, tokens)
	r.uses++
	m.used = r.uses
}

func (r *rate) add(bytes, tokens int) {
	if r.tokens > rateWindow {
		r.bytes, r.tokens = r.bytes/2, r.tokens/2
	}
	r.bytes += float64(bytes)
	r.tokens += float64(tokens)
}

func (r *rates) forgetOldest() {
	oldest, used := "", r.uses+1
	for name, m := range r.models {
		if m.used < used {
			oldest, used = name, m.used
		}
	}
	delete(r.models, oldest)
}

// An engine may report less than the exact tree promised and still hold all of it.
// It finds whole pages (16 tokens in vLLM, one in SGLang), computes the last token
// again in any case, and our last matched block may end within a token. And text
// is uneven: where a prompt's head has more bytes to a token than its tail, the
// head's share of tokens is overestimated, for which an eighth is allowed.
const (
	pageTokens  = 16
	unevenShare = 8
)

// shortfall tells whether the engine found clearly less cached than the tree
// promised when the request was served, and how many blocks it may hold. It
// counts in the bytes per token of this very prompt.
func shortfall(req Request, out Outcome) (keep int, short bool) {
	promised := min(out.Promised, len(req.Chain))
	if !out.Known || promised <= 0 || out.PromptTokens <= 0 || req.Bytes <= 0 {
		return 0, false
	}
	perBlock := prefix.BlockBytes * float64(out.PromptTokens) / float64(req.Bytes)
	expected := perBlock * float64(promised)
	slack := perBlock + pageTokens + 1 + expected/unevenShare
	cached := float64(max(out.CachedTokens, 0))
	return within(cached, perBlock), cached < expected-slack
}

// within is how many blocks of so many tokens an engine may hold that found so many
// tokens cached: the last may end inside a page that it does not share. That matters
// most at the root. Where prompts differ in their first page, and have their first
// block in common, nothing is found of one that was evicted, and that block still
// leads to all the others.
func within(cached, perBlock float64) int {
	return int(math.Ceil((cached + pageTokens + 1) / perBlock))
}
