package emulated

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hearsay-project/hearsay/engine/openai"
)

// A kind is how an engine of some program differs from the others.
type kind struct {
	tells openai.Tells
	bare  openai.Tells // without the flag that has it report its cache
	slots int          // that share the cache's tokens out among requests
}

var kinds = map[string]kind{
	"":         {slots: 1},
	"vllm":     {openai.TellsFound, openai.TellsNothing, 1},
	"sglang":   {openai.TellsFound, openai.TellsNothing, 1},
	"llamacpp": {openai.TellsEach, openai.TellsEach, 4},
	"ollama":   {openai.TellsNothing, openai.TellsNothing, 1},
}

// A page answers a request to one path.
type page func(e *Engine, w http.ResponseWriter)

// pages are those of each kind beside OpenAI's API, in the shapes that package probe
// names the sources of: what they say is true of this engine.
var pages = map[string]map[string]page{
	"vllm": {
		"/version":   func(_ *Engine, w http.ResponseWriter) { writeJSON(w, map[string]any{"version": "0.26.0"}) },
		"/v1/models": func(e *Engine, w http.ResponseWriter) { e.list(w, "vllm", "max_model_len", e.Context()) },
		"/metrics":   (*Engine).vllmMetrics,
	},
	"sglang": {
		"/v1/models":       func(e *Engine, w http.ResponseWriter) { e.list(w, "sglang", "max_model_len", e.Context()) },
		"/server_info":     (*Engine).sglangInfo,
		"/get_server_info": (*Engine).sglangInfo,
		"/get_model_info": func(e *Engine, w http.ResponseWriter) {
			writeJSON(w, map[string]any{"model_path": e.cfg.Name, "is_generation": true})
		},
		"/metrics":  (*Engine).sglangMetrics,
		"/v1/loads": (*Engine).sglangLoads,
	},
	"llamacpp": {
		"/v1/models": func(e *Engine, w http.ResponseWriter) {
			e.list(w, "llamacpp", "meta", map[string]any{"n_ctx": e.Context(), "n_ctx_train": e.Context()})
		},
		"/props":   (*Engine).llamaProps,
		"/slots":   (*Engine).llamaSlots,
		"/metrics": (*Engine).llamaMetrics,
	},
	"ollama": {
		"/v1/models":   func(e *Engine, w http.ResponseWriter) { e.list(w, "library", "", nil) },
		"/api/version": func(_ *Engine, w http.ResponseWriter) { writeJSON(w, map[string]any{"version": "0.33.0"}) },
		"/api/tags":    func(e *Engine, w http.ResponseWriter) { e.ollamaModels(w, false) },
		"/api/ps":      func(e *Engine, w http.ResponseWriter) { e.ollamaModels(w, true) },
		"/api/show": func(e *Engine, w http.ResponseWriter) {
			writeJSON(w, map[string]any{"model_info": map[string]any{"general.architecture": "llama", "llama.context_length": 2 * e.Context()}})
		},
	},
}

// Dialects lists those that Config.Dialect may name.
func Dialects() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(kinds)), func(name string) bool { return name == "" })
}

// counters are what an engine has done since its start, in tokens.
type counters struct{ prompt, cached, generated int }

func (e *Engine) count(c counters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done.prompt += c.prompt
	e.done.cached += c.cached
	e.done.generated += c.generated
}

func (e *Engine) load() (running, waiting int, use float64, done counters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.carry(time.Now())
	running = e.model.Running()
	return running, e.model.Queue() - running, float64(e.model.Tokens()) / float64(e.cfg.Profile.CapacityTokens), e.done
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// list is /v1/models, with a field that the engine's kind adds to OpenAI's.
func (e *Engine) list(w http.ResponseWriter, owner, field string, v any) {
	entry := map[string]any{"id": e.cfg.Name, "object": "model", "created": time.Now().Unix(), "owned_by": owner}
	if field != "" {
		entry[field] = v
	}
	writeJSON(w, map[string]any{"object": "list", "data": []any{entry}})
}

// metrics writes samples in Prometheus' text format: name and value in turn.
func metrics(w http.ResponseWriter, samples ...any) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for i := 0; i < len(samples); i += 2 {
		_, _ = fmt.Fprintln(w, samples[i], samples[i+1])
	}
}

func (e *Engine) vllmMetrics(w http.ResponseWriter) {
	running, waiting, use, done := e.load()
	of := fmt.Sprintf(`{engine="0",model_name=%q}`, e.cfg.Name)
	blocks := e.cfg.Profile.CapacityTokens / e.cfg.BlockTokens
	metrics(
		w, "process_start_time_seconds", strconv.FormatFloat(float64(e.started.UnixMilli())/1000, 'f', 2, 64),
		"vllm:num_requests_running"+of, running, "vllm:num_requests_waiting"+of, waiting, "vllm:kv_cache_usage_perc"+of, use,
		"vllm:prompt_tokens_total"+of, done.prompt, "vllm:generation_tokens_total"+of, done.generated,
		"vllm:prefix_cache_queries_total"+of, done.prompt, "vllm:prefix_cache_hits_total"+of, done.cached,
		fmt.Sprintf(`vllm:cache_config_info{block_size="%d",enable_prefix_caching="True",engine="0",num_gpu_blocks="%d"}`, e.cfg.BlockTokens, blocks), 1,
	)
}

func (e *Engine) sglangInfo(w http.ResponseWriter) {
	writeJSON(w, map[string]any{
		"version": "0.5.9", "max_total_num_tokens": e.cfg.Profile.CapacityTokens, "dp_size": 1, "page_size": e.cfg.BlockTokens,
		"context_length": e.Context(), "random_seed": e.started.UnixNano() & (1<<30 - 1), "served_model_name": e.cfg.Name,
		"enable_cache_report": !e.cfg.Bare, "enable_metrics": !e.cfg.Bare, "disable_radix_cache": false, "internal_states": []any{},
	})
}

func (e *Engine) sglangLoads(w http.ResponseWriter) {
	running, waiting, use, _ := e.load()
	writeJSON(w, map[string]any{"loads": []any{map[string]any{
		"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "token_usage": use,
	}}})
}

func (e *Engine) sglangMetrics(w http.ResponseWriter) {
	if e.cfg.Bare {
		http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
		return
	}
	running, waiting, use, done := e.load()
	of := fmt.Sprintf(`{model_name=%q,engine_type="unified",tp_rank="0"}`, e.cfg.Name)
	metrics(
		w, "sglang:num_running_reqs"+of, running, "sglang:num_queue_reqs"+of, waiting, "sglang:token_usage"+of, use,
		"sglang:max_total_num_tokens"+of, e.cfg.Profile.CapacityTokens, "sglang:num_used_tokens"+of, int(use*float64(e.cfg.Profile.CapacityTokens)),
		"sglang:cached_tokens_total"+of, done.cached, "sglang:prompt_tokens_total"+of, done.prompt, "sglang:generation_tokens_total"+of, done.generated,
	)
}

func (e *Engine) llamaProps(w http.ResponseWriter) {
	drawn := rand.New(rand.NewPCG(uint64(e.started.UnixNano()), 1)) // at each start
	writeJSON(w, map[string]any{
		"total_slots": kinds[e.cfg.Dialect].slots, "default_generation_settings": map[string]any{"n_ctx": e.Context()},
		"model_path": e.cfg.Name, "build_info": "b11151-emulated", "media_marker": fmt.Sprintf("<__media_%x__>", drawn.Uint64()),
	})
}

func (e *Engine) llamaSlots(w http.ResponseWriter) {
	running, _, _, _ := e.load()
	var slots []any
	for i := range kinds[e.cfg.Dialect].slots {
		slots = append(slots, map[string]any{"id": i, "n_ctx": e.Context(), "is_processing": i < running})
	}
	writeJSON(w, slots)
}

func (e *Engine) llamaMetrics(w http.ResponseWriter) {
	if e.cfg.Bare {
		http.Error(w, `{"error":{"code":501,"message":"This server does not support metrics endpoint. Start it with --metrics","type":"not_supported_error"}}`, http.StatusNotImplemented)
		return
	}
	running, waiting, _, done := e.load()
	w.Header().Set("Process-Start-Time-Unix", strconv.FormatInt(e.started.UnixMicro(), 10))
	metrics(
		w, "llamacpp:prompt_tokens_total", done.prompt-done.cached, "llamacpp:prompt_tokens_cached_total", done.cached,
		"llamacpp:tokens_predicted_total", done.generated, "llamacpp:requests_processing", running, "llamacpp:requests_deferred", waiting,
	)
}

// ollamaModels lists the model: as on disk, or as in memory, where its first request
// has brought it.
func (e *Engine) ollamaModels(w http.ResponseWriter, loaded bool) {
	_, _, _, done := e.load()
	models := []any{}
	if !loaded || done.prompt > 0 {
		models = append(models, map[string]any{
			"name": e.cfg.Name, "model": e.cfg.Name, "size": cmp.Or(e.cfg.Profile.KVBytesPerToken, 1) * e.Context(), "context_length": e.Context(),
		})
	}
	writeJSON(w, map[string]any{"models": models})
}
