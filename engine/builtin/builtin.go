// Package builtin is a small LLM server in plain Go: a Llama-architecture
// transformer with a paged KV cache that sequences share through a radix tree,
// continuous batching, and the OpenAI API over HTTP.
//
// Its numerics are batch-invariant. Every value is summed in one order,
// whatever else is in the batch, however a prefill is cut into steps, and
// whether a prefix was cached or computed; so an answer at temperature 0, or
// with a seed, has the same bytes on every engine with the same model and CPU
// features. What a cache does is only time.
//
// An Engine is the scheduler goroutine and what it owns: the cache, the running
// sequences and the scratch memory. Requests reach it through a bounded queue
// and are answered through a channel each. It reads the clock for the created
// field of answers only.
package builtin

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Config says what an Engine serves and how much it may hold.
type Config struct {
	// Model is a GGUF file, a llama2.c .bin file, "random:DIMxLAYERS" for
	// weights of that size that are the same each time, or empty for the
	// project's own tiny English model.
	Model string
	// Tokenizer is the tokenizer.bin of a llama2.c model; default: the file of
	// that name beside the model.
	Tokenizer string
	// Name is the model id that clients see; default: "hearsay-tiny", or the
	// model's file name without its extension.
	Name string
	// KVTokens is the capacity of the KV cache in tokens, rounded down to whole
	// pages of 16. Memory is taken page by page as it is first used, 3 KiB a
	// token with the default model. Default 32768.
	KVTokens int
	// Context is the most tokens a prompt and its answer may have together;
	// default: what the model was trained to, and 8192 for the model of our own,
	// which was trained to 2048 and promises little beyond.
	Context int
	// MaxBatch is the number of sequences that run at once. Default 16.
	MaxBatch int
	// QueueMax is the number of requests beyond a full batch that may wait for
	// their turn; one more is refused with 429. Default 64.
	QueueMax int
}

// withDefaults fills in what c leaves open, or reports everything that is wrong.
func (c Config) withDefaults() (Config, error) {
	var wrong []error
	positive := func(name string, v *int, def, least int) {
		if *v == 0 {
			*v = def
		}
		if *v < least {
			wrong = append(wrong, fmt.Errorf("%s is %d; give at least %d", name, *v, least))
		}
	}
	positive("KVTokens", &c.KVTokens, 32768, pageTokens)
	positive("MaxBatch", &c.MaxBatch, 16, 1)
	positive("QueueMax", &c.QueueMax, 64, 1)
	if c.Context < 0 {
		wrong = append(wrong, fmt.Errorf("Context is %d; give a number of tokens", c.Context))
	}
	return c, errors.Join(wrong...)
}

// An Engine serves one model. It is an http.Handler; see ServeHTTP.
type Engine struct {
	model    *model
	tok      *tokenizer
	name     string
	context  int
	kvTokens int
	maxBatch int
	queueMax int
	started  time.Time

	wake chan struct{} // holds one token when the scheduler has something to look at
	done chan struct{} // closed when the scheduler has ended

	mu      sync.Mutex
	closed  bool
	arrived []*sequence // submitted since the scheduler looked
	waiting int         // sequences that wait, the arrived included
	load    Load        // as of the last step
}

// Load is what an engine is doing.
type Load struct {
	Running       int // sequences in the batch
	Waiting       int // requests that wait to join it
	PrefillTokens int // prompt tokens still to compute, of both, before the cache is asked for those that wait
	KVTokensUsed  int // tokens of KV memory that hold something, cached or in use
	KVTokens      int // capacity
}

// Open loads the model and starts the engine. The caller must Close it. An error
// names the file, what was found in it and what is supported.
func Open(c Config) (*Engine, error) {
	e, err := newEngine(c)
	if err != nil {
		return nil, err
	}
	go newScheduler(e).run()
	return e, nil
}

// newEngine is Open without the scheduler.
func newEngine(c Config) (*Engine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	m, tok, name, err := loadModel(c.Model, c.Tokenizer)
	if err != nil {
		return nil, err
	}
	limit := m.context
	if c.Model == "" {
		limit = tinyContext
	}
	if c.Context > limit {
		return nil, fmt.Errorf("context of %d tokens: the model %s is made for at most %d", c.Context, name, limit)
	}
	e := &Engine{
		model: m, tok: tok, name: name, context: limit,
		kvTokens: c.KVTokens / pageTokens * pageTokens, maxBatch: c.MaxBatch, queueMax: c.QueueMax,
		started: time.Now(), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if c.Context > 0 {
		e.context = c.Context
	}
	if c.Name != "" {
		e.name = c.Name
	}
	e.load.KVTokens = e.kvTokens
	return e, nil
}

// Close ends all requests with an error and waits for the scheduler, which
// finishes the step it is in. It may be called again.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.poke()
	<-e.done
	return nil
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Load reports what the engine was doing after its last step. It is cheap, and
// safe from any goroutine.
func (e *Engine) Load() Load {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.load
	l.Waiting = e.waiting
	for _, s := range e.arrived {
		l.PrefillTokens += len(s.tokens)
	}
	return l
}

// Models lists the ids that requests may name: one.
func (e *Engine) Models() []string { return []string{e.name} }

// Context is the most tokens that a prompt and its answer may have together.
func (e *Engine) Context() int { return min(e.context, e.kvTokens) }

// Encode gives the tokens of text as a prompt, with the model's beginning.
func (e *Engine) Encode(text string) []int32 { return e.tok.prompt(text) }
