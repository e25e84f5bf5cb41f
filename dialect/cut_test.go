package dialect

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// randomRequest returns one in text of all kinds, and how long a message's head may be.
func randomRequest(rng *rand.Rand) (e Endpoint, request map[string]any, head int) {
	words := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString([]string{"law ", "é", "\"quoted\" ", "\n", "日本 ", "\\", "tokens ", "𝄞"}[rng.IntN(8)])
		}
		return b.String()
	}
	content := func() any {
		if rng.IntN(2) == 0 {
			return words(rng.IntN(60))
		}
		parts := []any{}
		for range rng.IntN(4) {
			parts = append(parts, map[string]any{"type": "text", "text": words(rng.IntN(30))})
		}
		return parts
	}
	request = map[string]any{"model": "m", "stream": true, "max_tokens": 99, "n": 3, "store": false, "user": "who", "cache_salt": "s"}
	dialects := slices.Sorted(maps.Keys(limits))
	e = Endpoint{Dialect: dialects[rng.IntN(len(dialects))]}
	texts := func(types map[string]string, role string) any {
		c := content()
		for _, part := range asList(c) {
			if kind := types[role]; kind != "" {
				part.(map[string]any)["type"] = kind
			}
		}
		return c
	}
	conversation := func(types map[string]string, roles ...string) any {
		list := []any{}
		for i := range rng.IntN(6) {
			role := roles[i%len(roles)]
			list = append(list, map[string]any{"role": role, "content": texts(types, role)})
		}
		return list
	}
	tools := []any{map[string]any{"type": "function", "function": map[string]any{"name": words(3)}}}
	head = len("\x1eassistant\x1f")
	switch e.Dialect {
	case Chat, OllamaChat:
		request["tools"], request["messages"] = tools, conversation(nil, "system", "user", "assistant")
		request["options"], request["keep_alive"] = map[string]any{"num_ctx": 9, "num_predict": 99}, -1
	case Messages:
		request["tools"], request["messages"], request["system"] = tools, conversation(nil, "user", "assistant"), content()
		if parts := asList(request["system"]); len(parts) > 0 && rng.IntN(2) == 0 {
			parts[0].(map[string]any)["text"] = billing + ": cch=" + words(2)
		}
	case Responses:
		request["tools"], request["instructions"] = tools, words(rng.IntN(60))
		if request["input"] = words(rng.IntN(60)); rng.IntN(2) == 0 {
			request["input"] = conversation(map[string]string{"user": "input_text", "assistant": "output_text"}, "user", "assistant")
		}
	case OllamaGenerate:
		request["prompt"], request["system"], request["raw"] = words(1+rng.IntN(60)), words(rng.IntN(60)), rng.IntN(2) == 0
		request["context"], request["template"] = []int{1, 2, 3}, words(rng.IntN(5))
	default:
		head = 0
		plainPrompt(rng, request, e.Dialect, words)
	}
	return e, request, head
}

// plainPrompt adds a prompt without roles, a text or token ids.
func plainPrompt(rng *rand.Rand, request map[string]any, d Dialect, words func(int) string) {
	text, ids := "prompt", "prompt"
	if d == Generate {
		text, ids = "text", "input_ids"
	}
	if rng.IntN(2) == 1 {
		request[text] = words(1 + rng.IntN(200))
		return
	}
	list := []int{}
	for range 1 + rng.IntN(100) {
		list = append(list, rng.IntN(1<<17))
	}
	request[ids] = list
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// What Cut leaves begins as the whole does, as far as was asked but for a character,
// or the head of a message, and is a request like the other in all that shapes its
// prompt.
func TestCutIsAPrefix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const rounds = 4000
	cuts, asked := map[Dialect]int{}, map[Dialect]int{}
	for range rounds {
		e, request, head := randomRequest(rng)
		body, _ := json.Marshal(request)
		whole, err := Read(e, body)
		if err != nil {
			t.Fatal(err)
		}
		n := 1 + rng.IntN(max(len(whole.Text), 1))
		asked[e.Dialect]++
		cut := Cut(e, body, n)
		if cut == nil {
			continue
		}
		cuts[e.Dialect]++
		got, err := Read(e, cut)
		if err != nil {
			t.Fatalf("%v: %s", err, cut)
		}
		same := 0
		for same < min(n, len(got.Text)) && got.Text[same] == whole.Text[same] {
			same++
		}
		if least := n - max(head, utf8.UTFMax-1); same < least {
			t.Fatalf("of %d bytes %d are left\n%s\n%s", n, same, body, cut)
		}
		if head == 0 && len(got.Text) > n {
			t.Fatalf("%d bytes are left of %d\n%s", len(got.Text), n, cut)
		}
		if got.Scope != whole.Scope || got.Stream || !got.Replayable || bytes.Contains(cut, []byte("who")) {
			t.Fatalf("it is another request: %s", cut)
		}
	}
	for d := range limits {
		if cuts[d] < asked[d]/4 || asked[d] == 0 { // the rest ends in tools
			t.Errorf("dialect %v: %d of %d could be cut", d, cuts[d], asked[d])
		}
	}
}

// Where a prompt can be cut and where not, and into what.
func TestCut(t *testing.T) {
	const ending = `,"max_tokens":1,"temperature":0,"stream":false}`
	const responses = `,"max_output_tokens":16,"temperature":0,"store":false,"stream":false}`
	const generate = `,"sampling_params":{"max_new_tokens":1,"temperature":0},"stream":false}`
	const user = `{"role":"user","content":"hello"}`
	system := `{"role":"system","content":"be kind and brief"}`
	first := len("\x1esystem\x1fbe kind and brief")
	for _, test := range []struct {
		d    Dialect
		body string
		n    int
		want string
	}{
		{Completion, `{"prompt":"a long text"}`, 6, `{"prompt":"a long"` + ending},
		{Completion, `{"prompt":["a long text","another"]}`, 6, `{"prompt":"a long"` + ending},
		{Completion, `{"prompt":["a","another"]}`, 6, ""},
		{Completion, `{"prompt":[1,22,333,4444]}`, 17, `{"prompt":[1,22]` + ending},
		{Completion, `{"prompt":[[1,22,333]]}`, 12, `{"prompt":[1]` + ending},
		{Completion, `{"prompt":[1,"a",333]}`, 17, ""},
		{Completion, `{"prompt":"a long text","image_data":["x"]}`, 6, ""},
		{LlamaCompletion, `{"prompt":"a long text"}`, 6, `{"prompt":"a long","n_predict":1,"temperature":0,"stream":false}`},
		{Chat, `{"messages":[` + system + `,{"role":"user","content":"hello"}]}`, first, `{"messages":[` + system + `,{"role":"user","content":"."}]` + ending},
		{Chat, `{"messages":[` + system + `,{"role":"user","content":"hello"}]}`, first + 4, `{"messages":[` + system + `,{"role":"user","content":"."}]` + ending},
		{Chat, `{"messages":[` + system + `,{"role":"user","content":"hello","name":"x"}]}`, first + 8, `{"messages":[` + system + `,{"role":"user","content":"he"}]` + ending},
		{Chat, `{"messages":[` + system + `,{"role":"user","content":"hello","name":"x"}]}`, first + 13, ""},
		{Chat, `{"messages":[` + system + `,{"role":"user","content":["one",{"type":"text","text":"two"},{"type":"image_url"}]}]}`, first + 10, `{"messages":[` + system + `,{"role":"user","content":["one",{"type":"text","text":"t"}]}]` + ending},
		{Chat, `{"messages":[` + system + `,{"role":"user","content":["one",{"type":"image_url","image_url":{"url":"x"}},"two"]}]}`, first + 15, ""},
		{Chat, `{"tools":[{"type":"function"}],"messages":[` + system + `]}`, 10, ""},
		{Messages, `{"system":"be kind","tools":[],"messages":[` + user + `]}`, len("\x1etools\x1f[]") + 8 + 2, `{"tools":[],"system":"be","messages":[{"role":"user","content":"."}]` + ending},
		{Messages, `{"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"be kind","cache_control":{}}],"messages":[` + user + `]}`, 10, `{"system":[{"type":"text","text":"be"}],"messages":[{"role":"user","content":"."}]` + ending},
		{Messages, `{"system":"be","messages":[` + user + `]}`, 10 + 6 + 3, `{"system":"be","messages":[{"role":"user","content":"hel"}]` + ending},
		{Messages, `{"system":"be","thinking":{"type":"disabled"},"messages":[` + user + `]}`, 12, `{"thinking":{"type":"disabled"},"system":"be","messages":[{"role":"user","content":"."}]` + ending},
		{Messages, `{"messages":[{"role":"user","content":[{"type":"tool_result","content":"x"},{"type":"text","text":"long"}]}]}`, 46, ""},
		{Responses, `{"input":"a long text"}`, 12, `{"input":"a long"` + responses},
		{Responses, `{"instructions":"be kind","input":"a long text"}`, 10, `{"instructions":"be","input":"."` + responses},
		{Responses, `{"instructions":"be","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}]}`, 10 + 6 + 4, `{"instructions":"be","input":[{"role":"user","content":[{"type":"input_text","text":"hell"}]}]` + responses},
		{Responses, `{"input":"a long text","previous_response_id":"r"}`, 12, ""},
		{Generate, `{"text":"a long text","sampling_params":{"temperature":1},"rid":"x","lora_path":"l"}`, 6, `{"lora_path":"l","text":"a long"` + generate},
		{Generate, `{"input_ids":[[1,22,333]]}`, 12, `{"input_ids":[1]` + generate},
		{Generate, `{"text":"a long text","image_data":"x"}`, 6, ""},
		{OllamaGenerate, `{"Model":"m","prompt":"a long text"}`, 6 + 6, `{"model":"m","prompt":"a long","options":{"num_predict":1,"temperature":0},"stream":false}`},
		{OllamaGenerate, `{"prompt":"a long text","raw":true,"keep_alive":-1,"options":{"num_ctx":9,"num_predict":4,"temperature":1}}`, 6, `{"raw":true,"keep_alive":-1,"prompt":"a long","options":{"num_ctx":9,"num_predict":1,"temperature":0},"stream":false}`},
		{OllamaGenerate, `{"system":"be kind","prompt":"a long text"}`, 10, `{"system":"be","prompt":".","options":{"num_predict":1,"temperature":0},"stream":false}`},
		{OllamaGenerate, `{"prompt":"a long text","keep_alive":0}`, 6 + 6, ""},
		{OllamaChat, `{"messages":[{"role":"user","content":"hello"}],"Keep_Alive":"0m"}`, 9, ""},
		{OllamaChat, `{"messages":[{"role":"user","content":"hello"}],"keep_alive":"5m"}`, 9, `{"keep_alive":"5m","messages":[{"role":"user","content":"hel"}],"options":{"num_predict":1,"temperature":0},"stream":false}`},
		{Completion, `{"prompt":"a long text","keep_alive":0}`, 6, `{"keep_alive":0,"prompt":"a long"` + ending},
		{OllamaGenerate, `{"suffix":"s","prompt":"a long text"}`, 20, ""},
		{OllamaGenerate, `{"images":["x"],"prompt":"a long text"}`, 20, ""},
		{OllamaChat, `{"messages":[{"Role":"user","content":"hello"}]}`, 9, `{"messages":[{"role":"user","content":"hel"}],"options":{"num_predict":1,"temperature":0},"stream":false}`},
		{OllamaChat, `{"messages":[{"role":"user","content":"hello","images":["x"]}]}`, 9, ""},
		{Model, `{"prompt":"a long text"}`, 6, ""},
	} {
		if got := string(Cut(Endpoint{Dialect: test.d}, []byte(test.body), test.n)); got != test.want {
			t.Errorf("%v bytes of %v:\n%s, want\n%s", test.n, test.body, got, test.want)
		}
	}
}
