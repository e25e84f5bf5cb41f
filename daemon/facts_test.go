package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/node"
)

// A foreignEngine is an emulated one that speaks a dialect and can be started anew
// behind the same address.
type foreignEngine struct {
	t      *testing.T
	config emulated.Config
	mu     sync.Mutex
	engine *emulated.Engine
}

func newForeign(t *testing.T, dialect string, change ...func(*emulated.Config)) *foreignEngine {
	p := emulate.Profile{Name: "quick", Base: 10 * time.Millisecond, MaxBatch: 4, CapacityTokens: 8192}
	f := &foreignEngine{t: t, config: emulated.Config{Profile: p, TokenBytes: 4, Dialect: dialect}}
	for _, c := range change {
		c(&f.config)
	}
	f.start()
	t.Cleanup(func() { _ = f.now().Close() })
	return f
}

func (f *foreignEngine) start() {
	f.t.Helper()
	e, err := emulated.Open(f.config)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	was := f.engine
	f.engine = e
	f.mu.Unlock()
	if was != nil {
		_ = was.Close()
	}
}

func (f *foreignEngine) now() *emulated.Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.engine
}

func (f *foreignEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.now().ServeHTTP(w, r) }

// beside starts a node beside f, as hearsay serve does beside a URL.
func (f *foreignEngine) beside(t *testing.T, change ...func(*Config)) *cluster {
	change = append([]func(*Config){func(c *Config) {
		c.EngineKind, c.Node.CapacityTokens, c.Node.LearnCapacity = probe.Auto, 0, true
	}}, change...)
	c := newCluster(t, 1, func(string) http.RoundTripper { return engine.Local{Handler: f} }, change...)
	time.Sleep(3 * time.Second)
	return c
}

// ask sends the node a prompt that the engine takes.
func (f *foreignEngine) ask(c *cluster, prompt string) {
	f.t.Helper()
	r := c.do(f.t.Context(), "n1", http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, prompt))
	if r.status != 200 {
		f.t.Fatalf("%d %s", r.status, r.body)
	}
}

// A node finds out what engine it stands beside, and says from whom it knows what.
func TestStatusSaysWhatIsKnownOfTheEngine(t *testing.T) {
	for _, tc := range []struct {
		dialect string
		bare    bool
		kind    Fact
		kv      Fact
		cached  Fact // after prompts came again
	}{
		{"vllm", false, Fact{"vllm", "engine"}, Fact{8192, "engine"}, Fact{true, "learnt"}},
		{"vllm", true, Fact{"vllm", "engine"}, Fact{8192, "engine"}, Fact{false, "learnt"}},
		{"sglang", false, Fact{"sglang", "engine"}, Fact{8192, "engine"}, Fact{true, "learnt"}},
		{"sglang", true, Fact{"sglang", "engine"}, Fact{8192, "engine"}, Fact{false, "engine"}},
		{"llamacpp", false, Fact{"llamacpp", "engine"}, Fact{8192, "engine"}, Fact{true, "learnt"}},
		{"ollama", false, Fact{"ollama", "engine"}, Fact{8192, "engine"}, Fact{false, "engine"}},
		{"", false, Fact{"openai", "engine"}, Fact{nil, "unknown"}, Fact{true, "learnt"}},
	} {
		t.Run(fmt.Sprint(tc.dialect, " ", tc.bare), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newForeign(t, tc.dialect, func(c *emulated.Config) { c.Bare = tc.bare })
				c := f.beside(t)
				for range 5 {
					f.ask(c, prompt("topic", 40))
				}
				time.Sleep(5 * time.Second)
				s := c.nodes["n1"].Status()
				if e := s.Engine; e.Kind != tc.kind || e.KVTokens != tc.kv || e.Cached != tc.cached || (e.Remedy != "") != (tc.cached.Value == false) {
					t.Errorf("%+v", e)
				}
				if want, _ := tc.kv.Value.(int); s.CapacityTokens != want {
					t.Errorf("the tree holds up to %d tokens, want %d", s.CapacityTokens, want)
				}
			})
		})
	}
}

// An engine that is asked by Anthropic's API alone tells of its cache there too.
func TestStatusKnowsOfOtherAPIs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newForeign(t, "vllm").beside(t)
		for range 2 {
			body := fmt.Sprintf(`{"max_tokens":1,"messages":[{"role":"user","content":%q}]}`, prompt("topic", 40))
			if r := c.do(t.Context(), "n1", http.MethodPost, "/v1/messages", body); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
		}
		if e := c.nodes["n1"].Status().Engine; e.Cached != (Fact{true, "learnt"}) {
			t.Errorf("%+v", e.Cached)
		}
	})
}

// The operator's word goes before the engine's.
func TestFlagsGoBeforeTheEnginesWord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newForeign(t, "vllm").beside(t, func(c *Config) { c.EngineKind, c.Node.CapacityTokens = probe.VLLM, 5000 })
		e := c.nodes["n1"].Status().Engine
		if e.Kind != (Fact{"vllm", "flag"}) || e.KVTokens != (Fact{5000, "flag"}) || e.Context != (Fact{8192, "engine"}) {
			t.Errorf("%+v", e)
		}
	})
}

// vLLM and SGLang leave out that nothing was cached. Once they have told of
// something, that is what it means.
func TestWhatIsLeftOutIsZero(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newForeign(t, "vllm")
		c := f.beside(t)
		reported := func() int { return c.nodes["n1"].Status().Here.Reported }
		f.ask(c, prompt("one", 40))
		if n := reported(); n != 0 {
			t.Errorf("before it has ever told, %d answers are known", n)
		}
		f.ask(c, prompt("one", 40))
		f.ask(c, prompt("two", 40))
		if n := reported(); n != 2 {
			t.Errorf("%d answers are known, want 2", n)
		}
	})
}

// A flag that is missing at the engine is named to the operator, once.
func TestMissingFlagIsSaidOnce(t *testing.T) {
	for dialect, flag := range map[string]string{"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"} {
		inBubble(t, func(t *testing.T) {
			var mu sync.Mutex
			var log bytes.Buffer
			f := newForeign(t, dialect, func(c *emulated.Config) { c.Bare = true })
			c := f.beside(t, func(c *Config) {
				c.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
			})
			for range 10 {
				f.ask(c, prompt("again", 40))
				time.Sleep(10 * time.Second)
			}
			remedy := c.nodes["n1"].Status().Engine.Remedy
			mu.Lock()
			defer mu.Unlock()
			if n := strings.Count(log.String(), flag); n != 1 || !strings.Contains(remedy, flag) {
				t.Errorf("%s: said %d times, remedy %q\n%s", dialect, n, remedy, log.String())
			}
		})
	}
}

// An engine that is started anew without its flag no longer leaves out zeros alone:
// what it told in its former life says nothing now, and the flag is named again.
func TestRestartWithoutItsFlag(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		f := newForeign(t, "vllm")
		c := f.beside(t, func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
		})
		const remedy = "--enable-prompt-tokens-details"
		for life := range 3 {
			f.config.Bare = life > 0
			f.start()
			time.Sleep(3 * time.Second)
			before := c.nodes["n1"].Status().Here.Reported
			for range 5 {
				f.ask(c, prompt("again", 40))
			}
			s := c.nodes["n1"].Status()
			if bare := f.config.Bare; s.Engine.Cached != (Fact{!bare, "learnt"}) || bare != (s.Here.Reported == before) {
				t.Errorf("life %d: %d answers are known, then %d; %+v", life, before, s.Here.Reported, s.Engine.Cached)
			}
			mu.Lock()
			if n := strings.Count(log.String(), remedy); n != life {
				t.Errorf("life %d: %s was named %d times", life, remedy, n)
			}
			mu.Unlock()
		}
	})
}

// Where an engine's cache is off, or several take turns, the operator reads in the
// status too what to change.
func TestStatusHasTheRemedy(t *testing.T) {
	for want, facts := range map[string]probe.Facts{
		"--no-enable-prefix-caching": {Kind: probe.VLLM, KVTokens: 16000, CacheOff: true},
		"beside each engine":         {Kind: probe.VLLM, KVTokens: 16000, Shared: true},
	} {
		inBubble(t, func(t *testing.T) {
			d := newForeign(t, "").beside(t).nodes["n1"]
			var e EngineStatus
			d.locked(func(now time.Time, n *node.Node) {
				d.insight.facts, d.insight.told = facts, 1
				e = d.engineStatus(n.Status(now))
			})
			if !strings.Contains(e.Remedy, want) || facts.CacheOff && e.KVTokens != (Fact{0, "engine"}) {
				t.Errorf("%+v", e)
			}
		})
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// What an engine had cached is forgotten soon after it started anew, though every
// probe was answered.
func TestEngineThatStartedAnewHasNothingCached(t *testing.T) {
	for _, dialect := range []string{"vllm", "sglang", "llamacpp", "ollama"} {
		inBubble(t, func(t *testing.T) {
			f := newForeign(t, dialect)
			c := f.beside(t)
			f.ask(c, prompt("topic", 40))
			time.Sleep(5 * time.Second)
			before := c.nodes["n1"].Status()
			f.start()
			time.Sleep(3 * time.Second)
			after := c.nodes["n1"].Status()
			if before.TreeBlocks == 0 || before.Engine.Restarts != 0 || after.TreeBlocks != 0 || after.Engine.Restarts != 1 {
				t.Errorf("%s: %d blocks and %d restarts before, %d and %d after", dialect, before.TreeBlocks, before.Engine.Restarts, after.TreeBlocks, after.Engine.Restarts)
			}
		})
	}
}

// A prefill of minutes is not ill health, whatever the engine's pages say meanwhile,
// and requests of others count as the engine's load.
func TestSlowPrefillIsNotIllHealth(t *testing.T) {
	for _, dialect := range []string{"vllm", "sglang", "llamacpp", "ollama"} {
		inBubble(t, func(t *testing.T) {
			f := newForeign(t, dialect, func(c *emulated.Config) { c.Profile.Base = 2 * time.Minute })
			c := f.beside(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				f.ask(c, prompt("long", 40))
			}()
			for range 3 { // behind the node's back
				go func() {
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine/v1/completions", strings.NewReader(`{"prompt":"x","max_tokens":1}`))
					if resp, err := (engine.Local{Handler: f}).RoundTrip(req); err == nil {
						resp.Body.Close()
					}
				}()
			}
			time.Sleep(90 * time.Second)
			s := c.nodes["n1"].Status()
			if r := c.do(t.Context(), "n1", http.MethodGet, "/readyz", ""); r.status != 200 || s.EngineState != "ready" {
				t.Errorf("%s: %s, %s", dialect, s.EngineState, r.body)
			}
			want := 4
			if dialect == "ollama" {
				want = 1 // it does not tell
			}
			if s.Queue != want {
				t.Errorf("%s: %d requests are there, want %d", dialect, s.Queue, want)
			}
			<-done
			time.Sleep(20 * time.Minute)
		})
	}
}

// An engine that computes nothing though requests run is stuck; one that moves, is
// idle, or does not say is not.
func TestStalledEngineIsStuck(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	for name, tc := range map[string]struct {
		facts func(minute int) probe.Facts
		stuck bool
	}{
		"stalled":         {func(int) probe.Facts { return probe.Facts{Running: 2, Work: 5000, KVUse: 0.3} }, true},
		"idle":            {func(int) probe.Facts { return probe.Facts{Work: 5000, KVUse: 0.3} }, false},
		"silent":          {func(int) probe.Facts { return probe.Facts{Running: 2, Work: -1, KVUse: -1} }, false},
		"works":           {func(m int) probe.Facts { return probe.Facts{Running: 2, Work: 5000 + float64(m), KVUse: 0.3} }, false},
		"a long prefill":  {func(m int) probe.Facts { return probe.Facts{Running: 1, Work: 5000, KVUse: 0.3 + float64(m)/100} }, false},
		"starts again":    {func(m int) probe.Facts { return probe.Facts{Running: m % 4, Work: 5000, KVUse: 0.3} }, false},
		"stalls at times": {func(m int) probe.Facts { return probe.Facts{Running: 1, Work: float64(m / 4), KVUse: 0.3} }, false},
	} {
		var h health
		for minute := range 30 {
			h.worked(at.Add(time.Duration(minute)*time.Minute), tc.facts(minute))
		}
		if h.stuck() != tc.stuck {
			t.Errorf("%s: stuck %v", name, h.stuck())
		}
	}
}
