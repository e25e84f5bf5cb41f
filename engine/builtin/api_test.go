package builtin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearsay-project/hearsay/dialect"
)

func serve(t *testing.T, c Config) (*Engine, *httptest.Server) {
	e := openTest(t, c)
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	t.Cleanup(s.Client().CloseIdleConnections)
	return e, s
}

// post sends a body and gives the status, the headers and the answer.
func post(t *testing.T, s *httptest.Server, path, body string) (int, http.Header, string) {
	t.Helper()
	r, err := s.Client().Post(s.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header, string(raw)
}

// like blanks what differs each time and compares JSON with want.
func like(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%v in %s", err, want)
	}
	if o, ok := g.(map[string]any); ok && o["id"] != nil && o["created"] != nil {
		id, _ := o["id"].(string)
		o["id"], _, _ = strings.Cut(id, "-")
		delete(o, "created")
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("got %s\n%s", got, diff)
	}
}

// events reads a stream's data lines.
func events(t *testing.T, body string) (lines []string) {
	t.Helper()
	for _, event := range strings.SplitAfter(body, "\n\n") {
		if event == "" {
			continue
		}
		data, ok := strings.CutPrefix(strings.TrimSuffix(event, "\n\n"), "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("event %q", event)
		}
		lines = append(lines, data)
	}
	return lines
}

func TestCompletion(t *testing.T) {
	_, s := serve(t, Config{})
	want := `{"id":"cmpl","object":"text_completion","model":"hearsay-tiny","choices":[{"index":0,"text":%s,"logprobs":null,"finish_reason":"length"}],
		"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0}}}`
	for _, prompt := range []string{`"In the beginning"`, `["In the beginning"]`, `[1,733,262,928,263,935,290]`} {
		status, header, body := post(t, s, "/v1/completions", `{"model":"hearsay-tiny","prompt":`+prompt+`,"max_tokens":5,"max_completion_tokens":null,"temperature":0}`)
		if status != 200 || header.Get("Hearsay-Prompt-Tokens") != "7" || header.Get("Hearsay-Cached-Tokens") != "0" || header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %v", status, header)
		}
		like(t, body, fmt.Sprintf(want, `" of the temp"`))
	}
}

func TestCompletionStream(t *testing.T) {
	_, s := serve(t, Config{})
	chunk := func(rest string) string {
		return `{"id":"cmpl","object":"text_completion","model":"hearsay-tiny",` + rest + `}`
	}
	_, header, body := post(t, s, "/v1/completions", `{"prompt":"In the beginning","max_tokens":2,"temperature":0,"stream":true}`)
	got := events(t, body)
	if header.Get("Content-Type") != "text/event-stream" || header.Get("Hearsay-Prompt-Tokens") != "7" || len(got) != 4 || got[3] != "[DONE]" {
		t.Fatalf("%v %q", header, got)
	}
	like(t, got[0], chunk(`"choices":[{"index":0,"text":" of","logprobs":null,"finish_reason":null}]`))
	like(t, got[1], chunk(`"choices":[{"index":0,"text":" the","logprobs":null,"finish_reason":null}]`))
	like(t, got[2], chunk(`"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]`))
}

func TestChat(t *testing.T) {
	e, s := serve(t, Config{Name: "whale"})
	messages := `[{"role":"developer","content":"Be <brief>."},{"role":"user","content":[{"type":"text","text":"Who is"},{"type":"text","text":" Ahab?"}]},{"role":"assistant","content":null}]`
	prompt := e.Encode("System: Be <brief>.\n\nUser: Who is Ahab?\n\nAssistant: \n\nAssistant:")
	answer, usage := answerOf(t, e, Request{Prompt: prompt, MaxTokens: 12, TrimSpace: true})
	quoted, _ := json.Marshal(answer)
	cached := len(prompt) / pageTokens * pageTokens
	usageJSON := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		len(prompt), usage.CompletionTokens, len(prompt)+usage.CompletionTokens, cached)
	ask := `{"model":"whale","messages":` + messages + `,"max_completion_tokens":12,"temperature":0`

	status, header, body := post(t, s, "/v1/chat/completions", ask+`}`)
	if status != 200 || header.Get("Hearsay-Cached-Tokens") != strconv.Itoa(cached) {
		t.Errorf("%d %v", status, header)
	}
	like(t, body, `{"id":"chatcmpl","object":"chat.completion","model":"whale","choices":[{"index":0,"message":{"role":"assistant","content":`+
		string(quoted)+`},"logprobs":null,"finish_reason":"length"}],"usage":`+usageJSON+`}`)

	_, _, body = post(t, s, "/v1/chat/completions", ask+`,"stream":true,"stream_options":{"include_usage":true}}`)
	got := events(t, body)
	chunk := func(choices, usage string) string {
		return `{"id":"chatcmpl","object":"chat.completion.chunk","model":"whale","choices":` + choices + `,"usage":` + usage + `}`
	}
	like(t, got[0], chunk(`[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`, "null"))
	var text strings.Builder
	for _, line := range got[1 : len(got)-3] {
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		text.WriteString(c.Choices[0].Delta.Content)
	}
	if text.String() != answer {
		t.Errorf("streamed %q, want %q", text.String(), answer)
	}
	like(t, got[len(got)-3], chunk(`[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]`, "null"))
	like(t, got[len(got)-2], chunk(`[]`, usageJSON))
	if got[len(got)-1] != "[DONE]" {
		t.Errorf("the last line is %s", got[len(got)-1])
	}
}

func TestStopString(t *testing.T) {
	_, s := serve(t, Config{})
	_, _, streamed := post(t, s, "/v1/completions", `{"prompt":"In the beginning","max_tokens":30,"temperature":0,"stop":["nowhere","mple, in"],"stream":true}`)
	if lines := events(t, streamed); len(lines) != 6 || !strings.Contains(lines[3], `"text":"e"`) || !strings.Contains(lines[4], `"text":"","logprobs":null,"finish_reason":"stop"`) {
		t.Errorf("%s", streamed)
	}
	_, _, body := post(t, s, "/v1/completions", `{"prompt":"In the beginning","max_tokens":30,"temperature":0,"stop":"mple, in"}`)
	like(t, body, `{"id":"cmpl","object":"text_completion","model":"hearsay-tiny","choices":[{"index":0,"text":" of the te","logprobs":null,"finish_reason":"stop"}],
		"usage":{"prompt_tokens":7,"completion_tokens":8,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":0}}}`)
}

func TestModelsTokenizeDetokenize(t *testing.T) {
	e, s := serve(t, Config{Context: 512})
	r, err := s.Client().Get(s.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, _ := io.ReadAll(r.Body)
	like(t, string(raw), fmt.Sprintf(`{"object":"list","data":[{"id":"hearsay-tiny","object":"model","created":%d,"owned_by":"hearsay","max_model_len":512}]}`, e.started.Unix()))
	_, _, body := post(t, s, "/tokenize", `{"prompt":"The whale"}`)
	like(t, body, `{"count":3,"max_model_len":512,"tokens":[1,364,881]}`)
	_, _, body = post(t, s, "/tokenize", `{"messages":[{"role":"user","content":"é"}]}`)
	tokens, _ := json.Marshal(e.Encode("User: é\n\nAssistant:"))
	like(t, body, fmt.Sprintf(`{"count":%d,"max_model_len":512,"tokens":%s}`, len(e.Encode("User: é\n\nAssistant:")), tokens))
	_, _, body = post(t, s, "/detokenize", `{"tokens":[1,364,881]}`)
	like(t, body, `{"prompt":"The whale"}`)
}

// What clients get wrong is answered in OpenAI's shape, with the fitting status.
func TestClientErrors(t *testing.T) {
	_, s := serve(t, Config{Context: 64})
	chat, text := "/v1/chat/completions", "/v1/completions"
	for _, c := range []struct {
		path, body         string
		status             int
		param, code, about string
	}{
		{text, `{`, 400, "", "", "JSON object"},
		{text, `[]`, 400, "", "", "JSON object"},
		{text, `{"Prompt":"a"}`, 400, "prompt", "", "prompt must be"}, // keys are matched exactly
		{text, `{"prompt":["a","b"]}`, 400, "prompt", "", "one string"},
		{text, `{"prompt":[1,99999]}`, 400, "prompt", "", "outside the vocabulary of 1024"},
		{text, `{"prompt":"a","model":"gpt"}`, 404, "model", "model_not_found", `serves "hearsay-tiny"`},
		{text, `{"prompt":"a","n":2}`, 400, "n", "", "n is 2"},
		{text, `{"prompt":"a","max_tokens":0}`, 400, "max_tokens", "", "at least 1"},
		{text, `{"prompt":"a","max_tokens":"x"}`, 400, "max_tokens", "", "an integer"},
		{text, `{"prompt":"a","temperature":3}`, 400, "temperature", "", "0 to 2"},
		{text, `{"prompt":"a","top_p":0}`, 400, "top_p", "", "above 0"},
		{text, `{"prompt":"a","stop":[""]}`, 400, "stop", "", "1 to"},
		{text, `{"prompt":"a","stop":7}`, 400, "stop", "", "a string or a list"},
		{text, `{"prompt":"a","echo":true}`, 400, "echo", "", "not supported"},
		{text, `{"prompt":"a","stream_options":{"include_usage":1}}`, 400, "stream_options.include_usage", "", "a boolean"},
		{text, `{"prompt":"a","max_tokens":64}`, 400, "prompt", "context_length_exceeded", "64"},
		{chat, `{}`, 400, "messages", "", "at least one"},
		{chat, `{"messages":[]}`, 400, "messages", "", "at least one"},
		{chat, `{"messages":[{"content":"a"}]}`, 400, "messages[0].role", "", "role"},
		{chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, 400, "messages[0].content", "", `"image_url" is not supported`},
		{chat, `{"messages":[{"role":"user","content":5}]}`, 400, "messages[0].content", "", "a string or a list"},
		{chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("whale ", 99) + `"}]}`, 400, "messages", "context_length_exceeded", "shorten the prompt"},
		{text, `{"prompt":"` + strings.Repeat("whale ", 9999) + `"}`, 400, "prompt", "context_length_exceeded", "59994 bytes"},
		{"/v1/responses", `{"instructions":"a","input":[{"role":"user","content":[{"type":"input_image"}]}]}`, 400, "input[0].content", "", `"input_image" is not supported`},
		{"/tokenize", `{}`, 400, "prompt", "", "give a prompt or messages"},
		{"/detokenize", `{"tokens":[-1]}`, 400, "tokens", "", "outside"},
		{"/v1/rerank", `{}`, 404, "", "", "nothing at /v1/rerank"},
	} {
		status, _, body := post(t, s, c.path, c.body)
		var got struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(body)
		}
		field := func(s *string) string {
			if s == nil {
				return ""
			}
			return *s
		}
		if status != c.status || field(got.Error.Param) != c.param || field(got.Error.Code) != c.code ||
			!strings.Contains(got.Error.Message, c.about) || got.Error.Type != "invalid_request_error" {
			t.Errorf("%s %.80s: %d %s", c.path, c.body, status, body)
		}
	}
	r, err := s.Client().Get(s.URL + text)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != 405 || r.Header.Get("Allow") != "POST" {
		t.Errorf("GET: %d, Allow %q", r.StatusCode, r.Header.Get("Allow"))
	}
}

// When the queue is full the client is told to come back.
func TestFullQueueIs429(t *testing.T) {
	e, s := serve(t, Config{MaxBatch: 1, QueueMax: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		if _, err := e.Generate(ctx, Request{Prompt: e.Encode("The whale"), MaxTokens: 8000}); err != nil {
			t.Fatal(err)
		}
	}
	status, header, body := post(t, s, "/v1/completions", `{"prompt":"a"}`)
	if status != 429 || header.Get("Retry-After") != "1" || !strings.Contains(body, "queue is full") {
		t.Errorf("%d %v %s", status, header, body)
	}
}

// A stream arrives while it is made, a client that leaves frees the engine, and
// an engine that closes breaks the stream off without a false end.
func TestStreamsEndWithTheirClientOrTheEngine(t *testing.T) {
	e, s := serve(t, Config{})
	open := func(ctx context.Context) *http.Response {
		r, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/completions", strings.NewReader(`{"prompt":"The whale","max_tokens":8000,"temperature":0,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(answer.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := open(ctx)
	defer gone.Body.Close()
	cancel()
	stays := open(t.Context())
	defer stays.Body.Close()
	for e.Load().Running > 1 { // ends when the first request has left the batch
		answerOf(t, e, Request{Prompt: []int32{1}, MaxTokens: 1})
	}
	e.Close()
	if rest, err := io.ReadAll(stays.Body); err == nil || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream of a closed engine ended with %v", err)
	}
}

// A second request finds the prompt of the first in the cache, in whatever API it
// comes; Ollama's is seen in the header.
func TestEveryAPITellsWhatWasCached(t *testing.T) {
	_, s := serve(t, Config{})
	story := strings.Repeat("Once upon a time there was a whale. ", 8)
	for path, body := range map[string]string{
		"/v1/responses": `{"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":%q}]}],"max_output_tokens":2,"stream":%v}`,
		"/v1/messages":  `{"system":"Answer.","messages":[{"role":"user","content":[{"type":"text","text":%q}]}],"max_tokens":2,"stream":%v}`,
		"/generate":     `{"text":%q,"sampling_params":{"max_new_tokens":2,"temperature":0},"stream":%v}`,
		"/completion":   `{"prompt":%q,"n_predict":2,"stream":%v}`,
		"/api/chat":     `{"messages":[{"role":"user","content":%q}],"options":{"num_predict":2},"stream":%v}`,
		"/api/generate": `{"system":"Go on.","prompt":%q,"options":{"num_predict":2},"stream":%v}`,
	} {
		e, _ := dialect.Lookup(path)
		for i, stream := range []bool{false, true, false} {
			status, header, answer := post(t, s, path, fmt.Sprintf(body, path+story, stream))
			scan := dialect.NewScanner(e, header.Get)
			_, _ = scan.Write([]byte(answer))
			u, known := scan.Usage()
			if status != 200 || !known || u.Completion != 2 || u.Prompt < 16 || (i > 0) != (u.Cached >= 16) {
				t.Errorf("%s, request %d: %d %+v %v\n%s", path, i, status, u, known, answer)
			}
		}
	}
}
