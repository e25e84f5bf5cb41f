package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// An Object is a JSON object whose keys are matched exactly, unlike those of a
// struct, and of two equal ones the last counts; a router in front reads it the
// same way.
type Object map[string]json.RawMessage

func parseObject(raw []byte) (o Object, err error) {
	if err = json.Unmarshal(raw, &o); err == nil && o == nil {
		err = errors.New("null is no object")
	}
	return o, err
}

// Get decodes a field. An absent one and null leave v as it is. The error says that
// the field must be what want says.
func (o Object) Get(name string, v any, want string) error {
	raw := o[name]
	if raw == nil || string(raw) == "null" || json.Unmarshal(raw, v) == nil {
		return nil
	}
	return BadRequest(name, "%s must be %s", name, want)
}

// A Call is a request to generate text. Fields of the API that have none here change
// nothing: penalties, tools and formats are beyond the engines of this project.
type Call struct {
	Path    string
	Body    []byte // as it came
	Fields  Object // of the body
	Arrived time.Time
	Chat    bool // the prompt is a list of messages, not a text or tokens

	Stream      bool
	MaxTokens   int      // of the answer; 0: the request does not say
	Temperature float64  // 0 to 2; 0 takes the best token
	TopP        float64  // above 0 to 1
	Seed        uint64   // of the draws; drawn where the request has none
	Stop        []string // ends the answer and is not part of it; at most maxStops of 1 to maxStopBytes bytes

	wantsUsage bool // stream_options.include_usage
	api        api
}

// Bounds of stop strings: a stream holds back what may be the beginning of one.
const (
	maxStops     = 16
	maxStopBytes = 1024
)

// PromptField names the field that holds the prompt.
func (c *Call) PromptField() string {
	switch {
	case c.Chat:
		return c.name("messages")
	case c.Path == "/generate" && c.Fields["text"] == nil:
		return "input_ids"
	}
	return c.name("prompt")
}

// Prompt gives the prompt of a call that is no chat: a text, or token ids if there
// are any. A list of one text is that text; several prompts are refused.
func (c *Call) Prompt() (text string, ids []int32, err error) {
	field := c.PromptField()
	raw := c.Fields[field]
	var one *string
	var texts []string
	switch {
	case json.Unmarshal(raw, &one) == nil && one != nil:
		return *one, nil, nil
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1:
		return texts[0], nil, nil
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		return "", ids, nil
	}
	return "", nil, BadRequest(field, "%s must be a string, a list of one string, or a list of token ids", field)
}

// A Message is one of a chat.
type Message struct {
	At     string // the field that holds it, such as messages[0]
	Role   string // one of roles
	Fields Object // what is said: content, tool_calls and the like, not looked at yet
}

var roles = []string{"system", "developer", "user", "assistant", "tool"}

// Messages gives those of a chat, at least one. A system's message that has a field
// of its own comes first.
func (c *Call) Messages() ([]Message, error) {
	field := c.PromptField()
	raw := c.Fields[field]
	var objects []Object
	var said *string
	if c.api.spoken && json.Unmarshal(raw, &said) == nil && said != nil {
		objects = []Object{{"role": []byte(`"user"`), "content": raw}}
	} else if json.Unmarshal(raw, &objects) != nil || len(objects) == 0 {
		return nil, BadRequest(field, "%s must be a list of at least one message", field)
	}
	var messages []Message
	if system := c.Fields[c.api.system]; system != nil && string(system) != "null" {
		messages = append(messages, Message{At: c.api.system, Role: "system", Fields: Object{"content": system}})
	}
	for i, o := range objects {
		m := Message{At: fmt.Sprintf("%s[%d]", field, i), Fields: o}
		if err := o.Get("role", &m.Role, "a string"); err != nil {
			return nil, In(m.At, err)
		}
		if !slices.Contains(roles, m.Role) {
			return nil, BadRequest(m.At+".role", "role %q is not one of %s", m.Role, strings.Join(roles, ", "))
		}
		messages = append(messages, m)
	}
	return messages, nil
}

func (c *Call) checkModel(served string) error {
	model := served
	if err := c.Fields.Get("model", &model, "a string"); err != nil {
		return err
	}
	if model == served || model == "" {
		return nil
	}
	return &Error{
		Status: http.StatusNotFound, Type: invalidRequest, Param: "model", Code: "model_not_found",
		Message: fmt.Sprintf("the model %q does not exist here; this engine serves %q", model, served),
	}
}

func (c *Call) readOptions() error {
	c.api = c.apiFor()
	c.Chat, c.Stream = c.api.chat, c.api.streams
	c.Temperature, c.TopP = 1, 1
	from := c.Fields
	if c.api.options != "" {
		from = nil
		if err := c.Fields.Get(c.api.options, &from, "an object"); err != nil {
			return err
		}
	}
	if err := c.Fields.Get("stream", &c.Stream, "a boolean"); err != nil {
		return err
	}
	if earlier := c.Fields["previous_response_id"]; c.Path == "/v1/responses" && earlier != nil && string(earlier) != "null" {
		return BadRequest("previous_response_id", "previous_response_id names a stored response, and this engine stores none; send the conversation as input")
	}
	if err := c.readSampling(from); err != nil {
		return err
	}
	return c.readStop(from[c.name("stop")])
}

// readSampling reads the options of the answer but for its stop strings.
func (c *Call) readSampling(from Object) error {
	n, seed := 1, int64(rand.Uint64())
	var echo bool
	var most *int
	var streamOptions Object
	for _, f := range []struct {
		name string
		v    any
		want string
	}{
		{"n", &n, "1"},
		{"echo", &echo, "false"},
		{"stream_options", &streamOptions, "an object"},
		{"temperature", &c.Temperature, "a number"},
		{"top_p", &c.TopP, "a number"},
		{"seed", &seed, "a 64-bit integer"},
		{"max_tokens", &most, "an integer"},
		{"max_completion_tokens", &most, "an integer"},
	} {
		if err := from.Get(c.name(f.name), f.v, f.want); err != nil {
			return err
		}
	}
	if c.api.endless && seed < 0 {
		seed = int64(rand.Uint64())
	}
	if c.api.endless && most != nil && *most < 0 {
		most = nil
	}
	switch {
	case n != 1:
		return BadRequest("n", "n is %d; this engine gives one answer a request", n)
	case echo:
		return BadRequest("echo", "echo is not supported")
	case !(c.Temperature >= 0 && c.Temperature <= 2):
		return BadRequest("temperature", "temperature is %g, and may be 0 to 2", c.Temperature)
	case !(c.TopP > 0 && c.TopP <= 1):
		return BadRequest("top_p", "top_p is %g, and may be above 0 up to 1", c.TopP)
	case most != nil && *most < 1:
		return BadRequest(c.name("max_tokens"), "%s is %d, and must be at least 1", c.name("max_tokens"), *most)
	}
	if most != nil {
		c.MaxTokens = *most
	}
	c.Seed = uint64(seed)
	if err := streamOptions.Get("include_usage", &c.wantsUsage, "a boolean"); err != nil {
		return In("stream_options", err)
	}
	return nil
}

func (c *Call) readStop(raw json.RawMessage) error {
	name := c.name("stop")
	var one *string
	if raw == nil || json.Unmarshal(raw, &one) == nil {
		if one != nil {
			c.Stop = []string{*one}
		}
	} else if json.Unmarshal(raw, &c.Stop) != nil || len(c.Stop) > maxStops {
		return BadRequest(name, "%s must be a string or a list of up to %d strings", name, maxStops)
	}
	for _, s := range c.Stop {
		if s == "" || len(s) > maxStopBytes {
			return BadRequest(name, "a stop string must have 1 to %d bytes", maxStopBytes)
		}
	}
	return nil
}
