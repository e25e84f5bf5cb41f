package openai

import "encoding/json"

// A completionsForm is an answer of OpenAI's chat completions or completions. A
// stream tells its usage if the request asks for it.
type completionsForm struct{ prefix, object, chunk string }

func newChatForm() form {
	return completionsForm{"chatcmpl-", "chat.completion", "chat.completion.chunk"}
}

func newTextForm() form {
	return completionsForm{"cmpl-", "text_completion", "text_completion"}
}

func (f completionsForm) whole(a *reply) any {
	content := a.text.String()
	ch := choice{Finish: &a.reason, Text: &content}
	if a.Chat {
		ch.Text, ch.Message = nil, &message{Role: "assistant", Content: &content}
	}
	r := f.response(a, f.object, ch)
	r.Usage = encodeJSON(a.usage)
	return r
}

func (f completionsForm) open(a *reply) {
	if a.Chat {
		f.send(a, choice{Delta: &message{Role: "assistant", Content: new(string)}})
	}
}

func (f completionsForm) piece(a *reply, text string) {
	if a.Chat {
		f.send(a, choice{Delta: &message{Content: &text}})
		return
	}
	f.send(a, choice{Text: &text})
}

func (f completionsForm) last(a *reply) {
	end := choice{Finish: &a.reason, Text: new(string)}
	if a.Chat {
		end.Text, end.Delta = nil, &message{}
	}
	f.send(a, end)
	if a.wantsUsage {
		r := f.response(a, f.chunk)
		r.Usage = encodeJSON(a.usage)
		a.data(r)
	}
	a.done()
}

// send sends one choice. Usage is null in every chunk but the last, and absent
// when nobody asked for it.
func (f completionsForm) send(a *reply, c choice) {
	r := f.response(a, f.chunk, c)
	if a.wantsUsage {
		r.Usage = json.RawMessage("null")
	}
	a.data(r)
}

func (f completionsForm) response(a *reply, object string, choices ...choice) response {
	if choices == nil {
		choices = []choice{}
	}
	return response{ID: f.prefix + a.id, Object: object, Created: a.created.Unix(), Model: a.model, Choices: choices}
}

// A response is a whole answer or a chunk of a stream, for chat or text.
type response struct {
	ID      string          `json:"id"`
	Object  string          `json:"object"`
	Created int64           `json:"created"`
	Model   string          `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   json.RawMessage `json:"usage,omitempty"`
}

type choice struct {
	Index    int      `json:"index"`
	Message  *message `json:"message,omitempty"` // chat
	Delta    *message `json:"delta,omitempty"`   // chat, streamed
	Text     *string  `json:"text,omitempty"`    // text, both ways
	Logprobs *string  `json:"logprobs"`          // always null
	Finish   *string  `json:"finish_reason"`     // null until the last
}

type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type usage struct {
	Prompt     int           `json:"prompt_tokens"`
	Completion int           `json:"completion_tokens"`
	Total      int           `json:"total_tokens"`
	Details    *usageDetails `json:"prompt_tokens_details"` // nil where the server does not tell
	cached     int
}

type usageDetails struct {
	Cached int `json:"cached_tokens"`
}
