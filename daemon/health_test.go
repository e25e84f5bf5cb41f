package daemon

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/engine"
)

var (
	refusedDial  = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	errSlowProbe = errors.New("no answer in time")
)

// One slow probe is a busy engine; so many as are configured, one that is down. A
// refused connection is certain, and means that its cache is gone.
func TestHealthOfProbes(t *testing.T) {
	var h health
	step := func(err error, state string, cleared bool) {
		t.Helper()
		if got := h.probe(err, 3, 2); got != cleared || h.state() != state {
			t.Errorf("after %v: %s, cleared %v; want %s, %v", err, h.state(), got, state, cleared)
		}
	}
	if h.state() != "starting" {
		t.Errorf("at first: %s", h.state())
	}
	step(errSlowProbe, "starting", false)
	step(errSlowProbe, "starting", false)
	step(nil, "ready", false)
	for range 2 {
		step(errSlowProbe, "ready", false)
		step(errSlowProbe, "ready", false)
		step(nil, "ready", false)
	}
	step(errSlowProbe, "ready", false)
	step(errSlowProbe, "ready", false)
	step(errSlowProbe, "down", false)
	step(nil, "down", false)
	step(errSlowProbe, "down", false)
	step(nil, "down", false)
	step(nil, "ready", false)
	step(refusedDial, "down", false)
	step(nil, "down", true)
	step(nil, "ready", false)
	step(errDenied, "credentials", false)
	step(nil, "ready", false)
}

// A frozen engine goes on listing its models. After three generations without an
// answer no client is sent to it, until it answers the node's own.
func TestStuckEngine(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf, pushback, func(c *Config) { c.FirstByteTimeout = 10 * time.Second })
		s["n1"].set(func(b *behaviour) { b.prefill = time.Hour })
		for range strikesMax {
			if r := c.complete("n1", "x"); r.status != http.StatusGatewayTimeout || code(t, r) != "timeout" {
				t.Errorf("a frozen engine: %d %s", r.status, r.body)
			}
		}
		if r := c.complete("n1", "x"); r.status != 200 || r.header.Get(nodeHeader) != "n2" {
			t.Errorf("then: %d from %s", r.status, r.header.Get(nodeHeader))
		}
		c.stop("n2")
		time.Sleep(time.Second)
		begun := time.Now()
		if r := c.complete("n1", "x"); r.status != 503 || code(t, r) != "engine_stuck" || r.header.Get("Retry-After") == "" || time.Since(begun) > 0 {
			t.Errorf("with nobody else: %d %s after %v", r.status, r.body, time.Since(begun))
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/readyz", ""); r.status != 503 {
			t.Errorf("ready: %d", r.status)
		}
		s["n1"].set(func(b *behaviour) { b.prefill = 0 })
		time.Sleep(trialWaitMax + trialTimeout + time.Second)
		if r := c.complete("n1", "x"); r.status != 200 {
			t.Errorf("after it has thawed: %d %s", r.status, r.body)
		}
	})
}

// An engine that was stuck is tried at whatever it has: what there is nothing at says
// nothing of its generations. Where it takes no trial it lives, and a client may try.
func TestTrialOfAnEngineWithoutCompletions(t *testing.T) {
	const completions, chats = "/v1/completions", "/v1/chat/completions"
	for _, test := range []struct {
		lacks []string
		tried string
		state string
	}{
		{nil, completions, "stuck"},
		{[]string{completions}, completions + " " + chats, "stuck"},
		{[]string{completions, chats}, completions + " " + chats, "ready"},
	} {
		inBubble(t, func(t *testing.T) {
			var mu sync.Mutex
			var tried []string
			var thawed atomic.Bool
			e := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == modelsPath:
					_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
				case r.Header.Get(requestIDHeader) == "":
					mu.Lock()
					tried = append(tried, r.URL.Path)
					mu.Unlock()
					if slices.Contains(test.lacks, r.URL.Path) {
						w.WriteHeader(http.StatusNotFound)
						return
					}
					fallthrough
				default:
					if !thawed.Load() {
						<-r.Context().Done()
					}
				}
			})
			c := newCluster(t, 1, func(string) http.RoundTripper { return engine.Local{Handler: e} }, func(c *Config) { c.FirstByteTimeout = 10 * time.Second })
			ask := func() int {
				return c.do(t.Context(), "n1", http.MethodPost, "/v1/messages", `{"model":"m","messages":[]}`).status
			}
			for range strikesMax {
				if status := ask(); status != http.StatusGatewayTimeout {
					t.Errorf("a frozen engine: %d", status)
				}
			}
			time.Sleep(trialTimeout + time.Second)
			mu.Lock()
			if state := c.nodes["n1"].Status().EngineState; state != test.state || strings.Join(tried, " ") != test.tried {
				t.Errorf("without %v: tried %v and is %s", test.lacks, tried, state)
			}
			mu.Unlock()
			if test.state == "ready" { // one client is enough to see that it is stuck
				if status, again := ask(), ask(); status != http.StatusGatewayTimeout || again != http.StatusServiceUnavailable {
					t.Errorf("then: %d, %d", status, again)
				}
			}
			thawed.Store(true)
			time.Sleep(2 * (trialWaitMax + trialTimeout))
			if status := ask(); status != http.StatusOK {
				t.Errorf("after it has thawed: %d", status)
			}
		})
	}
}

// An engine that wants credentials is told apart from one that is down.
func TestEngineWantsCredentials(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		var given string
		c := newCluster(t, 1, s.engineOf, func(c *Config) { c.EngineKey = "engine-key" })
		s["n1"].set(func(b *behaviour) {
			b.seen = func(r *http.Request, _ []byte) { given = r.Header.Get("Authorization") }
			b.sick = func(w http.ResponseWriter) bool { w.WriteHeader(401); return true }
		})
		time.Sleep(5 * time.Second)
		if st := c.nodes["n1"].Status(); st.EngineState != "credentials" {
			t.Errorf("state %q, %s", st.EngineState, st.EngineError)
		}
		if r := c.complete("n1", "x"); r.status != 200 || given != "Bearer engine-key" {
			t.Errorf("%d with key %q", r.status, given)
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/readyz", ""); r.status != 503 {
			t.Errorf("with a key that it refuses the node is ready: %d", r.status)
		}
	})
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf)
		s["n1"].set(func(b *behaviour) {
			b.sick = func(w http.ResponseWriter) bool { w.WriteHeader(403); return true }
		})
		time.Sleep(5 * time.Second)
		if r := c.do(t.Context(), "n1", http.MethodGet, "/readyz", ""); r.status != 200 || c.nodes["n1"].Status().EngineState != "credentials" {
			t.Errorf("where clients bring their keys: %d %s", r.status, r.body)
		}
	})
}
