package dialect

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
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
	request = map[string]any{"model": "m", "stream": true, "max_tokens": 99, "n": 3, "store": true, "user": "who", "cache_salt": "s"}
	e = Endpoint{Dialect: []Dialect{Chat, Completion, LlamaCompletion}[rng.IntN(3)]}
	switch {
	case e.Dialect == Chat:
		request["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": words(3)}}}
		messages := []any{map[string]any{"role": "system", "content": content()}}
		for i := range rng.IntN(5) {
			messages = append(messages, map[string]any{"role": []string{"user", "assistant"}[i%2], "content": content()})
		}
		request["messages"] = messages
		head = len("\x1eassistant\x1f")
	case rng.IntN(2) == 0:
		ids := []int{}
		for range 1 + rng.IntN(100) {
			ids = append(ids, rng.IntN(1<<17))
		}
		request["prompt"] = ids
	default:
		request["prompt"] = words(1 + rng.IntN(200))
	}
	return e, request, head
}

// What Cut leaves begins as the whole does, as far as was asked but for a character,
// or the head of a message, and is a request like the other in all that shapes its
// prompt.
func TestCutIsAPrefix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const rounds = 2000
	cuts := 0
	for range rounds {
		e, request, head := randomRequest(rng)
		body, _ := json.Marshal(request)
		whole, err := Read(e, body)
		if err != nil {
			t.Fatal(err)
		}
		n := 1 + rng.IntN(len(whole.Text))
		cut := Cut(e, body, n)
		if cut == nil {
			continue
		}
		cuts++
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
		if e.Dialect != Chat && len(got.Text) > n {
			t.Fatalf("%d bytes are left of %d\n%s", len(got.Text), n, cut)
		}
		if got.Scope != whole.Scope || got.Stream || !got.Replayable || bytes.Contains(cut, []byte("who")) {
			t.Fatalf("it is another request: %s", cut)
		}
	}
	if cuts < rounds/2 {
		t.Errorf("%d of %d could be cut", cuts, rounds)
	}
}

// Where a prompt can be cut and where not, and into what.
func TestCut(t *testing.T) {
	const ending = `,"max_tokens":1,"temperature":0,"stream":false}`
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
		{Responses, `{"input":"a long text"}`, 12, ""},
		{Messages, `{"messages":[` + system + `]}`, 12, ""},
	} {
		if got := string(Cut(Endpoint{Dialect: test.d}, []byte(test.body), test.n)); got != test.want {
			t.Errorf("%v bytes of %v:\n%s, want\n%s", test.n, test.body, got, test.want)
		}
	}
}
