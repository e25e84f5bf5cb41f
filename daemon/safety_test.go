package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/builtin"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// anywhere routes by chance alone.
type anywhere struct{}

func (anywhere) Name() string { return "anywhere" }
func (anywhere) Choose(cands []route.Candidate, rng *rand.Rand) (int, string) {
	return rng.IntN(len(cands)), "by chance"
}

const safetyModel = "random:32x2"

// "A request routed to a peer whose trie estimate is arbitrarily out of date will
// still yield a correct inference result, with only the prefill cost re-incurred"
// (section 3.1 of the paper). For random prompts, random routing, caches so small
// that they evict all the time, and estimates that lie, every answer has the bytes
// that a lone engine with a cold cache gives.
func TestSafetySeeds(t *testing.T) {
	seeds := 3
	if s := os.Getenv("HEARSAY_SEEDS"); s != "" {
		var err error
		if seeds, err = strconv.Atoi(s); err != nil {
			t.Fatalf("HEARSAY_SEEDS=%q is not a number of seeds", s)
		}
		seeds = min(seeds, 40) // each takes about as long as a test of its own
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { checkSafety(t, rand.New(rand.NewPCG(uint64(seed), 7))) })
		})
	}
}

func checkSafety(t *testing.T, rng *rand.Rand) {
	var policy route.Policy = anywhere{}
	if rng.IntN(2) == 0 {
		policy = route.Longest{}
	}
	var engines []*builtin.Engine
	c := newCluster(t, 4, func(string) http.RoundTripper {
		e := openBuiltin(t, 2048)
		engines = append(engines, e)
		return engine.Local{Handler: e}
	}, func(c *Config) { c.Node.Policy = policy; c.Node.CapacityTokens = 2048 })
	t.Cleanup(func() {
		for _, e := range engines {
			e.Close()
		}
	})
	cached := 0
	for range 6 {
		lie(c, rng)
		var batch sync.WaitGroup
		var mu sync.Mutex
		for range 5 {
			body, at := randomBody(rng), fmt.Sprintf("n%d", rng.IntN(4)+1)
			batch.Go(func() {
				got := c.do(t.Context(), at, http.MethodPost, "/v1/completions", body)
				text, hit := answerOf(t, got.body)
				if want := alone(t, body); got.status != 200 || text != want {
					t.Errorf("%s answers %q by %s, a lone cold engine %q, to %s", at, text, got.header.Get(nodeHeader), want, body)
				}
				mu.Lock()
				cached += hit
				mu.Unlock()
			})
		}
		batch.Wait()
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
	}
	if cached == 0 {
		t.Error("no token was ever cached: the test tests nothing")
	}
}

func openBuiltin(t *testing.T, kvTokens int) *builtin.Engine {
	t.Helper()
	e, err := builtin.Open(builtin.Config{Model: safetyModel, Name: "m", KVTokens: kvTokens, Context: 2048})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var topics = []string{"law", "anatomy", "virology", "the sea"}

// randomBody asks for a few tokens, greedily or by a seed, after a prompt that
// shares its beginning with others.
func randomBody(rng *rand.Rand) string {
	text := prompt(topics[rng.IntN(len(topics))], rng.IntN(40)) + fmt.Sprint(rng.IntN(3))
	body, _ := json.Marshal(map[string]any{
		"model": "m", "prompt": text, "max_tokens": 1 + rng.IntN(8),
		"temperature": float64(rng.IntN(2)), "seed": rng.IntN(100),
	})
	return string(body)
}

// lie makes every node believe that every peer holds what it does not.
func lie(c *cluster, rng *rand.Rand) {
	for _, d := range c.nodes {
		for _, p := range d.Status().Peers {
			tree := prefix.NewTree(1<<20, 1<<20)
			for range rng.IntN(4) {
				text := prompt(topics[rng.IntN(len(topics))], 40)
				root := d.cfg.Key.Root(prefix.Scope{Model: "m"})
				tree.Insert(prefix.NewChain(root, []byte(text)), len(text)/4)
			}
			d.locked(func(now time.Time, n *node.Node) {
				n.Hear(now, gossip.Rumor{Author: p.Name, Life: 1 << 62, Version: uint64(now.UnixNano()), Every: time.Minute, Tree: tree.Snapshot()})
			})
		}
	}
}

// alone is the answer of one engine that has cached nothing.
func alone(t *testing.T, body string) string {
	e := openBuiltin(t, 2048)
	defer e.Close()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine/v1/completions", strings.NewReader(body))
	resp, err := engine.Local{Handler: e}.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	text, hit := answerOf(t, answer)
	if hit != 0 {
		t.Errorf("the cold engine had %d tokens cached", hit)
	}
	return text
}

// answerOf reads a completion: its text and how much of its prompt was cached.
func answerOf(t *testing.T, body []byte) (text string, cached int) {
	at, _ := dialect.Lookup("/v1/completions")
	s := dialect.NewScanner(at, http.Header{"Content-Type": {"application/json"}}.Get)
	_, _ = s.Write(body)
	usage, known := s.Usage()
	text, whole := s.Text()
	if !known || !whole {
		t.Errorf("not a whole completion: %s", body)
	}
	return text, usage.Cached
}
