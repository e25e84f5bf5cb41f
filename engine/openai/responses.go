package openai

import "maps"

// A responsesForm is an answer of OpenAI's responses: one message of one text.
// Nothing is stored, so no later request can name it.
type responsesForm struct{ events int }

func newResponsesForm() form { return new(responsesForm) }

func (f *responsesForm) whole(a *reply) any { return f.response(a) }

func (f *responsesForm) open(a *reply) {
	f.event(a, "response.created", map[string]any{"response": f.response(a)})
	f.event(a, "response.in_progress", map[string]any{"response": f.response(a)})
	f.event(a, "response.output_item.added", map[string]any{"output_index": 0, "item": f.item(a)})
	f.text(a, "response.content_part.added", map[string]any{"part": f.part("")})
}

func (f *responsesForm) piece(a *reply, text string) {
	f.text(a, "response.output_text.delta", map[string]any{"delta": text, "logprobs": []any{}})
}

func (f *responsesForm) last(a *reply) {
	f.text(a, "response.output_text.done", map[string]any{"text": a.text.String(), "logprobs": []any{}})
	f.text(a, "response.content_part.done", map[string]any{"part": f.part(a.text.String())})
	f.event(a, "response.output_item.done", map[string]any{"output_index": 0, "item": f.item(a)})
	f.event(a, "response."+f.status(a), map[string]any{"response": f.response(a)})
}

// text sends an event about the one text.
func (f *responsesForm) text(a *reply, kind string, v map[string]any) {
	maps.Copy(v, map[string]any{"item_id": "msg_" + a.id, "output_index": 0, "content_index": 0})
	f.event(a, kind, v)
}

func (f *responsesForm) event(a *reply, kind string, v map[string]any) {
	v["sequence_number"] = f.events
	f.events++
	a.named(kind, v)
}

func (*responsesForm) status(a *reply) string {
	switch a.reason {
	case "":
		return "in_progress"
	case "length":
		return "incomplete"
	}
	return "completed"
}

func (f *responsesForm) response(a *reply) any {
	r := map[string]any{
		"id": "resp_" + a.id, "object": "response", "created_at": a.created.Unix(), "status": f.status(a), "model": a.model,
		"output": []any{}, "usage": nil, "error": nil, "incomplete_details": nil, "instructions": a.Fields["instructions"],
		"metadata": map[string]any{}, "parallel_tool_calls": false, "tool_choice": "none", "tools": []any{},
		"temperature": a.Temperature, "top_p": a.TopP, "store": false, "previous_response_id": nil,
	}
	if a.MaxTokens > 0 {
		r["max_output_tokens"] = a.MaxTokens
	}
	if a.reason == "length" {
		r["incomplete_details"] = map[string]any{"reason": "max_output_tokens"}
	}
	if a.reason != "" {
		r["output"] = []any{f.item(a)}
		r["usage"] = map[string]any{
			"input_tokens": a.usage.Prompt, "input_tokens_details": a.usage.Details,
			"output_tokens": a.usage.Completion, "output_tokens_details": map[string]any{"reasoning_tokens": 0},
			"total_tokens": a.usage.Total,
		}
	}
	return r
}

func (f *responsesForm) item(a *reply) any {
	content := []any{}
	if a.reason != "" {
		content = append(content, f.part(a.text.String()))
	}
	return map[string]any{"id": "msg_" + a.id, "type": "message", "role": "assistant", "status": f.status(a), "content": content}
}

func (*responsesForm) part(text string) any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}
