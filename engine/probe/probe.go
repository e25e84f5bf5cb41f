// Package probe finds out what LLM server stands behind a URL and what it tells of
// itself: its context length, how much its KV cache holds, what runs and waits,
// whether it has restarted, whether it reports what it found cached.
//
// Each kind of engine has its own pages, in a file of its own that says in which
// version they were read; an engine of no known kind has none. What is not told is
// unknown, never guessed. Asking is light: one page each time, the others once in a
// while, one at a time, each answer bounded in bytes and time. A page that takes
// long is no sign of ill health: some engines answer it between two steps of a
// prefill. A Prober is for one goroutine.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A Kind is the program that an engine is.
type Kind string

// The kinds that have pages of their own. To all others nothing is asked but OpenAI's API.
const (
	Auto     Kind = "auto" // find out
	VLLM     Kind = "vllm"
	SGLang   Kind = "sglang"
	LlamaCpp Kind = "llamacpp"
	Ollama   Kind = "ollama"
	OpenAI   Kind = "openai"
)

// Kinds lists them all.
func Kinds() []Kind { return []Kind{Auto, VLLM, SGLang, LlamaCpp, Ollama, OpenAI} }

// Facts are what an engine has told.
type Facts struct {
	Kind     Kind // Auto while it is not found out
	Version  string
	Context  int      // most tokens of a prompt and its answer; 0 unknown
	KVTokens int      // that its cache holds; 0 unknown
	Loaded   []string // models in memory, where the engine loads and unloads them

	// Cached says whether answers tell what was found cached.
	Cached Reporting
	// CacheOff says that the engine keeps nothing from one request to the next.
	CacheOff bool
	// Shared says that several engines answer in turn: what one has cached says
	// nothing of the others.
	Shared bool

	Running, Waiting int     // requests, whoever sent them; -1 unknown
	KVUse            float64 // share of the cache in use, 0 to 1; -1 unknown
	Work             float64 // changes with each step of the engine, or each few; -1 unknown
}

// Reporting says whether an engine's answers tell what was found cached.
type Reporting uint8

const (
	Unknown   Reporting = iota
	Reports             // an answer that leaves it out found nothing
	ReportsNo           // a flag of the engine is missing, or it never does
)

// Remedy is what an operator can do about an engine of this kind whose answers do
// not tell what was found cached.
func (k Kind) Remedy() string {
	switch k {
	case VLLM:
		return "start vLLM with --enable-prompt-tokens-details"
	case SGLang:
		return "start SGLang with --enable-cache-report"
	case LlamaCpp:
		return "update llama-server: it has told so in usage.prompt_tokens_details and timings.cache_n since 2025"
	case Ollama:
		return "Ollama has no way to tell what it finds cached; run the model with llama-server to have promises checked"
	}
	return "have the engine report usage.prompt_tokens_details.cached_tokens"
}

const (
	pageTimeout = 2 * time.Second
	pageBytes   = 4 << 20          // metrics of a vLLM with many adapters take some 300 KiB
	settledFor  = time.Minute      // flags and versions change with a restart, which is noticed sooner
	searchAgain = 10 * time.Second // after a page that was not answered
	marksMax    = 8
)

// A Prober asks one engine. Create it with New.
type Prober struct {
	engine    http.RoundTripper
	authorize func(http.Header)
	given     Kind

	facts    Facts
	searched time.Time           // when its kind was looked for
	owner    string              // by whom its models were then
	settled  time.Time           // when what seldom changes was asked for
	refused  map[string]bool     // pages that the engine does not have, since then
	marks    map[string]string   // by name: what differs from one life of an engine to the next
	past     map[string][]string // the marks of earlier lives
	counts   map[string]float64  // by name: what only grows during a life
	reborn   bool                // during this Ask
}

// New returns a prober of an engine of the kind given, or Auto. authorize adds what
// the engine wants for credentials.
func New(engine http.RoundTripper, kind Kind, authorize func(http.Header)) *Prober {
	p := &Prober{engine: engine, authorize: authorize, given: kind, past: map[string][]string{}}
	p.Forget()
	return p
}

// Forget has the next Ask find out everything anew: the engine was gone, and what is
// there now may be another.
func (p *Prober) Forget() {
	shared := p.facts.Shared
	p.facts = Facts{Kind: p.given, Running: -1, Waiting: -1, KVUse: -1, Work: -1, Shared: shared}
	p.searched, p.settled, p.refused = time.Time{}, time.Time{}, map[string]bool{}
	p.marks, p.counts = map[string]string{}, map[string]float64{}
}

// A kind's adapter: settle asks for what seldom changes, load for what does, and
// both write what they are told.
type adapter struct {
	settle, load func(p *Prober, ctx context.Context)
}

var adapters = map[Kind]adapter{
	VLLM:     {(*Prober).settleVLLM, (*Prober).loadVLLM},
	SGLang:   {(*Prober).settleSGLang, (*Prober).loadSGLang},
	LlamaCpp: {(*Prober).settleLlamaCpp, (*Prober).loadLlamaCpp},
	Ollama:   {(*Prober).settleOllama, (*Prober).loadOllama},
}

// Ask asks the engine for what is due. models are the entries of its /v1/models, its
// default first. It returns all that is known now, and whether the engine has
// started anew since it was asked before, with an empty cache.
func (p *Prober) Ask(ctx context.Context, models []json.RawMessage) (f Facts, restarted bool) {
	p.reborn = false
	now := time.Now()
	owner := ownerOf(models)
	if p.given == Auto && (p.facts.Kind == Auto || owner != p.owner) && now.Sub(p.searched) >= searchAgain {
		p.take(p.find(ctx, owner), owner)
		p.searched = now
	}
	p.readModels(models)
	a, ok := adapters[p.facts.Kind]
	if !ok {
		return p.facts, p.reborn && !p.facts.Shared
	}
	wait := settledFor
	if p.facts.Version == "" {
		wait = searchAgain
	}
	if now.Sub(p.settled) >= wait {
		p.settled, p.refused = now, map[string]bool{}
		a.settle(p, ctx)
	}
	p.facts.Running, p.facts.Waiting, p.facts.KVUse, p.facts.Work = -1, -1, -1, -1
	a.load(p, ctx)
	if p.reborn {
		p.settled = time.Time{} // its flags may be others
	}
	f = p.facts
	f.Loaded = slices.Clone(f.Loaded)
	return f, p.reborn && !f.Shared
}

// take takes in the kind that was found, Auto where that is not certain. One that is not
// the kind from before is of another engine: behind a proxy nobody refuses a connection
// while the one goes and the other comes.
func (p *Prober) take(kind Kind, owner string) {
	if kind == Auto {
		return
	}
	p.owner = owner
	if kind == p.facts.Kind {
		return
	}
	p.mark("kind", string(kind))
	p.Forget()
	p.facts.Kind, p.marks["kind"] = kind, string(kind)
}

// ownerOf is the name that an engine lists its default model under.
func ownerOf(models []json.RawMessage) string {
	var entry struct {
		Owner string `json:"owned_by"`
	}
	if len(models) > 0 {
		_ = json.Unmarshal(models[0], &entry)
	}
	return entry.Owner
}

// find tells the kind of engine by the name that it lists its models under, and where
// that is none of its own by the pages it has. SGLang and llama.cpp answer some of
// Ollama's, so these come last.
func (p *Prober) find(ctx context.Context, owner string) Kind {
	switch owner {
	case "vllm":
		return VLLM
	case "sglang":
		return SGLang
	case "llamacpp":
		return LlamaCpp
	case "hearsay":
		return OpenAI
	}
	failed := false
	for _, page := range []struct {
		path, has string
		kind      Kind
	}{
		{"/server_info", "max_total_num_tokens", SGLang},
		{"/get_server_info", "max_total_num_tokens", SGLang},
		{"/props", "total_slots", LlamaCpp},
		{"/api/version", "version", Ollama},
		{"/version", "version", VLLM},
	} {
		var object map[string]json.RawMessage
		err := p.getJSON(ctx, page.path, &object)
		if err == nil && object[page.has] != nil {
			return page.kind
		}
		failed = failed || err != nil && !errors.As(err, new(refusal)) && ctx.Err() == nil
	}
	if failed {
		return Auto // a page was not answered: ask again
	}
	return OpenAI
}

// readModels reads the context length from the list: max_model_len of vLLM and
// SGLang, meta.n_ctx of llama.cpp.
func (p *Prober) readModels(models []json.RawMessage) {
	var entry struct {
		Longest int `json:"max_model_len"`
		Meta    struct {
			Context int `json:"n_ctx"`
		} `json:"meta"`
	}
	if len(models) > 0 && json.Unmarshal(models[0], &entry) == nil {
		if n := max(entry.Longest, entry.Meta.Context); n > 0 {
			p.facts.Context = n
		}
	}
}

// mark notes something that differs from one life of the engine to the next. One that
// comes back after another was there is of several engines that answer in turn.
func (p *Prober) mark(name, value string) {
	was := p.marks[name]
	if value == "" || value == was {
		return
	}
	if p.marks[name] = value; was == "" {
		return
	}
	p.reborn = true
	if slices.Contains(p.past[name], value) {
		p.facts.Shared = true
	}
	past := append(p.past[name], was)
	p.past[name] = past[max(0, len(past)-marksMax):]
}

// count notes a number that only grows in one life of the engine.
func (p *Prober) count(name string, value float64) {
	if before, known := p.counts[name]; known && value < before {
		p.reborn = true
	}
	p.counts[name] = value
}

// A refusal is the status of a page that an engine does not give.
type refusal int

func (r refusal) Error() string { return fmt.Sprintf("status %d", int(r)) }

// get asks for a page, unless the engine has said that it does not have it.
func (p *Prober) get(ctx context.Context, path string) ([]byte, http.Header, error) {
	return p.do(ctx, http.MethodGet, path, nil)
}

func (p *Prober) do(ctx context.Context, method, path string, body io.Reader) ([]byte, http.Header, error) {
	if p.refused[path] {
		return nil, nil, refusal(http.StatusNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return nil, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	p.authorize(req.Header)
	resp, err := p.engine.RoundTrip(req)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the engine for %s: %w", path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.refused[path] = resp.StatusCode < 500 || resp.StatusCode == http.StatusNotImplemented
		return nil, nil, refusal(resp.StatusCode)
	}
	page, err := io.ReadAll(io.LimitReader(resp.Body, pageBytes+1))
	if err == nil && len(page) > pageBytes {
		err = fmt.Errorf("more than %d bytes", pageBytes)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the engine's %s: %w", path, err)
	}
	return page, resp.Header, nil
}

func (p *Prober) getJSON(ctx context.Context, path string, v any) error {
	page, _, err := p.get(ctx, path)
	if err != nil {
		return err
	}
	err = json.Unmarshal(page, v)
	if field := (*json.UnmarshalTypeError)(nil); errors.As(err, &field) && field.Field != "" {
		return nil // one fact is told in another way: the others are as good as before
	}
	if err != nil {
		return refusal(http.StatusOK) // a page of another program's
	}
	return nil
}

// tokensMax is more than any cache holds: what is beyond is no number of tokens.
const tokensMax = 1 << 40

// tokensOf is how many tokens so many parts of a cache hold, or 0 where that can be no
// such number.
func tokensOf(parts, each int) int {
	if parts <= 0 || each <= 0 || each > tokensMax/parts {
		return 0
	}
	return parts * each
}

// version keeps what an engine calls its version, and something in any case: it has
// been asked.
func (p *Prober) version(said string) {
	if said = strings.TrimSpace(said); said == "" {
		said = "unknown"
	}
	p.facts.Version = said[:min(len(said), 64)]
}
