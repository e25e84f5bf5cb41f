package cases

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// nodeNames are those of a cluster of four.
var nodeNames = []string{"A", "B", "C", "D"}

// spread asks the nodes of a cluster in turn, n requests in all, at once or one after
// the other, and counts who served them.
func (c *cluster) spread(n int, atOnce bool, body func(i int) string) map[string]int {
	c.t.Helper()
	served := map[string]int{}
	answers := make(chan reply, n)
	for i := range n {
		ask := func() {
			answers <- c.askAt(c.t.Context(), nodeNames[i%len(c.members)], http.MethodPost, chatPath, body(i))
		}
		if atOnce {
			go ask()
		} else {
			ask()
			time.Sleep(10 * time.Millisecond)
		}
	}
	for range n {
		r := <-answers
		if r.status != 200 {
			c.t.Errorf("%d %v %s", r.status, r.err, r.body)
		}
		served[r.node()]++
	}
	return served
}

// balanced are the policies that weigh load against caches.
var balanced = []string{"longest+pushback"}

// G57: when many ask for one new prefix at once, no node gets most of them, and the
// second time those who hold it share.
func TestG57EveryoneAtOnce(t *testing.T) {
	prefill := JSON(200, silent)
	prefill.Silence = time.Second
	for _, name := range balanced {
		t.Run(name, func(t *testing.T) {
			virtual(t, 4, always(prefill), func(t *testing.T, c *cluster) {
				for _, when := range []string{"first", "second"} {
					served := c.spread(64, true, func(i int) string { return long("new", 128, fmt.Sprint(i)) })
					for _, name := range nodeNames {
						if n := served[name]; n > 32 {
							t.Errorf("%s time: %s served %d of 64: %v", when, name, n, served)
						}
					}
					time.Sleep(10 * time.Second)
				}
			}, policy(t, name))
		})
	}
}

// G58: where nothing speaks for one node, a request stays where it came in: no name
// and no address is favoured.
func TestG58EqualScores(t *testing.T) {
	for _, name := range append([]string{"local", "longest"}, balanced...) {
		t.Run(name, func(t *testing.T) {
			virtual(t, 4, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
				for name, n := range c.spread(400, false, func(i int) string { return long(fmt.Sprint("unique ", i), 4, "") }) {
					if n != 100 {
						t.Errorf("%s served %d of 400", name, n)
					}
				}
			}, policy(t, name))
		})
	}
}

// G59: what busy engines say of coming back is passed on, and is held against nobody.
func TestG59BusyEngines(t *testing.T) {
	busy := JSON(429, `{"error":{"message":"too many requests","type":"rate_limit_error","code":"rate_limited"}}`).With("Retry-After: 7", "X-RateLimit-Reset-Requests: 7s")
	eachWay(t, always(busy), func(t *testing.T, c *cluster) {
		c.anyone = true // another engine may be free
		for range 5 {
			r := c.post(chat)
			if r.status != 429 || string(r.body) != busy.Body() || r.header.Get("Retry-After") != "7" || r.header.Get("X-Ratelimit-Reset-Requests") != "7s" {
				t.Errorf("%d %v %s", r.status, r.header, r.body)
			}
		}
		for _, at := range []string{"A", "B"} {
			if n := c.failures(at); n > 0 {
				t.Errorf("%s holds %d of them against an engine", at, n)
			}
		}
		time.Sleep(10 * time.Second)
		for _, m := range c.members {
			m.engine.set(always(JSON(200, answer)))
		}
		c.wantWhole(c.post(chat), JSON(200, answer))
	})
}

// G60: nodes that each believe the other to be the best forward once, and not back,
// also when neither has room.
func TestG60NoLoops(t *testing.T) {
	stuck := Script{End: Stuck}
	each := func(c *daemon.Config) {
		c.Node.Policy = toward(map[string]string{"A": "B", "B": "A"}[c.Node.Name])
		c.InFlightMax = 2
	}
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		for _, at := range []string{"A", "B"} {
			if r := c.askAt(t.Context(), at, http.MethodPost, chatPath, chat); r.status != 200 || r.node() == at || r.hops() != "1" {
				t.Errorf("asked at %s: %d from %s after %s hops", at, r.status, r.node(), r.hops())
			}
		}
		for _, m := range c.members {
			m.engine.set(always(stuck))
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range 4 {
			go c.askAt(ctx, nodeNames[i%2], http.MethodPost, chatPath, chat)
		}
		synctest.Wait()
		asked := len(c.members["A"].engine.asked()) + len(c.members["B"].engine.asked())
		wantError(t, c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat), 429, "queue_full")
		if n := len(c.members["A"].engine.asked()) + len(c.members["B"].engine.asked()); n != asked || n != 6 {
			t.Errorf("the engines were asked %d times, then %d", asked, n)
		}
	}, each)
}

// G61: no client waits behind another: a node keeps no queue, and what it has no room
// for runs elsewhere.
func TestG61NoQueue(t *testing.T) {
	stuck := Script{End: Stuck}
	virtual(t, 2, always(stuck), func(t *testing.T, c *cluster) {
		c.members["B"].engine.set(always(JSON(200, answer)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			go c.askAt(ctx, "A", http.MethodPost, chatPath, chat)
		}
		synctest.Wait()
		begun := time.Now()
		if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat); r.status != 200 || r.node() != "B" || time.Since(begun) > 0 {
			t.Errorf("%d from %q after %v", r.status, r.node(), time.Since(begun))
		}
	}, policy(t, "local"), func(c *daemon.Config) { c.InFlightMax = 2 })
}
