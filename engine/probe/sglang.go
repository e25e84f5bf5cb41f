package probe

import (
	"context"
	"strconv"
)

// SGLang, as of v0.5.9 (python/sglang/srt/entrypoints/http_server.py): GET
// /server_info, formerly /get_server_info, has all of the server's arguments, what
// its scheduler found out at the start (max_total_num_tokens, of each data-parallel
// rank) and its version; it is answered between two steps of the scheduler.
// random_seed is drawn at each start where --random-seed does not set it.
//
// /metrics is there with --enable-metrics only, in multi-process mode, without a
// start time. Else /v1/loads, formerly /get_load, tells what runs and waits.
//
// With --enable-cache-report an answer leaves prompt_tokens_details out where
// nothing was cached (openai/usage_processor.py).
func (p *Prober) settleSGLang(ctx context.Context) {
	var said struct {
		Version  string `json:"version"`
		Tokens   int    `json:"max_total_num_tokens"`
		Ranks    int    `json:"dp_size"`
		Context  int    `json:"context_length"`
		Seed     int64  `json:"random_seed"`
		Report   *bool  `json:"enable_cache_report"`
		CacheOff bool   `json:"disable_radix_cache"`
	}
	if p.getJSON(ctx, "/server_info", &said) != nil && p.getJSON(ctx, "/get_server_info", &said) != nil {
		return
	}
	p.version(said.Version)
	if n := tokensOf(max(said.Ranks, 1), said.Tokens); n > 0 {
		p.facts.KVTokens = n
	}
	if said.Context > 0 {
		p.facts.Context = said.Context
	}
	p.facts.CacheOff = said.CacheOff
	if said.Report != nil {
		p.facts.Cached = ReportsNo
		if *said.Report {
			p.facts.Cached = Reports
		}
	}
	if said.Seed != 0 {
		p.mark("random seed", strconv.FormatInt(said.Seed, 10))
	}
}

func (p *Prober) loadSGLang(ctx context.Context) {
	t, ok := p.tallied(ctx, func(sample) {}, "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage",
		"sglang:num_used_tokens", "sglang:gen_throughput", "sglang:prompt_tokens_total", "sglang:generation_tokens_total")
	if ok {
		p.facts.Running, p.facts.Waiting = t.count("sglang:num_running_reqs"), t.count("sglang:num_queue_reqs")
		p.facts.KVUse = t.share("sglang:token_usage")
		p.counted(t, "sglang:prompt_tokens_total", "sglang:generation_tokens_total") // at the end of a request
		p.work(t, "sglang:num_used_tokens", "sglang:gen_throughput", "sglang:prompt_tokens_total", "sglang:generation_tokens_total")
		return
	}
	if !p.refused["/metrics"] {
		return
	}
	type rank struct {
		All     int     `json:"num_reqs"` // running and waiting
		Running int     `json:"num_running_reqs"`
		Waiting int     `json:"num_waiting_reqs"`
		Use     float64 `json:"token_usage"`
	}
	var ranks []rank
	var loads struct {
		Loads []rank `json:"loads"`
	}
	if p.getJSON(ctx, "/v1/loads?include=core", &loads) == nil {
		ranks = loads.Loads
	} else if p.getJSON(ctx, "/get_load", &ranks) != nil {
		return
	}
	if len(ranks) == 0 {
		return
	}
	p.facts.Running, p.facts.Waiting = 0, 0
	use := 0.0
	for _, r := range ranks {
		p.facts.Running += max(r.Running, r.All-r.Waiting, 0)
		p.facts.Waiting += max(r.Waiting, 0)
		use += r.Use
	}
	if use > 0 {
		p.facts.KVUse = min(use/float64(len(ranks)), 1)
	}
}
