package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A reply is an answer on its way: collected, or sent as server-sent events, one a
// token. One that fails midway ends without [DONE].
type reply struct {
	*Call
	w     http.ResponseWriter
	head  response // what all chunks share
	whole strings.Builder
	begun bool // the stream's headers are out
}

func newReply(w http.ResponseWriter, c *Call, model string) *reply {
	a := &reply{Call: c, w: w, head: response{ID: answerID("cmpl-"), Object: "text_completion", Created: time.Now().Unix(), Model: model}}
	switch {
	case c.Chat && c.Stream:
		a.head.ID, a.head.Object = answerID("chatcmpl-"), "chat.completion.chunk"
	case c.Chat:
		a.head.ID, a.head.Object = answerID("chatcmpl-"), "chat.completion"
	}
	return a
}

// begin starts a stream, once.
func (a *reply) begin() {
	if a.begun {
		return
	}
	a.begun = true
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.w.Header().Set("Cache-Control", "no-cache")
	if a.Chat {
		a.event(choice{Delta: &message{Role: "assistant", Content: new(string)}})
	}
}

// text adds what a token said.
func (a *reply) text(s string) {
	if !a.Stream {
		a.whole.WriteString(s)
		return
	}
	a.begin()
	switch {
	case s == "":
		a.flush() // the client sees that its answer has begun
	case a.Chat:
		a.event(choice{Delta: &message{Content: &s}})
	default:
		a.event(choice{Text: &s})
	}
}

// end finishes the answer.
func (a *reply) end(reason string, u usage) {
	if !a.Stream {
		content := a.whole.String()
		ch := choice{Finish: &reason, Text: &content}
		if a.Chat {
			ch.Text, ch.Message = nil, &message{Role: "assistant", Content: &content}
		}
		a.head.Choices, a.head.Usage = []choice{ch}, encodeJSON(u)
		writeJSON(a.w, http.StatusOK, a.head)
		return
	}
	a.begin()
	last := choice{Finish: &reason, Text: new(string)}
	if a.Chat {
		last.Text, last.Delta = nil, &message{}
	}
	a.event(last)
	if a.usage {
		a.head.Choices, a.head.Usage = []choice{}, encodeJSON(u)
		a.data(encodeJSON(a.head))
	}
	a.data([]byte("[DONE]"))
}

// event sends one choice. Usage is null in every chunk but the last, and absent
// when nobody asked for it.
func (a *reply) event(c choice) {
	a.head.Choices = []choice{c}
	if a.usage {
		a.head.Usage = json.RawMessage("null")
	}
	a.data(encodeJSON(a.head))
}

// data sends one event. A client that has gone shows in the request's context.
func (a *reply) data(line []byte) {
	_, _ = fmt.Fprintf(a.w, "data: %s\n\n", line)
	a.flush()
}

func (a *reply) flush() { _ = http.NewResponseController(a.w).Flush() }

// A response is a whole answer or a chunk of a stream, for chat or text.
type response struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"`
}

type choice struct {
	Index    int      `json:"index"`
	Message  *message `json:"message,omitempty"` // chat
	Delta    *message `json:"delta,omitempty"`   // chat, streamed
	Text     *string  `json:"text,omitempty"`    // text, both ways
	Logprobs *string  `json:"logprobs"`          // always null
	Finish   *string  `json:"finish_reason"`     // null until the last
}

type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type usage struct {
	Prompt     int          `json:"prompt_tokens"`
	Completion int          `json:"completion_tokens"`
	Total      int          `json:"total_tokens"`
	Details    usageDetails `json:"prompt_tokens_details"`
}

type usageDetails struct {
	Cached int `json:"cached_tokens"`
}

// answerID draws an id such as chatcmpl-4f1a...; ids need not repeat.
func answerID(prefix string) string {
	return prefix + strconv.FormatUint(rand.Uint64(), 16) + strconv.FormatUint(rand.Uint64(), 16)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(encodeJSON(v), '\n'))
}

// encodeJSON leaves <, > and & as they are, as the engines it stands in for do.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // only our own types come here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
