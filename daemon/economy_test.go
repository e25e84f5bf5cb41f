package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/builtin"
	"github.com/hearsay-project/hearsay/route"
)

func economic(c *Config) { c.Node.Policy = route.Economic{} }

func (c *cluster) economy(name string) EconomyStatus { return c.nodes[name].Status().Economy }

// settled fails where a node still counts on a request that is over.
func (c *cluster) settled() {
	c.t.Helper()
	for name := range c.nodes {
		e := c.economy(name)
		if e.Flights != 0 || e.BacklogMS != 0 {
			c.t.Errorf("%s counts on %d requests, and %v ms of work", name, e.Flights, e.BacklogMS)
		}
		for _, p := range e.Peers {
			if p.InFlight != 0 {
				c.t.Errorf("%s counts on %d requests to %s", name, p.InFlight, p.Name)
			}
		}
	}
}

// However requests end - whole, refused, failed, cut off, left by their clients in
// prefill or in mid-stream, here or over a hop - nothing is counted on afterwards.
func TestNothingIsCountedOnAfterwards(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 3, s.engineOf, economic, func(c *Config) { c.InFlightMax = 4; c.FirstByteTimeout = 20 * time.Second })
		var broken atomic.Int32
		for i, name := range []string{"n1", "n2", "n3"} {
			s[name].set(func(b *behaviour) {
				b.prefill, b.between = time.Duration(i+1)*time.Second, 300*time.Millisecond
				b.fail = func(w http.ResponseWriter) bool {
					switch broken.Add(1) % 7 {
					case 1:
						w.WriteHeader(500)
					case 2:
						w.WriteHeader(429)
					case 3:
						w.WriteHeader(400)
					case 4:
						_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n")
						_ = http.NewResponseController(w).Flush()
						panic(http.ErrAbortHandler)
					default:
						return false
					}
					return true
				}
			})
		}
		var all sync.WaitGroup
		for i := range 240 {
			at := fmt.Sprintf("n%d", i%3+1)
			body := completionBody(prompt("topic "+strconv.Itoa(i%5), 200)+strconv.Itoa(i), 5)
			if i%2 == 0 {
				body = strings.Replace(body, "{", `{"stream":true,`, 1)
			}
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if i%3 == 0 {
				ctx, cancel = context.WithTimeout(ctx, time.Duration(i%11)*500*time.Millisecond)
			}
			all.Go(func() {
				defer cancel()
				c.do(ctx, at, http.MethodPost, []string{"/v1/completions", "/v1/embeddings", "/v1/completions", "/v1/models"}[i%4], body)
			})
			time.Sleep(150 * time.Millisecond)
		}
		all.Wait()
		time.Sleep(time.Minute)
		if n := len(c.economy("n1").Decisions); n != 32 { // the last of them
			t.Errorf("n1 explains %d decisions", n)
		}
		c.settled()
	})
}

// busyPeer makes a cluster in which n1 forwards "law" to the others, which have become
// busy: the word of it is still under way.
func busyPeer(t *testing.T, size int) (*cluster, string) {
	s := stubs{}
	c := newCluster(t, size, s.engineOf, economic, func(c *Config) { c.Node.Poll, c.Mesh.LinkDelay = time.Minute, 300*time.Millisecond })
	law := prompt("law", 700) // some 4000 tokens
	for i := range size - 1 {
		c.complete(fmt.Sprintf("n%d", i+2), law)
	}
	time.Sleep(2 * time.Minute)
	for i := range size - 1 {
		at := fmt.Sprintf("n%d", i+2)
		s[at].set(func(b *behaviour) { b.prefill = 5 * time.Second })
		for j := range 4 { // forwarded by somebody: they stay
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://peer/v1/completions", strings.NewReader(completionBody(prompt("another thing "+at+strconv.Itoa(j), 500), 1)))
			req.Header.Set(hopHeader, "somebody")
			go func() {
				if resp, err := c.nodes["n1"].mesh.RoundTrip(at, req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
		}
	}
	time.Sleep(100 * time.Millisecond) // less than the way: what is sent now comes after
	return c, law
}

// A node that would serve a forward late says so at once; that is no failure, and what
// it says of its load is believed.
func TestBounce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, law := busyPeer(t, 2)
		begun := time.Now()
		r := c.complete("n1", law)
		if r.status != 200 || r.header.Get(nodeHeader) != "n1" || time.Since(begun) != 600*time.Millisecond { // there and back
			t.Errorf("%d from %s after %v: %s", r.status, r.header.Get(nodeHeader), time.Since(begun), r.header.Get(reasonHeader))
		}
		for name := range r.header {
			if name == reportHeader || name == refusedHeader || name == promiseHeader {
				t.Errorf("the client is told %s: %s", name, r.header.Get(name))
			}
		}
		here, there := c.economy("n1"), c.economy("n2")
		if here.Bounced != 1 || there.BouncedOff != 1 || here.Peers[0].BacklogMS == 0 {
			t.Errorf("bounced %d, by %d; n2 is thought to be busy for %v ms", here.Bounced, there.BouncedOff, here.Peers[0].BacklogMS)
		}
		if p := c.nodes["n1"].Status().Peers[0]; p.State != "alive" || p.Failures != 0 {
			t.Errorf("n1 holds it against n2: %+v", p)
		}
		metrics := string(c.do(t.Context(), "n2", http.MethodGet, "/metrics", "").body)
		if !strings.Contains(metrics, `hearsay_requests_total{hop="received",outcome="bounced"} 1`) || !strings.Contains(metrics, `hearsay_bounces_total{direction="given"} 1`) {
			t.Error("it is not counted")
		}
		time.Sleep(time.Minute)
		c.settled()
	})
}

// Who has bounced a request may be asked again, as its word is fresh: but for one that
// bounces what it was to serve in any case.
func TestBouncersAreAskedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCluster(t, 1, stubs{}.engineOf, economic)
		q := &request{http: httptest.NewRequest(http.MethodPost, "/v1/completions", nil)}
		for i, within := range []time.Duration{time.Second, time.Second, 0} {
			q.promise.Within = within
			c.nodes["n1"].turnBack(q, fmt.Sprint("n", i+2), &failure{bounced: true})
		}
		if !slices.Equal(q.route.Bounced, []string{"n2", "n3"}) || !slices.Equal(q.tried, []string{"n4"}) {
			t.Errorf("%v may be asked again, %v not", q.route.Bounced, q.tried)
		}
	})
}

// Where the word of a bounce is enough, a request is bounced once.
func TestBouncesDoNotChain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, law := busyPeer(t, 3)
		if r := c.complete("n1", law); r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
		if n := c.economy("n1").Bounced; n != 1 {
			t.Errorf("bounced %d times", n)
		}
		time.Sleep(time.Minute)
		c.settled()
	})
}

// What a client says of promises and reports is not heard.
func TestClientsPromiseNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf, economic)
		s["n1"].set(func(b *behaviour) { b.prefill = 5 * time.Second })
		go c.complete("n1", prompt("a", 500))
		synctest.Wait()
		r := c.send("n1", "/v1/completions", completionBody(prompt("b", 500), 1), http.Header{
			hopHeader: {"n7"}, promiseHeader: {"within=1"}, reportHeader: {"took=1 backlog=1 shared=1 others=1"},
		})
		if r.status != 200 || r.header.Get(hopsHeader) != "0" || r.header.Get(reportHeader) != "" {
			t.Errorf("%d %v", r.status, r.header)
		}
	})
}

// An engine's speed is learnt from first tokens alone: not from the end of a long
// answer that is no stream, nor from a comment that keeps a connection open.
func TestSpeedIsOfFirstTokens(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 1, s.engineOf, economic)
		took := func() time.Duration {
			e := c.economy("n1")
			if e.Samples == 0 {
				return 0
			}
			return time.Duration((e.Base + 2000*e.PerToken) * float64(time.Millisecond)).Round(100 * time.Millisecond)
		}
		s["n1"].set(func(b *behaviour) {
			b.prefill = 10 * time.Second
			b.fail = func(w http.ResponseWriter) bool {
				_, _ = io.WriteString(w, `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":2000,"completion_tokens":300,"prompt_tokens_details":{"cached_tokens":0}}}`)
				return true
			}
		})
		c.complete("n1", prompt("a", 400))
		if got := took(); got != 0 {
			t.Errorf("a long answer in one piece teaches that a prefill takes %v", got)
		}
		s["n1"].set(func(b *behaviour) {
			b.prefill = 0
			b.fail = func(w http.ResponseWriter) bool {
				w.Header().Set("Content-Type", "text/event-stream")
				for i, event := range []string{": wait", `data: {"choices":[{"text":"x"}]}`, `data: {"choices":[],"usage":{"prompt_tokens":2000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`, "data: [DONE]"} {
					_, _ = io.WriteString(w, event+"\n\n")
					_ = http.NewResponseController(w).Flush()
					if i == 0 {
						time.Sleep(7 * time.Second)
					}
				}
				return true
			}
		})
		c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", strings.Replace(completionBody(prompt("b", 400), 1), "{", `{"stream":true,`, 1))
		if got := took(); got != 7*time.Second {
			t.Errorf("a stream that began with a comment teaches that a prefill takes %v; it took 7s", got)
		}
		c.settled()
	})
}

// paced is an engine that takes its time for each token that it does not find cached.
type paced struct {
	http.RoundTripper
	perToken time.Duration

	mu      sync.Mutex
	asked   []string // bodies, ids of requests, and keys
	cancels int
	picky   bool // it takes clients' requests alone
}

func (e *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == modelsPath {
		return e.RoundTripper.RoundTrip(r)
	}
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	id := r.Header.Get(requestIDHeader)
	e.asked = append(e.asked, fmt.Sprintf("%s id %s key %s", body, id, r.Header.Get("Authorization")))
	refuse := e.picky && id == ""
	e.mu.Unlock()
	if refuse {
		return &http.Response{StatusCode: 400, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	resp, err := e.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	u := usageOf(text)
	select {
	case <-time.After(20*time.Millisecond + time.Duration(u.Prompt-u.Details.Cached)*e.perToken):
		return resp, nil
	case <-r.Context().Done():
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cancels++
		return nil, context.Cause(r.Context())
	}
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func usageOf(answer []byte) usage {
	var a struct{ Usage usage }
	_ = json.Unmarshal(answer, &a)
	return a.Usage
}

// warmCluster is two nodes 20 ms apart with built-in engines, of which n2 has served
// what begins as the bodies that it returns do.
func warmCluster(t *testing.T, path string, body func(question string) string, perToken time.Duration, change ...func(*Config)) (*cluster, map[string]*paced) {
	engines := map[string]*paced{}
	c := newCluster(t, 2, func(name string) http.RoundTripper {
		e, err := builtin.Open(builtin.Config{Name: "m", KVTokens: 8192})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		engines[name] = &paced{RoundTripper: engine.Local{Handler: e}, perToken: perToken}
		return engines[name]
	}, append(change, economic, func(c *Config) { c.Mesh.LinkDelay, c.EngineKey = 20*time.Millisecond, "of the engine" })...)
	c.complete("n1", prompt("what n1 learns its engine's speed from", 10))
	engines["n1"].asked = nil
	for i := range 3 {
		if r := c.do(t.Context(), "n2", http.MethodPost, path, body(strings.Repeat(fmt.Sprint("How much is ", i, "? "), 20))); r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	time.Sleep(2 * time.Second)
	return c, engines
}

var rules = strings.Repeat("Every rule of this house is to be kept by all who live in it. ", 30)

func completionAfterRules(question string) string { return completionBody(rules+question, 1) }

func chatAfterRules(question string) string {
	body, _ := json.Marshal(map[string]any{
		"model": "m", "max_tokens": 1, "temperature": 0, "user": "a client",
		"messages": []any{map[string]string{"role": "system", "content": rules}, map[string]string{"role": "user", "content": question}},
	})
	return string(body)
}

// afterRules are requests in each API whose prompts begin alike.
var afterRules = map[string]func(question string) string{
	"/v1/completions":      completionAfterRules,
	"/v1/chat/completions": chatAfterRules,
	"/v1/messages":         quoted(`{"model":"m","max_tokens":1,"temperature":0,"system":%q,"messages":[{"role":"user","content":%q}]}`),
	"/v1/responses":        quoted(`{"model":"m","max_output_tokens":1,"temperature":0,"instructions":%q,"input":%q}`),
	"/completion":          quoted(`{"n_predict":1,"temperature":0,"prompt":%q}`),
	"/generate":            quoted(`{"sampling_params":{"max_new_tokens":1,"temperature":0},"text":%q}`),
	"/api/chat":            quoted(`{"model":"m","stream":false,"options":{"num_predict":1,"temperature":0},"messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`),
	"/api/generate":        quoted(`{"model":"m","stream":false,"options":{"num_predict":1,"temperature":0},"system":%q,"prompt":%q}`),
}

func quoted(format string) func(string) string {
	return func(question string) string {
		if strings.Count(format, "%q") == 1 {
			return fmt.Sprintf(format, rules+question)
		}
		return fmt.Sprintf(format, rules, question)
	}
}

// A prefix for which a request was forwarded is computed at home while the engine is
// idle: the next request for it is served there, and finds what it was promised. It
// is no client's request, and counted as none.
func TestWarming(t *testing.T) {
	for path, body := range afterRules {
		for _, off := range []bool{false, true} {
			t.Run(fmt.Sprint(path, " off ", off), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					c, engines := warmCluster(t, path, body, time.Millisecond, func(c *Config) { c.Node.NoWarming = off })
					r := c.do(t.Context(), "n1", http.MethodPost, path, body(strings.Repeat("Who was first? ", 20)))
					if r.header.Get(nodeHeader) != "n2" {
						t.Fatalf("the first is served by %s: %s", r.header.Get(nodeHeader), r.header.Get(reasonHeader))
					}
					time.Sleep(2 * time.Second)
					r = c.do(t.Context(), "n1", http.MethodPost, path, body(strings.Repeat("And who came then? ", 20)))
					e := c.economy("n1")
					if off {
						unasked := slices.ContainsFunc(engines["n1"].asked, func(asked string) bool { return strings.Contains(asked, " id  key") })
						if e.WarmedPrefixes != 0 || unasked {
							t.Errorf("%d prefixes warmed; the engine was asked %q", e.WarmedPrefixes, engines["n1"].asked)
						}
						return
					}
					promised, _ := strconv.Atoi(r.header.Get(expectedHeader))
					at, _ := dialect.Lookup(path)
					scanner := dialect.NewScanner(at, r.header.Get)
					_, _ = scanner.Write(r.body)
					u, _ := scanner.Usage()
					if r.header.Get(nodeHeader) != "n1" || promised < 100 || u.Cached < promised-32 { // a page that is not full, and what a promise in tokens is off
						t.Errorf("served by %s with %d of %d tokens cached, %d promised: %s", r.header.Get(nodeHeader), u.Cached, u.Prompt, promised, r.header.Get(reasonHeader))
					}
					if e.WarmedPrefixes != 1 || e.WarmedTokens < 100 || c.nodes["n1"].Status().Here.Requests != 2 {
						t.Errorf("%+v; %d requests served", e, c.nodes["n1"].Status().Here.Requests)
					}
					if len(engines["n1"].asked) == 0 {
						t.Fatal("the engine was not asked")
					}
					if own := engines["n1"].asked[0]; !strings.HasSuffix(own, " id  key Bearer of the engine") || strings.Contains(own, "a client") || strings.Contains(own, "first") {
						t.Errorf("the engine was asked %s", own)
					}
					c.settled()
				})
			})
		}
	}
}

// What the engine does not take is not asked of it again and again.
func TestWarmingThatFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, engines := warmCluster(t, "/v1/completions", completionAfterRules, time.Millisecond)
		engines["n1"].picky = true
		if r := c.complete("n1", rules+strings.Repeat("Who was first? ", 20)); r.header.Get(nodeHeader) != "n2" {
			t.Fatalf("served by %s", r.header.Get(nodeHeader))
		}
		time.Sleep(10 * time.Second)
		if e := c.economy("n1"); len(engines["n1"].asked) != 1 || e.Warming || e.WarmedPrefixes != 0 || e.WarmedFailed != 1 || e.WarmedGivenUp != 0 {
			t.Errorf("asked %d times: %+v", len(engines["n1"].asked), e)
		}
		c.settled()
	})
}

// What cannot be cut is not asked of the engine, is no failure of it, and takes nothing of
// what may be warmed.
func TestWarmingThatCannotBe(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		tool := quoted(`{"model":"m","max_tokens":1,"temperature":0,"tools":[{"type":"function","function":{"name":"f","description":%q}}],"messages":[{"role":"user","content":"hi"}]}`)
		c, engines := warmCluster(t, "/v1/chat/completions", tool, time.Millisecond)
		before := c.economy("n1")
		if r := c.do(t.Context(), "n1", http.MethodPost, "/v1/chat/completions", tool("Who was first?")); r.header.Get(nodeHeader) != "n2" {
			t.Fatalf("served by %s: %s", r.header.Get(nodeHeader), r.body)
		}
		time.Sleep(2 * time.Second)
		if e := c.economy("n1"); len(engines["n1"].asked) != 0 || e.Warming || e.WarmedFailed != 0 || e.WarmedAllowance < before.WarmedAllowance {
			t.Errorf("asked %d times: %+v, before %+v", len(engines["n1"].asked), e, before)
		}
		c.settled()
	})
}

// A request that comes early enough ends a warming, at the engine too, until the engine
// is idle again.
func TestWarmingYields(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, engines := warmCluster(t, "/v1/completions", completionAfterRules, 10*time.Millisecond)
		c.complete("n1", rules+strings.Repeat("Who was first? ", 20))
		time.Sleep(500 * time.Millisecond)
		if !c.economy("n1").Warming {
			t.Fatalf("nothing is warmed: %+v", c.economy("n1"))
		}
		begun := time.Now()
		r := c.complete("n1", prompt("something else", 3))
		if e := c.economy("n1"); r.header.Get(nodeHeader) == "n1" && (e.WarmedGivenUp != 1 || engines["n1"].cancels != 1) {
			t.Errorf("after a request %+v, and %d cancelled at the engine", e, engines["n1"].cancels)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("the request took %v", took)
		}
		time.Sleep(time.Minute)
		if e := c.economy("n1"); e.WarmedPrefixes == 0 {
			t.Error("and it was not taken up again")
		}
		c.settled()
	})
}
