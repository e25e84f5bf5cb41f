// Package dialect reads what passes between clients and LLM engines, in the
// languages that the engines speak: which paths there are (Lookup), a request
// as far as routing needs it (Read), one for the head of its prompt (Cut) or for
// the prompt's tokens (Tokenize), an answer as far as learning needs it (Scanner),
// and what it takes to have a broken stream from another engine (Joiner).
//
// It reads in passing. No byte is changed but those that the caller asks to
// have replaced, by offset; what cannot be read has no name to be routed by and
// is the engine's to judge. JSON is read as the engines read it: keys count
// exactly as written (except by Ollama, see Read), the last of two equal keys
// wins, numbers are their digits, and a lone surrogate is a character of its own.
package dialect

import "strings"

// A Dialect is a way to write requests and answers.
type Dialect uint8

// The dialects. Those after Model generate text from a prompt, so that where
// their requests run is a matter of cached prefixes.
const (
	Opaque          Dialect = iota // not read
	Model                          // JSON with a model and no prompt that leaves a KV cache: embeddings, tokenize, speech
	Chat                           // OpenAI chat completions
	Completion                     // OpenAI completions
	Responses                      // OpenAI responses
	Messages                       // Anthropic messages
	Generate                       // SGLang's own
	LlamaCompletion                // llama.cpp's own
	OllamaChat                     // Ollama's own, NDJSON, streamed unless told otherwise
	OllamaGenerate                 // likewise
)

// An Endpoint is a path of an engine and what a node does with requests to it.
type Endpoint struct {
	Dialect Dialect
	Route   string // the path, or "/v1/*" for one that is not listed: a closed set, fit for a metric's label
}

// Generates says whether requests are routed by their prompt's prefix.
func (e Endpoint) Generates() bool { return e.Dialect > Model }

// NamesModel says whether the body of a request names the model that it is for.
func (e Endpoint) NamesModel() bool { return e.Dialect >= Model }

// endpoints is the surface of a node, from: vLLM 0.2x (vllm/entrypoints), SGLang
// (srt/entrypoints/http_server.py), llama.cpp (tools/server/server.cpp) and
// Ollama (server/routes.go). Whatever else an engine answers to, such as
// /flush_cache, /load_lora_adapter or /api/pull, is for its operator.
var endpoints = listed(map[Dialect][]string{
	Chat:            {"/v1/chat/completions", "/chat/completions"},
	Completion:      {"/v1/completions"},
	Responses:       {"/v1/responses"},
	Messages:        {"/v1/messages"},
	Generate:        {"/generate"},
	LlamaCompletion: {"/completion", "/completions"},
	OllamaChat:      {"/api/chat"},
	OllamaGenerate:  {"/api/generate"},
	Model: {
		"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/reranking", "/v1/reranking",
		"/v1/score", "/score", "/classify", "/v1/classify", "/pooling", "/v1/pooling",
		"/v1/moderations", "/v1/images/generations", "/v1/audio/speech",
		"/v1/messages/count_tokens", "/v1/responses/input_tokens",
		"/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize",
		"/embedding", "/embeddings", "/encode", "/infill", "/apply-template",
		"/api/embed", "/api/embeddings", "/api/show",
	},
	Opaque: {
		"/models", "/version", "/get_model_info", "/model_info",
		"/api/tags", "/api/ps", "/api/version",
	},
})

// operators are paths under /v1/ that change an engine for everyone (vLLM with
// VLLM_ALLOW_RUNTIME_LORA_UPDATING).
var operators = []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}

func listed(paths map[Dialect][]string) map[string]Endpoint {
	all := map[string]Endpoint{}
	for d, list := range paths {
		for _, p := range list {
			all[p] = Endpoint{Dialect: d, Route: p}
		}
	}
	return all
}

// Lookup returns what path, decoded, is to a node. Everything under /v1/ is
// passed to an engine, except what is its operator's and what climbs out of
// there; outside of it, the paths that clients of the engines use.
func Lookup(path string) (e Endpoint, ok bool) {
	if e, ok = endpoints[path]; ok {
		return e, true
	}
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		return Endpoint{}, false
	}
	for _, p := range operators {
		if strings.TrimRight(path, "/") == p {
			return Endpoint{}, false
		}
	}
	for segment := range strings.SplitSeq(rest, "/") {
		if segment == "." || segment == ".." {
			return Endpoint{}, false
		}
	}
	return Endpoint{Dialect: Opaque, Route: "/v1/*"}, true
}
