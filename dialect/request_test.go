package dialect

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/prefix"
)

const (
	chat       = "/v1/chat/completions"
	completion = "/v1/completions"
)

func mustRead(t testing.TB, path, body string) Request {
	t.Helper()
	r, err := Read(endpoint(t, path), []byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

// However the same conversation is spelled, it is the same prompt.
func TestSpellingDoesNotShow(t *testing.T) {
	plain := mustRead(t, chat, `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"café\n"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1,"b":[]}}}]}`)
	for _, body := range []string{
		"{ \"tools\" : [ { \"function\":{\"parameters\":{ \"b\" : [ ] ,\"a\":1},\"n\\u0061me\":\"f\"},\"type\":\"function\"}],\n \"messages\":[{\"content\":\"Be brief.\",\"role\":\"system\"},{\"role\":\"user\",\"content\":\"caf\\u00e9\\n\"}],\"model\":\"m\"}",
		`{"temperature":0.5,"max_tokens":3,"stream":true,"user":"u","metadata":{"a":1},"messages":[{"role":"system","content":[{"type":"text","text":"Be brief."}]},{"role":"user","content":"café\n"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1,"b":[]}}}],"model":"m"}`,
		`{"model":"x","m\u006fdel2":"m","messages":[1],"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":null,"content":"caf\u00E9\u000a"}],"tools":[{"type":"function","function":{"name":"g","name":"f","parameters":{"b":[],"a":1}}}]}`,
	} {
		if got := mustRead(t, chat, body); !bytes.Equal(got.Text, plain.Text) {
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
		`{"tools":[{"type":"function"}],"messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:1"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:2"}}]}]}`,
		`{"messages":[{"role":"user","content":"\ud83d"}]}`,
		`{"messages":[{"role":"user","content":"\ud83e"}]}`,
		`{"messages":[{"role":"user","content":"\ufffd"}]}`,
		`{"messages":[{"role":"user","content":"\ude00\ud83d"}]}`,
		`{"messages":[{"role":"user","content":"\ud83d\ude00"}]}`,
		`{"messages":[{"role":"user","content":"\u0000"}]}`,
		`{"messages":[{"role":"user","content":""}]}`,
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
	r := mustRead(t, completion, `{"model":"m","PROMPT":"no","prompt":"no","prompt":"yes","STREAM":true,"cache_salt":"s","ſtream":true}`)
	if want := (prefix.Scope{Model: "m", Salt: "s"}); r.Scope != want || string(r.Text) != "yes" || r.Stream {
		t.Errorf("read %+v", r)
	}
	r = mustRead(t, "/api/generate", `{"MODEL":"m","Prompt":"p","ſtream":false,"Raw":true}`)
	if r.Model != "m" || string(r.Text) != "p" || r.Stream {
		t.Errorf("read %+v", r)
	}
}

func TestErrors(t *testing.T) {
	deep := `{"messages":[],"x":` + strings.Repeat("[", DepthMax-1) + strings.Repeat("]", DepthMax-1) + "}"
	mustRead(t, chat, deep)
	for body, want := range map[string]error{
		`{"model":"a","model":"b"}`:             ErrDuplicateModel,
		`{"model":"a","m\u006fdel":"a"}`:        ErrDuplicateModel,
		`{"model":"a","Model":"b"}`:             ErrDuplicateModel,
		strings.Replace(deep, "[]", "[[]]", 1):  nil,
		strings.Replace(deep, `[[[`, `[[[[`, 1): ErrDepth,
		strings.Repeat("[", 100_000):            ErrDepth,
		strings.Repeat(`{"a":`, 100_000):        ErrDepth,
	} {
		if _, err := Read(endpoint(t, chat), []byte(body)); want != nil && !errors.Is(err, want) || want == nil && err != nil && !errors.Is(err, ErrDepth) {
			t.Errorf("%.40s: %v, want %v", body, err, want)
		}
	}
	for _, body := range []string{``, ` `, `[]`, `null`, `3`, `{`, `null x`, `{"a":1}{`, `{"a":1} x`, "\xff", "\ufeff\ufeff{}", " \ufeff{}", `{"a":Nan}`, `{"a":-NaN}`, `{"a":Inf}`, `{"a":+Infinity}`, `{"a":"` + "\n" + `"}`, `{"a":"\x"}`, `{"a":"\u12"}`, `{"a" 1}`, `{a:1}`, `{"a":1,}`, `{"a":[1,]}`, `{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"a":1e}`, `{"a":tru}`, `{"a":"`, `{"a":"\`, `{"a":"\u`, `[}`} {
		if _, err := Read(endpoint(t, chat), []byte(body)); err == nil {
			t.Errorf("%q is read", body)
		}
	}
}

// Engines on Python's json take more than RFC 8259 has, and so may a request.
func TestBeyondTheRFC(t *testing.T) {
	body := "\ufeff {\"a\":[NaN , -Infinity,Infinity],\"temperature\":NaN,\"model\" : \"alias\",\"messages\":[],\"x\":-Infinity}"
	r := mustRead(t, chat, body)
	if got, want := string(r.WithModel([]byte(body), "m")), strings.Replace(body, "alias", "m", 1); r.Model != "alias" || r.Greedy || got != want {
		t.Errorf("read %+v, written %q", r, got)
	}
}

func TestCompletionPrompts(t *testing.T) {
	for body, want := range map[string]string{
		`{"prompt":"text"}`:                "text",
		`{"prompt":["one","two"]}`:         "one\x1etwo",
		`{"prompt":[1,258]}`:               "\x1etokens\x1f\x01\x00\x00\x00\x02\x01\x00\x00",
		`{"prompt":[[1],[2]]}`:             "\x1etokens\x1f\x01\x00\x00\x00\x1e\x1etokens\x1f\x02\x00\x00\x00",
		`{"prompt":["a",1,"b",2,3]}`:       "a\x1etokens\x1f\x01\x00\x00\x00b\x1etokens\x1f\x02\x00\x00\x00\x03\x00\x00\x00",
		`{"prompt":["a",[1,"b"]]}`:         "a\x1e\x1etokens\x1f\x01\x00\x00\x00b",
		`{"prompt":{"prompt_string":"p"}}`: "p",
		`{"prompt":{"b":1, "a":2.0}}`:      `{"a":2.0,"b":1}`,
		`{"prompt":12345678901234567890}`:  "12345678901234567890",
		`{"prompt":null}`:                  "",
		`{"prompt":[]}`:                    "",
		`{}`:                               "",
	} {
		if got := mustRead(t, completion, body); string(got.Text) != want {
			t.Errorf("%s reads %q, want %q", body, got.Text, want)
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

// Looking at eight bytes at a time finds what looking at each does.
func TestPlain(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			b := []byte("abcdefghijklmnopqrst")
			b[at] = byte(c)
			want := len(b)
			if c < ' ' || c == '"' || c == '\\' {
				want = at
			}
			for from := range at + 1 {
				if got := plain(b, from); got != want {
					t.Fatalf("%q from %d: %d, want %d", b, from, got, want)
				}
			}
		}
	}
}

// What reading costs in memory is bounded, whatever the body.
func TestReadIsBounded(t *testing.T) {
	if _, err := Read(endpoint(t, chat), []byte(`{"x":[`+strings.Repeat("[],", boxesMax)+"[]]}")); err == nil {
		t.Error("an index of any size is made")
	}
	members := strings.Repeat(`"b":0,`, sortMax) + `"a":1`
	r := mustRead(t, chat, `{"messages":[],"tools":{"z":[{`+members+`}], "y":1}}`)
	if want := "\x1etools\x1f" + `{"y":1,"z":[{` + members + `}]}`; string(r.Text) != want {
		t.Errorf("an object of many members reads %.60q in %d bytes, want %.60q in %d", r.Text, len(r.Text), want, len(want))
	}
}
