package builtin

import (
	"context"
	"errors"
	"net/http"
	"unicode/utf8"

	"github.com/hearsay-project/hearsay/engine/openai"
)

// ServeHTTP serves the model as package openai says, /tokenize and /detokenize
// included. A request whose client has gone leaves the batch within one step.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	server := openai.Server{Engine: api{e}, Model: e.name, Started: e.started, Context: e.Context()}
	server.ServeHTTP(w, r)
}

// An api is the Engine as the API calls it.
type api struct{ *Engine }

var (
	_ openai.Tokenizer = api{}
	_ openai.Embedder  = api{}
)

// Generate has a prompt too long or a full queue refused at once.
func (e api) Generate(ctx context.Context, c *openai.Call) (openai.Stream, error) {
	prompt, err := e.Tokenize(c)
	if err != nil {
		return nil, err
	}
	stream, err := e.Engine.Generate(ctx, Request{
		Prompt: prompt, MaxTokens: c.MaxTokens,
		Temperature: c.Temperature, TopP: c.TopP, Seed: c.Seed, Stop: c.Stop, TrimSpace: c.Chat,
	})
	if err != nil {
		return nil, refusal(err, c)
	}
	return answer{stream}, nil
}

// Tokenize renders a chat before it cuts it.
func (e api) Tokenize(c *openai.Call) (ids []int32, err error) {
	var text string
	if c.Chat {
		var messages []openai.Message
		if messages, err = c.Messages(); err == nil {
			text, err = renderChat(messages)
		}
	} else {
		text, ids, err = c.Prompt()
	}
	switch {
	case err != nil:
		return nil, err
	case ids == nil:
		return e.encode(c.PromptField(), text)
	}
	if err := e.tok.check(ids); err != nil {
		return nil, openai.BadRequest(c.PromptField(), "%v", err)
	}
	return ids, nil
}

// encode gives the prompt's tokens. A text that is too long whatever its tokens
// are costs nothing.
func (e api) encode(field, text string) ([]int32, error) {
	if limit := e.Context() * max(e.tok.longest, utf8.UTFMax); len(text) > limit {
		return nil, openai.TooLong(field, "the prompt has %d bytes, and %d tokens cannot hold more than %d; shorten it", len(text), e.Context(), limit)
	}
	return e.tok.prompt(text), nil
}

func (e api) Detokenize(ids []int32) (string, error) {
	if err := e.tok.check(ids); err != nil {
		return "", openai.BadRequest("tokens", "%v", err)
	}
	return valid(e.tok.text(ids)), nil
}

// Embed gives the mean of the embeddings of the tokens, which costs no step of the
// model. It does not see their order.
func (e api) Embed(text string, ids []int32) (vector []float32, tokens int, err error) {
	if ids == nil {
		ids, err = e.encode("input", text)
	} else if err = e.tok.check(ids); err != nil {
		err = openai.BadRequest("input", "%v", err)
	}
	switch {
	case err != nil:
		return nil, 0, err
	case len(ids) > e.Context():
		return nil, 0, openai.TooLong("input", "the input has %d tokens, and this engine takes %d; shorten it", len(ids), e.Context())
	}
	m := e.model
	vector = make([]float32, m.dim)
	for _, id := range ids {
		for i, x := range m.embedding[int(id)*m.dim:][:m.dim] {
			vector[i] += x / float32(len(ids))
		}
	}
	return vector, len(ids), nil
}

// An answer is a Stream as the API reads it.
type answer struct{ *Stream }

func (a answer) Prompt() (tokens, cached int) {
	return a.seq.usage.PromptTokens, a.seq.usage.CachedTokens
}

func (a answer) Finish() (reason string, tokens int, err error) {
	reason, err = a.Stream.Finish()
	if errors.Is(err, ErrClosed) {
		err = openai.Unavailable(err)
	}
	return reason, a.seq.usage.CompletionTokens, err
}

// refusal is the API's answer to what Engine.Generate refused.
func refusal(err error, c *openai.Call) error {
	switch {
	case errors.As(err, new(*ContextError)):
		return openai.TooLong(c.PromptField(), "%v", err)
	case errors.Is(err, ErrQueueFull):
		return openai.Busy(err)
	case errors.Is(err, ErrClosed):
		return openai.Unavailable(err)
	}
	return openai.BadRequest(c.PromptField(), "%v", err)
}
