package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/prefix"
)

// The engine is asked for a prompt's tokens with its key and what shows in the prompt.
// What needs no asking, or cannot be known, is not asked.
func TestTokensAreAskedFor(t *testing.T) {
	asked, answer, status := "", `{"tokens":[1,2,3],"token_strs":["Ġa","<s>","é"]}`, http.StatusOK
	d := &Daemon{log: slog.New(slog.DiscardHandler), insight: insight{said: map[string]bool{}}}
	d.cfg.EngineKey = "sk-engine"
	d.cfg.Engine = engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = string(body)
		if r.URL.Path != "/tokenize" || r.Header.Get("Authorization") != "Bearer sk-engine" {
			t.Errorf("%s, authorized by %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	})}
	d.cfg.KVEvents = kvevents.Config{Endpoint: "tcp://h:1"}
	e, err := newEvents(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ path, body, asked, got string }{
		{"/v1/completions", `{"model":"m","prompt":"a b","max_tokens":9,"seed":1}`, `{"return_token_strs":true,"model":"m","prompt":"a b"}`, "[1 2 3] [2 3 1]"},
		{"/v1/completions", `{"prompt":[7,8]}`, "", "[7 8] []"},
		{"/v1/completions", `{"prompt":["a","b"]}`, "", "[] [] it is not known of what tokens the engine makes its prompt"},
		{"/v1/responses", `{"input":"x"}`, `{"return_token_strs":true,"messages":[{"role":"user","content":"x"}]}`, "[1 2 3] [2 3 1]"},
	} {
		asked = ""
		at, _ := dialect.Lookup(tc.path)
		ids, weights, err := e.tokens(t.Context(), uncut{endpoint: at, body: []byte(tc.body)})
		got := fmt.Sprint(ids, " ", weights)
		if err != nil {
			got += " " + err.Error()
		}
		if asked != tc.asked || got != tc.got {
			t.Errorf("%s: asked %s, got %s", tc.body, asked, got)
		}
	}
	for _, tc := range []struct {
		status int
		answer string
		none   bool // no tokenizer is thought to be there
	}{
		{404, "", true},
		{501, "", true},
		{400, "", false},
		{500, "", false},
		{200, `{"tokens":[]}`, false},
		{200, `{"tokens":[-1]}`, false},
		{200, `{"tokens":`, false},
	} {
		status, answer, e.texts = tc.status, tc.answer, tokenizer{}
		p := uncut{endpoint: dialect.Endpoint{Dialect: dialect.Completion}, body: []byte(`{"prompt":"a"}`)}
		if ids, _, err := e.tokens(t.Context(), p); err == nil || e.texts.none.IsZero() == tc.none {
			t.Errorf("status %d, %s: %v, %v, %+v", tc.status, tc.answer, ids, err, e.texts)
		}
	}
}

// An engine without a tokenizer is asked once a minute at most; its requests fare as
// though it published nothing.
func TestEngineWithoutTokenizer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPublishing(t, "")
		asked := 0
		c := newCluster(t, 1, func(string) http.RoundTripper {
			return engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/tokenize" {
					asked++
					http.NotFound(w, r)
					return
				}
				p.ServeHTTP(w, r)
			})}
		}, p.follow)
		for i := range 10 {
			promised(t, c, topicQuestion(1, i))
		}
		if s := c.nodes["n1"].Status().KVEvents; asked != 1 || s.Unlinked != 10 || s.Prompts != 0 || s.Blocks == 0 {
			t.Errorf("asked %d times, %+v", asked, *s)
		}
		if expected, found, _ := promised(t, c, topicQuestion(1, 0)); expected == 0 || found == 0 {
			t.Errorf("%d promised, %d found", expected, found)
		}
	})
}

// An engine whose tokenizer takes no chats, as SGLang's before 2026, is asked for the
// tokens of one once a minute at most, and is told of once; texts are linked.
func TestTokenizerWithoutChats(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		p := newPublishing(t, "sglang")
		asked := 0
		c := newCluster(t, 1, func(string) http.RoundTripper {
			return engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.URL.Path == "/tokenize" && bytes.Contains(body, []byte("messages")) {
					asked++
					http.Error(w, `{"message":"prompt: Field required"}`, http.StatusBadRequest)
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				p.ServeHTTP(w, r)
			})}
		}, p.follow, func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
		})
		time.Sleep(5 * time.Second)
		for i := range 10 {
			if i == 5 {
				time.Sleep(tokenizeRetry)
			}
			chat := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":1}`, topicQuestion(1, i))
			if r := c.do(t.Context(), "n1", http.MethodPost, "/v1/chat/completions", chat); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			promised(t, c, topicQuestion(2, i))
		}
		mu.Lock()
		defer mu.Unlock()
		if s := c.nodes["n1"].Status().KVEvents; asked != 2 || s.Unlinked != 10 || s.Prompts != 10 || strings.Count(log.String(), "messages") != 1 {
			t.Errorf("asked %d times, %+v\n%s", asked, *s, log.String())
		}
	})
}

// A tokenizer that goes on failing is told of once, with what there is to do.
func TestTokenizerThatFails(t *testing.T) {
	for _, tc := range []struct {
		name, remedy string
		answer       http.HandlerFunc
	}{
		{"credentials", "--engine-key", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }},
		{"errors", "POST /tokenize answers", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }},
		{"no tokens", "POST /tokenize answers", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"tokens":[]}`) }},
		{"hangs", "POST /tokenize answers", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	} {
		inBubble(t, func(t *testing.T) {
			var mu sync.Mutex
			var log bytes.Buffer
			p := newPublishing(t, "")
			c := newCluster(t, 1, func(string) http.RoundTripper {
				return engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/tokenize" {
						tc.answer(w, r)
						return
					}
					p.ServeHTTP(w, r)
				})}
			}, p.follow, func(c *Config) {
				c.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
			})
			time.Sleep(5 * time.Second)
			for i := range 2 * tokenizeFailuresMax {
				promised(t, c, topicQuestion(1, i))
				time.Sleep(tokenizePause + tokenizeTimeout)
			}
			mu.Lock()
			defer mu.Unlock()
			if n := strings.Count(log.String(), "none of the last prompts"); n != 1 || !strings.Contains(log.String(), tc.remedy) {
				t.Errorf("%s: told %d times:\n%s", tc.name, n, log.String())
			}
		})
	}
}

// With vLLM an adapter is a model: its prompts are linked to the blocks that its events
// name it in, from the first one on.
func TestAdapterOfVLLM(t *testing.T) {
	d := &Daemon{log: slog.New(slog.DiscardHandler)}
	d.cfg.KVEvents = kvevents.Config{Endpoint: "tcp://h:1"}
	e, err := newEvents(d)
	if err != nil {
		t.Fatal(err)
	}
	d.health.models = []model{{id: "base"}, {id: "sql", parent: "base"}}
	ids := make([]uint32, 32)
	for i, of := range []struct{ model, adapter string }{{"base", ""}, {"sql", "sql"}} {
		chain := prefix.Chain{prefix.Hash(2*i + 1), prefix.Hash(2*i + 2)}
		body, _ := json.Marshal(map[string]any{"model": of.model, "prompt": ids})
		e.cutPrompt(t.Context(), uncut{
			endpoint: dialect.Endpoint{Dialect: dialect.Completion}, body: body,
			chain: chain, bytes: 2 * prefix.BlockBytes, model: of.model,
		})
		if got := e.memo.Evicted(e.cache.Names(kvevents.Space{Adapter: of.adapter}, ids)); !slices.Equal(got, chain) {
			t.Errorf("of %s the end of its blocks takes %v, want %v", of.model, got, chain)
		}
	}
}

// An answer waits for its prompt's tokens for settleMax, however slow the engine's
// tokenizer is. One that hangs is left alone for a while; what came meanwhile, or could
// not wait its turn, is left unlinked.
func TestSlowTokenizerHoldsUpNoAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPublishing(t, "")
		slow, asked := time.Second, 0
		c := newCluster(t, 1, func(string) http.RoundTripper {
			return engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/tokenize" {
					asked++
					select {
					case <-time.After(slow):
					case <-r.Context().Done():
					}
				}
				p.ServeHTTP(w, r)
			})}
		}, p.follow)
		time.Sleep(5 * time.Second)
		ask := func(i int) {
			begun := time.Now()
			r := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, topicQuestion(i, i)))
			if took := time.Since(begun); r.status != 200 || took > p.config.Profile.Base+settleMax {
				t.Errorf("%d after %v", r.status, took)
			}
		}
		events := func() KVEventsStatus { return *c.nodes["n1"].Status().KVEvents }
		ask(1)
		time.Sleep(2 * time.Second)
		if s := events(); s.Prompts != 1 || s.Unlinked != 0 {
			t.Errorf("%+v: a slow tokenizer links nothing", s)
		}
		slow = time.Hour
		for i := range promptsMax + 10 {
			ask(10 + i)
		}
		time.Sleep(2 * tokenizeTimeout)
		if s := events(); s.Prompts != 1 || s.Unlinked != promptsMax+10 || asked != 2 {
			t.Errorf("%+v: nothing was cut, and one asked for of %d", s, asked-1)
		}
		slow = 0
		time.Sleep(tokenizePause)
		ask(100)
		time.Sleep(time.Second)
		if s := events(); s.Prompts != 2 {
			t.Errorf("%+v: it answers again, and links nothing", s)
		}
	})
}

// A link to tokens that are not those of the engine's prompt, as by another template, is
// never told of an eviction: what was evicted is promised once more, found out, and not
// promised again. The operator is told, once.
func TestWrongTokensCostOneMiss(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		p := newPublishing(t, "", func(c *emulated.Config) { c.Profile.CapacityTokens, c.TokenBytes = 2048, 0 })
		c := newCluster(t, 1, func(string) http.RoundTripper {
			return engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/tokenize" {
					p.ServeHTTP(w, r)
					return
				}
				answer := httptest.NewRecorder()
				p.ServeHTTP(answer, r)
				_, ids, _ := strings.Cut(answer.Body.String(), `"tokens":[`)
				ids, _, _ = strings.Cut(ids, "]")
				_, _ = fmt.Fprintf(w, `{"tokens":[7,7,7,%s]}`, ids)
			})}
		}, p.follow, func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
		})
		time.Sleep(5 * time.Second)
		off := 0
		const topics, rounds = 12, 5 // of which the cache holds half
		for i := range topics * rounds {
			expected, found, _ := promised(t, c, topicQuestion(i/2%topics, i))
			if again := i%2 == 1; again && (found == 0 || max(expected-found, found-expected) > 32) {
				t.Errorf("request %d, asked just before: %d promised, %d found", i, expected, found)
			} else if !again && expected > found+32 {
				off++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if s := c.nodes["n1"].Status().KVEvents; off == 0 || off > topics*rounds/2 || s.Prompts != topics*rounds || strings.Count(log.String(), "--kv-events") != 1 {
			t.Errorf("%d promises of what was evicted, %+v\n%s", off, *s, log.String())
		}
	})
}

// A cache that is cleared before anything of its prompts was evicted is not thought to be
// another engine's; one that lets go of twice what it holds is.
func TestClearedCacheIsNoOtherEngines(t *testing.T) {
	d := &Daemon{log: slog.New(slog.DiscardHandler), insight: insight{said: map[string]bool{}}}
	d.cfg.KVEvents = kvevents.Config{Endpoint: "tcp://h:1"}
	e, err := newEvents(d)
	if err != nil {
		t.Fatal(err)
	}
	e.cut.Store(linkedMin)
	if e.forgot(make([]prefix.Hash, 100)); d.insight.said["foreign"] {
		t.Error("a cleared cache is another engine's")
	}
	e.cache.Apply(0, []kvevents.Event{{Kind: kvevents.Stored, Counts: true, Hashes: []uint64{1}, Tokens: []uint32{1}, BlockSize: 1}})
	if e.forgot(make([]prefix.Hash, 2)); !d.insight.said["foreign"] {
		t.Error("it holds one block, has evicted two that nothing needs, and nobody is told")
	}
}
