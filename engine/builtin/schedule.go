package builtin

import "slices"

// prefillTokens is the number of prompt tokens that one step computes at most,
// over all sequences. It bounds how long a step keeps answers in progress
// waiting for their next token: 6 ms with the default model, 30 where the
// prompt is 5,000 tokens long.
const prefillTokens = 64

// A scheduler is the one goroutine that computes. Each step computes one token
// of every answer in progress and a bounded stretch of prefill, oldest sequence
// first, and then inserts the pages it filled into the radix tree.
type scheduler struct {
	e       *Engine
	cache   *cache
	waiting []*sequence // in order of arrival; the preempted in front
	running []*sequence // in order of admission
	planned []*sequence // those that compute in this step
	logits  []float32   // a row for each of them
	scratch scratch
}

func newScheduler(e *Engine) *scheduler {
	return &scheduler{e: e, cache: newCache(e.kvTokens/pageTokens, e.model.pageFloats())}
}

// run steps as long as there is work, and sleeps when there is none.
func (s *scheduler) run() {
	defer close(s.e.done)
	for s.collect() {
		if len(s.waiting)+len(s.running) == 0 {
			s.planned = nil // holds on to requests
			<-s.e.wake
			continue
		}
		s.step()
	}
	for _, q := range slices.Concat(s.running, s.waiting) {
		q.end(s.cache, "", ErrClosed)
	}
}

// collect takes over what arrived, publishes the load, and says whether to go on.
func (s *scheduler) collect() bool {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.waiting = append(s.waiting, s.e.arrived...)
	s.e.arrived = nil
	s.e.waiting = len(s.waiting)
	s.e.load.Running = len(s.running)
	s.e.load.KVTokensUsed = s.cache.used() * pageTokens
	s.e.load.PrefillTokens = 0
	for _, q := range s.waiting {
		s.e.load.PrefillTokens += len(q.tokens)
	}
	for _, q := range s.running {
		if left := q.left(); left > 1 {
			s.e.load.PrefillTokens += left
		}
	}
	return !s.e.closed
}

// step advances the batch. Sequences whose request was cancelled leave first.
func (s *scheduler) step() {
	gone := func(q *sequence) bool {
		if q.ctx.Err() == nil {
			return false
		}
		q.end(s.cache, "", q.ctx.Err())
		return true
	}
	s.running = slices.DeleteFunc(s.running, gone)
	s.waiting = slices.DeleteFunc(s.waiting, gone)
	s.admit()
	s.plan()
	if len(s.planned) == 0 {
		return // all were cancelled
	}
	vocab := s.e.model.vocab
	logits := grow(&s.logits, len(s.planned)*vocab)
	runs := make([]run, len(s.planned))
	for i, q := range s.planned {
		runs[i] = run{tokens: q.tokens[q.pos : q.pos+q.planned], pos: q.pos, pages: q.pages()}
		if q.planned == q.left() {
			runs[i].logits = logits[i*vocab:][:vocab]
		}
	}
	s.e.model.forward(&s.scratch, runs)
	for i, q := range s.planned {
		q.advance(s.cache)
		if runs[i].logits != nil {
			q.answer(s.cache, s.e.tok, runs[i].logits)
		}
	}
	s.running = slices.DeleteFunc(s.running, func(q *sequence) bool { return q.ended })
}

// admit lets waiting sequences join in order, while the cache can hold the rest
// of every prompt it has let in; what answers need beyond comes from eviction
// and, at last, preemption.
func (s *scheduler) admit() {
	promised := 0
	for _, q := range s.running {
		promised += q.pagesFor(len(q.tokens)) - q.held()
	}
	for len(s.waiting) > 0 && len(s.running) < s.e.maxBatch {
		q := s.waiting[0]
		q.reuse(s.cache)
		need := q.pagesFor(len(q.tokens)) - q.held()
		if promised+need > s.cache.available() {
			q.leave(s.cache)
			return
		}
		promised += need
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.running = append(s.running, q)
	}
}

// plan decides how many tokens each sequence computes in this step and gets the
// pages for them. Where none is left, the youngest sequence is put back into
// the queue: the oldest always goes on, so there is no deadlock.
func (s *scheduler) plan() {
	s.planned = s.planned[:0]
	budget := prefillTokens
	for i := 0; i < len(s.running); i++ {
		q := s.running[i]
		q.reuse(s.cache)
		q.planned = q.left()
		if q.planned > 1 {
			if budget == 0 || q.follows(s.planned) {
				continue
			}
			q.planned = min(q.planned, budget)
		}
		if !s.provide(q) {
			break // q itself was put back, and is the last
		}
		if q.left() > 1 {
			budget -= q.planned
		}
		s.planned = append(s.planned, q)
	}
}

// provide gets q the pages for what it plans to compute. False means that q was
// put back: it is the youngest, and the others hold all pages.
func (s *scheduler) provide(q *sequence) bool {
	for q.held() < q.pagesFor(q.pos+q.planned) {
		if page := s.cache.alloc(); page != nil {
			q.tail = append(q.tail, page)
			continue
		}
		youngest := s.running[len(s.running)-1]
		s.running = s.running[:len(s.running)-1]
		youngest.leave(s.cache)
		s.waiting = slices.Insert(s.waiting, 0, youngest)
		if youngest == q {
			return false
		}
	}
	return true
}
