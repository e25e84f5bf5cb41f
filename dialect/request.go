package dialect

import (
	"bytes"
	"errors"
	"slices"
	"strconv"

	"github.com/hearsay-project/hearsay/prefix"
)

// ErrDuplicateModel is the error of a body that names two models. Parsers
// disagree about which one counts, so it could be checked as one and run as the
// other.
var ErrDuplicateModel = errors.New("model is given twice")

var errNoObject = errors.New("the request is no JSON object")

// A Span is a part of a body: the bytes [From, To).
type Span struct{ From, To int }

// A Request is a request as far as the router reads it. It keeps nothing of the
// body.
type Request struct {
	Model   string       // the model that it is for; empty where it names none
	ModelAt Span         // its JSON string in the body, with the quotes
	Scope   prefix.Scope // what makes two equal texts different cache entries

	// Text is the canonical prompt: what the engine's own prompt is made of, in
	// the order in which it comes there. Empty if there is nothing to route by.
	Text []byte
	Chat bool // Text is a conversation: an answer is its next message

	Stream bool

	// Replayable says that a second run has no second effect: nothing is stored
	// and no tool is run by the server. When it is false, as it is for what is
	// not read, the request must not be sent again once an engine may have begun
	// on it.
	Replayable bool

	// Pinned says that the request goes on from what the engine keeps of an
	// earlier one (previous_response_id), and so belongs where that was.
	Pinned bool

	// Greedy says that decoding takes the likeliest token each time (temperature
	// is 0), so that a second run is likely to give the same answer.
	Greedy bool
}

// Read reads the body of a request to e as far as its dialect goes. It fails
// with ErrDepth, with ErrDuplicateModel, or because the body is no JSON object;
// what else there may be to say against a request is the engine's to say. It takes
// one pass over the body, another over the prompt, and one copy of that.
//
// White space, the order of keys and JSON escapes do not show. Keys count
// exactly as written and the last of equal ones counts, as in the parsers of
// vLLM and SGLang (Python's json) and of llama.cpp (nlohmann::json). Ollama, on
// Go's encoding/json, takes keys without regard to case, so the keys of its own
// dialects are read that way. For the model this last rule is not relied on: see
// ErrDuplicateModel, which counts keys in any case. What is more than JSON to Python
// is read too (see doc.parse), but for UTF-16 and UTF-32, which no client sends.
func Read(e Endpoint, body []byte) (Request, error) {
	if e.Dialect == Opaque {
		return Request{}, nil
	}
	r := Request{Replayable: true}
	p := prompt{doc: doc{fold: e.Dialect == OllamaChat || e.Dialect == OllamaGenerate}}
	if err := p.parse(body); err != nil {
		return Request{}, err
	}
	if p.kind(p.root()) != '{' {
		return Request{}, errNoObject
	}
	var f fields
	models := 0
	for key, v := range p.members(p.root()) {
		if bytes.EqualFold(key, []byte("model")) {
			models++
		}
		if at := f.named(key); at != nil {
			*at = v
		}
		if !p.repeatable(key, v) {
			r.Replayable = false
		}
	}
	if models > 1 {
		return Request{}, ErrDuplicateModel
	}
	if p.kind(f.model) == '"' {
		r.Model = string(p.str(f.model))
		r.ModelAt = f.model.span()
	}
	r.Stream = p.stream(e.Dialect, f.stream)
	r.Scope = prefix.Scope{Model: r.Model, Adapter: p.adapter(f), Salt: p.salt(f)}
	if !e.Generates() {
		return r, nil
	}
	if r.Pinned = e.Dialect == Responses && !(p.null(f.previous) && p.null(f.conversation)); r.Pinned {
		r.Replayable = false
		return r, nil
	}
	p.text = make([]byte, 0, min(len(body), 1<<20)) // more is likely to be a picture, which has a name of a few bytes
	r.Chat = p.render(e.Dialect, f)
	if r.Text = p.text; cap(r.Text) > 2*len(r.Text) {
		r.Text = bytes.Clone(r.Text)
	}
	r.Greedy = p.greedy(e.Dialect, f)
	return r, nil
}

// Continue returns the canonical text of the prompt and its answer, the prefix
// that the next turn of a conversation shares with this one.
func (r Request) Continue(answer string) []byte {
	text := bytes.Clone(r.Text)
	if r.Chat {
		text = appendMessage(text, "assistant")
	}
	return append(text, answer...)
}

// WithModel returns the body, which r was read from, with the model of this name
// in the place of the one that it names. All other bytes are as they were.
func (r Request) WithModel(body []byte, name string) []byte {
	if r.ModelAt.To == 0 {
		return body
	}
	return splice(body, []edit{{r.ModelAt, string(appendQuoted(nil, name))}})
}

// fields are the members of a request that are read, in whatever dialect.
type fields struct {
	model, stream                       value
	cacheSalt, extraKey                 value
	loraPath, lora                      value
	messages, prompt, input, text       value
	inputIDs, system, instructions      value
	tools, functions, documents         value
	chatTemplate, templateKwargs        value
	previous, conversation              value
	images, imageData, videoData, audio value
	template, context, suffix, raw      value
	temperature                         value
	samplingParams, options             value
}

// named returns where the member of this name belongs, or nil.
func (f *fields) named(key []byte) *value {
	switch string(key) {
	case "model":
		return &f.model
	case "stream":
		return &f.stream
	case "cache_salt":
		return &f.cacheSalt
	case "extra_key":
		return &f.extraKey
	case "lora_path":
		return &f.loraPath
	case "lora":
		return &f.lora
	case "messages":
		return &f.messages
	case "prompt":
		return &f.prompt
	case "input":
		return &f.input
	case "text":
		return &f.text
	case "input_ids":
		return &f.inputIDs
	case "system":
		return &f.system
	case "instructions":
		return &f.instructions
	case "tools":
		return &f.tools
	case "functions":
		return &f.functions
	case "documents":
		return &f.documents
	case "chat_template":
		return &f.chatTemplate
	case "chat_template_kwargs":
		return &f.templateKwargs
	}
	return f.namedRarely(key)
}

func (f *fields) namedRarely(key []byte) *value {
	switch string(key) {
	case "previous_response_id":
		return &f.previous
	case "conversation":
		return &f.conversation
	case "images":
		return &f.images
	case "image_data":
		return &f.imageData
	case "video_data":
		return &f.videoData
	case "audio_data":
		return &f.audio
	case "template":
		return &f.template
	case "context":
		return &f.context
	case "suffix":
		return &f.suffix
	case "raw":
		return &f.raw
	case "temperature":
		return &f.temperature
	case "sampling_params":
		return &f.samplingParams
	case "options":
		return &f.options
	}
	return nil
}

// stream says whether the answer is to be a stream: only true is true, and only
// Ollama streams unless it is told false.
func (p *prompt) stream(d Dialect, v value) bool {
	if d == OllamaChat || d == OllamaGenerate {
		return p.kind(v) != 'f'
	}
	return p.kind(v) == 't'
}

// greedy says whether the temperature is 0, where this dialect has it. What a
// request leaves out each engine chooses for itself.
func (p *prompt) greedy(d Dialect, f fields) bool {
	v := f.temperature
	switch d {
	case Generate:
		v = p.member(f.samplingParams, "temperature")
	case OllamaChat, OllamaGenerate:
		v = p.member(f.options, "temperature")
	}
	x, err := strconv.ParseFloat(string(p.raw(v)), 64)
	return err == nil && x == 0
}

// adapter names the LoRA adapters that a request asks for: SGLang's lora_path and
// llama.cpp's lora. With vLLM an adapter is a model.
func (p *prompt) adapter(f fields) string {
	var name []byte
	for _, v := range []value{f.loraPath, f.lora} {
		switch {
		case p.empty(v):
		case p.kind(v) == '"':
			name = p.appendString(name, v)
		default:
			name = p.appendCanonical(name, v)
		}
	}
	return string(name)
}

// salt returns what keeps the cache entries of tenants apart: cache_salt and
// SGLang's extra_key, which SGLang joins the same way.
func (p *prompt) salt(f fields) string { return string(p.str(f.cacheSalt)) + string(p.str(f.extraKey)) }

// repeatable says whether a request with this member can run twice. Storing,
// running in the background and tools that the server runs have effects; tools
// of type function or custom, and Anthropic's without a type, are the client's
// to run.
func (p *prompt) repeatable(key []byte, v value) bool {
	switch string(key) {
	case "store", "background":
		return p.kind(v) != 't'
	case "mcp_servers", "container", "web_search_options":
		return p.empty(v)
	case "tools":
		for tool := range p.elements(v) {
			switch string(p.str(p.member(tool, "type"))) {
			case "", "function", "custom":
			default:
				return false
			}
		}
	}
	return true
}

// An edit puts text in the place of a part of a body.
type edit struct {
	at   Span
	text string
}

// splice returns body with the edits made, which do not overlap.
func splice(body []byte, edits []edit) []byte {
	slices.SortFunc(edits, func(a, b edit) int { return a.at.From - b.at.From })
	var out []byte
	done := 0
	for _, e := range edits {
		out = append(append(out, body[done:e.at.From]...), e.text...)
		done = e.at.To
	}
	return append(out, body[done:]...)
}
