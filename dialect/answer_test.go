package dialect

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	sseType  = "text/event-stream; charset=utf-8"
	jsonType = "application/json"
)

func scanner(t testing.TB, path string, headers ...string) *Scanner {
	t.Helper()
	return NewScanner(endpoint(t, path), func(name string) string {
		for i := 0; i < len(headers); i += 2 {
			if headers[i] == name {
				return headers[i+1]
			}
		}
		return ""
	})
}

// seen is all that a scanner says.
type seen struct {
	usage         Usage
	known         bool
	text          string
	whole         bool
	began, ended  bool
	textBeforeEnd string
}

func look(s *Scanner) (all seen) {
	all.textBeforeEnd, _ = s.Text()
	all.usage, all.known = s.Usage()
	all.text, all.whole = s.Text()
	all.began, all.ended = s.Began(), s.Ended()
	return all
}

func sse(objects ...string) string { return "data: " + strings.Join(objects, "\n\ndata: ") + "\n\n" }

// answers are what engines write, in their own shapes, and what there is to see.
var answers = []struct {
	name, path, kind, body string
	want                   seen
}{
	{
		"chat stream", chat, sseType,
		": ping\n\n" + sse(
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"H\u00e9"}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"llo \"\\\ud83d\ude00"}}],"usage":null}`,
			`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`,
			`[DONE]`),
		seen{usage: Usage{9, 3, 8}, known: true, text: "Héllo \"\\😀", whole: true, began: true, ended: true},
	},
	{
		"several choices, reasons, no usage, no end", chat, sseType,
		sse(
			`{"choices":[{"index":1,"delta":{"content":"other"}},{"index":0,"delta":{"content":"a"}}]}`,
			`{"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}`,
			`{"choices":[{"index":0,"delta":{"content":"b","reasoning_content":"x"}}]}`),
		seen{text: "ab", whole: true, began: true},
	},
	{
		"one choice cut off", chat, sseType, sse(`{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}`) + `data: {"choices":[{"delta":{"con`,
		seen{text: "a", began: true},
	},
	{
		"continuous usage", completion, sseType, sse(`{"choices":[{"text":"abc","index":0,"finish_reason":null}],"usage":{"prompt_tokens":4,"completion_tokens":5}}`),
		seen{usage: Usage{4, 5, 0}, text: "abc", whole: true, began: true},
	},
	{
		"chat", chat, jsonType, ` {"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n",
		seen{usage: Usage{9, 2, 0}, known: true, text: "Hi", whole: true, began: true},
	},
	{
		"null details", chat, jsonType, `{"choices":[{"index":0,"message":{"content":null}}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}`,
		seen{usage: Usage{9, 2, 0}, whole: true, began: true},
	},
	{
		"more cached than there is", chat, jsonType, `{"choices":[{"index":0,"message":{"content":"Hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":10}}}`,
		seen{usage: Usage{Prompt: 9, Completion: 2}, text: "Hi", whole: true, began: true},
	},
	{
		"a prompt longer than any", chat, jsonType, `{"choices":[{"index":0,"message":{"content":"Hi"}}],"usage":{"prompt_tokens":99999999999999999999,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}`,
		seen{text: "Hi", whole: true, began: true},
	},
	{
		"cached as a text", chat, jsonType, `{"choices":[{"index":0,"message":{"content":"Hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":"8"}}}`,
		seen{usage: Usage{Prompt: 9, Completion: 2}, text: "Hi", whole: true, began: true},
	},
	{
		"llama.cpp's timings", chat, jsonType, `{"choices":[{"index":0,"message":{"content":"Hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":2},"timings":{"cache_n":6,"prompt_n":3}}`,
		seen{usage: Usage{9, 2, 6}, known: true, text: "Hi", whole: true, began: true},
	},
	{"an error", chat, jsonType, `{"error":{"message":"no"}}`, seen{whole: true, began: true}},
	{
		"responses stream", "/v1/responses", sseType,
		"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n" +
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n" +
			"event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"Hi\"}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"Hi\"}]}],\"usage\":{\"input_tokens\":9,\"output_tokens\":2,\"input_tokens_details\":{\"cached_tokens\":4}}}}\n\n",
		seen{usage: Usage{9, 2, 4}, known: true, text: "Hi", whole: true, began: true, ended: true},
	},
	{
		"responses", "/v1/responses", jsonType, `{"output":[{"type":"reasoning","content":[{"type":"reasoning_text","text":"no"}]},{"type":"message","content":[{"type":"output_text","text":"Hi"}]}],"usage":{"input_tokens":9,"output_tokens":2,"input_tokens_details":{"cached_tokens":4}}}`,
		seen{usage: Usage{9, 2, 4}, known: true, text: "Hi", whole: true, began: true},
	},
	{
		"messages stream", "/v1/messages", sseType,
		"event: message_start\ndata: {\"type\": \"message_start\", \"message\": {\"usage\": {\"input_tokens\": 5, \"cache_read_input_tokens\":3,\"cache_creation_input_tokens\":1,\"output_tokens\": 0}}}\n\n" +
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
			"event: ping\ndata: {\"type\":\"ping\"}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		seen{usage: Usage{9, 2, 3}, known: true, text: "Hi", whole: true, began: true, ended: true},
	},
	{
		"messages stream of vLLM", "/v1/messages", sseType,
		sse(`{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}`,
			`{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"no"}}`,
			`{"type":"message_delta","delta":{},"usage":{"input_tokens":9,"output_tokens":2}}`),
		seen{usage: Usage{9, 2, 0}, whole: true, began: true},
	},
	{
		"messages", "/v1/messages", jsonType, `{"type":"message","content":[{"type":"thinking","thinking":"no"},{"type":"text","text":"Hi"}],"usage":{"input_tokens":9,"output_tokens":2,"cache_read_input_tokens":null}}`,
		seen{usage: Usage{9, 2, 0}, text: "Hi", whole: true, began: true},
	},
	{
		"SGLang stream, the text so far", "/generate", sseType,
		sse(`{"text":"H","meta_info":{"prompt_tokens":9,"completion_tokens":1,"cached_tokens":8}}`, `{"text":"Hi","meta_info":{"prompt_tokens":9,"completion_tokens":2,"cached_tokens":8}}`, `[DONE]`),
		seen{usage: Usage{9, 2, 8}, known: true, text: "Hi", whole: true, began: true, ended: true},
	},
	{
		"SGLang stream, the text that is new", "/generate", sseType,
		sse(`{"text":"H","meta_info":{"prompt_tokens":9,"completion_tokens":1,"cached_tokens":8}}`, `{"text":"i","meta_info":{"prompt_tokens":9,"completion_tokens":2,"cached_tokens":8}}`, `{"index":1,"text":"no"}`, `[DONE]`),
		seen{usage: Usage{9, 2, 8}, known: true, text: "Hi", whole: true, began: true, ended: true},
	},
	{
		"SGLang batch", "/generate", jsonType, `[{"text":"Hi","meta_info":{"prompt_tokens":9,"completion_tokens":2,"cached_tokens":8}},{"text":"no"}]`,
		seen{usage: Usage{9, 2, 8}, known: true, text: "Hi", whole: true, began: true},
	},
	{
		"llama.cpp stream", "/completion", sseType,
		sse(`{"content":"H","stop":false,"tokens_evaluated":9,"tokens_predicted":1}`, `{"content":"i","stop":false}`, `{"content":"","stop":true,"tokens_evaluated":9,"tokens_predicted":2,"tokens_cached":10,"timings":{"cache_n":6,"prompt_n":3}}`),
		seen{usage: Usage{9, 2, 6}, known: true, text: "Hi", whole: true, began: true, ended: true},
	},
	{
		"Ollama chat", "/api/chat", "application/x-ndjson", `{"message":{"role":"assistant","content":"H"},"done":false}` + "\n" + `{"message":{"content":"i"},"done":false}` + "\r\n\n" + `{"message":{"content":""},"done":true,"prompt_eval_count":9,"eval_count":2}` + "\n",
		seen{usage: Usage{9, 2, 0}, text: "Hi", whole: true, began: true, ended: true},
	},
	{
		"Ollama generate", "/api/generate", "application/x-ndjson", `{"response":"H","done":false}` + "\n" + `{"response":"i","done":true,"prompt_eval_count":9,"eval_count":2}`,
		seen{usage: Usage{9, 2, 0}, text: "Hi", whole: true, began: true, ended: true},
	},
	{"comments alone", chat, sseType, ": ping\n\n:\n\nevent: x\n\n", seen{whole: true}},
	{"a ping alone", "/v1/messages", sseType, "event: ping\ndata: {\"type\": \"ping\"}\n\n", seen{whole: true}},
	{"data on two lines", chat, sseType, "data: {\"choices\":[{\"text\":\ndata:\"a\"}]}\n\n", seen{text: "a", whole: true, began: true}},
	{"no JSON", chat, sseType, "data: {\"choices\":[\n\n", seen{began: true}},
	{"embeddings", "/v1/embeddings", jsonType, `{"usage":{"prompt_tokens":9}}`, seen{began: true}},
	{"nothing", chat, jsonType, "", seen{whole: true}},
}

// A scanner sees the same answer however its bytes are cut and its lines end.
func TestScannerSeesThroughAnyCut(t *testing.T) {
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				body, want := a.body, a.want
				if a.kind == sseType {
					body = strings.ReplaceAll(body, "\n", rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(t, "line end"))
				}
				s := NewScanner(endpoint(t, a.path), func(name string) string {
					if name == "Content-Type" {
						return a.kind
					}
					return ""
				})
				for body != "" {
					n := rapid.IntRange(1, len(body)).Draw(t, "cut")
					_, _ = io.WriteString(s, body[:n])
					body = body[n:]
				}
				got := look(s)
				if want.textBeforeEnd = got.textBeforeEnd; got != want {
					t.Fatalf("saw  %+v\nwant %+v", got, want)
				}
				if !strings.HasPrefix(got.text, got.textBeforeEnd) {
					t.Fatalf("text was %q before %q", got.textBeforeEnd, got.text)
				}
			})
		})
	}
}

// What is compressed is not counted, and not counted as nothing.
func TestScannerOfCompressedAnswers(t *testing.T) {
	for _, encoding := range []string{"gzip", "br", "zstd", "gzip, identity"} {
		s := scanner(t, chat, "Content-Type", jsonType, "Content-Encoding", encoding)
		_, _ = io.WriteString(s, `{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`)
		if got := look(s); got.known || got.whole || got.text != "" || got.usage != (Usage{}) || !got.began {
			t.Errorf("%s: saw %+v", encoding, got)
		}
	}
	s := scanner(t, chat, "Content-Type", jsonType, "Content-Encoding", "Identity")
	_, _ = io.WriteString(s, `{"choices":[{"message":{"content":"x"}}]}`)
	if text, whole := s.Text(); text != "x" || !whole {
		t.Errorf("saw %q, %v", text, whole)
	}
}

// The engines of this project tell in their headers what their cache gave.
func TestScannerReadsHeaders(t *testing.T) {
	s := scanner(t, chat, "Content-Type", sseType, PromptTokensHeader, "9", CachedTokensHeader, "3")
	_, _ = io.WriteString(s, sse(`{"choices":[{"text":"x"}]}`, `[DONE]`))
	if usage, known := s.Usage(); !known || usage.Cached != 3 || usage.Prompt != 9 {
		t.Errorf("saw %+v, known %v", usage, known)
	}
}

// An answer without end costs a scanner no more than its bounds, and a line that
// is too long costs the text, not what comes after.
func TestScannerIsBounded(t *testing.T) {
	for _, kind := range []string{sseType, jsonType, "application/x-ndjson"} {
		s := scanner(t, chat, "Content-Type", kind)
		chunk := []byte(sse(`{"choices":[{"text":"` + strings.Repeat("y", 64<<10) + `"}]}`))
		for range 100 {
			_, _ = s.Write(chunk)
		}
		for range 100 { // a line that goes on and on
			_, _ = s.Write(bytes.Repeat([]byte("x"), 64<<10))
		}
		for range 10_000 { // an event that does
			_, _ = s.Write([]byte("\ndata: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["))
		}
		if held := cap(s.line) + cap(s.event) + cap(s.text) + 8*cap(s.doc.boxes); held > 4*answerMax {
			t.Errorf("%s: holds %d bytes", kind, held)
		}
		if _, whole := s.Text(); whole {
			t.Errorf("%s: says that the text is whole", kind)
		}
		if kind != sseType {
			continue
		}
		_, _ = io.WriteString(s, "\n\n"+sse(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}}`, "[DONE]"))
		if got := look(s); !got.known || got.usage.Cached != 4 || !got.ended {
			t.Errorf("after long lines: saw %+v", got)
		}
	}
}

// The last line of Ollama's may hold the token ids of all the conversation.
func TestScannerOfLongLines(t *testing.T) {
	s := scanner(t, "/api/generate", "Content-Type", "application/x-ndjson")
	_, _ = io.WriteString(s, "{")
	_, _ = io.WriteString(s, `"response":"x","done":true,"context":[`+strings.Repeat("12345,", lineMax/4)+`1],"prompt_eval_count":9,"eval_count":1}`+"\n")
	if got := look(s); got.text != "x" || !got.whole || !got.ended || got.usage.Prompt != 9 {
		t.Errorf("saw %+v", got)
	}
}

// A line that is too long is so however it comes.
func TestScannerOfTooLongLines(t *testing.T) {
	for kind, prefix := range map[string]string{sseType: "data: ", "application/x-ndjson": ""} {
		long := prefix + `{"choices":[{"text":"` + strings.Repeat("x", answerMax) + `"}],"usage":{"prompt_tokens":9}}` + "\n\n"
		for _, cut := range []int{0, 1, len(long) / 2, len(long)} {
			s := scanner(t, completion, "Content-Type", kind)
			_, _ = io.WriteString(s, long[:cut])
			_, _ = io.WriteString(s, long[cut:])
			if got := look(s); got.text != "" || got.whole || !got.began || got.usage.Prompt != 0 || cap(s.line) > answerMax {
				t.Errorf("%s cut at %d: saw %d bytes, whole %v", kind, cut, len(got.text), got.whole)
			}
		}
	}
}

// A stream's piece is read without garbage.
func BenchmarkScanner(b *testing.B) {
	piece := []byte(sse(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m-test","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}`))
	s := scanner(b, chat, "Content-Type", sseType)
	b.SetBytes(int64(len(piece)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.Write(piece)
		s.text = s.text[:0]
	}
	if !s.Began() {
		b.Fatal("read nothing")
	}
}
