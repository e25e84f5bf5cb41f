package emulate

import "testing"

// Usage tells of a job in prefill and of one that waits for it, of which half is cached.
func TestUsage(t *testing.T) {
	e := New(test, 16)
	c := chain(1, 0, 0, 4)
	e.Submit(start, Job{ID: 1, Chain: c[:2], Tokens: 32, Output: 1})
	drain(e)
	if u := e.Usage(); u != (Usage{}) {
		t.Errorf("idle: %+v", u)
	}
	e.Submit(start, Job{ID: 2, Chain: c[:2], Tokens: 40, Output: 9}) // 32 tokens cached
	e.Submit(start, Job{ID: 3, Chain: c, Tokens: 64, Output: 1})     // the same, of 64
	want := Usage{Running: 1, Waiting: 1, RunningTokens: 40, WaitingTokens: 64, Prefill: 8 + 32, Held: 40 + 8}
	if u := e.Usage(); u != want || u.Requests() != 2 {
		t.Errorf("%+v, want %+v", u, want)
	}
}
