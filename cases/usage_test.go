package cases

import "testing"

// G13: a node asks the engine for no more than its client does, so no client gets an
// event that it did not ask for.
func TestG13UsageNotAskedFor(t *testing.T) {
	s := Stream(event("hi"), finish, done)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		const body = `{"model":"m-test","messages":[{"role":"user","content":"hello"}],"stream":true,"max_tokens":8}`
		c.wantWhole(c.post(body), s)
		c.wantAsked(body)
	})
}

// wantAsked sees that the engine got these bytes, once.
func (c *cluster) wantAsked(body string) {
	c.t.Helper()
	asked := c.served().asked()
	if len(asked) != 1 {
		c.t.Fatalf("the engine was asked %d times", len(asked))
	}
	if got := string(asked[0].Body); got != body {
		c.t.Errorf("the engine got %s, want %s", excerpt(got), excerpt(body))
	}
}

// G14: the last event of a stream with usage has no choices. It is passed on, and
// the node counts what it says.
func TestG14UsageAskedFor(t *testing.T) {
	s := Stream(event("hi"), finish, usage, done)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		const body = `{"model":"m-test","messages":[{"role":"user","content":"hello"}],"stream":true,"stream_options":{"include_usage":true}}`
		c.wantWhole(c.post(body), s)
		c.wantAsked(body)
		m := c.metrics(c.at)
		if m["hearsay_prompt_tokens_total"] != 9 || m["hearsay_actual_cached_tokens_total"] != 4 {
			t.Errorf("counted %v prompt tokens and %v cached ones, want 9 and 4", m["hearsay_prompt_tokens_total"], m["hearsay_actual_cached_tokens_total"])
		}
	})
}
