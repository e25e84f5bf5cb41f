package dialect

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

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

// A temperature of 0, where the dialect has it, is greedy; nothing else is known to be.
func TestGreedy(t *testing.T) {
	for body, want := range map[string]bool{
		chat + ` {"messages":[],"temperature":0,"tools":[{}],"stop":["x"]}`:        true,
		completion + ` {"prompt":[1,2],"temperature":-0.0e3}`:                      true,
		completion + ` {"prompt":"x","temperature":1e-9}`:                          false,
		completion + ` {"prompt":"x","temperature":null}`:                          false,
		completion + ` {"prompt":"x","temperature":"0"}`:                           false,
		completion + ` {"prompt":"x"}`:                                             false,
		completion + ` {"prompt":"x","options":{"temperature":0}}`:                 false,
		`/v1/messages {"messages":[],"temperature":0,"max_tokens":1}`:              true,
		`/v1/responses {"input":"x","temperature":0.0}`:                            true,
		`/v1/responses {"input":"x","temperature":0,"previous_response_id":"r"}`:   false,
		`/generate {"text":"x","sampling_params":{"temperature":0}}`:               true,
		`/generate {"text":"x","temperature":0}`:                                   false,
		`/completion {"prompt":"x","temperature":0}`:                               true,
		`/api/chat {"messages":[],"options":{"Temperature":0}}`:                    true,
		`/api/generate {"prompt":"x","options":{"temperature":0.8},"stream":true}`: false,
	} {
		path, body, _ := strings.Cut(body, " ")
		if got := mustRead(t, path, body).Greedy; got != want {
			t.Errorf("%s %s: greedy %v", path, body, got)
		}
	}
}

// A streaming is how one engine might stream an answer: the events of its beginning,
// one for each piece of text, and those of its end. ID, TIME and RUN stand for what
// differs from run to run, TEXT for a piece and ALL for all of them, | for a line's end.
type streaming struct {
	path, kind, head, piece, tail string
}

var streamings = []streaming{
	{
		chat, sseType, `: hello||data: {"id":"ID","created":TIME,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}||`,
		`data: {"id":"ID","created":TIME,"choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null}],"usage":null}||`,
		`data: {"id":"ID","created":TIME,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}||data: {"id":"ID","created":TIME,"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}||data: [DONE]||`,
	},
	{
		chat, sseType, `data:{"id":"ID","created":TIME,"choices":[{"index":0,"delta":{"tool_calls":[{"id":"ID-tool","index":0,"type":"function","function":{"name":"f","arguments":""}}]}}]}||`,
		`data:{"id":"ID","created":TIME,"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":TEXT}}]}}]}||`,
		`data:{"id":"ID","created":TIME,"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}||data: [DONE]||`,
	},
	{
		completion, sseType, "",
		`id: RUN|data: {"id":"ID","object":"text_completion","created":TIME,"choices":[{"text":TEXT,"index":0,"logprobs":null,"finish_reason":null}]}||`,
		`data: {"id":"ID","object":"text_completion","created":TIME,"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}]}||data: [DONE]||`,
	},
	{
		"/v1/responses", sseType,
		`event: response.created|data: {"type":"response.created","sequence_number":SEQ,"response":{"id":"resp_ID","created_at":TIME,"output":[],"usage":null}}||event: response.output_item.added|data: {"type":"response.output_item.added","sequence_number":SEQ,"output_index":0,"item":{"id":"msg_ID","content":[]}}||`,
		`event: response.output_text.delta|data: {"type":"response.output_text.delta","sequence_number":SEQ,"item_id":"msg_ID","output_index":0,"content_index":0,"delta":TEXT}||`,
		`event: response.completed|data: {"type":"response.completed","sequence_number":SEQ,"response":{"id":"resp_ID","created_at":TIME,"output":[{"id":"msg_ID","content":[{"type":"output_text","text":ALL}]}],"usage":{"input_tokens":7,"output_tokens":4}}}||`,
	},
	{
		"/v1/messages", sseType,
		`event: message_start|data: {"type":"message_start","message":{"id":"msg_ID","content":[],"usage":{"input_tokens":7,"cache_read_input_tokens":RUN}}}||event: content_block_start|data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}||`,
		`event: content_block_delta|data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":TEXT}}||`,
		`event: content_block_stop|data: {"type":"content_block_stop","index":0}||event: message_delta|data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}||event: message_stop|data: {"type":"message_stop"}||`,
	},
	{
		"/completion", sseType, "", `data: {"index":0,"content":TEXT,"stop":false,"tokens_predicted":RUN}||`,
		`data: {"index":0,"content":"","stop":true,"tokens_predicted":4,"tokens_evaluated":7,"timings":{"prompt_ms":RUN.5}}||`,
	},
	{
		"/api/chat", "application/x-ndjson", "", `{"model":"m","message":{"role":"assistant","content":TEXT},"done":false}|`,
		`{"model":"m","message":{"role":"assistant","content":""},"done":true,"total_duration":RUN,"eval_count":4}|`,
	},
}

// of is the stream of these pieces in the run of this id, SEQ counting its events.
func (s streaming) of(id, lineEnd string, pieces ...string) string {
	quoted := func(text string) string { return string(appendQuoted(nil, text)) }
	all := s.head
	for _, p := range pieces {
		all += strings.ReplaceAll(s.piece, "TEXT", quoted(p))
	}
	all = strings.NewReplacer("ID", id, "TIME", "170000000"+strconv.Itoa(len(id)), "RUN", "90"+strconv.Itoa(len(id)),
		"ALL", quoted(strings.Join(pieces, "")), "|", lineEnd).Replace(all + s.tail)
	for n := 0; strings.Contains(all, "SEQ"); n++ {
		all = strings.Replace(all, "SEQ", strconv.Itoa(n), 1)
	}
	return all
}

// named are the ids and times of a stream.
var named = regexp.MustCompile(`((?:resp_|msg_)?)(first|second|third)|(170000000)([567])`)

// alike takes out of a joined stream what may differ from the first run's, having
// seen that each thing has one name in it.
func alike(stream, lineEnd string) (string, error) {
	names := map[string]string{}
	var err error
	stream = named.ReplaceAllStringFunc(stream, func(name string) string {
		m := named.FindStringSubmatch(name)
		kind, own := m[1]+m[3], m[2]+m[4]
		if other, twice := names[kind]; twice && other != own {
			err = fmt.Errorf("%s%s is called %s%s too", kind, other, kind, own)
		}
		names[kind] = own
		return kind
	})
	return strings.NewReplacer(": hello"+lineEnd+lineEnd, "", "906", "905", "907", "905").Replace(stream), err
}

func (s streaming) header(name string) string {
	return map[string]string{"Content-Type": s.kind}[name]
}

// join feeds a joiner with the beginnings of runs, each cut into pieces, and with
// the whole of the last.
func join(j *Joiner, piece func(left int) int, runs ...string) (joined string, err error) {
	for i, run := range runs {
		if i > 0 {
			j.Again()
		}
		for run != "" {
			n := piece(len(run))
			out, err := j.Next([]byte(run[:n]), false)
			joined += string(out)
			if err != nil {
				return joined, err
			}
			run = run[n:]
		}
	}
	rest, err := j.Next(nil, true)
	return joined + string(rest), err
}

func all(left int) int { return left }

// Wherever a stream breaks off, the client has the bytes of one undisturbed run.
func TestJoinerResumesAnywhere(t *testing.T) {
	pieces := []string{"Once", " \"a", " a", "é."}
	for _, s := range streamings {
		for _, lineEnd := range []string{"\n", "\r\n", "\r"} {
			if s.kind != sseType && lineEnd == "\r" {
				continue // ends no line of JSON
			}
			first, again := s.of("first", lineEnd, pieces...), s.of("second", lineEnd, pieces...)
			step := 7
			if lineEnd == "\r\n" {
				step = 1
			}
			for at := 0; at < len(first); at += step {
				j := NewJoiner(endpoint(t, s.path), s.header)
				joined, err := join(j, all, first[:at], again)
				got, err2 := alike(joined, lineEnd)
				want, _ := alike(first, lineEnd)
				if err != nil || err2 != nil || got != want {
					t.Fatalf("%s broken off after %d bytes and resumed: %v, %v\n%q\nwant\n%q", s.path, at, err, err2, got, want)
				}
			}
		}
	}
}

// Runs that cut the same text elsewhere are one stream: of one text, under one id.
func TestJoinerJoinsRunsThatCutElsewhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(streamings).Draw(t, "streaming")
		text := rapid.StringMatching(`[ab "\\é😀]{1,12}`).Draw(t, "text")
		cut := func() (pieces []string) {
			for rest := []rune(text); len(rest) > 0; {
				n := rapid.IntRange(1, len(rest)).Draw(t, "characters")
				pieces, rest = append(pieces, string(rest[:n])), rest[n:]
			}
			return pieces
		}
		var runs []string
		for _, id := range []string{"first", "second", "third"} {
			run := s.of(id, "\n", cut()...)
			if id != "third" {
				run = run[:rapid.IntRange(0, len(run)).Draw(t, "break")]
			}
			runs = append(runs, run)
		}
		j := NewJoiner(Endpoint{Dialect: endpoints[s.path].Dialect}, s.header)
		joined, err := join(j, func(left int) int { return rapid.IntRange(1, left).Draw(t, "piece") }, runs...)
		if err != nil {
			t.Fatalf("%v after %q", err, joined)
		}
		scanner := NewScanner(endpoints[s.path], s.header)
		_, _ = scanner.Write([]byte(joined))
		if got, whole := scanner.Text(); got != text && !strings.Contains(s.head, "tool_calls") || !whole {
			t.Fatalf("joined to the text %q, want %q:\n%s", got, text, joined)
		}
		if _, err := alike(joined, "\n"); err != nil {
			t.Fatalf("%v in\n%s", err, joined)
		}
		for n, m := range sequenceNumber.FindAllStringSubmatch(joined, -1) {
			if m[1] != strconv.Itoa(n) {
				t.Fatalf("event %d has number %s in\n%s", n, m[1], joined)
			}
		}
	})
}

var sequenceNumber = regexp.MustCompile(`"sequence_number":(\d+)`)

// The first difference ends the stream, and nothing of the other run was passed on.
func TestJoinerEndsAtADifference(t *testing.T) {
	for _, s := range streamings {
		first, again := s.of("first", "\n", "a", "b", "c"), s.of("second", "\n", "a", "b", "c")
		for _, other := range []string{
			s.of("second", "\n", "a", "x", "c"), s.of("second", "\n", "a"), s.of("second", "\n"), "", "\n\n",
			strings.Replace(again, `{"`, `{"more":null,"`, 1), strings.Repeat("x", lineMax+1),
		} {
			j := NewJoiner(endpoint(t, s.path), s.header)
			if before, err := j.Next([]byte(first), false); err != nil || string(before) != first {
				t.Fatalf("%s: %q, %v", s.path, before, err)
			}
			if joined, err := join(j, all, "", other); !errors.Is(err, ErrDiffers) || joined != "" {
				t.Errorf("%s: %v\n%q after\n%q", s.path, err, joined, first)
			}
		}
	}
}

// SGLang's events hold all of the text so far, or what is new.
func TestJoinerOfSGLang(t *testing.T) {
	for _, pieces := range [][]string{{"a", "ab", "aba"}, {"a", "a", "a"}} {
		stream := func(id string, pieces []string) (s string) {
			for i, p := range pieces {
				s += fmt.Sprintf(`data: {"text":"%s","meta_info":{"id":"%s","completion_tokens":%d}}`+"\n\n", p, id, i+1)
			}
			return s + "data: [DONE]\n\n"
		}
		first := stream("first", pieces)
		for n := range pieces {
			j := NewJoiner(endpoint(t, "/generate"), streamings[0].header)
			if joined, err := join(j, all, stream("first", pieces[:n+1])[:len(stream("first", pieces[:n+1]))-len("data: [DONE]\n\n")], stream("second", pieces)); joined != first || err != nil {
				t.Errorf("%q, %v", joined, err)
			}
		}
	}
}

// What is no stream in the clear cannot be joined.
func TestJoinerOfOtherAnswers(t *testing.T) {
	for _, header := range []map[string]string{
		{"Content-Type": jsonType}, {"Content-Type": sseType, "Content-Encoding": "gzip"},
	} {
		if NewJoiner(endpoint(t, chat), func(name string) string { return header[name] }) != nil {
			t.Errorf("a joiner for %v", header)
		}
	}
}

// An event without end, and an answer without end, pass in bounded memory and can
// not be resumed.
func TestJoinerIsBounded(t *testing.T) {
	for _, piece := range []string{strings.Repeat("x", 64<<10), "data: {\"text\":\"" + strings.Repeat("x", 64<<10) + "\"}\n\n"} {
		j := NewJoiner(endpoint(t, completion), streamings[0].header)
		var got int
		for range 100 {
			out, err := j.Next([]byte(piece), false)
			if err != nil {
				t.Fatal(err)
			}
			got += len(out)
		}
		if held := cap(j.held) + cap(j.out) + cap(j.sent); held > 4*answerMax || got != 100*len(piece) || j.Resumable() {
			t.Errorf("holds %d bytes, passed on %d of %d", held, got, 100*len(piece))
		}
	}
}

// An event passes without garbage.
func BenchmarkJoiner(b *testing.B) {
	piece := []byte(sse(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m-test","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}`))
	j := NewJoiner(endpoint(b, chat), streamings[0].header)
	b.SetBytes(int64(len(piece)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = j.Next(piece, false)
		j.sent, j.at = j.sent[:0], 0
	}
	if !j.Resumable() {
		b.Fatal("lost")
	}
}
