package dialect

import (
	"bytes"
	"encoding/binary"
)

// In the canonical prompt each message is startPart, its role, startText, its
// content. Both are control characters that nobody writes: two conversations that
// read the same because one does would share a name, which costs a cache miss.
const (
	startPart = "\x1e"
	startText = "\x1f"
)

// A prompt is a request's body and the canonical text that is made from it.
type prompt struct {
	doc
	text []byte
}

func appendMessage(text []byte, role string) []byte {
	text = append(text, startPart...)
	text = append(text, role...)
	return append(text, startText...)
}

// render writes the prompt and says whether it is a conversation. What an engine
// puts first comes first: a router that thinks a shared part to lie before a
// difference expects hits that cannot happen.
func (p *prompt) render(d Dialect, f fields) (chat bool) {
	switch d {
	case Completion, LlamaCompletion:
		p.media(f.imageData)
		p.completion(f.prompt)
		return false
	case Generate:
		// Where in the text the pictures stand is the model's matter.
		for _, v := range []value{f.imageData, f.videoData, f.audio} {
			p.media(v)
		}
		if p.null(f.text) {
			p.completion(f.inputIDs)
		} else {
			p.completion(f.text)
		}
		return false
	case OllamaGenerate:
		return p.ollamaGenerate(f)
	}
	for _, head := range []struct {
		role string
		v    value
	}{
		{"chat_template", f.chatTemplate},
		{"chat_template_kwargs", f.templateKwargs},
		{"tools", f.tools},
		{"functions", f.functions},
		{"documents", f.documents},
	} {
		if !p.null(head.v) {
			p.text = p.appendCanonical(appendMessage(p.text, head.role), head.v)
		}
	}
	for _, system := range []value{f.system, f.instructions} {
		if !p.null(system) {
			p.text = appendMessage(p.text, "system")
			p.system(system)
		}
	}
	if d == Responses {
		p.items(f.input)
		return true
	}
	if !p.null(f.messages) {
		for m := range p.elements(f.messages) {
			p.message(m)
		}
	}
	return true
}

// billing begins a block that Claude Code puts first in its system prompt, with
// a value that changes from one request to the next. vLLM takes it out
// (entrypoints/anthropic/serving.py); if it counted here, no two requests of
// that client would share a prefix.
const billing = "x-anthropic-billing-header"

// system writes the content of a system message that stands outside of the
// messages.
func (p *prompt) system(v value) {
	if p.kind(v) != '[' {
		p.content(v)
		return
	}
	for block := range p.elements(v) {
		from := len(p.text)
		if p.part(block); bytes.HasPrefix(p.text[from:], []byte(billing)) {
			p.text = p.text[:from]
		}
	}
}

// message writes one message: its role, its content, and then what else of it
// shows in a prompt. An answer that comes back as the next turn's message thus
// begins with what Continue made of it, whatever more it carries.
func (p *prompt) message(m value) {
	var role, content value
	var rest [8]value
	for key, v := range p.members(m) {
		switch string(key) {
		case "role":
			role = v
		case "content":
			content = v
		case "images": // Ollama
			rest[0] = v
		case "name":
			rest[1] = v
		case "tool_name": // Ollama
			rest[2] = v
		case "tool_call_id":
			rest[3] = v
		case "reasoning", "reasoning_content":
			rest[4] = v
		case "thinking": // Ollama
			rest[5] = v
		case "tool_calls":
			rest[6] = v
		case "function_call":
			rest[7] = v
		}
	}
	p.text = append(p.text, startPart...)
	p.text = append(p.appendString(p.text, role), startText...)
	p.media(rest[0])
	p.content(content)
	for _, v := range rest[1:] {
		if !p.empty(v) {
			p.text = p.appendCanonical(append(p.text, startText...), v)
		}
	}
}

// content writes a message's content: a string, or a list of parts, or nothing.
// Texts are written as they read and anything else, such as a call of a tool, as
// canonical JSON.
func (p *prompt) content(v value) {
	switch {
	case p.null(v):
	case p.kind(v) == '"':
		p.text = p.appendString(p.text, v)
	case p.kind(v) == '[':
		for part := range p.elements(v) {
			p.part(part)
		}
	default:
		p.text = p.appendCanonical(p.text, v)
	}
}

// part writes a part of a content. One with media in it becomes a name, so that
// it has nothing in common with another.
func (p *prompt) part(v value) {
	text := v
	if p.kind(v) == '{' {
		text = p.member(v, "text")
	}
	if p.kind(text) == '"' {
		p.text = p.appendString(p.text, text)
		return
	}
	p.text = append(p.text, startText...)
	from := len(p.text)
	p.named = false
	if p.text = p.appendCanonical(p.text, v); p.named {
		p.text = appendName(p.text[:from], p.text[from:])
	}
}

// items writes the input of a response: a user's text, or a list of messages
// and of other items, calls of tools and their results.
func (p *prompt) items(v value) {
	if p.null(v) {
		return
	}
	if p.kind(v) == '"' {
		p.text = p.appendString(appendMessage(p.text, "user"), v)
		return
	}
	for item := range p.elements(v) {
		p.item(item)
	}
}

func (p *prompt) item(v value) {
	if p.member(v, "role").given() {
		p.message(v)
		return
	}
	p.text = p.appendCanonical(appendMessage(p.text, string(p.str(p.member(v, "type")))), v)
}

// media names images, recordings and films that stand in a list, or alone.
func (p *prompt) media(v value) {
	if p.empty(v) {
		return
	}
	p.text = append(p.text, startText...)
	if p.kind(v) != '[' {
		p.medium(v)
		return
	}
	for m := range p.elements(v) {
		p.medium(m)
	}
}

func (p *prompt) medium(v value) {
	if p.kind(v) == '"' {
		p.text = p.appendMedia(p.text, p.inner(v), true)
		return
	}
	p.text = p.appendCanonical(p.text, v)
}

// completion writes a prompt without roles, or a list of such prompts. A batch is
// named by its prompts in their order: it goes where its first one is cached, and
// as far as the others follow. As llama.cpp has it (tokenize_input_prompts in
// tools/server), a list with a number in it is one prompt.
func (p *prompt) completion(v value) {
	batch := p.kind(v) == '['
	for e := range p.elements(v) {
		batch = batch && !p.number(e)
	}
	if !batch {
		p.piece(v)
		return
	}
	first := true
	for e := range p.elements(v) {
		if !first {
			p.text = append(p.text, startPart...)
		}
		first = false
		p.piece(e)
	}
}

// piece writes one prompt: a text, or a list in which texts and token ids may
// take turns, or one of the two with pictures (llama.cpp).
func (p *prompt) piece(v value) {
	text := v
	if p.kind(v) == '{' {
		text = p.member(v, "prompt_string")
		p.media(p.member(v, "multimodal_data"))
	}
	switch {
	case p.null(v):
	case p.kind(text) == '"':
		p.text = p.appendString(p.text, text)
	case p.kind(text) == '[':
		p.sequence(text)
	default:
		p.text = p.appendCanonical(p.text, v)
	}
}

// sequence writes texts as they read and token ids as four bytes each.
func (p *prompt) sequence(v value) {
	inIDs := false
	for e := range p.elements(v) {
		id, isID := p.integer(e)
		switch {
		case isID && !inIDs:
			p.text = appendMessage(p.text, "tokens")
			fallthrough
		case isID:
			p.text = binary.LittleEndian.AppendUint32(p.text, uint32(id))
		case p.kind(e) == '"':
			p.text = p.appendString(p.text, e)
		default:
			p.text = p.appendCanonical(p.text, e)
		}
		inIDs = isID
	}
}

// ollamaGenerate writes a prompt that Ollama puts into the model's template as
// a conversation of a system's and a user's message, or takes as it is if raw.
func (p *prompt) ollamaGenerate(f fields) (chat bool) {
	if p.kind(f.raw) == 't' {
		p.media(f.images)
		p.content(f.prompt)
		return false
	}
	for _, head := range []struct {
		role string
		v    value
	}{{"template", f.template}, {"suffix", f.suffix}} {
		if !p.empty(head.v) {
			p.text = appendMessage(p.text, head.role)
			p.content(head.v)
		}
	}
	if !p.empty(f.context) {
		p.completion(f.context) // the token ids of the conversation so far
	}
	if !p.empty(f.system) {
		p.text = appendMessage(p.text, "system")
		p.content(f.system)
	}
	p.text = appendMessage(p.text, "user")
	p.media(f.images)
	p.content(f.prompt)
	return true
}
