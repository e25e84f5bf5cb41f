package builtin

import (
	"encoding/json"
	"strings"

	"github.com/hearsay-project/hearsay/engine/openai"
)

// The chat template is a play: each message a paragraph with its speaker, and
// an open line for the answer.
//
//	System: You are brief.
//
//	User: Who is Ahab?
//
//	Assistant:
//
// No piece of the tokenizer spans a newline, so a conversation that grows keeps
// the tokens of everything before its last paragraph, and with them the cache.
// The space before an answer is not part of it. The template marks nothing off
// from text that imitates it.
const openLine = "Assistant:"

// speakers maps the API's roles to the template's.
var speakers = map[string]string{
	"system": "System", "developer": "System", "user": "User", "assistant": "Assistant", "tool": "Tool",
}

// renderChat gives the prompt for the API's messages.
func renderChat(messages []openai.Message) (string, error) {
	var b strings.Builder
	for _, m := range messages {
		content, err := contentText(m.Fields["content"])
		if err != nil {
			return "", openai.In(m.At, err)
		}
		b.WriteString(speakers[m.Role] + ": " + content + "\n\n")
	}
	return b.String() + openLine, nil
}

// contentText joins a message's content: a string, a list of text parts, or
// none, as in an assistant's message that only calls tools.
func contentText(raw json.RawMessage) (string, error) {
	var text string
	if raw == nil || json.Unmarshal(raw, &text) == nil { // null leaves text empty
		return text, nil
	}
	var parts []openai.Object
	if json.Unmarshal(raw, &parts) != nil {
		return "", openai.BadRequest("content", "content must be a string or a list of parts")
	}
	for _, p := range parts {
		var kind, part string
		if err := p.Get("type", &kind, "a string"); err != nil {
			return "", openai.In("content", err)
		}
		switch kind {
		case "text", "input_text", "output_text": // the latter two in OpenAI's responses
		default:
			return "", openai.BadRequest("content", "a content part of type %q is not supported; this engine reads text", kind)
		}
		if err := p.Get("text", &part, "a string"); err != nil {
			return "", openai.In("content", err)
		}
		text += part
	}
	return text, nil
}
