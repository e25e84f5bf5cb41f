package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine"
)

// stubEngine is a small working engine for tests of the shell: it keeps the
// prompts that it has seen as its cache, counts four bytes as a token, and can
// be told to be slow, full or broken.
type stubEngine struct {
	name string

	mu      sync.Mutex
	cached  []string
	served  int
	cancels int // requests whose client left
	behaviour
}

// behaviour is what a stub engine can be told.
type behaviour struct {
	prefill time.Duration                           // before the first byte
	between time.Duration                           // between two pieces of a stream
	linger  time.Duration                           // after the last byte
	fail    func(w http.ResponseWriter) (done bool) // instead of an answer
	models  []string                                // m where there are none
	sick    func(w http.ResponseWriter) (done bool) // instead of a list of models
	seen    func(r *http.Request, body []byte)      // of every prompt
}

// list answers /v1/models.
func (e *stubEngine) list(w http.ResponseWriter, r *http.Request) {
	b := e.now()
	if b.sick != nil && b.sick(w) {
		return
	}
	var entries []string
	for _, id := range append([]string{}, b.models...) {
		entries = append(entries, fmt.Sprintf(`{"id":%q,"object":"model","max_model_len":4096,"of":%q}`, id, e.name))
	}
	if entries == nil {
		entries = []string{`{"id":"m","object":"model"}`}
	}
	_, _ = fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(entries, ","))
}

func (e *stubEngine) set(change func(b *behaviour)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.behaviour)
}

func (e *stubEngine) now() behaviour {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.behaviour
}

const stubToken = 4

func (e *stubEngine) transport() http.RoundTripper { return engine.Local{Handler: e} }

// match returns the longest prefix of prompt that was served before, in tokens,
// and remembers prompt.
func (e *stubEngine) match(prompt string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	best := 0
	for _, c := range e.cached {
		n := 0
		for n < len(c) && n < len(prompt) && c[n] == prompt[n] {
			n++
		}
		best = max(best, n/stubToken)
	}
	if !slices.Contains(e.cached, prompt) {
		e.cached = append(e.cached, prompt)
	}
	e.served++
	return best
}

func (e *stubEngine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served
}

func (e *stubEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Length", "10")
		return
	}
	if r.URL.Path == "/v1/models" {
		e.list(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	at, _ := dialect.Lookup(r.URL.Path)
	p, err := dialect.Read(at, body)
	if err != nil {
		http.Error(w, `{"error":{"message":"unreadable"}}`, http.StatusBadRequest)
		return
	}
	b := e.now()
	if b.seen != nil {
		b.seen(r, body)
	}
	if !e.wait(r.Context(), b.prefill) {
		return
	}
	if b.fail != nil && b.fail(w) {
		return
	}
	prompt := string(p.Text)
	cached, tokens := e.match(prompt), len(prompt)/stubToken
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":%d}}`, tokens, cached)
	if !p.Stream {
		answer := fmt.Sprintf(`{"choices":[{"index":0,"text":"ok from %s"}],"usage":%s}`, e.name, usage)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
		_, _ = io.WriteString(w, answer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	var params struct {
		Max int `json:"max_tokens"`
	}
	_ = json.Unmarshal(body, &params)
	for i := range max(params.Max, 1) {
		if _, err := fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":\"%s%d \"}]}\n\n", e.name, i); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		if !e.wait(r.Context(), b.between) {
			return
		}
	}
	_, _ = fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
	_ = http.NewResponseController(w).Flush()
	e.wait(r.Context(), b.linger)
}

// wait takes its time and says whether the client stayed.
func (e *stubEngine) wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		e.mu.Lock()
		e.cancels++
		e.mu.Unlock()
		return false
	}
}

func (e *stubEngine) cancelled() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancels
}

// prompt returns a text that is unlike that of any other topic from its start.
func prompt(topic string, words int) string {
	return topic + ": " + strings.Repeat(topic+" is discussed here. ", words)
}
