package daemon

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
)

// send makes a request with headers.
func (c *cluster) send(name, path, body string, header http.Header) reply {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://"+host(name)+apiPort+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, data, err, resp.Trailer}
}

// twoHops is a cluster in which n1 forwards the prompt of law to n2, and what n2's
// engine then sees.
func twoHops(t *testing.T, change ...func(*Config)) (c *cluster, ask func(http.Header) (reply, http.Header)) {
	s := stubs{}
	c = newCluster(t, 2, s.engineOf, append(change, longest)...)
	c.send("n2", "/v1/completions", completionBody(prompt("law", 40), 1), http.Header{"X-Api-Key": {"good"}})
	time.Sleep(time.Second)
	var saw http.Header
	s["n2"].set(func(b *behaviour) { b.seen = func(r *http.Request, _ []byte) { saw = r.Header.Clone() } })
	return c, func(h http.Header) (reply, http.Header) {
		saw = nil
		return c.send("n1", "/v1/completions", completionBody(prompt("law", 40), 1), h), saw
	}
}

// A client's credentials reach the engine that serves it, and a client cannot pass
// for a peer.
func TestHeadersOverAHop(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, ask := twoHops(t)
		r, saw := ask(http.Header{
			"Authorization": {"Bearer sk-test"}, "Openai-Organization": {"o"}, "X-Request-Id": {"case-18"}, "Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
			hopHeader: {"n9"}, deadlineHeader: {"1"}, "Connection": {"X-Drop-Me"}, "X-Drop-Me": {"1"}, "X-Keep-Me": {"1", "2"},
		})
		if r.status != 200 || r.header.Get(nodeHeader) != "n2" || r.header.Get("X-Request-Id") != "case-18" {
			t.Fatalf("%d %v", r.status, r.header)
		}
		for name, want := range map[string]string{
			"Authorization": "Bearer sk-test", "Openai-Organization": "o", "X-Request-Id": "case-18",
			"Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "X-Drop-Me": "", "X-Keep-Me": "1,2",
		} {
			if got := strings.Join(saw[name], ","); got != want {
				t.Errorf("the engine sees %s %q, want %q", name, got, want)
			}
		}
		for name := range saw {
			if strings.HasPrefix(name, ownHeaders) {
				t.Errorf("the engine sees %s", name)
			}
		}
		if _, saw = ask(http.Header{"X-Request-Id": {"case-18"}, "Connection": {"X-Request-Id"}}); saw.Get("X-Request-Id") != "case-18" {
			t.Error("a client's Connection header takes the request's id away")
		}
		r, saw = ask(nil)
		if id := saw.Get("X-Request-Id"); id == "" || r.header.Get("X-Request-Id") != id || traceID(saw) == "" {
			t.Errorf("made up: %v at the engine, %v at the client", saw, r.header)
		}
	})
}

// With keys of its own a node lets in who has one, by any of the usual headers, and
// shows it to nobody else.
func TestAPIKeys(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, ask := twoHops(t, func(c *Config) { c.APIKeys = []string{"other", "good"} })
		for _, h := range []http.Header{{"Authorization": {"Bearer good"}}, {"X-Api-Key": {"good"}}, {"Api-Key": {"good"}}, {"Authorization": {"bearer  other"}}} {
			r, saw := ask(h)
			if r.status != 200 || saw.Get("Authorization")+saw.Get("X-Api-Key")+saw.Get("Api-Key") != "" {
				t.Errorf("%v: %d, the engine sees %v", h, r.status, saw)
			}
		}
		for _, h := range []http.Header{nil, {"Authorization": {"Bearer bad"}}, {"Authorization": {"Bearer "}}, {"Authorization": {"Basic good"}}} {
			if r, saw := ask(h); r.status != 401 || code(t, r) != "invalid_api_key" || saw != nil || r.header.Get("Www-Authenticate") == "" {
				t.Errorf("%v: %d %s", h, r.status, r.body)
			}
		}
	})
	inBubble(t, func(t *testing.T) {
		_, ask := twoHops(t, func(c *Config) { c.APIKeys, c.ForwardKeys = []string{"good"}, true })
		if r, saw := ask(http.Header{"X-Api-Key": {"good"}}); r.status != 200 || saw.Get("X-Api-Key") != "good" {
			t.Errorf("--forward-keys: %d, the engine sees %v", r.status, saw)
		}
	})
}

// No path is redirected, and none climbs out of what clients may reach.
func TestPaths(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf)
		for path, want := range map[string]int{
			"//v1/completions": 200, "/v1//completions": 200, "/v1/completions/": 200,
			"/v1/../flush_cache": 404, "/v1/%2e%2e/flush_cache": 404, "/flush_cache": 404, "/v1": 404, "/": 404,
			"/v1/%2fload_lora_adapter": 404, "/v1/..%5cflush_cache": 404, "/v1/a%00b": 404,
		} {
			if r := c.send("n1", path, completionBody("x", 1), nil); r.status != want {
				t.Errorf("%s: %d %s", path, r.status, r.body)
			}
		}
		for path, want := range map[string]int{
			"/healthz": 200, "//healthz": 200, "/healthz/": 200, "//hearsay//v1/status": 200,
			"/healthz/x": 404, "/./healthz": 404, "/%2fhealthz": 404, "/healthz%2f": 404, "/x/../healthz": 404, "/%2e/metrics": 404,
		} {
			if r := c.do(t.Context(), "n1", http.MethodGet, path, ""); r.status != want {
				t.Errorf("%s: %d %s", path, r.status, r.body)
			}
		}
	})
}

// What is refused before it is read is told and booked as anything else is.
func TestRefusedAtTheEdge(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf, func(c *Config) { c.APIKeys = []string{"good"} })
		for _, test := range []struct {
			path, code, allow, shape string
			status                   int
		}{
			{"/v1/completions", "invalid_api_key", "", `{"error":`, 401},
			{"/v1/messages", "invalid_api_key", "", `{"type":"error","error":`, 401},
			{"/nothing", "invalid_api_key", "", `{"error":`, 401},
			{"//healthz", "method_not_allowed", "GET, HEAD", `{"error":`, 405},
		} {
			r := c.send("n1", test.path, "{}", http.Header{requestIDHeader: {"here"}})
			if r.status != test.status || code(t, r) != test.code || r.header.Get("Allow") != test.allow || !strings.HasPrefix(string(r.body), test.shape) {
				t.Errorf("%s: %d %v %s", test.path, r.status, r.header, r.body)
			}
			if r.header.Get(requestIDHeader) != "here" || r.header.Get(nodeHeader) != "n1" || r.header.Get(reasonHeader) != test.code {
				t.Errorf("%s says %v", test.path, r.header)
			}
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/metrics", ""); !strings.Contains(string(r.body), `hearsay_requests_total{hop="local",outcome="refused"} 4`) {
			t.Error("they are not counted")
		}
	})
}

// faulty panics when it is asked, with what a client wrote.
type faulty struct{ on *bool }

func (faulty) Name() string { return "faulty" }
func (f faulty) Choose([]route.Candidate, *rand.Rand) (int, string) {
	if *f.on {
		panic(errors.New("CANARY"))
	}
	return 0, "here"
}

// A fault of this program costs the request that met it.
func TestPanicCostsOneRequest(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		on := true
		c := newCluster(t, 1, s.engineOf, func(c *Config) { c.Node.Policy = faulty{&on} })
		if r := c.complete("n1", "x"); r.status != 500 || code(t, r) != "internal_error" || strings.Contains(string(r.body), "CANARY") {
			t.Errorf("%d %s", r.status, r.body)
		}
		on = false
		if r := c.complete("n1", "x"); r.status != 200 {
			t.Errorf("after it: %d %s", r.status, r.body)
		}
		if r := c.do(t.Context(), "n1", http.MethodGet, "/metrics", ""); !strings.Contains(string(r.body), "hearsay_panics_total 1\n") {
			t.Error("the fault is not counted")
		}
		d := c.nodes["n1"]
		if running := func() (n int) { d.locked(func(time.Time, *node.Node) { n = d.running }); return n }(); running != 0 {
			t.Errorf("%d requests are left", running)
		}
	})
}

// An error of the node's own is one to Anthropic's clients too.
func TestErrorOfMessages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf)
		time.Sleep(time.Second) // until the engine has listed its models, it may serve any
		r := c.send("n1", "/v1/messages", `{"model":"nope","messages":[]}`, nil)
		if r.status != 404 || code(t, r) != "model_not_found" || !strings.HasPrefix(string(r.body), `{"type":"error","error":{`) {
			t.Errorf("%d %s", r.status, r.body)
		}
	})
}

// Anthropic's clients look for a request's id under its own name.
func TestRequestIDOfMessages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf)
		for path, want := range map[string]string{"/v1/messages": "here", "/v1/messages/count_tokens": "here", "/v1/messages?beta=true": "here", "/v1/completions": ""} {
			for _, body := range []string{`{"model":"m","messages":[]}`, `{"model":"nope"}`} {
				r := c.send("n1", path, body, http.Header{requestIDHeader: {"here"}})
				if r.header.Get("Request-Id") != want || r.header.Get(requestIDHeader) != "here" {
					t.Errorf("%s: %d %v", path, r.status, r.header)
				}
			}
		}
	})
}
