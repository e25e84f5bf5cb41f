package probe

import (
	"context"
	"strconv"
)

// vLLM, as of v0.26 (November 2026): GET /version, and GET /metrics, which is always
// served (vllm/entrypoints/serve/instrumentator/metrics.py, the names in
// vllm/v1/metrics/loggers.py). vllm:cache_config_info has the engine's CacheConfig
// as labels, once for each data-parallel engine: kv_cache_size_tokens where it is
// new enough, and num_gpu_blocks of block_size, which count something else where
// layers differ (Mamba, sliding windows), and are None while the engine starts.
//
// Each data-parallel engine has a cache of its own; the sum is told. In
// multi-process mode (--api-server-count) there is no process_start_time_seconds:
// then counters that go back tell of a restart.
//
// usage.prompt_tokens_details is there with --enable-prompt-tokens-details only,
// and even so left out where nothing was cached (serving_chat.py and
// serving_completion.py until 2026). No page tells of that flag.
func (p *Prober) settleVLLM(ctx context.Context) {
	var said struct {
		Version string `json:"version"`
	}
	if err := p.getJSON(ctx, "/version", &said); err != nil {
		return
	}
	p.version(said.Version)
}

func (p *Prober) loadVLLM(ctx context.Context) {
	tokens, off := 0, false
	t, ok := p.tallied(ctx, func(s sample) {
		switch s.name {
		case "vllm:cache_config_info":
			if n := s.number("kv_cache_size_tokens"); n > 0 {
				tokens += tokensOf(1, n)
			} else {
				tokens += tokensOf(s.number("num_gpu_blocks"), s.number("block_size"))
			}
			off = off || s.labels["enable_prefix_caching"] == "False"
		case "process_start_time_seconds":
			p.mark("start time", strconv.FormatFloat(s.value, 'f', 2, 64))
		}
	}, "vllm:num_requests_", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:cache_config_info",
		"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "process_start_time_seconds")
	if !ok {
		return
	}
	if tokens > 0 {
		p.facts.KVTokens = tokens
	}
	p.facts.CacheOff = off
	p.facts.Running, p.facts.Waiting = t.count("vllm:num_requests_running"), t.count("vllm:num_requests_waiting")
	p.facts.KVUse = t.share("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
	p.counted(t, "vllm:prompt_tokens_total", "vllm:generation_tokens_total")
	p.work(t, "vllm:prompt_tokens_total", "vllm:generation_tokens_total") // the former at a prompt's end: KVUse grows with its chunks
}
