package builtin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// maxBody bounds a request's body in bytes.
const maxBody = 32 << 20

// Headers of every generated answer; they are sent with the first token, when
// both are known.
const (
	headerPromptTokens = "Hearsay-Prompt-Tokens"
	headerCachedTokens = "Hearsay-Cached-Tokens"
)

// ServeHTTP answers
//
//	POST /v1/chat/completions   OpenAI's API, streamed or not
//	POST /v1/completions        the same for text; prompt may be token ids
//	GET  /v1/models
//	POST /tokenize              {"prompt"} or {"messages"}, as vLLM does
//	POST /detokenize            {"tokens"}, as vLLM does
//
// A request whose client has gone leaves the batch within one step. A stream
// that fails after its first token panics with http.ErrAbortHandler, with which
// net/http cuts the connection, so that nobody takes what came for the whole.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method, serve := e.endpoint(r.URL.Path)
	var failed *apiError
	var body object
	switch {
	case serve == nil:
		failed = badRequest("", "there is nothing at %s", r.URL.Path)
		failed.status = http.StatusNotFound
	case r.Method != method:
		w.Header().Set("Allow", method)
		failed = badRequest("", "%s takes %s, not %s", r.URL.Path, method, r.Method)
		failed.status = http.StatusMethodNotAllowed
	case method == http.MethodPost:
		body, failed = readObject(w, r)
	}
	if failed == nil {
		failed = serve(w, r, body)
	}
	if failed != nil {
		failed.write(w)
	}
}

// A handler answers a request whose body, if it has one, is body.
type handler func(w http.ResponseWriter, r *http.Request, body object) *apiError

func (e *Engine) endpoint(path string) (method string, serve handler) {
	switch path {
	case "/v1/chat/completions":
		return http.MethodPost, e.completeChat
	case "/v1/completions":
		return http.MethodPost, e.completeText
	case "/v1/models":
		return http.MethodGet, e.listModels
	case "/tokenize":
		return http.MethodPost, e.tokenize
	case "/detokenize":
		return http.MethodPost, e.detokenize
	}
	return "", nil
}

func readObject(w http.ResponseWriter, r *http.Request) (object, *apiError) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		e := badRequest("", "the body is larger than %d bytes", maxBody)
		e.status = http.StatusRequestEntityTooLarge
		return nil, e
	}
	if err != nil {
		return nil, badRequest("", "the body could not be read: %v", err)
	}
	var o object
	if err := json.Unmarshal(raw, &o); err != nil || o == nil {
		return nil, badRequest("", "the body must be a JSON object")
	}
	return o, nil
}

func (e *Engine) completeChat(w http.ResponseWriter, r *http.Request, body object) *apiError {
	return e.complete(w, r, body, &call{chat: true})
}

func (e *Engine) completeText(w http.ResponseWriter, r *http.Request, body object) *apiError {
	return e.complete(w, r, body, &call{})
}

// complete serves the two generating endpoints. Nothing is sent before the
// first token, so that a failure until then has its own status.
func (e *Engine) complete(w http.ResponseWriter, r *http.Request, body object, c *call) *apiError {
	if err := e.parseCall(c, body); err != nil {
		return err
	}
	stream, err := e.Generate(r.Context(), c.Request)
	if err != nil {
		return c.refusal(w, err)
	}
	text, ok := stream.Next()
	if !ok {
		if _, err := stream.Finish(); err != nil {
			return c.refusal(w, err)
		}
	}
	w.Header().Set(headerPromptTokens, strconv.Itoa(len(c.Prompt)))
	w.Header().Set(headerCachedTokens, strconv.Itoa(stream.CachedTokens()))
	a := answer{call: c, stream: stream, w: w, head: response{Created: time.Now().Unix(), Model: e.name}}
	a.head.ID, a.head.Object = answerID("cmpl-"), "text_completion"
	if c.chat {
		a.head.ID, a.head.Object = answerID("chatcmpl-"), "chat.completion"
	}
	if c.stream {
		a.sendStream(text, ok)
		if _, err := stream.Finish(); err != nil && r.Context().Err() == nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	return a.sendWhole(text, ok)
}

// refusal is the answer to a request that ended before its first token.
func (c *call) refusal(w http.ResponseWriter, err error) *apiError {
	var long *ContextError
	switch {
	case errors.As(err, &long):
		e := badRequest("prompt", "%v", err)
		if e.code = "context_length_exceeded"; c.chat {
			e.param = "messages"
		}
		return e
	case errors.Is(err, ErrQueueFull):
		w.Header().Set("Retry-After", "1")
		return &apiError{status: http.StatusTooManyRequests, kind: "rate_limit_error", code: "rate_limit_exceeded", text: err.Error()}
	case errors.Is(err, ErrClosed):
		return &apiError{status: http.StatusServiceUnavailable, kind: "server_error", text: err.Error()}
	}
	return badRequest("", "%v", err)
}

// An answer is one being sent.
type answer struct {
	*call
	stream *Stream
	w      http.ResponseWriter
	head   response // what all chunks share
}

// sendWhole collects the answer, whose first token is text.
func (a *answer) sendWhole(text string, ok bool) *apiError {
	var whole bytes.Buffer
	for ; ok; text, ok = a.stream.Next() {
		whole.WriteString(text)
	}
	reason, err := a.stream.Finish()
	if err != nil {
		return a.refusal(a.w, err)
	}
	content := whole.String()
	ch := choice{Finish: &reason}
	if a.chat {
		ch.Message = &message{Role: "assistant", Content: &content}
	} else {
		ch.Text = &content
	}
	a.head.Choices, a.head.Usage = []choice{ch}, a.stream.Usage().json()
	writeJSON(a.w, http.StatusOK, a.head)
	return nil
}

// sendStream sends the answer as server-sent events, one a token, the first of
// which is text. An answer that fails midway ends without [DONE].
func (a *answer) sendStream(text string, ok bool) {
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.w.Header().Set("Cache-Control", "no-cache")
	if a.chat {
		a.head.Object = "chat.completion.chunk"
		a.event(choice{Delta: &message{Role: "assistant", Content: new(string)}})
	} else {
		a.flush() // the first token may have no text yet
	}
	for ; ok; text, ok = a.stream.Next() {
		switch {
		case text == "":
		case a.chat:
			a.event(choice{Delta: &message{Content: &text}})
		default:
			a.event(choice{Text: &text})
		}
	}
	reason, err := a.stream.Finish()
	if err != nil {
		return
	}
	last := choice{Finish: &reason, Delta: &message{}}
	if !a.chat {
		last.Delta, last.Text = nil, new(string)
	}
	a.event(last)
	if a.usage {
		a.head.Choices, a.head.Usage = []choice{}, a.stream.Usage().json()
		a.data(encodeJSON(a.head))
	}
	a.data([]byte("[DONE]"))
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
	a.flush()
}

func (a *answer) flush() { _ = http.NewResponseController(a.w).Flush() }

func (e *Engine) listModels(w http.ResponseWriter, _ *http.Request, _ object) *apiError {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": e.name, "object": "model", "created": e.started.Unix(), "owned_by": "hearsay", "max_model_len": e.Context(),
	}}})
	return nil
}

func (e *Engine) tokenize(w http.ResponseWriter, _ *http.Request, o object) *apiError {
	if err := e.checkModel(o); err != nil {
		return err
	}
	var text string
	var err *apiError
	if o["messages"] != nil {
		text, err = renderChat(o["messages"])
	} else if o["prompt"] == nil {
		err = badRequest("prompt", "give a prompt or messages")
	} else {
		err = o.get("prompt", &text, "a string")
	}
	if err != nil {
		return err
	}
	ids, err := e.encode("prompt", text)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"count": len(ids), "max_model_len": e.Context(), "tokens": ids})
	return nil
}

func (e *Engine) detokenize(w http.ResponseWriter, _ *http.Request, o object) *apiError {
	var ids []int32
	if err := o.get("tokens", &ids, "a list of token ids"); err != nil {
		return err
	}
	if err := e.tok.check(ids); err != nil {
		return badRequest("tokens", "%v", err)
	}
	writeJSON(w, http.StatusOK, map[string]any{"prompt": valid(e.tok.text(ids))})
	return nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(encodeJSON(v), '\n'))
}

// encodeJSON leaves <, > and & as they are, as the engines it stands beside do.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // only our own types come here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
