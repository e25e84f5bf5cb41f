package daemon

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
)

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
		"cut in a whole answer of unknown length": func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"half":`)
			_ = http.NewResponseController(w).Flush()
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
				s["n2"].set(func(b *behaviour) { b.fail = fail })
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
		s["n2"].set(func(b *behaviour) { b.prefill = time.Minute })
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
		s["n2"].set(func(b *behaviour) { b.prefill = 0 })
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

		s["n2"].set(func(b *behaviour) { b.prefill = 30 * time.Second })
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
		s["n2"].set(func(b *behaviour) { b.between = 100 * time.Millisecond })
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

// A node whose engine is down still routes, also what nobody has cached, and
// asks its peers to send it nothing.
func TestEngineDownBesideOthers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, func(name string) http.RoundTripper {
			if name == "n1" {
				return downEngine{}
			}
			return s.engineOf(name)
		})
		for range 3 {
			if r := c.complete("n1", prompt("law", 3)); r.status != 200 || r.header.Get(nodeHeader) != "n2" {
				t.Errorf("%d from %q: %s", r.status, r.header.Get(nodeHeader), r.body)
			}
		}
		if s := c.nodes["n1"].Status(); s.EngineState != "down" || !strings.Contains(s.EngineError, "connection refused") {
			t.Errorf("the node does not say what is wrong: %+v", s)
		}
		time.Sleep(time.Second)
		if p := c.nodes["n2"].Status().Peers[0]; p.State != string(node.Down) {
			t.Errorf("n2 believes of n1: %+v", p)
		}
	})
}

type downEngine struct{}

func (downEngine) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// A node that shuts down finishes what it streams, and its peers send nothing
// more to it at once.
func TestGracefulShutdown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].set(func(b *behaviour) { b.between = time.Second })
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

// What an engine says against a request is the answer, wherever it was asked, and
// no fault of its node; only a model that is gone there is looked for elsewhere.
func TestEngineRejects(t *testing.T) {
	for _, test := range []struct {
		status int
		served string
	}{{400, "n2"}, {401, "n2"}, {413, "n2"}, {422, "n2"}, {404, "n1"}} {
		t.Run(fmt.Sprint(test.status), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := stubs{}
				c := newCluster(t, 2, s.engineOf, longest)
				c.complete("n2", prompt("law", 40))
				time.Sleep(time.Second)
				const words = `{"error":{"message":"the engine's own words"}}`
				reject := func(w http.ResponseWriter) bool {
					w.WriteHeader(test.status)
					_, _ = io.WriteString(w, words)
					return true
				}
				s["n2"].set(func(b *behaviour) { b.fail = reject })
				r := c.complete("n1", prompt("law", 40))
				if got := r.header.Get(nodeHeader); got != test.served || got == "n2" && (r.status != test.status || string(r.body) != words) {
					t.Errorf("%d from %q: %s", r.status, got, r.body)
				}
				for _, p := range c.nodes["n1"].Status().Peers {
					if p.Failures > 0 {
						t.Error("a peer whose engine rejected a request is doubted")
					}
				}
				s["n1"].set(func(b *behaviour) { b.fail = reject })
				if r := c.complete("n1", prompt("law", 50)); r.status != test.status || string(r.body) != words {
					t.Errorf("everywhere: %d %s", r.status, r.body)
				}
			})
		})
	}
}

// A node that leaves finishes what peers have sent it, before its first byte too.
func TestLeavingNodeFinishesForwards(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].set(func(b *behaviour) { b.prefill = 20 * time.Second })
		answer := make(chan reply, 1)
		go func() { answer <- c.complete("n1", prompt("law", 40)) }()
		time.Sleep(time.Second)
		c.stop("n2")
		if r := <-answer; r.status != 200 || r.header.Get(nodeHeader) != "n2" || s["n2"].cancelled() != 0 {
			t.Errorf("%d from %q", r.status, r.header.Get(nodeHeader))
		}
	})
}

// When the time to drain is over, what still runs is ended, and waited for; there is
// time to say goodbye all the same.
func TestDrainTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf, func(c *Config) {
			c.DrainTimeout, c.Node.Policy, c.Mesh.LinkDelay = 10*time.Second, route.Local{}, 100*time.Millisecond
		})
		s["n1"].set(func(b *behaviour) { b.prefill = time.Hour })
		go c.complete("n1", "x")
		synctest.Wait()
		begun := time.Now()
		c.stop("n1")
		if took := time.Since(begun); took > 15*time.Second || s["n1"].cancelled() != 1 {
			t.Errorf("stopped after %v, %d requests ended", took, s["n1"].cancelled())
		}
		if p := c.nodes["n2"].Status().Peers; len(p) != 1 || p[0].State != "left" {
			t.Errorf("to its peer it is %+v", p)
		}
	})
}

// What the only node that serves a model refuses keeps its status and its words.
func TestRefusalOfTheLastNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, func(name string) http.RoundTripper {
			e := s.engineOf(name)
			s[name].models = []string{"of-" + name}
			return e
		}, func(c *Config) {
			if c.Node.Name == "n2" {
				c.BodyMax = 1 << 10
			}
		})
		time.Sleep(time.Second)
		body := strings.Replace(completionBody(strings.Repeat("x", 2<<10), 1), `"m"`, `"of-n2"`, 1)
		if r := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", body); r.status != 413 || code(t, r) != "request_too_large" || r.header.Get(refusedHeader) != "" {
			t.Errorf("%d %v %s", r.status, r.header, r.body)
		}
	})
}
