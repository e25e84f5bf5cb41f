package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A scripted engine answers every call with its tokens, then ends with err.
type scripted struct {
	tokens []string
	err    error
	calls  []*Call
}

func (s *scripted) Generate(_ context.Context, c *Call) (Stream, error) {
	s.calls = append(s.calls, c)
	return &scriptedStream{script: s}, nil
}

type scriptedStream struct {
	script *scripted
	next   int
}

func (s *scriptedStream) Next() (string, bool) {
	if s.next == len(s.script.tokens) {
		return "", false
	}
	s.next++
	return s.script.tokens[s.next-1], true
}

func (s *scriptedStream) Prompt() (tokens, cached int) { return 7, 3 }

func (s *scriptedStream) Finish() (string, int, error) { return "stop", s.next, s.script.err }

// ask sends body to path and gives the answer, without what differs each time.
func ask(t *testing.T, s *scripted, path, body string) (*httptest.ResponseRecorder, string) {
	t.Helper()
	w := httptest.NewRecorder()
	server := Server{Engine: s, Model: "m", Started: time.Unix(5, 0), Context: 64}
	server.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	text := w.Body.String()
	for _, field := range []string{`"id":"`, `"created":`} {
		for i := 0; ; {
			at := strings.Index(text[i:], field)
			if at < 0 {
				break
			}
			i += at + len(field)
			end := i + strings.IndexAny(text[i:], `",`)
			text = text[:i] + text[end:]
		}
	}
	return w, text
}

// The four shapes of an answer, byte for byte.
func TestShapes(t *testing.T) {
	s := &scripted{tokens: []string{"Hé", "", "<llo>"}}
	const usage = `"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":3}}`
	for _, c := range []struct{ path, body, kind, want string }{
		{
			"/v1/completions", `{"prompt":"a"}`, "application/json",
			`{"id":"","object":"text_completion","created":,"model":"m","choices":[{"index":0,"text":"Hé<llo>","logprobs":null,"finish_reason":"stop"}],` + usage + "}\n",
		},
		{
			"/v1/chat/completions", `{"messages":[]}`, "application/json",
			`{"id":"","object":"chat.completion","created":,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hé<llo>"},"logprobs":null,"finish_reason":"stop"}],` + usage + "}\n",
		},
		{"/v1/completions", `{"prompt":"a","stream":true}`, "text/event-stream", events("text_completion", "",
			`[{"index":0,"text":"Hé","logprobs":null,"finish_reason":null}]`,
			`[{"index":0,"text":"<llo>","logprobs":null,"finish_reason":null}]`,
			`[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]`) + "data: [DONE]\n\n"},
		{"/v1/chat/completions", `{"messages":[],"stream":true,"stream_options":{"include_usage":true}}`, "text/event-stream", events("chat.completion.chunk", `,"usage":null`,
			`[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`,
			`[{"index":0,"delta":{"content":"Hé"},"logprobs":null,"finish_reason":null}]`,
			`[{"index":0,"delta":{"content":"<llo>"},"logprobs":null,"finish_reason":null}]`,
			`[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]`) + events("chat.completion.chunk", ","+usage, `[]`) + "data: [DONE]\n\n"},
	} {
		w, got := ask(t, s, c.path, c.body)
		if diff := cmp.Diff(c.want, got); diff != "" || w.Code != 200 || w.Header().Get("Content-Type") != c.kind {
			t.Errorf("%s %s: %d %v\n%s", c.path, c.body, w.Code, w.Header(), diff)
		}
		if w.Header().Get("Hearsay-Prompt-Tokens") != "7" || w.Header().Get("Hearsay-Cached-Tokens") != "3" {
			t.Errorf("%s: headers %v", c.path, w.Header())
		}
	}
}

func events(object, rest string, choices ...string) string {
	var b strings.Builder
	for _, c := range choices {
		b.WriteString(`data: {"id":"","object":"` + object + `","created":,"model":"m","choices":` + c + rest + "}\n\n")
	}
	return b.String()
}

// A call holds what the client set, and the API's own values elsewhere.
func TestOptions(t *testing.T) {
	s := &scripted{tokens: []string{"x"}}
	ask(t, s, "/v1/completions", `{"prompt":[1,2],"temperature":0.5,"top_p":null,"seed":-1,"stop":["a","b"],"max_tokens":3,"max_completion_tokens":4,"MAX_TOKENS":9,"n":2,"n":1}`)
	ask(t, s, "/v1/chat/completions", `{}`)
	c := s.calls[0]
	if c.Temperature != 0.5 || c.TopP != 1 || c.Seed != 1<<64-1 || len(c.Stop) != 2 || c.MaxTokens != 4 || c.Chat || c.Stream {
		t.Errorf("read %+v", c)
	}
	if text, ids, err := c.Prompt(); text != "" || len(ids) != 2 || err != nil {
		t.Errorf("prompt %q %v, %v", text, ids, err)
	}
	if c = s.calls[1]; c.Temperature != 1 || c.MaxTokens != 0 || !c.Chat || c.PromptField() != "messages" {
		t.Errorf("read %+v", c)
	}
}

// What breaks an answer off before its first byte has a status; later it cuts the
// connection, unless the client did.
func TestBrokenAnswers(t *testing.T) {
	closed := Unavailable(errors.New("closing"))
	for _, c := range []struct {
		s    scripted
		body string
		want int // 0: the connection is cut
	}{
		{scripted{err: closed}, `{"prompt":"a"}`, 503},
		{scripted{err: closed}, `{"prompt":"a","stream":true}`, 503},
		{scripted{tokens: []string{"x"}, err: closed}, `{"prompt":"a"}`, 503},
		{scripted{tokens: []string{"x"}, err: closed}, `{"prompt":"a","stream":true}`, 0},
		{scripted{err: context.Canceled}, `{"prompt":"a"}`, 499},
		{scripted{err: Busy(errors.New("full"))}, `{"prompt":"a"}`, 429},
	} {
		got := func() (status int) {
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler {
					panic(p)
				} else if p != nil {
					status = 0
				}
			}()
			w, text := ask(t, &c.s, "/v1/completions", c.body)
			if again := w.Header().Get("Retry-After"); (again != "") != (w.Code == 429) || !strings.HasPrefix(text, `{"error":{`) {
				t.Errorf("%v: Retry-After %q, %s", c.s.err, again, text)
			}
			return w.Code
		}()
		if got != c.want {
			t.Errorf("%q then %v, %s: status %d, want %d", c.s.tokens, c.s.err, c.body, got, c.want)
		}
	}
}

// An endless body is refused without being held.
func TestBodyIsBounded(t *testing.T) {
	w := httptest.NewRecorder()
	server := Server{Engine: &scripted{}}
	server.ServeHTTP(w, httptest.NewRequest("POST", "/v1/completions", io.LimitReader(endless{}, maxBody+1)))
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
