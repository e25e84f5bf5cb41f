package cases

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
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
var balanced = []string{"longest+pushback", "economic"}

// keeping is an engine that keeps what it was asked, and takes a millisecond for each
// token that it has to compute.
func keeping() func(*Request) Script {
	var mu sync.Mutex
	var seen [][]byte
	return func(r *Request) Script {
		mu.Lock()
		defer mu.Unlock()
		same := 0
		for _, s := range seen {
			n := 0
			for n < min(len(s), len(r.Body)) && s[n] == r.Body[n] {
				n++
			}
			same = max(same, n)
		}
		seen = append(seen, r.Body)
		tokens, cached := len(r.Body)/4, same/4
		s := JSON(200, fmt.Sprintf(`{"choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],`+
			`"usage":{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`, tokens, cached))
		s.Silence = 20*time.Millisecond + time.Duration(tokens-cached)*time.Millisecond
		return s
	}
}

// G56: one prompt that all share, asked one request at a time so that no two ever
// overlap, is soon held by all nodes and served by each for its own clients; what a
// client says next goes on where its conversation is.
func TestG56OneSharedPrompt(t *testing.T) {
	if testing.Short() {
		t.Skip("short: these are hundreds of requests")
	}
	for _, delay := range []time.Duration{0, 2 * time.Millisecond} {
		t.Run(fmt.Sprint("peers ", delay, " away"), func(t *testing.T) {
			virtual(t, 4, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
				for _, m := range c.members {
					m.engine.set(keeping())
				}
				question := func(i int) string {
					return long("shared", 128, fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i), byte(i >> 8)})))
				}
				served := c.spread(400, false, question)
				for _, name := range nodeNames {
					if n := served[name]; n > 200 {
						t.Errorf("%s served %d of 400: %v", name, n, served)
					}
				}
				at := ""
				for turn := range 5 {
					r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, long("shared", 128, strings.Repeat("what this client alone has said ", 64*(turn+1))))
					if turn > 0 && r.node() != at {
						t.Errorf("turn %d is served by %s, the one before by %s: %s", turn, r.node(), at, r.header.Get("Hearsay-Reason"))
					}
					at = r.node()
					time.Sleep(time.Second)
				}
			}, func(c *daemon.Config) { c.Mesh.LinkDelay = delay })
		})
	}
}

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
// and no address is favoured. By prices one moves now and then, from a node that has had
// more than others.
func TestG58EqualScores(t *testing.T) {
	if testing.Short() {
		t.Skip("short: these are hundreds of requests")
	}
	for _, name := range append([]string{"local", "longest"}, balanced...) {
		few := 0
		if name == "economic" {
			few = 10
		}
		t.Run(name, func(t *testing.T) {
			virtual(t, 4, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
				for name, n := range c.spread(400, false, func(i int) string { return long(fmt.Sprint("unique ", i), 4, "") }) {
					if n < 100-few || n > 100+few {
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
