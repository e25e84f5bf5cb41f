package openai

import "time"

// An sglangForm is an answer of SGLang's own: each piece holds all of the text so
// far.
type sglangForm struct{}

func newSGLangForm() form { return sglangForm{} }

func (sglangForm) whole(a *reply) any {
	var reason any
	switch a.reason {
	case "stop":
		reason = map[string]any{"type": "stop"}
	case "length":
		reason = map[string]any{"type": "length", "length": a.usage.Completion}
	}
	return map[string]any{"text": a.text.String(), "meta_info": map[string]any{
		"id": a.id, "finish_reason": reason, "prompt_tokens": a.usage.Prompt,
		"completion_tokens": a.usage.Completion, "cached_tokens": a.usage.cached,
	}}
}

func (sglangForm) open(*reply)                {}
func (f sglangForm) piece(a *reply, _ string) { a.data(f.whole(a)) }

func (f sglangForm) last(a *reply) {
	a.data(f.whole(a))
	a.done()
}

// A llamaForm is an answer of llama.cpp's own; the last piece has no text and all
// of the counts.
type llamaForm struct{}

func newLlamaForm() form { return llamaForm{} }

func (f llamaForm) whole(a *reply) any { return f.end(a, a.text.String()) }

func (llamaForm) open(*reply) {}

func (llamaForm) piece(a *reply, text string) {
	a.data(map[string]any{"index": 0, "content": text, "tokens": []int{}, "stop": false, "tokens_predicted": a.usage.Completion, "tokens_evaluated": a.usage.Prompt})
}

func (f llamaForm) last(a *reply) { a.data(f.end(a, "")) }

func (llamaForm) end(a *reply, text string) any {
	kind := "eos"
	if a.reason == "length" {
		kind = "limit"
	}
	u := a.usage
	return map[string]any{
		"index": 0, "content": text, "tokens": []int{}, "stop": true, "stop_type": kind, "model": a.model,
		"tokens_predicted": u.Completion, "tokens_evaluated": u.Prompt, "tokens_cached": u.Total,
		"timings": map[string]any{"cache_n": u.cached, "prompt_n": u.Prompt - u.cached, "predicted_n": u.Completion},
	}
}

// An ollamaForm is an answer of Ollama's own, lines of JSON. It does not tell what
// was cached.
type ollamaForm struct {
	holds func(text string) (field string, v any) // the text
}

func newOllamaChatForm() form {
	return ollamaForm{func(text string) (string, any) {
		return "message", map[string]any{"role": "assistant", "content": text}
	}}
}

func newOllamaTextForm() form {
	return ollamaForm{func(text string) (string, any) { return "response", text }}
}

func (f ollamaForm) whole(a *reply) any          { return f.object(a, a.text.String()) }
func (f ollamaForm) open(*reply)                 {}
func (f ollamaForm) piece(a *reply, text string) { a.line(f.object(a, text)) }
func (f ollamaForm) last(a *reply)               { a.line(f.object(a, "")) }

func (f ollamaForm) object(a *reply, text string) any {
	field, v := f.holds(text)
	o := map[string]any{"model": a.model, "created_at": a.created.UTC().Format(time.RFC3339Nano), field: v, "done": a.reason != ""}
	if a.reason != "" {
		o["done_reason"], o["prompt_eval_count"], o["eval_count"] = a.reason, a.usage.Prompt, a.usage.Completion
		o["total_duration"] = time.Since(a.created).Nanoseconds()
	}
	return o
}
