package emulated

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine/openai"
	"github.com/hearsay-project/hearsay/prefix"
)

// defaultOutput is how many tokens an answer has where its request does not say,
// as in OpenAI's completions.
const defaultOutput = 16

// ServeHTTP serves the model as package openai says. Answers are filler, for which
// temperature and seed change nothing. A request whose client has gone leaves the
// queue, or the batch, at once. The pages of Config.Dialect go before.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if answer, ok := pages[e.cfg.Dialect][r.URL.Path]; ok {
		answer(e, w)
		return
	}
	k := kinds[e.cfg.Dialect]
	server := openai.Server{Engine: e, Model: e.cfg.Name, Started: e.started, Context: e.Context(), Tells: k.tells}
	if e.cfg.Bare {
		server.Tells = k.bare
	}
	server.ServeHTTP(w, r)
}

var (
	_ openai.Engine   = (*Engine)(nil)
	_ openai.Embedder = (*Engine)(nil)
)

// Generate is for package openai.
func (e *Engine) Generate(ctx context.Context, c *openai.Call) (openai.Stream, error) {
	p, ids, err := e.read(c)
	if err != nil {
		return nil, err
	}
	room := e.Context() - len(ids)
	switch {
	case room < 1:
		return nil, openai.TooLong(c.PromptField(), "the prompt has %d tokens and leaves no room for an answer; this engine takes %d in all", len(ids), e.Context())
	case c.MaxTokens > room:
		return nil, openai.TooLong(c.PromptField(), "%d tokens in the prompt and %d for the answer are more than the %d that this engine takes in all; shorten the prompt or lower max_tokens",
			len(ids), c.MaxTokens, e.Context())
	case c.MaxTokens == 0:
		c.MaxTokens = min(defaultOutput, room)
	}
	p.Scope.Model = e.cfg.Name // also where the request does not say
	root := prefix.Key(nil).Root(p.Scope)
	a := &answer{engine: e, ctx: ctx, prompt: len(ids), script: newScript(xxh3.HashSeed(p.Text, uint64(root)), c.MaxTokens, c.Stop)}
	chain := name(root, ids, e.cfg.BlockTokens)
	a.id, a.events, err = e.submit(c.Arrived, emulate.Job{Chain: chain, Tokens: a.prompt, Output: a.script.tokens}, told{chain, ids, p.Scope})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// read gives the prompt as a router reads it and as tokens: those of its text, which for
// a chat is that of its template, or the ids it consists of.
func (e *Engine) read(c *openai.Call) (p dialect.Request, ids []uint32, err error) {
	if c.Chat {
		if _, err := c.Messages(); err != nil {
			return p, nil, err
		}
	}
	at, _ := dialect.Lookup(c.Path)
	p, err = dialect.Read(at, c.Body)
	if err != nil || len(p.Text) == 0 {
		return p, nil, openai.BadRequest(c.PromptField(), "%s is missing or empty, or not of the type that OpenAI's API gives it", c.PromptField())
	}
	if c.Chat {
		text, err := e.template(c)
		return p, e.cut(text), err
	}
	text, given, err := c.Prompt()
	if err != nil {
		return p, nil, err
	}
	if given == nil {
		return p, e.cut(text), nil
	}
	for _, id := range given {
		if id < 0 {
			return p, nil, openai.BadRequest("prompt", "token %d is in no vocabulary", id)
		}
		ids = append(ids, uint32(id))
	}
	return p, ids, nil
}

// vectorSize is how many dimensions an embedding has.
const vectorSize = 64

// Embed gives noise, the same for the same input, at once. A text and the ids of
// its tokens are two inputs.
func (e *Engine) Embed(text string, ids []int32) (vector []float32, tokens int, err error) {
	tokens = len(ids)
	if ids == nil {
		tokens = len(e.cut(text))
	}
	if tokens > e.Context() {
		return nil, 0, openai.TooLong("input", "the input has %d tokens, and this engine takes %d; shorten it", tokens, e.Context())
	}
	noise := rand.New(rand.NewPCG(xxh3.HashString(fmt.Sprint(text, ids)), 0))
	vector = make([]float32, vectorSize)
	for i := range vector {
		vector[i] = float32(noise.NormFloat64())
	}
	return vector, tokens, nil
}

// An answer is one that waits its turn, or comes token by token.
type answer struct {
	engine *Engine
	ctx    context.Context
	id     uint64
	events job
	prompt int
	script script

	first emulate.Event // once it has happened
	next  int           // token that Next gives
	sent  int           // bytes of text
	err   error
}

// Next waits as long as the model says.
func (a *answer) Next() (text string, ok bool) {
	e := a.engine
	switch {
	case a.err != nil:
		return "", false
	case a.next == 0:
		if a.first, a.err = e.await(a.ctx, a.events); a.err == nil {
			e.count(counters{prompt: a.prompt, cached: a.first.Cached})
		}
	case a.next < a.script.tokens:
		a.err = e.pause(a.ctx, a.first.At.Add(e.scaled(e.cfg.Profile.Decode, a.next)))
	default:
		_, a.err = e.await(a.ctx, a.events)
	}
	if a.err != nil {
		e.leave(a.id)
	}
	if a.err != nil || a.next == a.script.tokens {
		return "", false
	}
	text = filler(a.script.seed, a.next)
	if a.script.bytes >= 0 {
		text = text[:min(len(text), a.script.bytes-a.sent)]
	}
	a.next, a.sent = a.next+1, a.sent+len(text)
	e.count(counters{generated: 1})
	return text, true
}

func (a *answer) Prompt() (tokens, cached int) { return a.prompt, a.first.Cached }

func (a *answer) Finish() (reason string, tokens int, err error) {
	return a.script.reason, a.next, a.err
}

// await waits for the next thing that happens to a request.
func (e *Engine) await(ctx context.Context, events job) (emulate.Event, error) {
	select {
	case event := <-events:
		return event, nil
	case <-ctx.Done():
		return emulate.Event{}, ctx.Err()
	case <-e.ended:
		return emulate.Event{}, openai.Unavailable(errClosed)
	}
}

// pause waits until at.
func (e *Engine) pause(ctx context.Context, at time.Time) error {
	left := time.Until(at)
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.ended:
		return openai.Unavailable(errClosed)
	}
}
