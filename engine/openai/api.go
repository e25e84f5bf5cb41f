package openai

import "net/http"

// An api is a way to write calls and answers: one that generates text is OpenAI's
// with other names for its fields, and a form of its own for the answer.
type api struct {
	chat    bool              // the prompt is a list of messages
	names   map[string]string // what it calls OpenAI's fields, where not as OpenAI does
	system  string            // the field of the system's message, where it has one
	options string            // the object that holds the options, where they are not in the body itself
	spoken  bool              // a text in place of the messages is the user's
	endless bool              // a negative limit or seed is as good as none
	streams bool              // a stream unless told otherwise
	form    func() form
	problem func(*Error) any // an error's shape; nil is OpenAI's
}

// apis are what generates text, by path. Options that a request leaves open have
// the values of OpenAI's API in all of them. The shapes are those of Anthropic's and
// OpenAI's references, SGLang (srt/managers/io_struct.py), llama.cpp (tools/server)
// and Ollama (docs/api.md).
var apis = map[string]api{
	"/v1/chat/completions": {chat: true, form: newChatForm},
	"/v1/completions":      {form: newTextForm},
	"/v1/responses": {
		chat: true, spoken: true, system: "instructions", form: newResponsesForm,
		names: map[string]string{"messages": "input", "max_tokens": "max_output_tokens"},
	},
	"/v1/messages": {
		chat: true, system: "system", form: newMessagesForm, problem: anthropicProblem,
		names: map[string]string{"stop": "stop_sequences"},
	},
	"/generate": {
		options: "sampling_params", form: newSGLangForm,
		names: map[string]string{"prompt": "text", "max_tokens": "max_new_tokens", "seed": "sampling_seed"},
	},
	"/completion":   {endless: true, form: newLlamaForm, names: map[string]string{"max_tokens": "n_predict"}},
	"/api/chat":     ollama(newOllamaChatForm, "messages", ""),
	"/api/generate": ollama(newOllamaTextForm, "prompt", "system"),
}

func ollama(f func() form, messages, system string) api {
	return api{
		chat: true, spoken: true, streams: true, endless: true, system: system, options: "options", form: f,
		names:   map[string]string{"messages": messages, "max_tokens": "num_predict"},
		problem: func(e *Error) any { return map[string]any{"error": e.Message} },
	}
}

// apiFor gives what is at a path. Ollama takes a raw prompt without its template.
func (c *Call) apiFor() api {
	a := apis[c.Path]
	var raw bool
	if c.Path == "/api/generate" && c.Fields.Get("raw", &raw, "a boolean") == nil && raw {
		a.chat = false
	}
	return a
}

// name is what the client calls a field of OpenAI's API.
func (c *Call) name(field string) string {
	if name, ok := c.api.names[field]; ok {
		return name
	}
	return field
}

func anthropicProblem(e *Error) any {
	kind := e.Type
	switch e.Status {
	case http.StatusNotFound:
		kind = "not_found_error"
	case http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case http.StatusServiceUnavailable:
		kind = "overloaded_error"
	}
	return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": e.Message}}
}
