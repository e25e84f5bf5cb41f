package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/hearsay-project/hearsay/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustRead(t *testing.T, path, body string) Prompt {
	t.Helper()
	p, err := Read(path, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	chat       = "/v1/chat/completions"
	completion = "/v1/completions"
)

// However the same conversation is spelled, it is the same prompt.
func TestSpellingDoesNotShow(t *testing.T) {
	plain := mustRead(t, chat, `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"café\n"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}`)
	for _, body := range []string{
		"{ \"tools\" : [ { \"function\":{\"parameters\":{ },\"name\":\"f\"},\"type\":\"function\"}],\n \"messages\":[{\"content\":\"Be brief.\",\"role\":\"system\"},{\"role\":\"user\",\"content\":\"caf\\u00e9\\n\"}],\"model\":\"m\"}",
		`{"temperature":0.5,"messages":[{"role":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","content":"café\n"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"model":"m"}`,
	} {
		if got := mustRead(t, chat, body); !bytes.Equal(got.Text, plain.Text) || got.Scope != plain.Scope {
			t.Errorf("%s\nreads %q, want %q", body, got.Text, plain.Text)
		}
	}
}

// What the engine would see differently has another prompt.
func TestDifferencesShow(t *testing.T) {
	base := `{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"}]}`
	seen := map[string]string{string(mustRead(t, chat, base).Text): base}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"bc"}]}`,
		`{"messages":[{"role":"user","content":"ab"},{"role":"user","content":"c"}]}`,
		`{"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c","tool_calls":[{"id":"1"}]}]}`,
		`{"tools":[],"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:1"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:2"}}]}]}`,
	} {
		text := string(mustRead(t, chat, body).Text)
		if other, ok := seen[text]; ok {
			t.Errorf("%s\nand\n%s\nboth read %q", body, other, text)
		}
		seen[text] = body
	}
}

// Keys count as written, and the last of two equal ones wins.
func TestKeysAsTheEngineReadsThem(t *testing.T) {
	p := mustRead(t, completion, `{"Model":"no","model":"first","model":"last","PROMPT":"no","prompt":"yes","STREAM":true,"cache_salt":"s"}`)
	if want := (Prompt{Scope: prefix.Scope{Model: "last", Salt: "s"}, Text: []byte("yes")}); p.Scope != want.Scope || string(p.Text) != "yes" || p.Stream {
		t.Errorf("read %+v, want %+v", p, want)
	}
}

func TestCompletionPrompts(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":"text"}`:               "text",
		`{"prompt":["one","two"]}`:        "one\x1etwo",
		`{"prompt":[1,258]}`:              "\x1etokens\x1f\x01\x00\x00\x00\x02\x01\x00\x00",
		`{"prompt":[[1],[2]]}`:            "[[1],[2]]",
		`{"prompt":12345678901234567890}`: "12345678901234567890",
		`{}`:                              "",
	} {
		if got := mustRead(t, completion, body); string(got.Text) != want {
			t.Errorf("%s reads %q, want %q", body, got.Text, want)
		}
	}
}

// Nothing that a client sends makes Read panic, and what it cannot read is an error.
func TestUnreadable(t *testing.T) {
	for _, body := range []string{``, `[]`, `{`, `null x`, `{"messages":3}`, `{"messages":["x"]}`, "\xff"} {
		if p, err := Read(chat, []byte(body)); err == nil && len(p.Text) > 0 {
			t.Errorf("%q reads %q", body, p.Text)
		}
	}
}

// The prompt of a conversation's next turn begins with what Continue named.
func TestContinueIsThePrefixOfTheNextTurn(t *testing.T) {
	first := mustRead(t, chat, `{"messages":[{"role":"user","content":"hi"}]}`)
	next := mustRead(t, chat, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"},{"role":"user","content":"bye"}]}`)
	if c := first.Continue("hello"); !bytes.HasPrefix(next.Text, c) {
		t.Errorf("next turn %q does not begin with %q", next.Text, c)
	}
	text := mustRead(t, completion, `{"prompt":"a"}`)
	if got := string(text.Continue("b")); got != "ab" {
		t.Errorf("continued %q", got)
	}
}

func sse(objects ...string) string {
	var b strings.Builder
	for _, o := range objects {
		fmt.Fprintf(&b, "data: %s\n\n", o)
	}
	return b.String() + "data: [DONE]\n\n"
}

// A scanner sees the same answer however its bytes are cut.
func TestScannerSeesThroughAnyCut(t *testing.T) {
	answers := map[string]string{
		"text/event-stream; charset=utf-8": sse(
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":"Hé"}},{"index":1,"delta":{"content":"other"}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"llo"}}],"usage":null}`,
			`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`),
		"application/json": `{"choices":[{"index":0,"message":{"content":"Héllo"}}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`,
	}
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"text/event-stream; charset=utf-8", "application/json"}).Draw(t, "type")
		s := NewScanner(http.Header{"Content-Type": {kind}})
		rest := answers[kind]
		for rest != "" {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			_, _ = io.WriteString(s, rest[:n])
			rest = rest[n:]
		}
		usage, known := s.Usage()
		text, whole := s.Text()
		if want := (Usage{Prompt: 9, Completion: 2, Cached: 8}); usage != want || !known || text != "Héllo" || !whole {
			t.Fatalf("saw %+v %v %q %v", usage, known, text, whole)
		}
	})
}

// An engine that does not tell about its cache is not known to have missed.
func TestScannerWithoutDetails(t *testing.T) {
	s := NewScanner(http.Header{"Content-Type": {"application/json"}})
	_, _ = io.WriteString(s, `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`)
	if usage, known := s.Usage(); known || usage.Prompt != 9 {
		t.Errorf("saw %+v, known %v", usage, known)
	}
	s = NewScanner(http.Header{"Content-Type": {"text/event-stream"}, PromptTokensHeader: {"9"}, CachedTokensHeader: {"3"}})
	_, _ = io.WriteString(s, sse(`{"choices":[{"text":"x"}]}`))
	if usage, known := s.Usage(); !known || usage.Cached != 3 || usage.Prompt != 9 {
		t.Errorf("saw %+v, known %v", usage, known)
	}
}

// An answer without end costs a scanner no more than its bound.
func TestScannerIsBounded(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/json"} {
		s := NewScanner(http.Header{"Content-Type": {kind}})
		chunk := []byte(`data: {"choices":[{"text":"` + strings.Repeat("y", 64<<10) + `"}]}` + "\n\n")
		for range 100 {
			_, _ = s.Write(chunk)
		}
		for range 100 { // a line that goes on and on
			_, _ = s.Write(bytes.Repeat([]byte("x"), 64<<10))
		}
		if held := cap(s.pending) + s.text.Cap(); held > 4*answerBytesMax {
			t.Errorf("%s: holds %d bytes", kind, held)
		}
		if _, whole := s.Text(); whole {
			t.Errorf("%s: says that the text is whole", kind)
		}
	}
}

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"data": []map[string]string{{"id": "m"}}})
	})
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Query", r.URL.RawQuery)
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("GET /path/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.RequestURI())
	})
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/panic", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begun")
		panic("broken handler")
	})
	return mux
}

// remoteAt serves h and returns the way to it.
func remoteAt(t *testing.T, path string, h http.Handler) *Remote {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handler that panics
	server.Start()
	remote, err := OpenRemote(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		remote.Close()
		server.Close()
	})
	return remote
}

// Both ways to an engine keep the same promises.
func TestEngines(t *testing.T) {
	for name, e := range map[string]http.RoundTripper{
		"remote":         remoteAt(t, "/base", http.StripPrefix("/base", handler())),
		"remote at root": remoteAt(t, "", handler()),
		"local":          Local{Handler: handler()},
	} {
		t.Run(name, func(t *testing.T) {
			models, err := Models(t.Context(), e)
			if err != nil || len(models) != 1 || models[0] != "m" {
				t.Errorf("models %v, %v", models, err)
			}
			post, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine/echo?a=b%2Fc", strings.NewReader("as it is"))
			resp, err := e.RoundTrip(post)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusTeapot || string(body) != "as it is" || resp.Header.Get("X-Query") != "a=b%2Fc" {
				t.Errorf("status %d, body %q, headers %v, err %v", resp.StatusCode, body, resp.Header, err)
			}

			encoded, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine/path/a%2Fb?c=d", nil)
			if resp, err = e.RoundTrip(encoded); err != nil {
				t.Fatal(err)
			}
			body, _ = io.ReadAll(resp.Body)
			resp.Body.Close()
			if want := "/path/a%2Fb?c=d"; !strings.HasSuffix(string(body), want) || encoded.URL.Host != "engine" {
				t.Errorf("asked for %s, want %s; the request now reads %s", body, want, encoded.URL)
			}

			ctx, cancel := context.WithCancel(t.Context())
			wait, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/wait", nil)
			if resp, err = e.RoundTrip(wait); err != nil {
				t.Fatal(err)
			}
			cancel()
			if _, err = io.ReadAll(resp.Body); err == nil {
				t.Error("a cancelled answer ended as if it were whole")
			}
			resp.Body.Close()

			broken, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine/panic", nil)
			if resp, err = e.RoundTrip(broken); err != nil {
				return // the remote's server may cut the connection before the headers
			}
			if _, err = io.ReadAll(resp.Body); err == nil {
				t.Error("an answer cut off by a panic ended as if it were whole")
			}
			resp.Body.Close()
		})
	}
}

// Leaving before the answer begins ends the handler too (goleak watches).
func TestLocalCancelledBeforeTheAnswer(t *testing.T) {
	e := Local{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/", nil)
	if _, err := e.RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Errorf("err %v", err)
	}
}

func TestOpenRemoteRefuses(t *testing.T) {
	for _, base := range []string{"", "localhost:1", "ftp://x", "http://", "buitlin"} {
		if _, err := OpenRemote(base); err == nil || !strings.Contains(err.Error(), "is not a URL such as") {
			t.Errorf("%q: %v", base, err)
		}
	}
}

// FuzzRead: no body makes Read panic; what it reads it reads the same twice.
func FuzzRead(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"a":1}]}],"tools":[1]}`)
	f.Add(`{"prompt":[[1,2],[3]]}`)
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{chat, completion} {
			p, err := Read(path, []byte(body))
			q, err2 := Read(path, []byte(body))
			if (err == nil) != (err2 == nil) || !bytes.Equal(p.Text, q.Text) {
				t.Errorf("%s: two readings differ", path)
			}
		}
	})
}
