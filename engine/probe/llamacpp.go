package probe

import "context"

// llama.cpp's llama-server, as of b11151 (tools/server/README.md and
// server-context.cpp at 00dc805): GET /props has the number of slots and the
// context of each. GET /metrics is there with --metrics only (else 501), GET /slots
// unless --no-slots; both wait for the batch that is being decoded. The header
// Process-Start-Time-Unix of /metrics is the server's, and media_marker of /props is
// drawn at each start unless LLAMA_MEDIA_MARKER sets it.
//
// A slot keeps the prompt that it served last, so what the cache holds is the slots'
// contexts together, at most: two prompts with one prefix take it twice. Where the
// slots share one context (--kv-unified, the default where -np is not given) that is
// too much, and where prompts are kept in memory too (-cram, on by default) too
// little. Nothing tells which; what the engine finds cached corrects it.
func (p *Prober) settleLlamaCpp(ctx context.Context) {
	var said struct {
		Slots    int    `json:"total_slots"`
		Build    string `json:"build_info"`
		Marker   string `json:"media_marker"`
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := p.getJSON(ctx, "/props", &said); err != nil {
		return
	}
	p.version(said.Build)
	p.facts.Cached = Reports
	if n := tokensOf(max(said.Slots, 1), said.Settings.Context); n > 0 {
		p.facts.Context, p.facts.KVTokens = said.Settings.Context, n
	}
	p.mark("media marker", said.Marker)
}

func (p *Prober) loadLlamaCpp(ctx context.Context) {
	t, ok := p.tallied(ctx, func(sample) {}, "llamacpp:")
	if ok {
		p.facts.Running, p.facts.Waiting = t.count("llamacpp:requests_processing"), t.count("llamacpp:requests_deferred")
		p.facts.KVUse = t.share("llamacpp:kv_cache_usage_ratio")                        // until 2025
		p.counted(t, "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total") // at the end of a request: no sign of work before
		return
	}
	if !p.refused["/metrics"] {
		return // it decodes a long batch, and would not tell of its slots either
	}
	var slots []struct {
		Busy bool `json:"is_processing"`
	}
	if p.getJSON(ctx, "/slots", &slots) != nil {
		return
	}
	p.facts.Running = 0
	for _, s := range slots {
		if s.Busy {
			p.facts.Running++
		}
	}
}
