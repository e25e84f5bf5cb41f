package openai

// A messagesForm is an answer of Anthropic's messages: one block of text. Of the
// prompt, input_tokens are those that were not cached.
type messagesForm struct{}

func newMessagesForm() form { return messagesForm{} }

func (f messagesForm) whole(a *reply) any {
	m := f.message(a, map[string]any{"type": "text", "text": a.text.String()})
	m["stop_reason"] = f.stopReason(a)
	return m
}

func (f messagesForm) open(a *reply) {
	m := f.message(a)
	a.named("message_start", map[string]any{"message": m})
	a.named("content_block_start", map[string]any{"index": 0, "content_block": map[string]any{"type": "text", "text": ""}})
}

func (messagesForm) piece(a *reply, text string) {
	a.named("content_block_delta", map[string]any{"index": 0, "delta": map[string]any{"type": "text_delta", "text": text}})
}

func (f messagesForm) last(a *reply) {
	a.named("content_block_stop", map[string]any{"index": 0})
	a.named("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": f.stopReason(a), "stop_sequence": nil},
		"usage": f.usage(a),
	})
	a.named("message_stop", map[string]any{})
}

func (f messagesForm) message(a *reply, blocks ...any) map[string]any {
	if blocks == nil {
		blocks = []any{}
	}
	return map[string]any{
		"id": "msg_" + a.id, "type": "message", "role": "assistant", "model": a.model, "content": blocks,
		"stop_reason": nil, "stop_sequence": nil, "usage": f.usage(a),
	}
}

func (messagesForm) usage(a *reply) any {
	cached := a.usage.cached
	return map[string]any{
		"input_tokens": a.usage.Prompt - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
		"output_tokens": a.usage.Completion,
	}
}

// stopReason does not tell a stop sequence from the model's own end, which the
// engines do not either.
func (messagesForm) stopReason(a *reply) string {
	if a.reason == "length" {
		return "max_tokens"
	}
	return "end_turn"
}
