package sim

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/prefix"
)

// stream reads a stream of prompts as block ids from the folder beside the
// repository, and skips the test where it is absent.
func stream(t testing.TB, name string) []Request {
	t.Helper()
	f, err := os.Open("../../shared/data/streams/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no ../shared/data/streams/%s beside the repository", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []Request
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var line struct {
			Group  string   `json:"group"`
			IDs    []uint64 `json:"hash_ids"`
			Input  int      `json:"input_length"`
			Output int      `json:"output_length"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		r := Request{Topic: line.Group, Tokens: line.Input, Output: 1}
		for _, id := range line.IDs {
			r.Chain = append(r.Chain, prefix.Hash(id+1)*0x9e3779b97f4a7c15)
		}
		all = append(all, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// hitRate counts, without the simulator, the share of prompt tokens that are
// cached when request i runs on the node that place names, with caches that never
// evict. A prompt's last token is always computed.
func hitRate(requests []Request, blockTokens int, place func(i int) int) float64 {
	var cached, tokens int
	seen := map[int]map[prefix.Hash]bool{}
	for i, r := range requests {
		node := place(i)
		if seen[node] == nil {
			seen[node] = map[prefix.Hash]bool{}
		}
		match := 0
		for match < len(r.Chain) && seen[node][r.Chain[match]] {
			match++
		}
		for _, h := range r.Chain {
			seen[node][h] = true
		}
		cached += min(match*blockTokens, r.Tokens-1)
		tokens += r.Tokens
	}
	return 100 * float64(cached) / float64(tokens)
}

// With caches that never evict, the simulator's hit rates are those of a plain count.
func TestHitRatesAreThoseOfAPlainCount(t *testing.T) {
	for _, tc := range []struct {
		file        string
		blockTokens int
		want        map[int]float64 // hit rate by nodes, in round robin; of one node: ideal
	}{
		{"mmlu_uniform.b16.jsonl.gz", 16, map[int]float64{1: 85.2, 4: 83.5, 16: 79.5}},
		{"mooncake_conversation.b512.jsonl.gz", 512, map[int]float64{1: 37.4, 4: 19.6, 16: 10.1}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			requests := stream(t, tc.file)
			for nodes, want := range tc.want {
				counted := hitRate(requests, tc.blockTokens, func(i int) int { return i % nodes })
				got, err := Run(Config{
					Nodes: nodes, Policy: "local", Profile: paper(t), BlockTokens: tc.blockTokens,
					CapacityTokens: emulate.Unlimited, Arrival: Arrival{Clients: 1},
				}, slices.Values(requests))
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d nodes: counted %.2f %%, simulated %.2f %%, %v events", nodes, counted, 100*got.ActualHit, got.Events)
				if math.Abs(counted-100*got.ActualHit) > 0.2 || math.Abs(counted-want) > 0.2 {
					t.Errorf("%d nodes: counted %.2f %%, simulated %.2f %%, want %.1f %%", nodes, counted, 100*got.ActualHit, want)
				}
			}
		})
	}
}

func paper(t testing.TB) emulate.Profile {
	t.Helper()
	p, err := emulate.ByName("paper")
	if err != nil {
		t.Fatal(err)
	}
	return p
}
