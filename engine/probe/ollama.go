package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
)

// Ollama, as of v0.33.0-rc2 (server/routes.go and api/types.go at fb30760): GET
// /api/version, GET /api/ps for the models in memory and the context each was
// loaded with, GET /api/tags for those on disk, POST /api/show for what a model was
// trained with, as NAME.context_length of model_info.
//
// Each model in memory has a llama-server of its own, which keeps one prompt in each
// of OLLAMA_NUM_PARALLEL slots (1 unless set; nothing tells). So what the caches hold
// is at least the contexts of the models in memory. A model that is unloaded, after
// five minutes by default, takes its cache with it.
//
// No answer tells what was cached. prompt_eval_count is all of the prompt, but for
// v0.30, where it left out what was cached (llm/llama_server.go).
func (p *Prober) settleOllama(ctx context.Context) {
	var said struct {
		Version string `json:"version"`
	}
	if err := p.getJSON(ctx, "/api/version", &said); err != nil {
		return
	}
	p.version(said.Version)
	p.facts.Cached = ReportsNo
	var tags struct {
		Models []struct {
			Model string `json:"model"`
		} `json:"models"`
	}
	if p.facts.Context == 0 && p.getJSON(ctx, "/api/tags", &tags) == nil && len(tags.Models) > 0 {
		p.facts.Context = p.trainedContext(ctx, tags.Models[0].Model)
	}
}

// trainedContext is the longest context that a model was trained with, or 0.
func (p *Prober) trainedContext(ctx context.Context, model string) int {
	body, _ := json.Marshal(map[string]string{"model": model})
	page, _, err := p.do(ctx, "POST", "/api/show", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	var said struct {
		Info map[string]json.RawMessage `json:"model_info"`
	}
	if json.Unmarshal(page, &said) != nil {
		return 0
	}
	longest := 0
	for key, raw := range said.Info {
		var n int
		if strings.HasSuffix(key, ".context_length") && json.Unmarshal(raw, &n) == nil {
			longest = max(longest, n)
		}
	}
	return longest
}

func (p *Prober) loadOllama(ctx context.Context) {
	var said struct {
		Models []struct {
			Model   string `json:"model"`
			Context int    `json:"context_length"`
		} `json:"models"`
	}
	if p.getJSON(ctx, "/api/ps", &said) != nil {
		return
	}
	var loaded []string
	tokens, longest := 0, 0
	for _, m := range said.Models {
		loaded = append(loaded, m.Model)
		tokens += tokensOf(1, m.Context)
		longest = max(longest, m.Context)
	}
	for _, was := range p.facts.Loaded {
		p.reborn = p.reborn || !slices.Contains(loaded, was)
	}
	p.facts.Loaded = loaded
	if tokens > 0 { // else it is what the next model is loaded with, likely as before
		p.facts.KVTokens, p.facts.Context = tokens, longest
	}
}
