package dialect

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	saidHi = `{"role":"user","content":"hi"}`
	aTool  = `{"type":"function","function":{"name":"search","description":"finds","parameters":{"type":"object"}}}`
	aCall  = `{"role":"assistant","content":"let me see","tool_calls":[{"type":"function","id":"t1","function":{"name":"search","arguments":"{\"q\": \"é\"}"}}]}`
)

// What engines are asked for.
var tokenized = []struct {
	path, body string
	vllm       string // without return_token_strs, or the tokens; empty for nothing
	sglang     string // where it differs; - for nothing
}{
	{"/v1/completions", `{"model":"m","prompt":"a b","max_tokens":9,"seed":1}`, `{"model":"m","prompt":"a b"}`, ""},
	{"/v1/completions", `{"prompt":["a b"],"add_special_tokens":false}`, `{"prompt":"a b","add_special_tokens":false}`, ""},
	{"/v1/completions", `{"prompt":[7,8]}`, `[7 8]`, ""},
	{"/v1/completions", `{"prompt":[[7,8]]}`, `[7 8]`, ""},
	{"/v1/completions", `{"prompt":["a","b"]}`, "", ""},
	{"/v1/completions", `{"prompt":[[7],[8]]}`, "", ""},
	{"/v1/completions", `{"prompt":[7,-8]}`, "", ""},
	{"/v1/completions", `{"prompt":null}`, "", ""},
	{"/generate", `{"text":"a b","sampling_params":{"max_new_tokens":1}}`, `{"prompt":"a b"}`, ""},
	{"/generate", `{"input_ids":[7,8]}`, `[7 8]`, ""},
	{"/generate", `{"text":"a b","image_data":"x.png"}`, "", ""},
	{"/generate", `{"text":["a","b"]}`, "", ""},
	{
		"/v1/chat/completions", `{"messages":[` + saidHi + `],"tools":[` + aTool + `],"stream":true,"chat_template_kwargs":{"think":false}}`,
		`{"messages":[` + saidHi + `],"tools":[` + aTool + `],"chat_template_kwargs":{"think":false}}`, "",
	},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, "", ""},
	{"/v1/chat/completions", `{"messages":[]}`, "", ""},
	{"/v1/chat/completions", `{"messages":[` + saidHi + `],"reasoning_effort":"high"}`, "", ""},
	{"/v1/messages", `{"messages":[` + saidHi + `],"output_config":{"effort":"high"}}`, "", ""},
	{"/v1/responses", `{"input":"hi","reasoning":{"effort":"high"}}`, "", ""},
	{"/v1/messages", `{"model":"m","max_tokens":9,"messages":[` + saidHi + `]}`, `{"model":"m","messages":[` + saidHi + `]}`, ""},
	{
		"/v1/messages", `{"system":"be kind","messages":[` + saidHi + `],"tools":[{"name":"search","description":"finds","input_schema":{"type":"object"}}]}`,
		`{"messages":[{"role":"system","content":"be kind"},` + saidHi + `],"tools":[` + aTool + `]}`, "",
	},
	{
		"/v1/messages", `{"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{}}],"messages":[` + saidHi + `]}`,
		`{"messages":[{"role":"system","content":"ab"},` + saidHi + `]}`,
		`{"messages":[{"role":"system","content":"x-anthropic-billing-header: 1\na\nb"},` + saidHi + `]}`,
	},
	{
		"/v1/messages", `{"messages":[` + saidHi + `,
			{"role":"assistant","content":[{"type":"text","text":"let me see"},{"type":"tool_use","id":"t1","name":"search","input":{"q": "é"}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"found"}]},{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`,
		`{"messages":[` + saidHi + `,` + aCall + `,{"role":"tool","tool_call_id":"t1","content":"found"},
			{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, "",
	},
	{"/v1/messages", `{"messages":[` + saidHi + `,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"found"}]}]}`, `{"messages":[` + saidHi + `,{"role":"tool","tool_call_id":"t1","content":"found"}]}`, ""},
	{
		"/v1/messages", `{"messages":[` + saidHi + `,{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"yes"}]}]}`,
		`{"messages":[` + saidHi + `,{"role":"assistant","reasoning":"hm","content":"yes"}]}`, "-",
	},
	{"/v1/messages", `{"thinking":{"type":"enabled"},"messages":[` + saidHi + `]}`, `{"messages":[` + saidHi + `]}`, "-"},
	{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`, "", ""},
	{
		"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},{"type":"tool_result","tool_use_id":"t2"}]}]}`,
		`{"messages":[{"role":"tool","tool_call_id":"t1","content":"b\nc"},{"role":"tool","tool_call_id":"t2","content":""},{"role":"user","content":"a"}]}`,
		`{"messages":[{"role":"user","content":"a"},{"role":"tool","tool_call_id":"t1","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},{"role":"tool","tool_call_id":"t2","content":""}]}`,
	},
	{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"image"}]}]}]}`, "", ""},
	{"/v1/messages", `{"messages":[{"role":"assistant","content":[]}]}`, "", ""},
	{
		"/v1/messages", `{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"now"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":""}]}]}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"type":"function","id":"t1","function":{"name":"now","arguments":"{}"}}]},{"role":"tool","tool_call_id":"t1","content":""}]}`, "",
	},
	{"/v1/messages", `{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":{"type":"text"}}]}]}`, "", ""},
	{"/v1/messages", `{"messages":[{"role":"system","content":"a"}]}`, "", ""},
	{"/v1/messages", `{"messages":[` + saidHi + `],"tools":[{"type":"web_search_20250305","name":"web_search"}]}`, "", ""},
	{"/v1/responses", `{"instructions":"be kind","input":"hi"}`, `{"messages":[{"role":"system","content":"be kind"},` + saidHi + `]}`, ""},
	{
		"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"message","role":"assistant","content":"yes"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"assistant","content":"yes"}]}`, "",
	},
	{
		"/v1/responses", `{"input":[` + saidHi + `,{"type":"function_call","call_id":"t1","name":"search","arguments":"{}"},{"type":"function_call_output","call_id":"t1","output":"found"}]}`,
		`{"messages":[` + saidHi + `,{"role":"assistant","tool_calls":[{"type":"function","id":"t1","function":{"name":"search","arguments":"{}"}}]},{"role":"tool","tool_call_id":"t1","content":"found"}]}`, "",
	},
	{"/v1/responses", `{"input":[{"role":"assistant","content":"x"},{"type":"function_call","call_id":"t1","name":"search","arguments":"{}"}]}`, "", ""},
	{"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`, "", ""},
	{"/v1/responses", `{"input":[{"type":"function_call_output","call_id":"t1","output":[{"type":"input_text","text":"a"}]}]}`, "", ""},
	{"/v1/responses", `{"input":[{"type":"reasoning","summary":[]}]}`, "", ""},
	{"/v1/responses", `{"input":"hi","tools":[{"type":"function","name":"search"}]}`, "", ""},
	{"/api/chat", `{"messages":[` + saidHi + `],"options":{"num_predict":1}}`, `{"messages":[` + saidHi + `]}`, ""},
	{"/api/chat", `{"messages":[{"role":"user","content":"hi","images":["x"]}]}`, "", ""},
	{"/api/generate", `{"prompt":"hi","system":"be \"kind\""}`, `{"prompt":"be \"kind\"\n\nhi"}`, ""},
	{"/api/generate", `{"prompt":""}`, "", ""},
	{"/completion", `{"prompt":"hi"}`, "", ""},
	{"/v1/messages", `[]`, "", ""},
	{"/v1/messages", `{`, "", ""},
}

// An engine is asked for the tokens of the very chat that it makes of a request, and
// not at all where that is not known.
func TestTokenize(t *testing.T) {
	for _, tc := range tokenized {
		for _, sglang := range []bool{false, true} {
			want := tc.vllm
			if sglang && tc.sglang != "" {
				want = tc.sglang
			}
			at, _ := Lookup(tc.path)
			ask, ids := Tokenize(at, []byte(tc.body), sglang)
			got := fmt.Sprint(ids)
			switch {
			case ask != nil:
				if diff := cmp.Diff(read(t, want, true), read(t, string(ask), false)); diff != "" || ids != nil {
					t.Errorf("%s %s, SGLang %v: %v (-want +got)\n%s", tc.path, tc.body, sglang, ids, diff)
				}
			case ids == nil && (want == "" || want == "-"):
			case got != want:
				t.Errorf("%s %s, SGLang %v: %s, want %s", tc.path, tc.body, sglang, got, want)
			}
		}
	}
}

func read(t *testing.T, text string, want bool) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%s: %v", text, err)
		return nil
	}
	if want {
		v["return_token_strs"] = true
	}
	return v
}

// Whatever a request is, what is asked for it is JSON.
func FuzzTokenize(f *testing.F) {
	f.Add("/v1/messages", []byte(`{"system":[{"text":"a"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"","content":[]}]}],"tools":[{}]}`))
	f.Add("/v1/responses", []byte(`{"instructions":"","input":[{"role":"","content":[{"text":"\ud800"}]},{"type":"function_call"}]}`))
	f.Add("/api/generate", []byte(`{"prompt":"\u0000","system":"\\"}`))
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		at, _ := Lookup(path)
		if !json.Valid(body) {
			return // such as NaN, which is passed on as it came
		}
		for _, sglang := range []bool{false, true} {
			if ask, ids := Tokenize(at, body, sglang); ask != nil && (ids != nil || !json.Valid(ask)) {
				t.Errorf("%s %s: %s, %v", path, body, ask, ids)
			}
		}
	})
}
