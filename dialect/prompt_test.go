package dialect

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/prefix"
)

// What each dialect's requests read as: RS is written ^ and US _.
func TestPrompts(t *testing.T) {
	picture := "data:image/png;base64," + strings.Repeat("A", 100)
	for _, test := range []struct{ path, body, want string }{
		{chat, `{"messages":[{"role":"developer","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]}`, "^developer_a^user_bc"},
		{chat, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\": 1}"}}],"refusal":null,"annotations":[]},{"role":"tool","tool_call_id":"1","content":"x"}]}`, `^assistant__[{"function":{"arguments":"{\"a\": 1}","name":"f"},"id":"1"}]^tool_x_"1"`},
		{chat, `{"messages":[{"role":"assistant","tool_calls":[]},{"role":"user","name":"n","content":""},{},3,{"role":7,"content":{"b":1,"a":2}}]}`, `^assistant_^user__"n"^_^_^_{"a":2,"b":1}`},
		{chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + picture + `"}},"s"]}]}`, `^user__HASHs`},
		{chat, `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"format":"wav","data":"` + picture + `"}}]}]}`, `^user__HASH`},
		{chat, `{"messages":[],"documents":[{"text":"d"}],"chat_template_kwargs":{"enable_thinking":false}}`, `^chat_template_kwargs_{"enable_thinking":false}^documents_[{"text":"d"}]`},
		{chat, `{"messages":{"role":"user"}}`, ""},

		{"/v1/responses", `{"instructions":"be","input":"hi","tools":[{"type":"function","name":"f"}]}`, `^tools_[{"name":"f","type":"function"}]^system_be^user_hi`},
		{
			"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"},{"type":"input_image","image_url":"` + picture + `"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"},{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"yo","annotations":[]}]}]}`,
			`^user_hi_HASH^function_call_{"arguments":"{}","call_id":"1","name":"f","type":"function_call"}^function_call_output_{"call_id":"1","output":"x","type":"function_call_output"}^assistant_yo`,
		},

		{"/v1/messages", `{"tools":[{"name":"f","input_schema":{},"cache_control":{"type":"ephemeral"}}],"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"be","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{}}]}]}`, `^tools_[{"input_schema":{},"name":"f"}]^system_be^user_hi`},
		{
			"/v1/messages", `{"system":"be","messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"tool_use","id":"1","name":"f","input":{"b":1,"a":[ ]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"x"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + picture + `"}}]}]}]}`,
			`^system_be^assistant__{"signature":"s","thinking":"hm","type":"thinking"}_{"id":"1","input":{"a":[],"b":1},"name":"f","type":"tool_use"}^user__HASH`,
		},

		{"/generate", `{"text":"hi","sampling_params":{"max_new_tokens":1}}`, "hi"},
		{"/generate", `{"text":["a","b"],"image_data":["` + picture + `",null]}`, "_HASHnulla^b"},
		{"/generate", `{"input_ids":[[1],[2]]}`, "^tokens_\x01\x00\x00\x00^^tokens_\x02\x00\x00\x00"},
		{"/completion", `{"prompt":["a",1,{"x":1}],"n_predict":1}`, "a^tokens_\x01\x00\x00\x00" + `{"x":1}`},
		{"/completion", `{"prompt":{"prompt_string":["a",1],"multimodal_data":["` + picture + `"]}}`, "_HASHa^tokens_\x01\x00\x00\x00"},

		{"/api/chat", `{"Messages":[{"Role":"user","content":"hi","images":["` + picture + `"]},{"role":"assistant","thinking":"hm","content":"yo"}]}`, `^user__HASHhi^assistant_yo_"hm"`},
		{"/api/generate", `{"prompt":"hi","system":"be","images":["` + picture + `"]}`, "^system_be^user__HASHhi"},
		{"/api/generate", `{"prompt":"hi","context":[1],"template":"t","suffix":""}`, "^template_t^tokens_\x01\x00\x00\x00^user_hi"},
		{"/api/generate", `{"prompt":"hi","raw":true,"system":"no"}`, "hi"},
	} {
		r := mustRead(t, test.path, test.body)
		got := strings.NewReplacer(startPart, "^", startText, "_").Replace(string(r.Text))
		got = regexp.MustCompile("[0-9a-f]{32}").ReplaceAllString(got, "HASH")
		if got != test.want {
			t.Errorf("%s %s\nreads %q\nwant  %q", test.path, test.body, got, test.want)
		}
		if again := mustRead(t, test.path, test.body); !bytes.Equal(again.Text, r.Text) {
			t.Errorf("%s reads differently the second time", test.body)
		}
	}
}

func TestStreamIsAsTheEngineHasIt(t *testing.T) {
	for _, test := range []struct {
		path, member string
		want         bool
	}{
		{chat, ``, false},
		{chat, `"stream":true`, true},
		{chat, `"stream":null`, false},
		{chat, `"stream":false`, false},
		{"/api/chat", ``, true},
		{"/api/chat", `"stream":null`, true},
		{"/api/chat", `"stream":false`, false},
		{"/api/generate", `"stream":true`, true},
	} {
		if got := mustRead(t, test.path, "{"+test.member+"}"); got.Stream != test.want {
			t.Errorf("%s {%s} streams: %v", test.path, test.member, got.Stream)
		}
	}
}

func TestScopes(t *testing.T) {
	for body, want := range map[string]prefix.Scope{
		`{"model":"m","lora_path":"a","cache_salt":"s","extra_key":"e"}`: {Model: "m", Adapter: "a", Salt: "se"},
		`{"model":"m","lora":[{"scale":0.5,"id":0}]}`:                    {Model: "m", Adapter: `[{"id":0,"scale":0.5}]`},
		`{"model":"m","lora":[],"lora_path":null,"cache_salt":null}`:     {Model: "m"},
		`{"model":7}`: {},
	} {
		if got := mustRead(t, chat, body); got.Scope != want || got.Model != want.Model {
			t.Errorf("%s is in %+v, want %+v", body, got.Scope, want)
		}
	}
}

// A request is sent a second time only where that has no second effect.
func TestReplayable(t *testing.T) {
	for _, test := range []struct {
		path, body string
		want       bool
	}{
		{chat, `{"tools":[{"type":"function"},{"type":"custom"}]}`, true},
		{chat, `{"tools":null,"store":false,"web_search_options":null}`, true},
		{chat, `{"store":true}`, false},
		{chat, `{"web_search_options":{"a":1}}`, false},
		{"/v1/responses", `{"input":"x"}`, true},
		{"/v1/responses", `{"input":"x","background":true}`, false},
		{"/v1/responses", `{"tools":[{"type":"function"},{"type":"web_search"}]}`, false},
		{"/v1/responses", `{"previous_response_id":"r","input":"x"}`, false},
		{"/v1/messages", `{"tools":[{"name":"f","input_schema":{}}]}`, true},
		{"/v1/messages", `{"tools":[{"type":"code_execution_20250522","name":"f"}]}`, false},
		{"/v1/messages", `{"mcp_servers":[{"url":"u"}]}`, false},
		{"/v1/embeddings", `{"input":"x"}`, true},
		{"/v1/files", `not read`, false},
	} {
		if got := mustRead(t, test.path, test.body); got.Replayable != test.want {
			t.Errorf("%s %s is replayable: %v", test.path, test.body, got.Replayable)
		}
	}
}

// What an engine keeps of an earlier answer is where that was given.
func TestPinned(t *testing.T) {
	for body, want := range map[string]bool{
		`{"input":"x","previous_response_id":"r"}`:  true,
		`{"input":"x","conversation":{"id":"c"}}`:   true,
		`{"input":"x","previous_response_id":null}`: false,
	} {
		if r := mustRead(t, "/v1/responses", body); r.Pinned != want || (len(r.Text) == 0) != want {
			t.Errorf("%s is pinned: %v, text %q", body, r.Pinned, r.Text)
		}
	}
}

// A model is read where a prompt is not.
func TestModelAlone(t *testing.T) {
	for path, want := range map[string]string{"/v1/embeddings": "m", "/tokenize": "m", "/v1/files": ""} {
		r := mustRead(t, path, `{"model":"m","input":"x","prompt":"y","messages":[{"role":"user","content":"z"}]}`)
		if r.Model != want || len(r.Text) > 0 {
			t.Errorf("%s: model %q, text %q", path, r.Model, r.Text)
		}
	}
	if _, err := Read(endpoint(t, "/v1/files"), []byte("--boundary")); err != nil {
		t.Errorf("an opaque body: %v", err)
	}
}

// Every turn of a conversation begins with the one before and its answer, in
// every dialect that has conversations.
func TestTurnsGrow(t *testing.T) {
	for path, shape := range map[string]string{
		chat:            `{"tools":[{"type":"function"}],"messages":[%s]}`,
		"/v1/messages":  `{"system":"s","messages":[%s],"max_tokens":5}`,
		"/v1/responses": `{"input":[%s],"instructions":"s"}`,
		"/api/chat":     `{"messages":[%s],"options":{"seed":1}}`,
	} {
		said := `{"role":"user","content":"0"}`
		last := mustRead(t, path, fmt.Sprintf(shape, said))
		for turn := range 10 {
			answer := fmt.Sprint("answer ", turn)
			said += fmt.Sprintf(`,{"role":"assistant","content":[{"type":"text","text":"%s"}],"refusal":null},{"content":"next","role":"user"}`, answer)
			next := mustRead(t, path, fmt.Sprintf(shape, said))
			if !bytes.HasPrefix(next.Text, last.Continue(answer)) {
				t.Fatalf("%s: turn %d reads %q, which does not begin with %q", path, turn+1, next.Text, last.Continue(answer))
			}
			last = next
		}
	}
}

// The same conversation is the same prompt in every dialect that an engine turns
// into its chat.
func TestDialectsOfAConversationAgree(t *testing.T) {
	messages := `"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}`
	want := mustRead(t, chat, `{"messages":[{"role":"system","content":"s"},`+strings.TrimPrefix(messages, `"messages":[`)).Text
	for path, body := range map[string]string{
		"/v1/messages":  `{"system":[{"type":"text","text":"s"}],` + messages,
		"/v1/responses": `{"instructions":"s","input":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}`,
		"/api/chat":     `{"messages":[{"role":"system","content":"s"},` + strings.TrimPrefix(messages, `"messages":[`),
	} {
		if got := mustRead(t, path, body).Text; !bytes.Equal(got, want) {
			t.Errorf("%s reads %q, want %q", path, got, want)
		}
	}
}

// Same words, other picture: the prompts agree up to the picture, and no picture
// is in them.
func TestPicturesAreNamed(t *testing.T) {
	body := func(letter string) string {
		return `{"messages":[{"role":"system","content":"You see."},{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image\/png;base64,` + strings.Repeat(letter, 1<<20) + `"}},{"type":"text","text":"what?"}]}]}`
	}
	a, b := mustRead(t, chat, body("A")), mustRead(t, chat, body("B"))
	plain := mustRead(t, chat, strings.Replace(body("A"), `\/`, `/`, 1))
	agree := 0
	for agree < len(a.Text) && a.Text[agree] == b.Text[agree] {
		agree++
	}
	if len(a.Text) > 200 || bytes.Equal(a.Text, b.Text) || !bytes.Equal(a.Text, plain.Text) || !bytes.HasPrefix(a.Text[:agree], []byte("\x1esystem\x1fYou see.")) || cap(a.Text) > 64<<10 {
		t.Errorf("read %q and %q, cap %d", a.Text, b.Text, cap(a.Text))
	}
}
