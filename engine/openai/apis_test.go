package openai

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hearsay-project/hearsay/dialect"
)

// generating holds a small request for each path that generates text; %s takes more
// fields.
var generating = map[string]string{
	"/v1/chat/completions": `{"messages":[{"role":"user","content":"a"}],"stream_options":{"include_usage":true},%s}`,
	"/v1/completions":      `{"prompt":"a","stream_options":{"include_usage":true},%s}`,
	"/v1/responses":        `{"instructions":"be brief","input":"a","max_output_tokens":4,%s}`,
	"/v1/messages":         `{"system":[{"type":"text","text":"be brief"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"max_tokens":4,%s}`,
	"/generate":            `{"text":"a","sampling_params":{"max_new_tokens":4,"temperature":0},%s}`,
	"/completion":          `{"prompt":"a","n_predict":4,%s}`,
	"/api/chat":            `{"messages":[{"role":"user","content":"a"}],"options":{"num_predict":4},%s}`,
	"/api/generate":        `{"prompt":"a","system":"be brief","options":{"num_predict":4},%s}`,
}

// The router reads each answer as it was meant, streamed or not: the text, the
// counts, and the end.
func TestAnswersAreReadBack(t *testing.T) {
	for path := range apis {
		for _, stream := range []string{`"stream":false`, `"stream":true`} {
			s := &scripted{tokens: []string{"Hé", "", "<llo>"}}
			w, _ := ask(t, s, path, strings.Replace(generating[path], "%s", stream, 1))
			e, _ := dialect.Lookup(path)
			scan := dialect.NewScanner(e, func(name string) string {
				if strings.HasPrefix(name, "Hearsay-") {
					return "" // the body itself must tell
				}
				return w.Header().Get(name)
			})
			_, _ = scan.Write(w.Body.Bytes())
			got, known := scan.Usage()
			want, tells := dialect.Usage{Prompt: 7, Completion: 3, Cached: 3}, true
			if strings.HasPrefix(path, "/api/") { // Ollama does not tell
				want.Cached, tells = 0, false
			}
			text, whole := scan.Text()
			ended := stream == `"stream":true` || path == "/completion" || !tells // the last two say so in one piece too
			if w.Code != 200 || got != want || known != tells || text != "Hé<llo>" || !whole || scan.Ended() != ended {
				t.Errorf("%s %s: %d, %q %v, %+v %v, ended %v\n%s", path, stream, w.Code, text, whole, got, known, scan.Ended(), w.Body)
			}
		}
	}
}

// The options mean the same by the names that each API has for them.
func TestOptionsByOtherNames(t *testing.T) {
	for _, c := range []struct{ path, body string }{
		{"/v1/responses", `{"input":"a","max_output_tokens":4,"temperature":0.5}`},
		{"/v1/messages", `{"messages":[{"role":"user","content":"a"}],"max_tokens":4,"temperature":0.5,"stop_sequences":["x"]}`},
		{"/generate", `{"input_ids":[1],"sampling_params":{"max_new_tokens":4,"temperature":0.5,"stop":"x"}}`},
		{"/completion", `{"prompt":[1],"n_predict":4,"temperature":0.5,"stop":["x"],"seed":-1}`},
		{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"options":{"num_predict":4,"temperature":0.5,"stop":["x"]}}`},
		{"/api/generate", `{"prompt":"a","raw":true,"options":{"num_predict":4,"temperature":0.5,"stop":["x"]}}`},
	} {
		s := &scripted{tokens: []string{"x"}}
		ask(t, s, c.path, c.body)
		if len(s.calls) != 1 {
			t.Errorf("%s: refused", c.path)
			continue
		}
		call := s.calls[0]
		if call.MaxTokens != 4 || call.Temperature != 0.5 || len(call.Stop) != 1 && c.path != "/v1/responses" {
			t.Errorf("%s: read %+v", c.path, call)
		}
		if call.Stream != strings.HasPrefix(c.path, "/api/") {
			t.Errorf("%s: stream is %v", c.path, call.Stream)
		}
		if call.Chat {
			if m, err := call.Messages(); err != nil || len(m) != 1 || m[0].Role != "user" || string(m[0].Fields["content"]) != `"a"` {
				t.Errorf("%s: messages %v, %v", c.path, m, err)
			}
		} else if text, ids, err := call.Prompt(); err != nil || text != "a" && len(ids) != 1 {
			t.Errorf("%s: prompt %q %v, %v", c.path, text, ids, err)
		}
	}
}

// The system's message comes first, whatever field holds it, and a limit below
// zero is none where the API has it so.
func TestSystemComesFirst(t *testing.T) {
	for _, path := range []string{"/v1/responses", "/v1/messages", "/api/generate"} {
		s := &scripted{tokens: []string{"x"}}
		ask(t, s, path, strings.Replace(generating[path], "%s", `"stream":false`, 1))
		if m, err := s.calls[0].Messages(); err != nil || len(m) != 2 || m[0].Role != "system" || m[1].Role != "user" {
			t.Errorf("%s: %v, %v", path, m, err)
		}
	}
	s := &scripted{tokens: []string{"x"}}
	ask(t, s, "/completion", `{"prompt":"a","n_predict":-1}`)
	if s.calls[0].MaxTokens != 0 {
		t.Errorf("n_predict -1 is a limit of %d", s.calls[0].MaxTokens)
	}
}

// A refusal has its API's own shape, and names the field as the client does.
func TestRefusalsInTheirShape(t *testing.T) {
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v1/messages", `{"messages":[],"max_tokens":0}`, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens is 0, and must be at least 1"}}`},
		{"/v1/messages", `{"model":"no"}`, 404, `{"type":"error","error":{"type":"not_found_error","message":"the model \"no\" does not exist here; this engine serves \"m\""}}`},
		{"/v1/responses", `{"max_output_tokens":0}`, 400, `{"error":{"message":"max_output_tokens is 0, and must be at least 1","type":"invalid_request_error","param":"max_output_tokens","code":null}}`},
		{"/v1/responses", `{"input":"a","previous_response_id":"resp_1"}`, 400, `{"error":{"message":"previous_response_id names a stored response, and this engine stores none; send the conversation as input","type":"invalid_request_error","param":"previous_response_id","code":null}}`},
		{"/api/chat", `{"options":7}`, 400, `{"error":"options must be an object"}`},
	} {
		w, got := ask(t, &scripted{}, c.path, c.body)
		if diff := cmp.Diff(keys(c.want), keys(got)); diff != "" || w.Code != c.status {
			t.Errorf("%s: %d\n%s", c.path, w.Code, diff)
		}
	}
}

// keys gives what the JSON in body says, whatever the order of its keys.
func keys(body string) (v any) {
	if json.Unmarshal([]byte(body), &v) != nil {
		return body
	}
	return v
}
