package builtin

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"unicode/utf8"
)

// An object is a JSON object whose keys are matched exactly, unlike those of a
// struct; a router in front reads them the same way.
type object map[string]json.RawMessage

// get decodes a field. An absent one and null leave v as it is.
func (o object) get(name string, v any, want string) *apiError {
	raw := o[name]
	if raw == nil || string(raw) == "null" || json.Unmarshal(raw, v) == nil {
		return nil
	}
	return badRequest(name, "%s must be %s", name, want)
}

// An apiError is an answer in the shape of OpenAI's errors.
type apiError struct {
	status int
	kind   string // the type field
	param  string // the field at fault, "" where none is
	code   string // "" is null
	text   string
}

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: param, text: fmt.Sprintf(format, args...)}
}

// in names the object around the field at fault.
func (e *apiError) in(outer string) *apiError {
	e.param = outer + "." + e.param
	e.text = outer + ": " + e.text
	return e
}

func (e *apiError) write(w http.ResponseWriter) {
	field := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	writeJSON(w, e.status, map[string]any{"error": map[string]any{
		"message": e.text, "type": e.kind, "param": field(e.param), "code": field(e.code),
	}})
}

// A call is a parsed request to one of the two generating endpoints.
type call struct {
	Request
	chat   bool
	stream bool
	usage  bool // stream_options.include_usage
}

// parseCall reads what this engine knows of OpenAI's fields into c, and leaves
// the rest alone: penalties, tools and formats are beyond its models.
func (e *Engine) parseCall(c *call, o object) *apiError {
	if err := e.checkModel(o); err != nil {
		return err
	}
	if err := c.parseOptions(o); err != nil {
		return err
	}
	var err *apiError
	if !c.chat {
		c.Prompt, err = e.parsePrompt(o["prompt"])
		return err
	}
	text, err := renderChat(o["messages"])
	if err != nil {
		return err
	}
	c.TrimSpace = true
	c.Prompt, err = e.encode("messages", text)
	return err
}

// encode gives the prompt's tokens. A text that is too long whatever its tokens
// are costs nothing.
func (e *Engine) encode(param, text string) ([]int32, *apiError) {
	if limit := e.Context() * max(e.tok.longest, utf8.UTFMax); len(text) > limit {
		err := badRequest(param, "the prompt has %d bytes, and %d tokens cannot hold more than %d; shorten it", len(text), e.Context(), limit)
		err.code = "context_length_exceeded"
		return nil, err
	}
	return e.tok.prompt(text), nil
}

func (e *Engine) checkModel(o object) *apiError {
	name := e.name
	if err := o.get("model", &name, "a string"); err != nil {
		return err
	}
	if name == e.name || name == "" {
		return nil
	}
	return &apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", param: "model", code: "model_not_found",
		text: fmt.Sprintf("the model %q does not exist here; this engine serves %q", name, e.name),
	}
}

func (c *call) parseOptions(o object) *apiError {
	n, temperature, topP := 1, 1.0, 1.0
	var echo bool
	var most *int
	seed := int64(rand.Uint64())
	var streamOptions object
	for _, f := range []struct {
		name string
		v    any
		want string
	}{
		{"n", &n, "1"},
		{"echo", &echo, "false"},
		{"stream", &c.stream, "a boolean"},
		{"stream_options", &streamOptions, "an object"},
		{"temperature", &temperature, "a number"},
		{"top_p", &topP, "a number"},
		{"seed", &seed, "a 64-bit integer"},
		{"max_tokens", &most, "an integer"},
		{"max_completion_tokens", &most, "an integer"},
	} {
		if err := o.get(f.name, f.v, f.want); err != nil {
			return err
		}
	}
	switch {
	case n != 1:
		return badRequest("n", "n is %d; this engine gives one answer a request", n)
	case echo:
		return badRequest("echo", "echo is not supported")
	case !(temperature >= 0 && temperature <= 2):
		return badRequest("temperature", "temperature is %g, and may be 0 to 2", temperature)
	case !(topP > 0 && topP <= 1):
		return badRequest("top_p", "top_p is %g, and may be above 0 up to 1", topP)
	case most != nil && *most < 1:
		return badRequest("max_tokens", "max_tokens is %d, and must be at least 1", *most)
	}
	if most != nil {
		c.MaxTokens = *most
	}
	c.Temperature, c.TopP, c.Seed = temperature, topP, uint64(seed)
	if err := streamOptions.get("include_usage", &c.usage, "a boolean"); err != nil {
		return err.in("stream_options")
	}
	return c.parseStop(o["stop"])
}

func (c *call) parseStop(raw json.RawMessage) *apiError {
	const most, longest = 16, 1024
	var one *string
	if raw == nil || json.Unmarshal(raw, &one) == nil {
		if one != nil {
			c.Stop = []string{*one}
		}
	} else if json.Unmarshal(raw, &c.Stop) != nil || len(c.Stop) > most {
		return badRequest("stop", "stop must be a string or a list of up to %d strings", most)
	}
	for _, s := range c.Stop {
		if s == "" || len(s) > longest {
			return badRequest("stop", "a stop string must have 1 to %d bytes", longest)
		}
	}
	return nil
}

// parsePrompt reads a string, a list of one string, or a list of token ids.
func (e *Engine) parsePrompt(raw json.RawMessage) ([]int32, *apiError) {
	var text *string
	var texts []string
	var ids []int32
	switch {
	case json.Unmarshal(raw, &text) == nil && text != nil:
		return e.encode("prompt", *text)
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1:
		return e.encode("prompt", texts[0])
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		if err := e.tok.check(ids); err != nil {
			return nil, badRequest("prompt", "%v", err)
		}
		return ids, nil
	}
	return nil, badRequest("prompt", "prompt must be a string, a list of one string, or a list of token ids")
}

// usageJSON is OpenAI's usage object.
type usageJSON struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	Details          struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u Usage) json() json.RawMessage {
	j := usageJSON{PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, TotalTokens: u.PromptTokens + u.CompletionTokens}
	j.Details.CachedTokens = u.CachedTokens
	return encodeJSON(j)
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
