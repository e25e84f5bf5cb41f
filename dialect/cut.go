package dialect

import (
	"bytes"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// shaping are the members of a request that shape its prompt, or how the engine holds
// it, beside the prompt itself. What else a request asks for - an answer's form, storing,
// a name for itself - is not the prefix's.
var shaping = []string{
	"model", "tools", "functions", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort",
	"cache_salt", "extra_key", "lora_path", "lora", "add_special_tokens",
	"reasoning", "output_config", "thinking", // of responses, and of Anthropic's
	"template", "context", "raw", "think", "keep_alive", // Ollama's
}

// limits are how a request of each dialect asks for one token in one piece, and stores
// nothing. OpenAI's responses have 16 at least.
var limits = map[Dialect]string{
	Chat:            `"max_tokens":1,"temperature":0,"stream":false}`,
	Completion:      `"max_tokens":1,"temperature":0,"stream":false}`,
	Messages:        `"max_tokens":1,"temperature":0,"stream":false}`,
	LlamaCompletion: `"n_predict":1,"temperature":0,"stream":false}`,
	Generate:        `"sampling_params":{"max_new_tokens":1,"temperature":0},"stream":false}`,
	Responses:       `"max_output_tokens":16,"temperature":0,"store":false,"stream":false}`,
	OllamaChat:      `"num_predict":1,"temperature":0},"stream":false}`, // ends options, which say too how the model is loaded
	OllamaGenerate:  `"num_predict":1,"temperature":0},"stream":false}`,
}

// Cut returns a request to e that has an engine compute the first n bytes of body's
// canonical prompt and generate one token, in one piece. So it ends within a text of
// the prompt, at most a character or the head of a message too early; a conversation
// in which no user has spoken by then gets one who says next to nothing, since many
// chat templates want one.
//
// It is nil where that cannot be: in a dialect that generates nothing, where the n bytes
// end in what is no text, such as a tool's description or a picture, or where the prompt
// is more than the body has; and where the engine is to unload the model afterwards.
func Cut(e Endpoint, body []byte, n int) []byte {
	limit, ok := limits[e.Dialect]
	p := prompt{doc: doc{fold: ollama(e.Dialect)}}
	if !ok || p.parse(body) != nil || p.kind(p.root()) != '{' {
		return nil
	}
	var f fields
	kept := map[string]value{}
	for key, v := range p.members(p.root()) {
		if at := f.named(key); at != nil {
			*at = v
		}
		if slices.Contains(shaping, string(key)) {
			kept[string(key)] = v
		}
	}
	if ollama(e.Dialect) && p.unloads(kept["keep_alive"]) {
		return nil
	}
	out := object(nil)
	for _, key := range shaping {
		if v, ok := kept[key]; ok {
			out = out.with(key, p.raw(v))
		}
	}
	if out, ok = p.shorten(out, e.Dialect, f, n); !ok {
		return nil
	}
	out = append(out, ',')
	if ollama(e.Dialect) {
		out = append(out, `"options":{`...)
		for key, v := range p.members(f.options) {
			if name := string(key); name != "num_predict" && name != "temperature" {
				out = append(append(append(appendQuoted(out, name), ':'), p.raw(v)...), ',')
			}
		}
	}
	return append(out, limit...)
}

// unloads says whether Ollama drops the model, and its cache, right after a request
// that keeps it alive for v: seconds, or a duration as Go writes it (api/types.go).
func (d *doc) unloads(v value) bool {
	if d.number(v) {
		seconds, err := strconv.ParseFloat(string(d.raw(v)), 64)
		return err == nil && seconds == 0
	}
	keep, err := time.ParseDuration(string(d.str(v)))
	return err == nil && keep == 0
}

func ollama(d Dialect) bool { return d == OllamaChat || d == OllamaGenerate }

// shorten adds the members that hold the first n bytes of the prompt.
func (p *prompt) shorten(o object, d Dialect, f fields, n int) (_ object, ok bool) {
	name, v := "prompt", f.prompt
	switch d {
	case Completion, LlamaCompletion:
		ok = p.empty(f.imageData)
	case Generate:
		ok = p.empty(f.imageData) && p.empty(f.videoData) && p.empty(f.audio)
		if name, v = "text", f.text; p.null(v) {
			name, v = "input_ids", f.inputIDs
		}
	case OllamaGenerate:
		if !p.empty(f.images) || !p.empty(f.suffix) || p.kind(f.prompt) != '"' {
			return nil, false
		}
		if ok = p.kind(f.raw) == 't'; !ok {
			return p.cutConversation(o, d, f, n)
		}
	case Responses:
		if !p.null(f.previous) || !p.null(f.conversation) {
			return nil, false
		}
		fallthrough
	default:
		return p.cutConversation(o, d, f, n)
	}
	cut := p.cutPrompt(v, n)
	return o.with(name, cut), ok && cut != nil
}

// cutConversation adds the members in which a conversation has its system's part and
// its messages. What stands before those must be whole.
func (p *prompt) cutConversation(o object, d Dialect, f fields, n int) (_ object, ok bool) {
	systems := []value{f.system, f.instructions}
	head := f
	head.system, head.instructions, head.messages, head.input, head.prompt = value{}, value{}, value{}, value{}, value{}
	p.render(d, head)
	if d == OllamaGenerate {
		p.text = bytes.TrimSuffix(p.text, appendMessage(nil, "user")) // it has one, be it empty
		if systems = systems[:1]; p.empty(f.system) {
			systems = nil
		}
	}
	if n -= len(p.text); n <= 0 {
		return nil, false
	}
	held := false
	for i, v := range systems {
		if p.null(v) || n <= 0 {
			continue
		}
		p.text = appendMessage(p.text[:0], "system")
		mark := len(p.text)
		p.system(v)
		text := p.raw(v)
		if len(p.text) > n {
			if text, ok = p.cutContent(v, n-mark, true); !ok {
				return nil, false
			}
		}
		n -= len(p.text)
		held = held || len(text) > 0
		o = o.with([]string{"system", "instructions"}[i], text)
	}
	name, said, least := "messages", []byte(nil), "["+nextToNothing+"]"
	switch {
	case d == OllamaGenerate:
		name, said, least = "prompt", p.cutUser(f.prompt, n), `"."`
	case d == Responses && p.kind(f.input) == '"':
		name, said, least = "input", p.cutUser(f.input, n), `"."`
	case d == Responses:
		name, said = "input", p.cutMessages(f.input, n)
	default:
		said = p.cutMessages(f.messages, n)
	}
	if said == nil && held && n <= len(appendMessage(nil, "user")) {
		said = []byte(least)
	}
	return o.with(name, said), said != nil
}

// nextToNothing is what a user says of whom a template wants a message.
const nextToNothing = `{"role":"user","content":"."}`

// cutUser returns the one text of a user, of which n bytes are left with its head.
func (p *prompt) cutUser(v value, n int) []byte {
	n -= len(appendMessage(nil, "user"))
	if n <= 0 || p.kind(v) != '"' {
		return nil
	}
	text := p.str(v)
	if n > len(text) {
		return nil
	}
	return appendQuoted(nil, string(clip(text, n)))
}

// cutMessages returns the list of messages, or a response's items, with which a
// conversation begins; nil for an empty one.
func (p *prompt) cutMessages(all value, n int) []byte {
	list, users := []byte{'['}, false
	for m := range p.elements(all) {
		if n <= 0 {
			break
		}
		p.text = p.text[:0]
		p.item(m)
		cut, whole := p.raw(m), len(p.text) <= n
		if !whole {
			var ok bool
			if cut, ok = p.cutMessage(m, n); !ok {
				return nil
			}
		}
		if len(cut) > 0 {
			list = append(append(list, cut...), ',')
			users = users || string(p.str(p.member(m, "role"))) == "user"
		}
		n -= len(p.text)
	}
	if len(list) == 1 {
		return nil
	}
	if !users {
		list = append(list, nextToNothing+","...)
	}
	list[len(list)-1] = ']'
	return list
}

// cutMessage returns a message of which only the first n bytes of canonical text are
// left: nothing where they end in its head.
func (p *prompt) cutMessage(m value, n int) (cut []byte, ok bool) {
	role, content := p.member(m, "role"), p.member(m, "content")
	n -= len(startPart) + len(p.str(role)) + len(startText)
	if n <= 0 {
		return nil, true
	}
	if p.kind(role) != '"' || !p.empty(p.member(m, "images")) {
		return nil, false
	}
	text, ok := p.cutContent(content, n, false)
	cut = append(append(cut, `{"role":`...), p.raw(role)...)
	return append(append(append(cut, `,"content":`...), text...), '}'), ok
}

// cutContent returns a content of which the first n bytes of text are left: nothing
// where there are none.
func (p *prompt) cutContent(content value, n int, system bool) (cut []byte, ok bool) {
	switch {
	case n <= 0:
		return nil, true
	case p.kind(content) == '"':
		text := p.str(content)
		return appendQuoted(nil, string(clip(text, n))), n <= len(text)
	case p.kind(content) == '[':
		cut, ok = p.cutParts([]byte{'['}, content, n, system)
		return append(cut, ']'), ok
	}
	return nil, false
}

// cutParts appends the parts of a content up to n bytes of their text. What of a system's
// does not show in the prompt is left out, see billing.
func (p *prompt) cutParts(dst []byte, content value, n int, system bool) (_ []byte, ok bool) {
	for part := range p.elements(content) {
		text, kind := part, []byte(`"text"`)
		if p.kind(part) == '{' {
			text = p.member(part, "text")
			if v := p.member(part, "type"); v.given() { // input_text and output_text, of a response
				kind = p.raw(v)
			}
		}
		if p.kind(text) != '"' {
			return dst, false
		}
		s := p.str(text)
		if system && bytes.HasPrefix(s, []byte(billing)) {
			continue
		}
		if n <= len(s) {
			dst = append(append(dst, `{"type":`...), kind...)
			return append(appendQuoted(append(dst, `,"text":`...), string(clip(s, n))), '}'), true
		}
		n -= len(s)
		dst = append(append(dst, p.raw(part)...), ',')
	}
	return dst, false
}

// cutPrompt returns the first n bytes of a prompt without roles, or of the first of
// several.
func (p *prompt) cutPrompt(v value, n int) []byte {
	if p.kind(v) == '[' {
		if first := p.first(v); p.kind(first) == '"' || p.kind(first) == '[' {
			v = first
		}
	}
	if p.kind(v) == '"' {
		if text := p.str(v); n > 0 && n <= len(text) {
			return appendQuoted(nil, string(clip(text, n)))
		}
		return nil
	}
	ids := (n - len(appendMessage(nil, "tokens"))) / 4
	if ids <= 0 {
		return nil
	}
	list := []byte{'['}
	for e := range p.elements(v) {
		if _, isID := p.integer(e); !isID {
			return nil
		}
		list = append(append(list, p.raw(e)...), ',')
		if ids--; ids == 0 {
			list[len(list)-1] = ']'
			return list
		}
	}
	return nil
}

// clip returns the first n bytes of text, without a character that it would part.
func clip(text []byte, n int) []byte {
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
