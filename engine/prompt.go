package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/hearsay-project/hearsay/prefix"
)

// Prompt is a request as far as routing reads it.
type Prompt struct {
	Scope  prefix.Scope // what makes two equal texts different cache entries
	Text   []byte       // the canonical prompt: tools, then role and content of each message in order
	Chat   bool         // Text is a conversation: an answer is its next message
	Stream bool
}

// In the canonical prompt each message is startPart, its role, startText, its
// content. Both are control characters that nobody writes: two conversations that
// read the same because one does would share a name, which costs a cache miss.
const (
	startPart = "\x1e"
	startText = "\x1f"
)

// Routed says whether requests to path carry a prompt that is worth routing.
func Routed(path string) bool {
	return path == "/v1/chat/completions" || path == "/v1/completions"
}

// Read reads the body of a request to path, one that is Routed. White space,
// the order of fields and JSON escapes do not show in the Prompt; keys count
// exactly as written, and the last of two equal keys wins, as in the engines'
// own Python parsers. A body that it cannot read is an error; the engine has
// the last word on such a request.
func Read(path string, body []byte) (Prompt, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return Prompt{}, fmt.Errorf("read request: %w", err)
	}
	p := Prompt{Chat: path == "/v1/chat/completions"}
	// A field of another type than these is the engine's to refuse.
	_ = json.Unmarshal(fields["model"], &p.Scope.Model)
	_ = json.Unmarshal(fields["cache_salt"], &p.Scope.Salt)
	_ = json.Unmarshal(fields["stream"], &p.Stream)
	if !p.Chat {
		p.Text = completionText(fields["prompt"])
		return p, nil
	}
	if tools := fields["tools"]; len(tools) > 0 && string(tools) != "null" {
		p.Text = appendMessage(p.Text, "tools", string(canonicalJSON(tools)))
	}
	var messages []map[string]json.RawMessage
	if err := json.Unmarshal(fields["messages"], &messages); err != nil {
		return Prompt{}, fmt.Errorf("read messages: %w", err)
	}
	for _, m := range messages {
		p.Text = appendChatMessage(p.Text, m)
	}
	return p, nil
}

// Continue returns the canonical text of the prompt and its answer, the prefix
// that the next turn of a conversation shares with this one.
func (p Prompt) Continue(answer string) []byte {
	text := bytes.Clone(p.Text)
	if p.Chat {
		return appendMessage(text, "assistant", answer)
	}
	return append(text, answer...)
}

func appendMessage(text []byte, role, content string) []byte {
	text = append(text, startPart...)
	text = append(text, role...)
	text = append(text, startText...)
	return append(text, content...)
}

// appendChatMessage renders one message: its role, then its content, text as
// it reads and anything else (images, audio) as canonical JSON, which names it
// by content, then the tool calls that it makes.
func appendChatMessage(text []byte, m map[string]json.RawMessage) []byte {
	var role, content string
	_ = json.Unmarshal(m["role"], &role)
	text = appendMessage(text, role, "")
	var parts []map[string]json.RawMessage
	switch raw := m["content"]; {
	case json.Unmarshal(raw, &content) == nil:
		text = append(text, content...)
	case json.Unmarshal(raw, &parts) == nil:
		for _, part := range parts {
			var s string
			if t, ok := part["text"]; ok && json.Unmarshal(t, &s) == nil {
				text = append(text, s...)
				continue
			}
			whole, _ := json.Marshal(part)
			text = append(text, startText...)
			text = append(text, canonicalJSON(whole)...)
		}
	default:
		text = append(text, canonicalJSON(raw)...)
	}
	if calls := m["tool_calls"]; len(calls) > 0 && string(calls) != "null" {
		text = append(text, startText...)
		text = append(text, canonicalJSON(calls)...)
	}
	return text
}

// completionText renders the prompt of a completion: a text, several texts,
// token ids, or several lists of them.
func completionText(raw json.RawMessage) []byte {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []byte(one)
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil {
		var text []byte
		for i, s := range many {
			if i > 0 {
				text = append(text, startPart...)
			}
			text = append(text, s...)
		}
		return text
	}
	var ids []uint32
	if json.Unmarshal(raw, &ids) == nil {
		text := []byte(startPart + "tokens" + startText)
		for _, id := range ids {
			text = binary.LittleEndian.AppendUint32(text, id)
		}
		return text
	}
	return canonicalJSON(raw)
}

// canonicalJSON writes a value the same way however it was spelled: keys in
// order, no white space, numbers digit for digit.
func canonicalJSON(raw json.RawMessage) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return raw
	}
	out, err := json.Marshal(v)
	if err != nil {
		return raw
	}
	return out
}
