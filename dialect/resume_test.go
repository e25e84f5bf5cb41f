package dialect

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The body of the resuming request differs from the first in spliced bytes alone.
func TestResume(t *testing.T) {
	for _, test := range []struct {
		path, body, text string
		tokens           int
		want             string // empty: no
	}{
		{
			completion, `{"prompt":"Once","max_tokens":9 ,"temperature":0.0,"seed":9007199254740993}`, " up\n\"a\"", 3,
			`{"prompt":"Once up\u000a\"a\"","max_tokens":6 ,"temperature":0.0,"seed":9007199254740993}`,
		},
		{
			completion, `{"max_tokens":9,"prompt":"x","max_tokens":5,"temperature":0,"n":1.0,"stop":null,"echo":false,"best_of":null}`, "y", 3,
			`{"max_tokens":9,"prompt":"xy","max_tokens":2,"temperature":0,"n":1.0,"stop":null,"echo":false,"best_of":null}`,
		},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0}`, "", 0, `{"prompt":"x","max_tokens":5,"temperature":0}`},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0}`, "y", 5, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0}`, "\xed\xa0\xbd", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0}`, "y\ufffd", 1, ""},
		{completion, `{"prompt":"x","temperature":0}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":null,"temperature":0}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":null}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":1e-9}`, "y", 1, ""},
		{completion, `{"prompt":["x"],"max_tokens":5,"temperature":0}`, "y", 1, ""},
		{completion, `{"prompt":[1,2],"max_tokens":5,"temperature":0}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5.5,"temperature":0}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0,"n":10}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0,"logprobs":0}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0,"presence_penalty":0.1}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0,"guided_regex":"a"}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0,"response_format":{"type":"json_object"}}`, "y", 1, ""},
		{completion, `{"prompt":"x","max_tokens":5,"temperature":0,"stop":["a"]}`, "y", 1, ""},
		{
			chat, `{"messages":[{"role":"user","content":"hi"} ],"temperature":0,"tools":[]} `, "Hel lo", 2,
			`{"messages":[{"role":"user","content":"hi"} ,{"role":"assistant","content":"Hel lo"}],"temperature":0,"tools":[],"continue_final_message":true,"add_generation_prompt":false} `,
		},
		{
			chat, `{"messages":[ ],"temperature":0,"max_tokens":7,"max_completion_tokens":6}`, "a", 2,
			`{"messages":[ {"role":"assistant","content":"a"}],"temperature":0,"max_tokens":5,"max_completion_tokens":4,"continue_final_message":true,"add_generation_prompt":false}`,
		},
		{chat, `{"messages":[{"role":"user","content":"hi"}],"temperature":0}`, "a ", 2, ""},
		{chat, `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"tools":[{}]}`, "a", 2, ""},
		{chat, `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"add_generation_prompt":true}`, "a", 2, ""},
		{"/v1/messages", `{"messages":[{"role":"user","content":"hi"}],"temperature":0,"max_tokens":5}`, "a", 2, ""},
	} {
		r := mustRead(t, test.path, test.body)
		got, ok := r.Resume([]byte(test.body), test.text, test.tokens)
		if string(got) != test.want || ok != (test.want != "") {
			t.Errorf("%s\nafter %q goes on as %s, %v\nwant %s", test.body, test.text, got, ok, test.want)
		}
		if ok && string(mustRead(t, test.path, string(got)).Text) != string(r.Continue(test.text)) && test.text != "" {
			t.Errorf("%s\nis no continuation", got)
		}
	}
}

// An alias is put in the model's place and nothing else moves.
func TestWithModel(t *testing.T) {
	body := `{ "seed":9007199254740993,"model" : "a\u0062" , "x":"\/"}  `
	r := mustRead(t, chat, body)
	if got := string(r.WithModel([]byte(body), `long"er`)); r.Model != "ab" || got != `{ "seed":9007199254740993,"model" : "long\"er" , "x":"\/"}  ` {
		t.Errorf("model %q, body %s", r.Model, got)
	}
	none := `{"model":null}`
	if got := string(mustRead(t, chat, none).WithModel([]byte(none), "x")); got != none {
		t.Errorf("body %s", got)
	}
}

// run is a stream of these texts, as a run with this id gives it, where the
// prompt has 7 tokens and prior were generated before.
func run(id string, chat bool, prior int, texts ...string) string {
	var b strings.Builder
	b.WriteString(": hello\n\n")
	event := func(choices, usage string) {
		fmt.Fprintf(&b, `data: {"id":"%s","object":"x","created":%d,"choices":[%s],"usage":%s}`+"\n\n", id, len(id), choices, usage)
	}
	if chat {
		event(`{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`, "null")
	}
	for i, text := range texts {
		reason := "null"
		if i == len(texts)-1 {
			reason = `"length"`
		}
		if chat {
			event(fmt.Sprintf(`{"index":0,"delta":{"content":"%s"},"finish_reason":%s}`, text, reason), "null")
		} else {
			event(fmt.Sprintf(`{"text":"%s","index":0, "finish_reason":%s}`, text, reason), "null")
		}
	}
	n := len(texts)
	event("", fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, 7+prior, 7+prior+n, n))
	return b.String() + "data: [DONE]\n\n"
}

// Wherever a stream breaks, what the client gets is the undisturbed run's.
func TestRewriterJoinsRuns(t *testing.T) {
	texts := []string{"Once", " upon", " a", " time", "."}
	rapid.Check(t, func(t *rapid.T) {
		isChat := rapid.Bool().Draw(t, "chat")
		e := Endpoint{Dialect: Completion}
		if isChat {
			e.Dialect = Chat
		}
		crlf := strings.NewReplacer()
		if rapid.Bool().Draw(t, "crlf") {
			crlf = strings.NewReplacer("\n", "\r\n")
		}
		sse := func(name string) string {
			if name == "Content-Type" {
				return "text/event-stream"
			}
			return ""
		}
		var w Rewriter
		var got strings.Builder
		scanner := NewScanner(e, sse)
		feed := func(stream string) {
			for stream != "" {
				n := rapid.IntRange(1, len(stream)).Draw(t, "piece")
				out := w.Write([]byte(stream[:n]))
				got.Write(out)
				_, _ = scanner.Write(out)
				stream = stream[n:]
			}
		}
		want := crlf.Replace(run("first", isChat, 0, texts...))
		end := strings.Index(want, `"total_tokens"`) // the last text has come then, and there is nothing to resume
		end = strings.LastIndex(want[:end], "data:")
		end = strings.LastIndex(want[:end-1], "data:")
		feed(want[:rapid.IntRange(0, end).Draw(t, "break")])
		for range rapid.IntRange(0, 2).Draw(t, "more breaks") {
			text, whole := scanner.Text()
			n, _ := scanner.Generated()
			if strings.Join(texts[:n], "") != text || !whole {
				t.Fatalf("%d tokens are %q", n, text)
			}
			if !w.Resume(n) {
				t.Fatal("cannot resume")
			}
			second := crlf.Replace(run("second", isChat, n, texts[n:]...))
			feed(second[:rapid.IntRange(0, strings.LastIndex(second, ".")).Draw(t, "break")])
		}
		n, _ := scanner.Generated()
		w.Resume(n)
		feed(crlf.Replace(run("second", isChat, n, texts[n:]...)))
		joined := strings.ReplaceAll(got.String()+string(w.Rest()), crlf.Replace(": hello\n\n"), "")
		joined = strings.NewReplacer("second", "first", `"created":6`, `"created":5`).Replace(joined)
		if want := strings.ReplaceAll(want, crlf.Replace(": hello\n\n"), ""); joined != want {
			t.Fatalf("joined\n%s\nwant\n%s", joined, want)
		}
	})
}

// There is no byte after which a stream cannot be resumed.
func TestRewriterResumesAnywhere(t *testing.T) {
	texts := []string{"Once", " upon", "."}
	for _, isChat := range []bool{false, true} {
		for _, lineEnd := range []string{"\n", "\r\n", "\r"} {
			stream := func(id string, from int) string {
				all := strings.ReplaceAll(run(id, isChat, from, texts[from:]...), ": hello\n\n", "")
				return strings.ReplaceAll(all, "\n", lineEnd)
			}
			want := stream("first", 0)
			for at := range strings.Index(want, `"."`) {
				var w Rewriter
				e := Endpoint{Dialect: Completion}
				if isChat {
					e.Dialect = Chat
				}
				s := NewScanner(e, func(name string) string { return map[string]string{"Content-Type": sseType}[name] })
				got := string(w.Write([]byte(want[:at])))
				_, _ = s.Write([]byte(got))
				n, _ := s.Generated()
				w.Resume(n)
				got += string(w.Write([]byte(stream("again", n))))
				if got += string(w.Rest()); !strings.HasPrefix(got, "data: {\"id\":\"again") && got != want {
					t.Fatalf("broken off after %d bytes and resumed:\n%q\nwant\n%q", at, got, want)
				}
			}
		}
	}
}

// An event without end passes in bounded memory and ends rewriting.
func TestRewriterIsBounded(t *testing.T) {
	var w Rewriter
	var got int
	piece := bytes.Repeat([]byte("x"), 64<<10)
	for range 100 {
		got += len(w.Write(piece))
	}
	if held := cap(w.held) + cap(w.out); held > 4*lineMax || got != 100*len(piece) || w.Resume(1) {
		t.Errorf("holds %d bytes, passed on %d", held, got)
	}
}
