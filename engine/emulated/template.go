package emulated

import (
	"encoding/json"
	"strings"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine/openai"
)

// template gives the text that the model sees of a chat: the canonical one of OpenAI's
// request. Of one in another vendor's dialect the engine first makes such a request, as
// vLLM does (entrypoints/anthropic/serving.py), or SGLang (entrypoints/anthropic/
// request_conversion.py), as far as texts and tools go.
func (e *Engine) template(c *openai.Call) (string, error) {
	at, _ := dialect.Lookup("/v1/chat/completions")
	body := c.Body
	if c.Path != at.Route {
		messages, err := c.Messages()
		if err != nil {
			return "", err
		}
		chat := map[string]any{}
		var said []map[string]any
		for _, m := range messages {
			said = append(said, e.convert(m)...)
		}
		chat["messages"] = said
		if tools := convertTools(c.Fields["tools"]); c.Path == "/v1/messages" && tools != nil {
			chat["tools"] = tools
		}
		if body, err = json.Marshal(chat); err != nil {
			return "", err
		}
	}
	p, err := dialect.Read(at, body)
	return string(p.Text), err
}

// part is one of a message's content: a text, or a block of Anthropic's.
type part struct {
	Type, Text, Thinking string
	ID, Name             string
	Input                json.RawMessage
	ToolUseID            string `json:"tool_use_id"`
	Content              string
}

// convert makes messages of OpenAI's of one of another vendor's.
func (e *Engine) convert(m openai.Message) (all []map[string]any) {
	own := map[string]any{"role": m.Role}
	var text string
	var parts []part
	if json.Unmarshal(m.Fields["content"], &text) == nil {
		return []map[string]any{{"role": m.Role, "content": text}}
	}
	_ = json.Unmarshal(m.Fields["content"], &parts)
	var texts []string
	var calls []any
	for _, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text":
			texts = append(texts, p.Text)
		case "thinking":
			own["reasoning"] = p.Thinking
		case "tool_use":
			calls = append(calls, map[string]any{"id": p.ID, "type": "function", "function": map[string]any{"name": p.Name, "arguments": string(p.Input)}})
		case "tool_result":
			all = append(all, map[string]any{"role": "tool", "tool_call_id": p.ToolUseID, "content": p.Content})
		}
	}
	between := ""
	if m.Role == "system" && e.cfg.Dialect == "sglang" {
		between = "\n"
	}
	if own["content"] = strings.Join(texts, between); calls != nil {
		own["tool_calls"] = calls
	}
	if len(texts)+len(calls) > 0 {
		all = append(all, own)
	}
	return all
}

// convertTools makes functions of Anthropic's tools.
func convertTools(raw json.RawMessage) (tools []any) {
	var given []struct {
		Name, Description string
		Schema            json.RawMessage `json:"input_schema"`
	}
	_ = json.Unmarshal(raw, &given)
	for _, t := range given {
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{"name": t.Name, "description": t.Description, "parameters": t.Schema}})
	}
	return tools
}
