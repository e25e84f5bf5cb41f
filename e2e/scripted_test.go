package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/e2e/process"
)

// A scripted engine has what the engines of this project do not: tools, formats,
// trouble. What it answers to a chat is what the last message asks for:
//
//	echo          the request's body, as it came
//	tool          a call of get_weather, streamed in pieces
//	json          {"city":"Paris","degrees":21}
//	busy NAME     429 with Retry-After: 1, until a second after the first of that name
//	fail          500
//	break         the beginning of an answer, and the end of the connection
//	endless NAME  a stream that ends when its client leaves
//	left NAME     "yes" once that has happened, else "no"
//
// All clusters of a test share one, so a name is used once.
type scripted struct {
	mu   sync.Mutex
	busy map[string]time.Time // since when
	left map[string]bool
}

const scriptedModel = "scripted"

// startScripted serves one until the test ends and returns its URL.
func startScripted(t *testing.T) string {
	t.Helper()
	addrs, err := process.Ports(1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: &scripted{busy: map[string]time.Time{}, left: map[string]bool{}}}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return "http://" + addrs[0]
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"scripted","object":"model","created":1,"owned_by":"e2e"}]}`)
	case "/v1/chat/completions":
		s.chat(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *scripted) chat(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	var body struct {
		Stream   bool
		Messages []struct{ Content any }
	}
	if err := json.Unmarshal(raw, &body); err != nil || len(body.Messages) == 0 {
		fault(w, http.StatusBadRequest, "unreadable")
		return
	}
	text, _ := body.Messages[len(body.Messages)-1].Content.(string)
	verb, name, _ := strings.Cut(text, " ")
	a := &scriptedAnswer{w: w, stream: body.Stream}
	switch verb {
	case "tool":
		a.toolCall()
	case "json":
		a.text(`{"city":"Par`, `is","degrees":21}`)
	case "busy":
		if s.isBusy(name) {
			w.Header().Set("Retry-After", "1")
			fault(w, http.StatusTooManyRequests, "busy")
			return
		}
		a.text("served ", name)
	case "fail":
		fault(w, http.StatusInternalServerError, "out of memory")
	case "break":
		a.send(map[string]any{"role": "assistant", "content": "It was "}, nil)
		a.send(map[string]any{"content": "a dark"}, nil)
		panic(http.ErrAbortHandler)
	case "endless":
		for r.Context().Err() == nil {
			a.send(map[string]any{"content": "on "}, nil)
			time.Sleep(5 * time.Millisecond)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.left[name] = true
	case "left":
		s.mu.Lock()
		defer s.mu.Unlock()
		a.text(map[bool]string{true: "yes", false: "no"}[s.left[name]])
	default:
		a.text(string(raw))
	}
}

// isBusy is true for a second.
func (s *scripted) isBusy(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, seen := s.busy[name]
	if !seen {
		s.busy[name] = time.Now()
		return true
	}
	return time.Since(since) < 900*time.Millisecond // a client's timer and this clock may differ a little
}

func fault(w http.ResponseWriter, status int, what string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":"the engine is %s","type":"engine_error","param":null,"code":%q}}`, what, what)
}

type scriptedAnswer struct {
	w      http.ResponseWriter
	stream bool
	begun  bool
}

var scriptedUsage = map[string]any{"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}

// text answers with the pieces joined, or streamed.
func (a *scriptedAnswer) text(pieces ...string) {
	if !a.stream {
		a.whole(map[string]any{"role": "assistant", "content": strings.Join(pieces, "")}, "stop")
		return
	}
	for _, piece := range pieces {
		a.send(map[string]any{"role": "assistant", "content": piece}, nil)
	}
	a.end("stop")
}

func (a *scriptedAnswer) toolCall() {
	call := func(arguments string) map[string]any {
		return map[string]any{"index": 0, "id": "call_1", "type": "function", "function": map[string]any{"name": "get_weather", "arguments": arguments}}
	}
	if !a.stream {
		a.whole(map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{call(`{"city":"Paris"}`)}}, "tool_calls")
		return
	}
	a.send(map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{call("")}}, nil)
	for _, piece := range []string{`{"ci`, `ty":"Pa`, `ris"}`} {
		a.send(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "function": map[string]any{"arguments": piece}}}}, nil)
	}
	a.end("tool_calls")
}

func (a *scriptedAnswer) whole(message map[string]any, finish string) {
	a.w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(a.w).Encode(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": scriptedModel, "usage": scriptedUsage,
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": finish}},
	})
}

// send sends an event of one choice; finish is nil but for the last.
func (a *scriptedAnswer) send(delta map[string]any, finish any) {
	a.event([]any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}, nil)
}

func (a *scriptedAnswer) end(finish string) {
	a.send(map[string]any{}, finish)
	a.event([]any{}, scriptedUsage)
	_, _ = io.WriteString(a.w, "data: [DONE]\n\n")
}

func (a *scriptedAnswer) event(choices []any, usage any) {
	if !a.begun {
		a.w.Header().Set("Content-Type", "text/event-stream")
		a.begun = true
	}
	chunk, _ := json.Marshal(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": scriptedModel, "choices": choices, "usage": usage,
	})
	fmt.Fprintf(a.w, "data: %s\n\n", chunk)
	_ = http.NewResponseController(a.w).Flush()
}
