package dialect

import (
	"slices"
	"unicode/utf8"
)

// shaping are the members of a request that shape its prompt, beside the prompt
// itself, in OpenAI's APIs and llama.cpp's. What else a request asks for - an answer's
// form, storing, a name for itself - is not the prefix's.
var shaping = []string{
	"model", "tools", "functions", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort",
	"cache_salt", "extra_key", "lora_path", "lora", "add_special_tokens",
}

// Cut returns a request to e that has an engine compute the first n bytes of body's
// canonical prompt and generate one token, in one piece. So it ends within a text of
// the prompt, at most a character or the head of a message too early; a conversation
// in which no user has spoken by then gets one who says next to nothing, since many
// chat templates want one.
//
// It is nil where that cannot be: in a dialect other than Chat, Completion and
// LlamaCompletion, or where the n bytes end in what is no text, such as a tool's
// description or a picture.
func Cut(e Endpoint, body []byte, n int) []byte {
	var p prompt
	if p.parse(body) != nil || p.kind(p.root()) != '{' {
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
	name, limit := "prompt", "max_tokens"
	var prefix []byte
	switch e.Dialect {
	case Chat:
		name, prefix = "messages", p.cutMessages(f, n)
	case LlamaCompletion:
		limit = "n_predict"
		fallthrough
	case Completion:
		if p.empty(f.imageData) {
			prefix = p.cutPrompt(f.prompt, n)
		}
	}
	if prefix == nil {
		return nil
	}
	out := []byte{'{'}
	for _, key := range shaping {
		if v, ok := kept[key]; ok {
			out = append(append(append(out, '"'), key...), `":`...)
			out = append(append(out, p.raw(v)...), ',')
		}
	}
	out = append(append(append(out, '"'), name...), `":`...)
	out = append(append(out, prefix...), `,"`...)
	return append(append(out, limit...), `":1,"temperature":0,"stream":false}`...)
}

// cutMessages returns the list of messages with which a conversation begins.
func (p *prompt) cutMessages(f fields, n int) []byte {
	head := f
	head.messages = value{}
	p.render(Chat, head)
	n -= len(p.text)
	list, users := []byte{'['}, false
	for m := range p.elements(f.messages) {
		p.text = p.text[:0]
		p.message(m)
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
		if n -= len(p.text); n <= 0 {
			break
		}
	}
	if len(list) == 1 {
		return nil
	}
	if !users {
		list = append(list, `{"role":"user","content":"."},`...)
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
	cut = append(append(append(cut, `{"role":`...), p.raw(role)...), `,"content":`...)
	switch p.kind(content) {
	case '"':
		text := p.str(content)
		cut = appendQuoted(cut, string(clip(text, n)))
		ok = n <= len(text)
	case '[':
		cut, ok = p.cutParts(append(cut, '['), content, n)
		cut = append(cut, ']')
	}
	return append(cut, '}'), ok
}

// cutParts appends the parts of a content up to n bytes of their text.
func (p *prompt) cutParts(dst []byte, content value, n int) (_ []byte, ok bool) {
	for part := range p.elements(content) {
		text := part
		if p.kind(part) == '{' {
			text = p.member(part, "text")
		}
		if p.kind(text) != '"' {
			return dst, false
		}
		s := p.str(text)
		if n <= len(s) {
			return append(appendQuoted(append(dst, `{"type":"text","text":`...), string(clip(s, n))), '}'), true
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
