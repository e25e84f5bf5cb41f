package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
)

func TestMain(m *testing.M) {
	// memberlist's last probe ends some seconds after its Shutdown.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// stubs gives each node a stub engine, and keeps them by node.
type stubs map[string]*stubEngine

func (s stubs) engineOf(name string) http.RoundTripper {
	s[name] = &stubEngine{name: name}
	return s[name].transport()
}

func longest(c *Config) { c.Node.Policy = route.Longest{} }

// One poll after a prefix was served at one node, every other node sends
// requests with that prefix there, one hop away, and says what it expected.
func TestRequestsFollowThePrefix(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 4, s.engineOf, longest)
		law := prompt("law", 40)
		if r := c.complete("n2", law); r.status != 200 || r.header.Get(nodeHeader) != "n2" || r.header.Get(hopsHeader) != "0" {
			t.Fatalf("first: %d %v", r.status, r.header)
		}
		time.Sleep(time.Second)
		for _, at := range []string{"n1", "n3", "n4", "n2"} {
			r := c.complete(at, law+"one more question")
			hops := "1"
			if at == "n2" {
				hops = "0"
			}
			if r.header.Get(nodeHeader) != "n2" || r.header.Get(hopsHeader) != hops || !strings.Contains(string(r.body), "ok from n2") {
				t.Errorf("%s: served by %s after %s hops: %s", at, r.header.Get(nodeHeader), r.header.Get(hopsHeader), r.body)
			}
			expected, _ := strconv.Atoi(r.header.Get(expectedHeader))
			if want := len(law) / 64 * 64 / stubToken; expected < want-1 || expected > want+1 {
				t.Errorf("%s expected %d tokens, want about %d", at, expected, want)
			}
		}
		if total := s["n1"].count() + s["n3"].count() + s["n4"].count(); total != 0 {
			t.Errorf("other engines served %d requests", total)
		}
	})
}

// Whatever a peer does before the first byte of a body, the client gets an
// answer, at last from the node that it asked.
func TestFailuresBeforeTheFirstByteCostNoAnswer(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter) bool{
		"status 500": func(w http.ResponseWriter) bool { w.WriteHeader(500); return true },
		"status 503": func(w http.ResponseWriter) bool { w.WriteHeader(503); return true },
		"status 429": func(w http.ResponseWriter) bool { w.WriteHeader(429); return true },
		"cut in a whole answer": func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"half":`)
			panic(http.ErrAbortHandler)
		},
		"cut after the headers": func(w http.ResponseWriter) bool {
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := stubs{}
				c := newCluster(t, 3, s.engineOf, longest)
				c.complete("n2", prompt("law", 40))
				time.Sleep(time.Second)
				s["n2"].fail = fail
				r := c.complete("n1", prompt("law", 40))
				if r.status != 200 || r.err != nil || r.header.Get(nodeHeader) != "n1" || !strings.Contains(string(r.body), "ok from n1") {
					t.Errorf("%d %v %s", r.status, r.err, r.body)
				}
			})
		})
	}
}

// A peer that dies is not asked again after the first failure, and a request
// that waits for it is served elsewhere.
func TestPeerDiesDuringAForward(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].prefill = time.Minute
		go func() {
			time.Sleep(100 * time.Millisecond)
			c.kill("n2")
		}()
		begun := time.Now()
		r := c.complete("n1", prompt("law", 40))
		if r.status != 200 || r.header.Get(nodeHeader) != "n1" || time.Since(begun) > time.Second {
			t.Errorf("%d from %q after %v: %v", r.status, r.header.Get(nodeHeader), time.Since(begun), r.err)
		}
		if r := c.complete("n1", prompt("law", 40)+"again"); r.header.Get(nodeHeader) == "n2" {
			t.Error("the dead peer was asked again")
		}
		s["n2"].prefill = 0
		time.Sleep(time.Minute)
	})
}

// A peer that is cut off, so that no packet comes back, is given up when its
// heartbeat stops (section 3.3 of the paper); a long prefill of a peer that
// still speaks is not.
func TestHeartbeatBoundsTheWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)

		s["n2"].prefill = 30 * time.Second
		begun := time.Now()
		if r := c.complete("n1", prompt("law", 40)); r.header.Get(nodeHeader) != "n2" || time.Since(begun) < 30*time.Second {
			t.Errorf("a long prefill was given up: served by %s after %v", r.header.Get(nodeHeader), time.Since(begun))
		}
		go func() {
			time.Sleep(100 * time.Millisecond)
			c.network.Cut(host("n2"))
		}()
		begun = time.Now()
		r := c.complete("n1", prompt("law", 40))
		if waited := time.Since(begun); r.status != 200 || r.header.Get(nodeHeader) == "n2" || waited > 3*time.Second {
			t.Errorf("%d from %q after %v", r.status, r.header.Get(nodeHeader), waited)
		}
		c.network.Heal()
		time.Sleep(time.Minute)
		c.settle()
	})
}

// After the first byte nothing is retried: the client sees that the answer
// broke off.
func TestBrokenStreamIsSeen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].between = 100 * time.Millisecond
		go func() {
			time.Sleep(time.Second)
			c.kill("n2")
		}()
		body := strings.Replace(completionBody(prompt("law", 40), 100), "{", `{"stream":true,`, 1)
		r := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", body)
		if r.err == nil || strings.Contains(string(r.body), "[DONE]") || !strings.Contains(string(r.body), "n20") {
			t.Errorf("err %v, body %q", r.err, r.body)
		}
		if strings.Contains(string(r.body), "n10") {
			t.Error("the stream was started again")
		}
		time.Sleep(time.Minute)
	})
}

// A client that leaves frees the engine, one hop away too, within a second.
func TestCancelReachesTheEngine(t *testing.T) {
	for _, phase := range []string{"prefill", "stream"} {
		for _, at := range []string{"n1", "n2"} {
			t.Run(phase+" asked at "+at, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					s := stubs{}
					c := newCluster(t, 2, s.engineOf, longest)
					c.complete("n2", prompt("law", 40))
					time.Sleep(time.Second)
					if phase == "prefill" {
						s["n2"].prefill = time.Hour
					} else {
						s["n2"].between = 10 * time.Minute
					}
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					defer cancel()
					body := strings.Replace(completionBody(prompt("law", 40), 100), "{", `{"stream":true,`, 1)
					if r := c.do(ctx, at, http.MethodPost, "/v1/completions", body); !errors.Is(r.err, context.DeadlineExceeded) {
						t.Errorf("err %v", r.err)
					}
					time.Sleep(time.Second)
					if s["n2"].cancelled() != 1 {
						t.Error("the engine still works for a client that left")
					}
					if q := c.nodes["n2"].Status().Queue; q != 0 {
						t.Errorf("queue is %d", q)
					}
				})
			})
		}
	}
}

// A full engine refuses at once, in OpenAI's shape, and says when to come back.
func TestFullQueueRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf, func(c *Config) { c.InFlightMax = 2 })
		s["n1"].prefill = time.Minute
		for i := range 2 {
			go c.complete("n1", prompt("law", i+1))
		}
		synctest.Wait()
		begun := time.Now()
		r := c.complete("n1", "x")
		if r.status != 429 || r.header.Get("Retry-After") == "" || code(t, r) != "queue_full" || time.Since(begun) > 0 {
			t.Errorf("%d %v %s after %v", r.status, r.header, r.body, time.Since(begun))
		}
		time.Sleep(2 * time.Minute)
		if r := c.complete("n1", "x"); r.status != 200 {
			t.Errorf("after the queue emptied: %d %s", r.status, r.body)
		}
	})
}

func code(t *testing.T, r reply) string {
	t.Helper()
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal(r.body, &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("not an OpenAI error: %s", r.body)
	}
	return e.Error.Code
}

// The largest body is served, one byte more is refused, and neither is lost.
func TestBodyLimit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf, func(c *Config) { c.BodyMax = 4096 })
		empty := len(completionBody("", 1))
		if r := c.complete("n1", strings.Repeat("x", 4096-empty)); r.status != 200 {
			t.Errorf("at the limit: %d %s", r.status, r.body)
		}
		if r := c.complete("n1", strings.Repeat("x", 4097-empty)); r.status != 413 || code(t, r) != "request_too_large" {
			t.Errorf("above the limit: %d %s", r.status, r.body)
		}
		c.client.CloseIdleConnections()
	})
}

// What the router cannot read, and what it has no need to, is the engine's.
func TestEverythingElsePassesThrough(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf)
		if r := c.do(t.Context(), "n1", http.MethodGet, "/v1/models", ""); r.status != 200 || !strings.Contains(string(r.body), `"id":"m"`) {
			t.Errorf("models: %d %s", r.status, r.body)
		}
		if r := c.do(t.Context(), "n1", http.MethodPost, "/v1/chat/completions", "{"); r.status != 400 || !strings.Contains(string(r.body), "unreadable") {
			t.Errorf("broken body: %d %s", r.status, r.body)
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/nothing", ""); r.status != 404 || code(t, r) != "not_found" {
			t.Errorf("unknown path: %d %s", r.status, r.body)
		}
	})
}

// An engine that is down is an error in OpenAI's shape and a node that is not ready.
func TestEngineDown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCluster(t, 1, func(string) http.RoundTripper { return downEngine{} })
		if r := c.complete("n1", "x"); r.status != 502 || code(t, r) != "engine_unavailable" {
			t.Errorf("%d %s", r.status, r.body)
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/readyz", ""); r.status != 503 {
			t.Errorf("ready: %d %s", r.status, r.body)
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/healthz", ""); r.status != 200 {
			t.Errorf("healthy: %d %s", r.status, r.body)
		}
	})
}

type downEngine struct{}

func (downEngine) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// A node that shuts down finishes what it streams, and its peers send nothing
// more to it at once.
func TestGracefulShutdown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].between = time.Second
		answers := make(chan reply, 2)
		for _, at := range []string{"n1", "n2"} {
			go func() {
				body := strings.Replace(completionBody(prompt("law", 40), 8), "{", `{"stream":true,`, 1)
				answers <- c.do(t.Context(), at, http.MethodPost, "/v1/completions", body)
			}()
		}
		time.Sleep(2 * time.Second)
		go c.stop("n2")
		time.Sleep(time.Second)
		if r := c.complete("n3", prompt("law", 40)); r.status != 200 || r.header.Get(nodeHeader) == "n2" {
			t.Errorf("a leaving node was sent work: %d from %s", r.status, r.header.Get(nodeHeader))
		}
		for range 2 {
			if r := <-answers; r.err != nil || !strings.HasSuffix(string(r.body), "[DONE]\n\n") {
				t.Errorf("a running stream was cut: %v %q", r.err, r.body)
			}
		}
		time.Sleep(time.Minute)
	})
}

// A specialist whose queue is over the threshold is left alone until its pause
// is over (section 3.2 of the paper), and then found again.
func TestPushBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, func(c *Config) { c.Node.QueueThreshold = 2 })
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].prefill = 10 * time.Second
		for range 3 {
			go c.complete("n2", prompt("law", 60))
		}
		time.Sleep(time.Second)
		if r := c.complete("n1", prompt("law", 40)); r.header.Get(nodeHeader) == "n2" {
			t.Error("a paused node was sent work")
		}
		status := c.nodes["n1"].Status()
		for _, p := range status.Peers {
			if p.Name == "n2" && (p.State != node.Paused || p.PausedMS <= 0 || p.Queue != 3) {
				t.Errorf("n1 believes of n2: %+v", p)
			}
		}
		if p := c.nodes["n2"].Status().Pauses; p != 1 {
			t.Errorf("n2 began %d pauses", p)
		}
		time.Sleep(30 * time.Second)
		s["n2"].prefill = 0
		if r := c.complete("n3", prompt("law", 60)); r.header.Get(nodeHeader) != "n2" {
			t.Errorf("after the pause served by %s", r.header.Get(nodeHeader))
		}
	})
}

// A request that came over a hop is served where it is, whatever else is known.
func TestAtMostOneHop(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host("n1")+apiPort+"/v1/completions", strings.NewReader(completionBody(prompt("law", 40), 1)))
		req.Header.Set(hopHeader, "n9")
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if got := resp.Header.Get(nodeHeader); got != "n1" {
			t.Errorf("forwarded on to %s", got)
		}
	})
}
