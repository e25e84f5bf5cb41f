package cases

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/route"
)

// G63: what must not run twice does not, on a kept connection either.
func TestG63NoHiddenReplay(t *testing.T) {
	eachWay(t, always(Script{End: Broken}), func(t *testing.T, c *cluster) {
		time.Sleep(5 * time.Second)
		wantError(t, c.ask(t.Context(), http.MethodPost, "/v1/responses", `{"model":"m-test","input":"x","store":true}`), 502, "engine_unavailable")
		if n := len(c.served().asked()); n != 1 {
			t.Errorf("the engine was asked %d times, want 1", n)
		}
	})
}

// unlessPaused sends all to one node while that has not asked for a pause.
type unlessPaused struct{ toward }

func (p unlessPaused) Choose(cands []route.Candidate, rng *rand.Rand) (int, string) {
	i, reason := p.toward.Choose(cands, rng)
	if cands[i].Paused {
		i, reason = slices.IndexFunc(cands, func(c route.Candidate) bool { return c.Self }), "the other is paused"
	}
	return i, reason
}

// G59: a peer whose engine asks to be left alone is, for as long as it says.
func TestG59RetryAfterIsObeyed(t *testing.T) {
	busy := JSON(429, `{"error":{"message":"too many requests"}}`).With("Retry-After: 7")
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.served().set(always(busy))
		for range 6 {
			if r := c.post(chat); r.status != 200 || r.node() != "A" {
				t.Errorf("%d from %q", r.status, r.node())
			}
			time.Sleep(time.Second)
		}
		if n := len(c.served().asked()); n != 1 {
			t.Errorf("B's engine was asked %d times within its 7 s", n)
		}
	}, func(c *daemon.Config) { c.Node.Policy = unlessPaused{"B"} })
}

// G45: a stuck engine is found out over a hop of any length.
func TestG45StuckBehindALongHop(t *testing.T) {
	virtual(t, 2, always(Script{End: Stuck}), func(t *testing.T, c *cluster) {
		c.members["A"].engine.set(always(JSON(200, answer)))
		for range 3 {
			wantError(t, c.post(chat), 504, "timeout")
			time.Sleep(time.Minute)
		}
		if state := c.state("B", "A"); state != "down" {
			t.Errorf("B is %s", state)
		}
	}, sendTo("B"), func(c *daemon.Config) { c.FirstByteTimeout, c.Mesh.LinkDelay = 10*time.Second, 20*time.Millisecond })
}
