// Package emulated is an LLM server that computes nothing: it answers OpenAI's API
// when another machine's engine would, with filler for text.
//
// What it says of the cache and when it answers come from an emulate.Engine, the
// model that the simulator drives in virtual time; here one goroutine drives it by
// the clock, slowed or hurried by a factor. So a cluster of real processes on a
// laptop speaks of GPUs, and shows whether the simulator does.
//
// A prompt is counted in the tokens of cl100k_base, of its canonical text, and
// kept in blocks. Only prompts are kept: an answer that the next turn of a
// conversation repeats is prefilled like any other text. The time that this
// process takes to read a request and cut it into tokens passes inside the
// emulated time, not before it.
package emulated

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/engine/openai"
)

// Config says what an Engine emulates.
type Config struct {
	Profile     emulate.Profile // timings and capacity; required
	BlockTokens int             // of the cache, 1 to emulate.MaxBlockTokens; default 16
	TimeScale   float64         // real seconds to one of the profile: 0.05 is twenty times faster; default 1
	Name        string          // model id that clients see; default "emulated-" and the profile's name

	// TokenBytes is how much text counts as one token; 0 cuts text as cl100k_base
	// does. Synthetic text, made of common words alone, has too few of those for
	// its length.
	TokenBytes float64

	// Dialect is whose other pages the engine has beside OpenAI's API, and whose way
	// it has to tell what was cached: see Dialects. Empty: none, and all is told.
	Dialect string
	Bare    bool // started without the flags that have that engine tell it, and give its metrics

	// Publisher is told of each change of the cache, as vLLM tells of its own; nil:
	// nobody is. It is the caller's to close, after the engine.
	Publisher *kvevents.Publisher

	// QueueMax is the number of requests beyond a full batch that may wait for
	// their turn; one more is refused with 429. Default 64.
	QueueMax int
}

// withDefaults fills in what c leaves open, or reports everything that is wrong.
func (c Config) withDefaults() (Config, error) {
	problems := []error{c.Profile.Validate()}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	if c.BlockTokens == 0 {
		c.BlockTokens = 16
	}
	if c.TimeScale == 0 {
		c.TimeScale = 1
	}
	if c.Name == "" {
		c.Name = "emulated-" + c.Profile.Name
	}
	if c.QueueMax == 0 {
		c.QueueMax = 64
	}
	check(c.BlockTokens >= 1 && c.BlockTokens <= emulate.MaxBlockTokens, "blocks of %d tokens; choose 1 to %d", c.BlockTokens, emulate.MaxBlockTokens)
	check(c.TimeScale > 0 && c.TimeScale <= maxTimeScale, "a time scale of %g; choose above 0 to %d", c.TimeScale, maxTimeScale)
	check(c.TokenBytes == 0 || c.TokenBytes >= 1 && c.TokenBytes <= maxTokenBytes, "%g bytes to a token; choose 1 to %d, or 0 for those of cl100k_base", c.TokenBytes, maxTokenBytes)
	_, known := kinds[c.Dialect]
	check(known, "the dialect %q; choose one of %s", c.Dialect, strings.Join(Dialects(), ", "))
	check(c.QueueMax >= 1, "QueueMax is %d; give at least 1", c.QueueMax)
	return c, errors.Join(problems...)
}

const (
	maxTimeScale  = 1000
	maxTokenBytes = 64

	// maxContext is the most tokens that a prompt and its answer may have
	// together, where the cache holds as many.
	maxContext = 1 << 17
)

// Why a request has no answer.
var (
	errQueueFull = errors.New("the queue is full; try again in a moment")
	errClosed    = errors.New("the engine is shutting down")
)

// An Engine serves one emulated model. It is an http.Handler; see ServeHTTP.
type Engine struct {
	cfg     Config
	started time.Time

	wake  chan struct{} // holds one value when the driver has something to look at
	ended chan struct{} // closed when the driver has ended

	// mu guards what follows. It is never held across I/O.
	mu     sync.Mutex
	closed bool
	model  *emulate.Engine
	now    time.Time // up to which the model has been carried
	lastID uint64
	jobs   map[uint64]job
	told   map[uint64]told // of jobs, where there is a Publisher
	done   counters
}

// A job receives what happens to one request. Its channel has room for all of it.
type job chan emulate.Event

// Open starts an engine with a cold cache. The caller must Close it.
func Open(c Config) (*Engine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: c, started: time.Now(),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
		model: emulate.New(c.Profile, c.BlockTokens), jobs: map[uint64]job{}, told: map[uint64]told{},
	}
	if c.Publisher != nil {
		e.model.Record()
	}
	e.model.Slow(c.TimeScale)
	go e.drive()
	return e, nil
}

// Close ends all requests with an error and waits for the driver. It may be called
// again.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.poke()
	<-e.ended
	return nil
}

// Queue returns how many requests are here, running or waiting.
func (e *Engine) Queue() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.model.Queue()
}

// CapacityTokens is how many tokens the emulated cache holds.
func (e *Engine) CapacityTokens() int { return e.cfg.Profile.CapacityTokens }

// Context is the most tokens that a prompt and its answer may have together.
func (e *Engine) Context() int {
	return min(maxContext, e.cfg.Profile.CapacityTokens/kinds[e.cfg.Dialect].slots)
}

// drive carries the model along with the clock.
func (e *Engine) drive() {
	defer close(e.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return
		}
		e.carry(time.Now())
		next, busy := e.model.Next()
		e.mu.Unlock()
		var due <-chan time.Time
		if busy {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-due:
		case <-e.wake:
		}
	}
}

// carry takes the model to now and hands out what happened on the way.
func (e *Engine) carry(now time.Time) {
	if now.After(e.now) {
		e.now = now
	}
	var firsts []uint64
	happened := e.model.Step(e.now)
	for _, event := range happened {
		if event.Kind == emulate.FirstToken {
			firsts = append(firsts, event.ID)
		}
	}
	if e.cfg.Publisher != nil {
		e.publish(e.now, firsts)
	}
	for _, event := range happened {
		e.jobs[event.ID] <- event
		if event.Kind == emulate.Done {
			e.forget(event.ID)
		}
	}
}

func (e *Engine) forget(id uint64) {
	delete(e.jobs, id)
	delete(e.told, id)
}

// submit queues a request that came at arrived.
func (e *Engine) submit(arrived time.Time, j emulate.Job, t told) (id uint64, events job, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return 0, nil, openai.Unavailable(errClosed)
	case e.model.Queue() >= e.cfg.Profile.MaxBatch+e.cfg.QueueMax:
		return 0, nil, openai.Busy(errQueueFull)
	}
	e.carry(arrived)
	e.lastID++
	j.ID = e.lastID
	events = make(job, 2) // one of each emulate.Kind
	e.jobs[j.ID] = events
	if e.cfg.Publisher != nil {
		e.told[j.ID] = t
	}
	e.model.Submit(e.now, j)
	e.poke()
	return j.ID, events, nil
}

// leave gives up a request, if it is still here.
func (e *Engine) leave(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.jobs[id] == nil {
		return
	}
	e.carry(time.Now())
	e.model.Cancel(e.now, id)
	e.forget(id)
	e.poke()
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// scaled is how long n times d take here.
func (e *Engine) scaled(d time.Duration, n int) time.Duration {
	return time.Duration(float64(d) * e.cfg.TimeScale * float64(n))
}
