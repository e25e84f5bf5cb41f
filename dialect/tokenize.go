package dialect

import (
	"bytes"
	"slices"
)

// templated are the members of a chat's request, beside its messages, that an engine's
// POST /tokenize takes: what its template is given.
var templated = []string{
	"tools", "documents", "chat_template", "chat_template_kwargs",
	"add_generation_prompt", "continue_final_message", "add_special_tokens", "mm_processor_kwargs",
}

// Tokenize returns the body of the POST /tokenize by which vLLM, or SGLang, tells the
// tokens of the prompt of a request to e, or, where the prompt is tokens, these.
//
// Such an engine makes a chat of Anthropic's messages, of a response's input and of
// Ollama's, and tokenizes that: vLLM 0.29 in entrypoints/anthropic/serving.py and
// openai/responses/utils.py, SGLang of autumn 2026 in entrypoints/anthropic/
// request_conversion.py and ollama/serving.py. Tokenize makes the same chat. Where the
// two, or versions of one, make several of a request, or where tokens are not all that
// there is - several prompts, media, tools that a server runs or that a response has,
// an effort, redacted thoughts - it returns neither.
func Tokenize(e Endpoint, body []byte, sglang bool) (ask []byte, ids []uint32) {
	c := conversation{sglang: sglang}
	if c.parse(body) != nil || c.kind(c.root()) != '{' {
		return nil, nil
	}
	// Some versions tell the template of it, and /tokenize takes none.
	for _, effort := range []value{c.top("reasoning_effort"), c.member(c.top("output_config"), "effort"), c.member(c.top("reasoning"), "effort")} {
		c.lost = c.lost || !c.null(effort)
	}
	switch e.Dialect {
	case Completion:
		return c.single(c.top("prompt"))
	case Generate:
		for _, media := range []string{"image_data", "video_data", "audio_data"} {
			c.lost = c.lost || !c.empty(c.top(media))
		}
		if text := c.top("text"); !c.null(text) {
			return c.single(text)
		}
		return c.single(c.top("input_ids"))
	case OllamaGenerate:
		return c.ollamaGenerate(), nil
	case Chat:
		for m := range c.elements(c.top("messages")) {
			c.texts(c.member(m, "content"))
			c.list = append(c.list, c.raw(m))
		}
		return c.asked(templated...), nil
	case OllamaChat:
		for m := range c.elements(c.top("messages")) {
			c.lost = c.lost || !c.empty(c.member(m, "images"))
			c.sayText(c.member(m, "role"), c.member(m, "content"))
		}
	case Messages:
		c.messages()
	case Responses:
		c.response()
	}
	return c.asked("chat_template_kwargs"), nil
}

// A conversation is a chat that an engine makes of a request.
type conversation struct {
	doc
	sglang bool
	list   [][]byte // messages
	tools  [][]byte
	lost   bool // not all of the request has one place in it
}

// An object is a JSON object that is being written.
type object []byte

// with adds a member, unless there is nothing to add.
func (o object) with(name string, v []byte) object {
	switch {
	case len(v) == 0:
		return o
	case len(o) == 0:
		o = append(o, `{"`...)
	default:
		o = append(o, `,"`...)
	}
	return append(append(append(o, name...), `":`...), v...)
}

func (o object) end() []byte {
	if len(o) == 0 {
		o = append(o, '{')
	}
	return append(o, '}')
}

func quoted(text []byte) []byte { return appendQuoted(nil, string(text)) }

func array(values [][]byte) []byte {
	if len(values) == 0 {
		return nil
	}
	return append(append([]byte{'['}, bytes.Join(values, []byte{','})...), ']')
}

func (c *conversation) top(name string) value { return c.member(c.root(), name) }

// ask is a question for tokens, with these members of the request. The texts of the
// tokens, which vLLM gives, say how much of the prompt each is.
func (c *conversation) ask(members ...string) object {
	o := object(nil).with("return_token_strs", []byte("true"))
	for _, name := range append([]string{"model"}, members...) {
		if v := c.top(name); v.given() {
			o = o.with(name, c.raw(v))
		}
	}
	return o
}

// asked asks for the tokens of the chat.
func (c *conversation) asked(members ...string) []byte {
	if c.lost || len(c.list) == 0 {
		return nil
	}
	return c.ask(members...).with("messages", array(c.list)).with("tools", array(c.tools)).end()
}

// single is for a prompt without roles: a text, tokens, or a list of one of them.
func (c *conversation) single(v value) (ask []byte, ids []uint32) {
	if c.kind(v) == '[' {
		first := c.first(v)
		if k := c.kind(first); k == '[' || k == '"' {
			c.lost = c.lost || c.after(first).given()
			v = first
		}
	}
	switch {
	case c.lost:
		return nil, nil
	case c.kind(v) == '"':
		return c.ask("add_special_tokens").with("prompt", c.raw(v)).end(), nil
	}
	for e := range c.elements(v) {
		id, ok := c.integer(e)
		if !ok {
			return nil, nil
		}
		ids = append(ids, uint32(id))
	}
	return nil, ids
}

// ollamaGenerate is for a text that SGLang takes without a template.
func (c *conversation) ollamaGenerate() []byte {
	text := c.str(c.top("prompt"))
	if system := c.str(c.top("system")); len(system) > 0 {
		text = slices.Concat(system, []byte("\n\n"), text)
	}
	if len(text) == 0 || !c.empty(c.top("images")) {
		return nil
	}
	return c.ask().with("prompt", quoted(text)).end()
}

// texts returns those of a list of parts, which must have nothing else.
func (c *conversation) texts(list value) (texts []value) {
	for part := range c.elements(list) {
		text := part
		if c.kind(part) == '{' {
			text = c.member(part, "text")
		}
		c.lost = c.lost || c.kind(text) != '"'
		texts = append(texts, text)
	}
	return texts
}

// parts makes a list of texts as OpenAI's chats have it.
func (c *conversation) parts(texts []value) []byte {
	var parts [][]byte
	for _, text := range texts {
		parts = append(parts, object(nil).with("type", []byte(`"text"`)).with("text", c.raw(text)).end())
	}
	return array(parts)
}

// say adds a message of a role and a content, in JSON.
func (c *conversation) say(role, content []byte) {
	c.lost = c.lost || len(role) == 0 || role[0] != '"' || len(content) == 0
	c.list = append(c.list, object(nil).with("role", role).with("content", content).end())
}

// sayText adds one of a text.
func (c *conversation) sayText(role, text value) {
	c.lost = c.lost || c.kind(text) != '"'
	c.say(c.raw(role), c.raw(text))
}

// call is a call of a tool, whose arguments are a text.
func (c *conversation) call(id, name value, arguments []byte) []byte {
	c.lost = c.lost || c.kind(id) != '"' || c.kind(name) != '"'
	function := object(nil).with("name", c.raw(name)).with("arguments", arguments).end()
	return object(nil).with("type", []byte(`"function"`)).with("id", c.raw(id)).with("function", function).end()
}

// result adds a message with what a tool has given: a text, or several, which vLLM puts
// on lines of their own and SGLang leaves to the template.
func (c *conversation) result(id, content value) {
	text := quoted(c.str(content))
	if c.kind(content) == '[' {
		texts := c.texts(content)
		var pieces [][]byte
		for _, piece := range texts {
			pieces = append(pieces, c.str(piece))
		}
		if text = quoted(bytes.Join(pieces, []byte{'\n'})); c.sglang && len(texts) > 1 {
			text = c.parts(texts)
		}
	}
	c.lost = c.lost || c.kind(id) != '"' || c.kind(content) == '{'
	c.list = append(c.list, object(nil).with("role", []byte(`"tool"`)).with("tool_call_id", c.raw(id)).with("content", text).end())
}

// messages makes a chat of Anthropic's.
func (c *conversation) messages() {
	c.lost = c.lost || c.sglang && !c.null(c.top("thinking")) // it sets what the template is given
	c.system(c.top("system"))
	for m := range c.elements(c.top("messages")) {
		role, content := c.member(m, "role"), c.member(m, "content")
		if r := string(c.str(role)); r != "user" && r != "assistant" {
			c.lost = true
		}
		if c.kind(content) == '[' {
			c.blocks(role, content)
		} else {
			c.sayText(role, content)
		}
	}
	for tool := range c.elements(c.top("tools")) {
		if kind := string(c.str(c.member(tool, "type"))); kind != "" && kind != "custom" {
			c.lost = true // the server's own
		}
		function := object(nil).with("name", c.raw(c.member(tool, "name"))).
			with("description", c.raw(c.member(tool, "description"))).
			with("parameters", c.raw(c.member(tool, "input_schema"))).end()
		c.tools = append(c.tools, object(nil).with("type", []byte(`"function"`)).with("function", function).end())
	}
}

// system adds the system's message: the texts of its blocks, which vLLM joins and
// SGLang puts on lines of their own.
func (c *conversation) system(v value) {
	text := bytes.Clone(c.str(v))
	for block := range c.elements(v) {
		piece := c.str(c.member(block, "text"))
		if len(piece) == 0 || !c.sglang && bytes.HasPrefix(piece, []byte(billing)) {
			continue
		}
		if c.sglang && len(text) > 0 {
			text = append(text, '\n')
		}
		text = append(text, piece...)
	}
	if len(text) > 0 {
		c.say([]byte(`"system"`), quoted(text))
	}
}

// blocks adds a message of Anthropic's blocks, and others for what tools have given:
// with vLLM before it, with SGLang where they stand.
func (c *conversation) blocks(role, content value) {
	own := string(c.str(role)) == "assistant"
	var m said
	for block := range c.elements(content) {
		text := c.member(block, "text")
		switch kind := string(c.str(c.member(block, "type"))); {
		case kind == "text" && c.kind(text) == '"' && !c.empty(text):
			m.texts = append(m.texts, text)
		case kind == "tool_use" && own:
			arguments := c.raw(c.member(block, "input"))
			if len(arguments) == 0 {
				arguments = []byte("{}")
			}
			m.calls = append(m.calls, c.call(c.member(block, "id"), c.member(block, "name"), quoted(arguments)))
		case kind == "tool_result" && !own:
			if c.sglang {
				c.add(role, m)
				m = said{}
			}
			c.result(c.member(block, "tool_use_id"), c.member(block, "content"))
		case kind == "thinking" && own && !c.sglang:
			m.thoughts = c.appendString(m.thoughts, c.member(block, "thinking"))
		default:
			c.lost = true
		}
	}
	c.lost = c.lost || own && len(m.texts)+len(m.calls) == 0
	c.add(role, m)
}

// said is what a message of blocks says.
type said struct {
	texts    []value
	calls    [][]byte
	thoughts []byte
}

// add adds such a message, if it says something.
func (c *conversation) add(role value, m said) {
	if len(m.texts)+len(m.calls) == 0 {
		return
	}
	out := object(nil).with("role", c.raw(role))
	if len(m.thoughts) > 0 {
		out = out.with("reasoning", quoted(m.thoughts))
	}
	if len(m.texts) == 1 {
		out = out.with("content", c.raw(m.texts[0]))
	} else {
		out = out.with("content", c.parts(m.texts))
	}
	c.list = append(c.list, out.with("tool_calls", array(m.calls)).end())
}

// response makes a chat of a response's instructions and input. Tools are lost: in the
// template each has members in an order of the engine's.
func (c *conversation) response() {
	c.lost = c.lost || !c.empty(c.top("tools"))
	if v := c.top("instructions"); !c.empty(v) {
		c.lost = c.lost || c.kind(v) != '"'
		c.say([]byte(`"system"`), c.raw(v))
	}
	input := c.top("input")
	if c.kind(input) == '"' {
		c.say([]byte(`"user"`), c.raw(input))
		return
	}
	spoke := false // the model, last: what it says next some versions add to that
	for item := range c.elements(input) {
		kind := string(c.str(c.member(item, "type")))
		own := kind == "function_call" || string(c.str(c.member(item, "role"))) == "assistant"
		c.lost = c.lost || own && spoke
		spoke = own
		switch kind {
		case "", "message":
			role, content := c.member(item, "role"), c.member(item, "content")
			if c.kind(content) == '[' {
				c.say(c.raw(role), c.parts(c.texts(content)))
			} else {
				c.sayText(role, content)
			}
		case "function_call":
			call := c.call(c.member(item, "call_id"), c.member(item, "name"), c.raw(c.member(item, "arguments")))
			c.list = append(c.list, object(nil).with("role", []byte(`"assistant"`)).with("tool_calls", array([][]byte{call})).end())
		case "function_call_output":
			output := c.member(item, "output")
			c.lost = c.lost || c.kind(output) != '"'
			c.result(c.member(item, "call_id"), output)
		default:
			c.lost = true
		}
	}
}
