package emulated

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
)

// maxBody bounds a request's body in bytes.
const maxBody = 32 << 20

// ServeHTTP answers
//
//	POST /v1/chat/completions   OpenAI's API, streamed or not
//	POST /v1/completions        the same for text; prompt may be token ids
//	GET  /v1/models
//
// A request whose client has gone leaves the queue, or the batch, at once. A stream
// that fails after its first token panics with http.ErrAbortHandler, with which
// net/http cuts the connection, so that nobody takes what came for the whole.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	method := http.MethodPost
	if r.URL.Path == "/v1/models" {
		method = http.MethodGet
	}
	var failed *apiError
	switch {
	case method == http.MethodPost && !engine.Routed(r.URL.Path):
		failed = badRequest("", "there is nothing at %s", r.URL.Path)
		failed.status = http.StatusNotFound
	case r.Method != method:
		w.Header().Set("Allow", method)
		failed = badRequest("", "%s takes %s, not %s", r.URL.Path, method, r.Method)
		failed.status = http.StatusMethodNotAllowed
	case method == http.MethodGet:
		e.listModels(w)
	default:
		failed = e.complete(w, r, arrived)
	}
	if failed != nil {
		failed.write(w)
	}
}

// complete serves the two generating endpoints. Nothing is sent before the first
// token, so that a failure until then has its own status.
func (e *Engine) complete(w http.ResponseWriter, r *http.Request, arrived time.Time) *apiError {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		failed := badRequest("", "the body is larger than %d bytes", maxBody)
		failed.status = http.StatusRequestEntityTooLarge
		return failed
	}
	if err != nil {
		return badRequest("", "the body could not be read: %v", err)
	}
	c, failed := e.parse(r.URL.Path, body)
	if failed != nil {
		return failed
	}
	id, events, err := e.submit(arrived, c.Job)
	if err != nil {
		return refusal(w, err)
	}
	defer e.leave(id)
	first, err := e.await(r.Context(), events)
	if err != nil {
		return refusal(w, err)
	}
	w.Header().Set(engine.PromptTokensHeader, strconv.Itoa(c.Tokens))
	w.Header().Set(engine.CachedTokensHeader, strconv.Itoa(first.Cached))
	a := answer{call: c, w: w, first: first, head: response{Created: time.Now().Unix(), Model: e.cfg.Name}}
	a.head.ID, a.head.Object = answerID("cmpl-"), "text_completion"
	if c.chat {
		a.head.ID, a.head.Object = answerID("chatcmpl-"), "chat.completion"
	}
	if c.stream {
		if err := a.sendStream(r.Context(), e, events); err != nil && r.Context().Err() == nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	if _, err := e.await(r.Context(), events); err != nil {
		return refusal(w, err)
	}
	a.sendWhole()
	return nil
}

// await waits for the next thing that happens to a request.
func (e *Engine) await(ctx context.Context, events job) (emulate.Event, error) {
	select {
	case event := <-events:
		return event, nil
	case <-ctx.Done():
		return emulate.Event{}, ctx.Err()
	case <-e.ended:
		return emulate.Event{}, errClosed
	}
}

// pause waits until at.
func (e *Engine) pause(ctx context.Context, at time.Time) error {
	left := time.Until(at)
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.ended:
		return errClosed
	}
}

// refusal is the answer to a request that ended before its first byte.
func refusal(w http.ResponseWriter, err error) *apiError {
	switch {
	case errors.Is(err, errQueueFull):
		w.Header().Set("Retry-After", "1")
		return &apiError{status: http.StatusTooManyRequests, kind: "rate_limit_error", code: "rate_limit_exceeded", text: err.Error()}
	case errors.Is(err, errClosed):
		return &apiError{status: http.StatusServiceUnavailable, kind: "server_error", text: err.Error()}
	}
	return badRequest("", "%v", err) // the client has gone
}

// An answer is one being sent. Its first token is ready.
type answer struct {
	*call
	w     http.ResponseWriter
	first emulate.Event
	head  response // what all chunks share
}

// lengthReason is why every answer ends: it has the tokens that were asked for.
const lengthReason = "length"

func (a *answer) sendWhole() {
	var whole strings.Builder
	for i := range a.Output {
		whole.WriteString(filler(a.seed, i))
	}
	reason, content := lengthReason, whole.String()
	ch := choice{Finish: &reason}
	if a.chat {
		ch.Message = &message{Role: "assistant", Content: &content}
	} else {
		ch.Text = &content
	}
	a.head.Choices, a.head.Usage = []choice{ch}, a.usageJSON()
	writeJSON(a.w, http.StatusOK, a.head)
}

// sendStream sends the answer as server-sent events, one a token, each when it is
// ready. An answer that fails midway ends without [DONE].
func (a *answer) sendStream(ctx context.Context, e *Engine, events job) error {
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.w.Header().Set("Cache-Control", "no-cache")
	if a.chat {
		a.head.Object = "chat.completion.chunk"
		a.event(choice{Delta: &message{Role: "assistant", Content: new(string)}})
	}
	for i := range a.Output {
		if err := e.pause(ctx, a.first.At.Add(e.scaled(e.cfg.Profile.Decode, i))); err != nil {
			return err
		}
		text := filler(a.seed, i)
		if a.chat {
			a.event(choice{Delta: &message{Content: &text}})
		} else {
			a.event(choice{Text: &text})
		}
	}
	if _, err := e.await(ctx, events); err != nil {
		return err
	}
	reason := lengthReason
	last := choice{Finish: &reason, Delta: &message{}}
	if !a.chat {
		last.Delta, last.Text = nil, new(string)
	}
	a.event(last)
	if a.usage {
		a.head.Choices, a.head.Usage = []choice{}, a.usageJSON()
		a.data(encodeJSON(a.head))
	}
	a.data([]byte("[DONE]"))
	return nil
}

// event sends one choice. Usage is null in every chunk but the last, and absent
// when nobody asked for it.
func (a *answer) event(c choice) {
	a.head.Choices = []choice{c}
	if a.usage {
		a.head.Usage = json.RawMessage("null")
	}
	a.data(encodeJSON(a.head))
}

// data sends one event. A client that has gone shows in the request's context.
func (a *answer) data(line []byte) {
	_, _ = fmt.Fprintf(a.w, "data: %s\n\n", line)
	_ = http.NewResponseController(a.w).Flush()
}

func (a *answer) usageJSON() json.RawMessage {
	return encodeJSON(map[string]any{
		"prompt_tokens": a.Tokens, "completion_tokens": a.Output, "total_tokens": a.Tokens + a.Output,
		"prompt_tokens_details": map[string]int{"cached_tokens": a.first.Cached},
	})
}

func (e *Engine) listModels(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": e.cfg.Name, "object": "model", "created": e.started.Unix(), "owned_by": "hearsay", "max_model_len": e.Context(),
	}}})
}

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
