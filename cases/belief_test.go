package cases

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// believed is what a node believes of a peer.
func (c *cluster) believed(of, at string) daemon.PeerStatus {
	for _, p := range c.members[at].daemon.Status().Peers {
		if p.Name == of {
			return p
		}
	}
	return daemon.PeerStatus{}
}

// G47: a node sees that its engine restarted, forgets what was cached, and says so.
// Until then answers may be slow, not wrong.
func TestG47EngineRestarts(t *testing.T) {
	byPrefix(t, func(t *testing.T, c *cluster) {
		topic := func(i int) string { return long(fmt.Sprint("topic ", i), 10, "") }
		for i := range 50 {
			c.askAt(t.Context(), "B", http.MethodPost, chatPath, topic(i))
		}
		c.gossip()
		if n := c.believed("B", "A").TreeBlocks; n < 500 {
			t.Fatalf("A believes that B holds %d blocks", n)
		}
		e := c.served()
		e.Close()
		if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, topic(1)); r.status != 200 {
			t.Errorf("while the engine is away: %d %s", r.status, r.body)
		}
		time.Sleep(3 * time.Second)
		e.Serve(c.wires.listen(t, engineHostOf("B"), enginePort))
		time.Sleep(3 * time.Second)
		if n, said := c.members["B"].daemon.Status().TreeBlocks, c.believed("B", "A").TreeBlocks; n != 0 || said != 0 {
			t.Errorf("B still thinks of %d blocks, A of %d", n, said)
		}
		if state := c.state("B", "A"); state != "alive" {
			t.Errorf("B is %s", state)
		}
	})
}

// caching is an engine that reports what it has cached: the last so many prompts, a
// token for each four bytes.
func caching(prompts int) func(*Request) Script {
	var held []string
	return func(r *Request) Script {
		prompt, cached := string(r.Body), 0
		for i, p := range held {
			if p == prompt {
				cached = len(prompt) / 4
				held = append(held[:i], held[i+1:]...)
				break
			}
		}
		held = append(held, prompt)
		held = held[max(0, len(held)-prompts):]
		return JSON(200, fmt.Sprintf(`{"choices":[{"index":0,"message":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`, len(prompt)/4, cached))
	}
}

// G48: a tree with the engine's capacity evicts as the engine does, so that nothing is
// expected of what is gone; what was expected and what came of it are in the metrics.
func TestG48Evictions(t *testing.T) {
	prompt := func(i int) string { return long(fmt.Sprintf("topic %03d", i), 10, "") }
	capacity := 20 * len(prompt(0)) / 4
	virtual(t, 1, caching(20), func(t *testing.T, c *cluster) {
		for range 3 {
			for i := range 60 {
				c.post(prompt(i))
			}
		}
		if s := c.members["A"].daemon.Status(); s.TreeTokens > capacity || s.TreeTokens < capacity/2 {
			t.Errorf("the tree stands for %d tokens, the engine holds %d", s.TreeTokens, capacity)
		}
		for range 3 {
			for i := range 15 {
				c.post(prompt(i))
			}
		}
		m := c.metrics("A")
		if expected, actual := m["hearsay_expected_cached_tokens_total"], m["hearsay_actual_cached_tokens_total"]; actual == 0 || expected < 0.8*actual || expected > 1.05*actual {
			t.Errorf("%v tokens were expected to be cached, %v were", expected, actual)
		}
	}, policy(t, "local"), func(c *daemon.Config) { c.Node.CapacityTokens = capacity })
}

// G48: where a hit fell short the tree is pruned to it, and peers hear of that.
func TestG48Shortfall(t *testing.T) {
	virtual(t, 2, caching(1), func(t *testing.T, c *cluster) {
		c.warm(chatPath, long("law", 20, ""))
		c.served().set(func(*Request) Script {
			return JSON(200, `{"choices":[],"usage":{"prompt_tokens":400,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`)
		})
		before := c.believed("B", "A").TreeBlocks
		c.askAt(t.Context(), "A", http.MethodPost, chatPath, long("law", 2, "something else")) // shares two blocks
		c.gossip()
		if after := c.believed("B", "A").TreeBlocks; after >= before {
			t.Errorf("A believes in %d blocks as before, though none was found", after)
		}
	}, policy(t, "longest"))
}

// G49: ever new prompts fill a bounded memory: a node's own tree, and for each peer
// no more than its own may be. What the bound is does not matter for that, so it is a
// thirtieth of the default, and two thousand prompts fill it five times over.
func TestG49NewPromptsOnly(t *testing.T) {
	const maxBlocks, quarter = 1 << 12, 500
	virtual(t, 3, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
		rng := rand.New(rand.NewPCG(49, 0))
		text := make([]byte, 1024)
		var levels []uint64
		for i := range 4 * quarter {
			for j := range text {
				text[j] = byte(rng.Uint32())
			}
			if r := c.askAt(t.Context(), string(rune('A'+i%3)), http.MethodPost, "/v1/completions", fmt.Sprintf(`{"model":"m-test","prompt":"%x"}`, text)); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			if i%50 == 0 {
				c.gossip()
			}
			if i%quarter == quarter-1 {
				c.gossip()
				levels = append(levels, c.heap())
			}
		}
		for name, m := range c.members {
			s := m.daemon.Status()
			trees := map[string]int{name: s.TreeBlocks}
			for _, p := range s.Peers {
				trees[p.Name] = p.TreeBlocks
			}
			for of, blocks := range trees {
				if blocks > maxBlocks || blocks < maxBlocks/2 {
					t.Errorf("%s holds %d blocks of %s, at most %d are allowed", name, blocks, of, maxBlocks)
				}
			}
		}
		if first, last := levels[1], levels[3]; last > first+first/4+1<<20 {
			t.Errorf("the heap grew from %d to %d bytes over as many prompts again", first, last)
		}
	}, policy(t, "longest"), func(c *daemon.Config) { c.Node.MaxBlocks = maxBlocks })
}

// heap returns how many bytes live, without what engines and journals keep for cases.
func (c *cluster) heap() uint64 {
	for _, m := range c.members {
		m.engine.forget()
		m.log.mu.Lock()
		m.log.text = bytes.Buffer{}
		m.log.mu.Unlock()
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// G50: a peer is credited with what it served and not with what it was asked.
func TestG50OnlySuccessCounts(t *testing.T) {
	for name, fail := range map[string]func(c *cluster){
		"rejects": func(c *cluster) { c.served().set(always(JSON(400, `{"error":{}}`))) },
		"is busy": func(c *cluster) { c.served().set(always(JSON(503, `{"error":{}}`))) },
		"fails":   func(c *cluster) { c.served().set(always(JSON(500, `{"error":{}}`))) },
		"breaks":  func(c *cluster) { c.served().set(always(Script{End: Broken})) },
		"is away": func(c *cluster) { c.served().Close() },
		"is dead": func(c *cluster) { c.kill("B") },
		"cuts off": func(c *cluster) {
			c.served().set(always(Script{Header: Stream().Header, Steps: steps(0, []string{event("x")}), End: Broken}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 2, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
				c.warm(chatPath, long("law", 5, ""))
				before := c.believed("B", "A")
				fail(c)
				c.askAt(t.Context(), "A", http.MethodPost, chatPath, strings.Replace(long("law", 40, ""), "{", `{"stream":true,`, 1))
				if after := c.believed("B", "A"); after.Credits != before.Credits || after.TreeBlocks > before.TreeBlocks {
					t.Errorf("B was believed to hold %d blocks and %d credits, now %d and %d", before.TreeBlocks, before.Credits, after.TreeBlocks, after.Credits)
				}
			}, policy(t, "longest"))
		})
	}
}

// G51: nodes that came and left are gone from what is believed, and from the choice.
func TestG51DepartedPeers(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 0))
	now := time.Unix(1, 0)
	n := node.New(node.Config{Name: "n", Life: 1, Rand: rng, Policy: route.Longest{}})
	text := []byte(strings.Repeat("the same for all of them, ", 400))
	req := node.Request{Model: "m", Chain: prefix.NewChain(1, text), Bytes: len(text)}
	level := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := level()
	for i := range 200 {
		name := fmt.Sprint("short-lived-", i)
		peer := node.New(node.Config{Name: name, Life: uint64(i + 1), Rand: rng})
		peer.Served(now, req, name, node.Outcome{})
		n.Hear(now, peer.Speak(now))
		if d := n.Route(now, req); d.Node != name {
			t.Fatalf("%s holds all of it; chosen is %s", name, d.Node)
		}
		n.Forget(name)
	}
	if d := n.Route(now, req); d.Node != "n" || d.Match != 0 || len(n.Status(now).Peers) != 0 {
		t.Errorf("chosen is %+v, with %d peers", d, len(n.Status(now).Peers))
	}
	if after := level(); after > before+64<<10 {
		t.Errorf("%d bytes are left of those who left", after-before)
	}
	runtime.KeepAlive(n)
}
