package emulate

// Usage is what an engine has on its hands, as its metrics would say.
type Usage struct {
	Running       int // jobs admitted, the one in prefill included
	Waiting       int // jobs that are not
	RunningTokens int // of the prompts of the running
	WaitingTokens int
	Prefill       int // tokens to compute before every job here has its first: of prompts, and not cached
	Held          int // tokens of the cache that the running have in use or set aside
}

// Requests is how many jobs are here.
func (u Usage) Requests() int { return u.Running + u.Waiting }

// Usage tells what the engine has on its hands. It costs a look into the cache for
// each waiting job. A prefill that has begun counts in full until it ends.
func (e *Engine) Usage() Usage {
	u := Usage{
		Running: len(e.running), Waiting: len(e.waiting),
		Held: e.cache.pinned*e.blockTokens + int(e.reserved),
	}
	for _, r := range e.running {
		u.RunningTokens += r.job.Tokens
	}
	if p := e.prefill; p != nil {
		u.Prefill = p.job.Tokens - p.cached
	}
	for _, w := range e.waiting {
		u.WaitingTokens += w.job.Tokens
		u.Prefill += w.job.Tokens - e.found(w.job.Chain, w.job.Tokens)
	}
	return u
}
