package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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

func pushback(c *Config) { c.Node.Policy = route.LongestPushback{} }

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
						s["n2"].set(func(b *behaviour) { b.prefill = time.Hour })
					} else {
						s["n2"].set(func(b *behaviour) { b.between = 10 * time.Minute })
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
		s["n1"].set(func(b *behaviour) { b.prefill = time.Minute })
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

// A specialist whose queue is over the threshold is left alone until its pause
// is over (section 3.2 of the paper), and then found again.
func TestPushBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, pushback, func(c *Config) { c.Node.QueueThreshold = 2 })
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].set(func(b *behaviour) { b.prefill = 10 * time.Second })
		for range 3 {
			go c.complete("n2", prompt("law", 60))
		}
		time.Sleep(time.Second)
		if r := c.complete("n1", prompt("law", 40)); r.header.Get(nodeHeader) == "n2" {
			t.Error("a paused node was sent work")
		}
		status := c.nodes["n1"].Status()
		for _, p := range status.Peers {
			if p.Name == "n2" && (p.State != string(node.Paused) || p.PausedMS <= 0 || p.Queue != 3) {
				t.Errorf("n1 believes of n2: %+v", p)
			}
		}
		if p := c.nodes["n2"].Status().Pauses; p != 1 {
			t.Errorf("n2 began %d pauses", p)
		}
		time.Sleep(30 * time.Second)
		s["n2"].set(func(b *behaviour) { b.prefill = 0 })
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
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://peer/v1/completions", strings.NewReader(completionBody(prompt("law", 40), 1)))
		req.Header.Set(hopHeader, "n2")
		resp, err := c.nodes["n2"].mesh.RoundTrip("n1", req)
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

// An engine may think for longer than any client may stall, over a hop too.
func TestLongSilenceInAStream(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf, longest)
		c.complete("n2", prompt("law", 40))
		time.Sleep(time.Second)
		s["n2"].set(func(b *behaviour) { b.between = 2*stallTimeout + time.Second })
		for _, at := range []string{"n1", "n2"} {
			body := strings.Replace(completionBody(prompt("law", 40), 3), "{", `{"stream":true,`, 1)
			if r := c.do(t.Context(), at, http.MethodPost, "/v1/completions", body); r.err != nil || r.header.Get(nodeHeader) != "n2" || !strings.HasSuffix(string(r.body), "[DONE]\n\n") {
				t.Errorf("asked at %s: %v %q", at, r.err, r.body)
			}
		}
	})
}

// A client that has read the end of its stream has had its answer, also if it
// closes before the engine does.
func TestClientClosesAfterDone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf)
		s["n1"].set(func(b *behaviour) { b.linger = time.Hour })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		body := strings.Replace(completionBody(prompt("law", 40), 3), "{", `{"stream":true,`, 1)
		c.do(ctx, "n1", http.MethodPost, "/v1/completions", body)
		time.Sleep(time.Second)
		if got := c.nodes["n1"].Status().Here; got.Reported != 1 {
			t.Errorf("nothing was learnt: %+v", got)
		}
	})
}

// The bytes of requests that wait are bounded, whatever their number.
func TestBodiesLimit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf, func(c *Config) { c.BodyMax, c.BodiesMax = 1<<20, 2<<20+40*chargeStep })
		var unfinished []*io.PipeWriter
		for i := range 42 {
			r, w := io.Pipe()
			unfinished = append(unfinished, w)
			if i >= 40 { // only what has come counts
				go func() { _, _ = w.Write(make([]byte, 1<<20-100)) }()
			}
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host("n1")+apiPort+"/v1/completions", r)
			go func() {
				if resp, err := c.client.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
		}
		synctest.Wait()
		if r := c.complete("n1", "x"); r.status != 429 || code(t, r) != "memory_full" {
			t.Errorf("beyond the limit: %d %s", r.status, r.body)
		}
		for _, w := range unfinished {
			w.CloseWithError(errors.New("the client leaves"))
		}
		time.Sleep(time.Second)
		if r := c.complete("n1", "x"); r.status != 200 {
			t.Errorf("after the others left: %d %s", r.status, r.body)
		}
	})
}

// HEAD has headers and no body, and peers reach no more of an engine than clients do.
func TestOtherMethodsAndPaths(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf)
		if r := c.do(t.Context(), "n1", http.MethodHead, "/v1/models", ""); r.status != 200 || r.err != nil || len(r.body) != 0 {
			t.Errorf("HEAD: %d %v %q", r.status, r.err, r.body)
		}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://peer/flush_cache", nil)
		resp, err := c.nodes["n1"].mesh.RoundTrip("n2", req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("a peer's engine answered /flush_cache with %d", resp.StatusCode)
		}
	})
}

// A client that closes its sending side before the answer is taken for one that
// left, and gets no fake answer.
func TestHalfClose(t *testing.T) {
	url := startNodes(t, 1, &stubEngine{behaviour: behaviour{prefill: time.Hour}})[0]
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := completionBody("x", 1)
	_, _ = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: n1\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(conn); len(got) > 0 {
		t.Errorf("answered %q", got)
	}
}

// The time to the first token is measured of streams alone: what is no stream comes
// whole, and that is its latency.
func TestTimesOfAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, _ := fragileCluster(t, func(string) string { return twins })
		count := func(metric string) (n int) {
			page := string(c.do(t.Context(), "n1", http.MethodGet, "/metrics", "").body)
			if _, after, ok := strings.Cut(page, "\n"+metric+`_count{hop="local"} `); ok {
				_, _ = fmt.Sscan(after, &n)
			}
			return n
		}
		for i, fields := range []string{`"max_tokens":3`, `"max_tokens":3,"stream":true`, `"max_tokens":1`} {
			if r := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", `{"model":"m","prompt":"the sea",`+fields+`}`); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			time.Sleep(time.Second)
			if latencies, ttfts := count("hearsay_latency_seconds"), count("hearsay_ttft_seconds"); latencies != i+1 || ttfts != min(i, 1) {
				t.Errorf("after %s: %d latencies, %d times to the first token", fields, latencies, ttfts)
			}
		}
	})
}
