package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/mesh/memnet"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
)

// publishing is an emulated engine that publishes in memory, and can be started anew.
type publishing struct {
	*foreignEngine
	network   *memnet.Network
	publisher *kvevents.Publisher
}

// newPublishing starts one. Beside it goes a node with what follow makes of its Config.
func newPublishing(t *testing.T, dialect string, change ...func(*emulated.Config)) *publishing {
	p := &publishing{network: memnet.New()}
	p.publish(t)
	t.Cleanup(func() { p.publisher.Close() })
	p.foreignEngine = newForeign(t, dialect, append(change, func(c *emulated.Config) { c.Publisher = p.publisher })...)
	return p
}

func (p *publishing) follow(c *Config) {
	c.KVEvents = kvevents.Config{
		Endpoint: "tcp://engine:5557", Replay: "tcp://engine:5558",
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return p.network.Dial(ctx, addr) },
	}
}

// onlyEvents starts a node beside an engine of which it is told nothing but events: it
// believes that the engine holds far more than it does.
func onlyEvents(t *testing.T) (*publishing, *cluster) {
	p := newPublishing(t, "", func(c *emulated.Config) { c.Profile.CapacityTokens, c.TokenBytes = 2048, 0 })
	c := newCluster(t, 1, func(string) http.RoundTripper { return engine.Local{Handler: p} }, p.follow)
	time.Sleep(5 * time.Second)
	return p, c
}

func (p *publishing) publish(t *testing.T) {
	t.Helper()
	p.publisher = kvevents.NewPublisher(kvevents.PublisherConfig{})
	for addr, serve := range map[string]func(net.Listener){"engine:5557": p.publisher.Serve, "engine:5558": p.publisher.ServeReplay} {
		l, err := p.network.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		serve(l)
	}
}

// promised is what the node promised for a prompt, and what was found.
func promised(t *testing.T, c *cluster, text string) (expected, found, tokens int) {
	t.Helper()
	r := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, text))
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	expected, _ = strconv.Atoi(r.header.Get(expectedHeader))
	for name, into := range map[string]*int{"cached_tokens": &found, "prompt_tokens": &tokens} {
		_, rest, _ := strings.Cut(string(r.body), `"`+name+`":`)
		_, _ = fmt.Sscan(rest, into)
	}
	time.Sleep(100 * time.Millisecond) // for its tokens
	return expected, found, tokens
}

// topicQuestion is one of a topic, with which all of its questions begin. Otherwise no
// two texts have anything in common.
func topicQuestion(topic, i int) string {
	return words("topic", topic, 60) + words("question", i, 20)
}

func words(seed string, of, n int) string {
	var b strings.Builder
	for k := range n {
		fmt.Fprintf(&b, "%x ", xxh3.HashString(fmt.Sprint(seed, of, k))>>44)
	}
	return b.String()
}

// What the engine evicts is no longer promised, though the node was told that it holds
// far more, and what it holds is promised to the block of tokens: by its events alone.
func TestEventsKeepPromisesTrue(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, c := onlyEvents(t)
		var off, points, warm, evicted int
		const topics, rounds = 8, 20
		for i := range topics * rounds {
			topic := (i*i + i/7) % topics
			expected, found, tokens := promised(t, c, topicQuestion(topic, i))
			if tokens == 0 {
				t.Fatal("the engine does not tell what it found")
			}
			// The first time that a topic comes again it is known only roughly where it ends.
			if i >= 3*topics {
				points += 10000 * max(expected-found, found-expected) / tokens
				if warm++; max(expected-found, found-expected) > 16 {
					off++
				}
				if found == 0 {
					evicted++
				}
			}
		}
		s := c.nodes["n1"].Status().KVEvents
		t.Logf("promises differ by %.2f points, %d of %d by more than a block of tokens; %d were cold; %+v", float64(points)/100/float64(warm), off, warm, evicted, *s)
		foreign := false
		c.nodes["n1"].locked(func(time.Time, *node.Node) { foreign = c.nodes["n1"].insight.said["foreign"] })
		if off > warm/50 || points/warm > 50 || evicted < 10 || s.Clears > 0 || s.Unlinked > 0 || foreign {
			t.Error("promises are not what the engine finds, or events are thought to be another engine's")
		}
	})
}

// An engine that has started anew has nothing: its publisher's next life says so
// before any request finds out.
func TestEventsTellOfARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, c := onlyEvents(t)
		for i := range 4 {
			promised(t, c, topicQuestion(1, i))
		}
		if expected, found, _ := promised(t, c, topicQuestion(1, 4)); expected != found || found == 0 {
			t.Fatalf("%d promised, %d found", expected, found)
		}
		p.publisher.Close()
		p.publish(t)
		p.config.Publisher = p.publisher
		p.start()
		time.Sleep(10 * time.Second)
		for i, want := range []bool{false, true, true} {
			expected, found, _ := promised(t, c, topicQuestion(1, 5+i))
			if (found > 0) != want || max(expected-found, found-expected) > 16 {
				t.Errorf("request %d after the restart: %d promised, %d found", i+1, expected, found)
			}
		}
	})
}

// What one data-parallel rank forgets, all of it or for good, says nothing of the others.
func TestRanksForgetForThemselves(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPublishing(t, "", func(c *emulated.Config) { c.TokenBytes = 0 })
		second := kvevents.NewPublisher(kvevents.PublisherConfig{})
		t.Cleanup(func() { second.Close() })
		for addr, publisher := range map[string]*kvevents.Publisher{"engine:7000": p.publisher, "engine:7001": second} {
			l, err := p.network.Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			publisher.Serve(l)
		}
		c := newCluster(t, 1, func(string) http.RoundTripper { return engine.Local{Handler: p} }, p.follow, func(c *Config) {
			c.KVEvents.Endpoint, c.KVEvents.Replay, c.KVEvents.Ranks = "tcp://engine:7000", "", 2
		})
		time.Sleep(5 * time.Second)
		for i := range 3 {
			promised(t, c, topicQuestion(1, i))
		}
		for _, happens := range []func(){
			func() {
				second.Publish(kvevents.AppendBatch(nil, time.Now(), []kvevents.Event{{Kind: kvevents.Cleared}}))
			},
			func() { second.Publish([]byte("no batch")) },
			func() { second.Close() },
		} {
			happens()
			time.Sleep(time.Second)
			if expected, found, _ := promised(t, c, topicQuestion(1, 10)); found == 0 || max(expected-found, found-expected) > 16 {
				t.Errorf("%d promised, %d found", expected, found)
			}
		}
		if s := c.nodes["n1"].Status().KVEvents; s.Ranks != 2 || s.Connected != 1 || s.Clears != 1 {
			t.Errorf("%+v", *s)
		}
	})
}

// What events tell goes before what an operator has told of the cache, and before what
// answers seem to show of it, such as those of another rank, which finds nothing of what
// the first one holds.
func TestEventsGoBeforeWhatElseIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p := newPublishing(t, "vllm", func(c *emulated.Config) { c.Profile.CapacityTokens, c.TokenBytes = 8192, 0 })
		other := false
		c := newCluster(t, 1, func(string) http.RoundTripper {
			return engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer := httptest.NewRecorder()
				p.ServeHTTP(answer, r)
				w.WriteHeader(answer.Code)
				body := answer.Body.String()
				if before, rest, ok := strings.Cut(body, `"cached_tokens":`); ok && other {
					body = before + `"cached_tokens":0` + strings.TrimLeft(rest, "0123456789")
				}
				_, _ = io.WriteString(w, body)
			})}
		}, p.follow, func(c *Config) { c.EngineKind, c.Node.CapacityTokens, c.Node.LearnCapacity = probe.VLLM, 1024, true })
		time.Sleep(5 * time.Second)
		const topics = 8
		for i := range 8 * topics {
			other = i >= 2*topics && i < 6*topics
			before := p.found()
			expected, _, tokens := promised(t, c, topicQuestion(i%topics, i))
			found := p.found() - before
			time.Sleep(2 * time.Second) // for a probe
			if i >= 3*topics && max(expected-found, found-expected) > 16 || i >= topics && found < tokens/2 {
				t.Errorf("request %d: %d promised, %d of %d found", i, expected, found, tokens)
			}
		}
		s := c.nodes["n1"].Status()
		if e := s.Engine; e.Losses > 0 || e.KVTokens.From != FromEngine || s.CapacityTokens < s.KVEvents.Blocks*16 || s.KVEvents.Blocks < 200 {
			t.Errorf("%+v, %+v: the tree holds up to %d tokens", e, *s.KVEvents, s.CapacityTokens)
		}
	})
}

// A prompt of any API is linked to the tokens that the engine makes of it: what it finds
// cached is promised to the page, and no longer once it has evicted that, by its events
// alone.
func TestEventsLinkPromptsOfEachAPI(t *testing.T) {
	text := func(role, text string) map[string]any { return map[string]any{"role": role, "content": text} }
	tool := func(name, schema string) map[string]any {
		return map[string]any{"name": name, "description": "looks for things", schema: map[string]any{"type": "object"}}
	}
	for _, tc := range []struct {
		engine, path string
		body         func(system, user string) map[string]any
	}{
		{"vllm", "/v1/completions", func(system, user string) map[string]any { return map[string]any{"prompt": system + user} }},
		{"vllm", "/v1/chat/completions", func(system, user string) map[string]any {
			return map[string]any{"messages": []any{text("system", system), text("user", user)}, "tools": []any{map[string]any{"type": "function", "function": tool("find", "parameters")}}}
		}},
		{"vllm", "/v1/messages", func(system, user string) map[string]any {
			return map[string]any{"system": []any{map[string]any{"type": "text", "text": system[:40]}, map[string]any{"type": "text", "text": system[40:]}}, "messages": []any{
				text("user", "Go on."),
				map[string]any{"role": "assistant", "content": []any{map[string]any{"type": "tool_use", "id": "t1", "name": "find", "input": map[string]any{"what": "it"}}}},
				map[string]any{"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": "t1", "content": user}}},
			}, "tools": []any{tool("find", "input_schema")}}
		}},
		{"sglang", "/v1/messages", func(system, user string) map[string]any {
			return map[string]any{"system": []any{map[string]any{"type": "text", "text": "Be kind."}, map[string]any{"type": "text", "text": system}}, "messages": []any{text("user", user)}}
		}},
		{"vllm", "/v1/responses", func(system, user string) map[string]any {
			return map[string]any{"instructions": system, "input": []any{text("user", "Go on."), text("assistant", "Yes?"), text("user", user)}}
		}},
		{"sglang", "/v1/responses", func(system, user string) map[string]any { return map[string]any{"input": system + user} }},
		{"sglang", "/generate", func(system, user string) map[string]any { return map[string]any{"text": system + user} }},
		{"sglang", "/api/chat", func(system, user string) map[string]any {
			return map[string]any{"messages": []any{text("system", system), text("user", user)}, "stream": false}
		}},
	} {
		inBubble(t, func(t *testing.T) {
			p := newPublishing(t, tc.engine, func(c *emulated.Config) {
				c.Profile.CapacityTokens, c.TokenBytes, c.Bare = 4096, 0, tc.engine == "vllm"
			})
			c := newCluster(t, 1, func(string) http.RoundTripper { return engine.Local{Handler: p} }, p.follow, func(c *Config) { c.EngineKind = probe.Auto })
			time.Sleep(5 * time.Second)
			ask := func(topic, i int) (expected, found int) {
				body := tc.body(words("topic", topic, 120), words("question", i, 30))
				encoded, _ := json.Marshal(body)
				before := p.found()
				r := c.do(t.Context(), "n1", http.MethodPost, tc.path, string(encoded))
				if r.status != 200 {
					t.Fatalf("%s %s: %d %s", tc.engine, tc.path, r.status, r.body)
				}
				time.Sleep(100 * time.Millisecond) // for its tokens
				expected, _ = strconv.Atoi(r.header.Get(expectedHeader))
				return expected, p.found() - before
			}
			for i := range 5 {
				// The first time that a topic comes again it is known only roughly where it ends.
				if expected, found := ask(1, i); i > 1 && (found < 200 || max(expected-found, found-expected) > 16) {
					t.Errorf("%s %s: %d promised, %d found", tc.engine, tc.path, expected, found)
				}
			}
			for i := range 20 {
				ask(2+i, 100+i)
			}
			if expected, found := ask(1, 5); max(expected-found, found-expected) > 16 || found > 100 {
				t.Errorf("%s %s: %d promised, %d found of what was evicted", tc.engine, tc.path, expected, found)
			}
			if s := c.nodes["n1"].Status().KVEvents; s.Prompts < 20 || s.Unlinked > 0 || s.Clears > 0 {
				t.Errorf("%s %s: %+v", tc.engine, tc.path, *s)
			}
		})
	}
}

// The paper's prompts, and conversations, to four nodes whose engines report nothing of
// what they find, and whose caches evict: by events alone promises are within a point of
// the prompt's tokens. With -v all prompts are sent.
func TestPromisesByEvents(t *testing.T) {
	for _, w := range paperWorkloads(t) {
		if !testing.Verbose() {
			w.requests /= 5
		}
		inBubble(t, func(t *testing.T) {
			var published []*publishing
			var engines []*foreignEngine
			c := newCluster(t, 4, func(string) http.RoundTripper {
				p := newPublishing(t, "vllm", func(c *emulated.Config) {
					c.Profile, _ = emulate.ByName("paper")
					c.Profile.CapacityTokens, c.TokenBytes, c.Bare = w.holds, 0, true
				})
				published, engines = append(published, p), append(engines, p.foreignEngine)
				return engine.Local{Handler: p}
			}, func(c *Config) {
				c.EngineKind, c.Node.CapacityTokens = probe.VLLM, 0
				c.Node.Policy = route.LongestPushback{} // which warms nothing: what is found is the client's
				published[len(published)-1].follow(c)
			})
			time.Sleep(5 * time.Second)
			off, near := w.promises(t, c, 100*time.Millisecond, engines)
			t.Logf("%s, caches of %d tokens: promises off by %.2f points, %.1f %% within a page", w.name, w.holds, off, near)
			if off > 1 {
				t.Errorf("%s: promises are off by %.2f points", w.name, off)
			}
		})
	}
}
