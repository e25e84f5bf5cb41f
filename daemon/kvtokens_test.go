package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/kvevents"
)

// The engine is asked for a prompt's tokens with its key and what shows in the prompt.
// What needs no asking, or cannot be known, is not asked.
func TestTokensAreAskedFor(t *testing.T) {
	asked, answer, status := "", `{"tokens":[1,2,3],"token_strs":["Ġa","<s>","é"]}`, http.StatusOK
	d := &Daemon{log: slog.New(slog.DiscardHandler)}
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
		ids, weights, err := e.tokens(t.Context(), at, []byte(tc.body))
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
		none   bool
	}{
		{404, "", true},
		{501, "", true},
		{400, "", false},
		{200, `{"tokens":[]}`, false},
		{200, `{"tokens":[-1]}`, false},
		{200, `{"tokens":`, false},
	} {
		status, answer = tc.status, tc.answer
		if ids, _, err := e.tokens(t.Context(), dialect.Endpoint{Dialect: dialect.Completion}, []byte(`{"prompt":"a"}`)); err == nil || errors.Is(err, errNoTokenizer) != tc.none {
			t.Errorf("status %d, %s: %v, %v", tc.status, tc.answer, ids, err)
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
