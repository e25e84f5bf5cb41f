package emulated

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/prefix"
)

// defaultOutput is how many tokens an answer has where its request does not say,
// as in OpenAI's completions.
const defaultOutput = 16

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

// A call is a parsed request to one of the two generating endpoints.
type call struct {
	emulate.Job        // without its ID
	seed        uint64 // of the filler
	chat        bool
	stream      bool
	usage       bool // stream_options.include_usage
}

// parse reads what this engine knows of OpenAI's fields. The rest changes nothing:
// filler has no temperature, and no stop strings but lower-case Latin.
func (e *Engine) parse(path string, body []byte) (*call, *apiError) {
	var o object
	if json.Unmarshal(body, &o) != nil || o == nil {
		return nil, badRequest("", "the body must be a JSON object")
	}
	c := &call{chat: strings.HasSuffix(path, "/chat/completions")}
	if err := e.checkModel(o); err != nil {
		return nil, err
	}
	if err := c.parseOptions(o); err != nil {
		return nil, err
	}
	p, err := engine.Read(path, body)
	param := "prompt"
	if c.chat {
		param = "messages"
	}
	if err != nil || len(p.Text) == 0 {
		return nil, badRequest(param, "%s is missing or empty, or not of the type that OpenAI's API gives it", param)
	}
	tokens, refused := e.readTokens(o["prompt"], p)
	if refused != nil {
		return nil, refused
	}
	room := e.Context() - len(tokens)
	if room < 1 {
		err := badRequest(param, "the prompt has %d tokens and leaves no room for an answer; this engine takes %d in all", len(tokens), e.Context())
		err.code = "context_length_exceeded"
		return nil, err
	}
	p.Scope.Model = e.cfg.Name // also where the request does not say
	root := prefix.Key(nil).Root(p.Scope)
	c.Chain, c.Tokens, c.Output = name(root, tokens, e.cfg.BlockTokens), len(tokens), min(c.Output, room)
	c.seed = xxh3.HashSeed(p.Text, uint64(root))
	return c, nil
}

// readTokens gives the tokens of the prompt: of its text, or the ids it consists of.
func (e *Engine) readTokens(raw json.RawMessage, p engine.Prompt) ([]uint32, *apiError) {
	var one *string
	var texts []string
	var ids []uint32
	switch {
	case p.Chat:
	case json.Unmarshal(raw, &one) == nil && one != nil:
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1:
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		return ids, nil
	default:
		return nil, badRequest("prompt", "prompt must be a string, a list of one string, or a list of token ids")
	}
	return e.tokens(p.Text), nil
}

func (e *Engine) checkModel(o object) *apiError {
	model := e.cfg.Name
	if err := o.get("model", &model, "a string"); err != nil {
		return err
	}
	if model == e.cfg.Name || model == "" {
		return nil
	}
	return &apiError{
		status: http.StatusNotFound, kind: "invalid_request_error", param: "model", code: "model_not_found",
		text: fmt.Sprintf("the model %q does not exist here; this engine serves %q", model, e.cfg.Name),
	}
}

func (c *call) parseOptions(o object) *apiError {
	n, most := 1, defaultOutput
	var streamOptions object
	for _, f := range []struct {
		name string
		v    any
		want string
	}{
		{"n", &n, "1"},
		{"stream", &c.stream, "a boolean"},
		{"stream_options", &streamOptions, "an object"},
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
	case most < 1:
		return badRequest("max_tokens", "max_tokens is %d, and must be at least 1", most)
	}
	c.Output = most
	if err := streamOptions.get("include_usage", &c.usage, "a boolean"); err != nil {
		err.param = "stream_options." + err.param
		return err
	}
	return nil
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
