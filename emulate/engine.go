// Package emulate says when an LLM engine would answer, without computing anything.
//
// An Engine keeps what decides an engine's timing: an exact prefix cache with
// least-recently-used eviction, in blocks, with the blocks of running requests
// pinned; a queue served first come, first served; continuous batching; and a
// Profile of measured timings. It is a state machine: Submit a Job, ask Next when
// something happens, Step to that time and read the events. The simulator drives
// it in virtual time and the emulated engine in real time, so both tell one story.
//
// The model, in full: one prefill runs at a time and takes Base plus PerToken for
// each token not found in the cache; a prompt's last token is always computed.
// Beside it, running requests decode one token each Decode, whatever the batch. A
// request is admitted when no prefill runs, fewer than MaxBatch requests run and
// its blocks fit beside those of the running; until then all behind it wait. Alone
// on the engine it takes exactly Base + PerToken*uncached + Decode*(Output-1).
package emulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

// MaxBlockTokens is the largest block: Mooncake's traces cut prompts at 512 tokens.
const MaxBlockTokens = 512

// A Job is one request to an engine.
type Job struct {
	ID     uint64       // unique among the jobs of an engine that are not done
	Chain  prefix.Chain // names the prompt's blocks, of the engine's block size; kept, not to be changed
	Tokens int          // of the prompt, at least 1
	Output int          // tokens to generate; below 1 counts as 1
}

// Kind says what happened to a job.
type Kind uint8

const (
	// FirstToken ends a job's prefill: its prompt's blocks can be found from now on.
	FirstToken Kind = iota
	// Done ends a job. At Output 1 it follows FirstToken at once.
	Done
)

// An Event is something that happened to a job.
type Event struct {
	ID     uint64
	Kind   Kind
	At     time.Time
	Cached int // prompt tokens that its prefill found cached
}

// A Change is one of the cache: a block can be found from now on, or no longer.
type Change struct {
	Block  prefix.Hash
	Stored bool
}

// An Engine emulates one LLM server. It is not safe for concurrent use. Create it
// with New.
type Engine struct {
	profile     Profile
	blockTokens int
	slow        float64 // every duration is multiplied by it

	cache   cache
	waiting []waiter
	running []*run // in order of admission; the last one may be in prefill
	prefill *run   // nil when none runs
	// reserved is what the running have set aside in all, in tokens.
	reserved int64
}

type waiter struct {
	job Job
	at  time.Time // when it was submitted
}

// A run is an admitted job.
type run struct {
	job        Job
	cached     int       // tokens
	held       int       // leading blocks of the chain that it has pinned
	reserved   int64     // tokens of the cache set aside for it, beyond the pinned
	first, end time.Time // of its first token, of its last
}

// New returns an idle engine with a cold cache, whose blocks have blockTokens
// tokens, 1 to MaxBlockTokens. It panics when the profile is not valid.
func New(p Profile, blockTokens int) *Engine {
	if err := p.Validate(); err != nil {
		panic(fmt.Sprintf("emulate: %v", err))
	}
	if blockTokens < 1 || blockTokens > MaxBlockTokens {
		panic(fmt.Sprintf("emulate: blocks of %d tokens; choose 1 to %d", blockTokens, MaxBlockTokens))
	}
	e := &Engine{profile: p, blockTokens: blockTokens, slow: 1}
	e.cache.reset()
	return e
}

// Submit queues a job at now, which must not lie before the last Step. The job may
// start at once: ask Next again.
func (e *Engine) Submit(now time.Time, j Job) {
	j.Tokens, j.Output = max(j.Tokens, 1), max(j.Output, 1)
	e.waiting = append(e.waiting, waiter{j, now})
	e.admit(now)
}

// Cancel drops a job that its client no longer wants and reports whether it was
// there. What its prefill had computed is lost.
func (e *Engine) Cancel(now time.Time, id uint64) bool {
	if i := slices.IndexFunc(e.waiting, func(w waiter) bool { return w.job.ID == id }); i >= 0 {
		e.waiting = slices.Delete(e.waiting, i, i+1)
		e.admit(now)
		return true
	}
	i := slices.IndexFunc(e.running, func(r *run) bool { return r.job.ID == id })
	if i < 0 {
		return false
	}
	e.finish(i)
	e.admit(now)
	return true
}

// Next returns when something happens next, if anything does.
func (e *Engine) Next() (at time.Time, ok bool) {
	_, at = e.next()
	return at, !at.IsZero()
}

// Step carries the engine to now and returns what happened on the way, in order.
func (e *Engine) Step(now time.Time) []Event {
	var events []Event
	for {
		i, at := e.next()
		if i < 0 || at.After(now) {
			return events
		}
		r := e.running[i]
		if r == e.prefill {
			e.prefill = nil
			e.keep(r)
			events = append(events, Event{r.job.ID, FirstToken, at, r.cached})
		}
		if !r.end.After(at) {
			e.finish(i)
			events = append(events, Event{r.job.ID, Done, at, r.cached})
		}
		e.admit(at)
	}
}

// Queue returns how many jobs are here, running or waiting.
func (e *Engine) Queue() int { return len(e.waiting) + len(e.running) }

// Running returns how many of them run.
func (e *Engine) Running() int { return len(e.running) }

// Match returns how many leading blocks of c are cached.
func (e *Engine) Match(c prefix.Chain) int { return c.Longest(e.cache.has) }

// Tokens returns the tokens of all cached blocks.
func (e *Engine) Tokens() int { return e.cache.len() * e.blockTokens }

// Load puts c into the cache as though it had been computed, as when its KV cache
// comes from elsewhere.
func (e *Engine) Load(c prefix.Chain) {
	held := e.cache.insert(c, 0, int(max(0, e.room())/int64(e.blockTokens)))
	e.cache.release(c[:held])
	e.makeRoom()
}

// Restart loses the cache and all jobs, whose IDs it returns in order.
func (e *Engine) Restart() []uint64 {
	lost := make([]uint64, 0, e.Queue())
	for _, r := range e.running {
		lost = append(lost, r.job.ID)
	}
	for _, w := range e.waiting {
		lost = append(lost, w.job.ID)
	}
	e.cache.reset()
	e.running, e.waiting, e.prefill, e.reserved = nil, nil, nil, 0
	return lost
}

// Record has the engine note what changes in its cache from now on, for Changes. A
// restart is no change: all blocks are gone.
func (e *Engine) Record() { e.cache.record = true }

// Changes returns what has changed since it was last called, in order.
func (e *Engine) Changes() []Change {
	changes := e.cache.changes
	e.cache.changes = nil
	return changes
}

// Slow makes whatever begins from now on take factor times as long; 1 is normal.
func (e *Engine) Slow(factor float64) { e.slow = factor }

// Wait estimates when a job submitted at now would have its first token, from
// what is cached now. It leaves MaxBatch and the room in the cache out of account.
func (e *Engine) Wait(now time.Time, c prefix.Chain, tokens int) time.Duration {
	total := e.prefillTime(tokens, e.found(c, tokens))
	if e.prefill != nil {
		total += max(0, e.prefill.first.Sub(now))
	}
	for _, w := range e.waiting {
		total += e.prefillTime(w.job.Tokens, e.found(w.job.Chain, w.job.Tokens))
	}
	return total
}

// next returns the running job to which something happens first, and when.
func (e *Engine) next() (i int, at time.Time) {
	i = -1
	for j, r := range e.running {
		t := r.end
		if r == e.prefill {
			t = r.first
		}
		if i < 0 || t.Before(at) {
			i, at = j, t
		}
	}
	return i, at
}

// admit starts the oldest waiting job if it can start at now.
func (e *Engine) admit(now time.Time) {
	if e.prefill != nil || len(e.waiting) == 0 || len(e.running) >= e.profile.MaxBatch {
		return
	}
	j := e.waiting[0].job
	held, idle := e.cache.match(j.Chain)
	need := int64(max(j.Tokens, len(j.Chain)*e.blockTokens) - held*e.blockTokens + j.Output - 1)
	room := e.room() - int64(idle)*int64(e.blockTokens)
	if need > room && len(e.running) > 0 {
		return
	}
	e.waiting = slices.Delete(e.waiting, 0, 1)
	e.cache.pin(j.Chain[:held])
	r := &run{job: j, held: held, cached: min(held*e.blockTokens, j.Tokens-1), reserved: min(need, max(room, 0))}
	r.first = now.Add(e.prefillTime(j.Tokens, r.cached))
	r.end = r.first.Add(e.scaled(e.profile.Decode, j.Output-1))
	e.reserved += r.reserved
	e.running, e.prefill = append(e.running, r), r
	e.makeRoom()
}

// keep makes the prompt of a finished prefill findable, in the room that was set
// aside for it. A prompt too long for the cache leaves its head.
func (e *Engine) keep(r *run) {
	before := e.cache.pinned
	room := min(r.reserved, e.room()+r.reserved) / int64(e.blockTokens)
	r.held = e.cache.insert(r.job.Chain, r.held, int(room))
	taken := int64(e.cache.pinned-before) * int64(e.blockTokens)
	left := min(int64(max(0, r.job.Tokens-len(r.job.Chain)*e.blockTokens)+r.job.Output-1), r.reserved-taken)
	e.reserved += left - r.reserved
	r.reserved = left
	e.makeRoom()
}

// finish takes out the i-th running job; its blocks become the most recent.
func (e *Engine) finish(i int) {
	r := e.running[i]
	e.running = slices.Delete(e.running, i, i+1)
	if e.prefill == r {
		e.prefill = nil
	}
	e.reserved -= r.reserved
	e.cache.release(r.job.Chain[:r.held])
}

// room is how many tokens could be had by evicting everything not in use.
func (e *Engine) room() int64 {
	return int64(e.profile.CapacityTokens) - int64(e.cache.pinned)*int64(e.blockTokens) - e.reserved
}

// makeRoom evicts until what is cached leaves free what is reserved.
func (e *Engine) makeRoom() {
	for int64(e.Tokens())+e.reserved > int64(e.profile.CapacityTokens) && e.cache.evict() {
	}
}

func (e *Engine) found(c prefix.Chain, tokens int) int {
	return min(e.Match(c)*e.blockTokens, max(tokens, 1)-1)
}

func (e *Engine) prefillTime(tokens, cached int) time.Duration {
	return e.scaled(e.profile.Base, 1) + e.scaled(e.profile.PerToken, max(tokens, 1)-cached)
}

func (e *Engine) scaled(d time.Duration, n int) time.Duration {
	if e.slow == 1 {
		return d * time.Duration(n)
	}
	return time.Duration(float64(d) * e.slow * float64(n))
}
