package sim

import (
	"math"
	"slices"
	"testing"
)

// truth sums up how far promises are from what engines find.
type truth struct {
	requests int
	off      float64 // points of prompt tokens, of all requests together
	near     int     // requests off by no more than a block
}

func (t *truth) add(r Record, blockTokens int) {
	off := math.Abs(float64(r.Expected - r.Cached))
	t.requests++
	t.off += 100 * off / float64(r.Tokens)
	if off <= float64(blockTokens) {
		t.near++
	}
}

// Nodes that learn from what their engines report make promises within 3 points of
// the prompt's tokens though they were told half of what the caches hold, or twice,
// and do no harm where they were told the truth. -v prints the error beside that of
// nodes to which nothing is reported.
func TestPromisesOfNodesThatLearnTheirEnginesCapacity(t *testing.T) {
	const blockTokens = 16
	for _, s := range []struct {
		file     string
		requests int
		cache    int
	}{
		{"mmlu_uniform.b16.jsonl.gz", 2000, 13_000},
		{"mmlu_skew.b16.jsonl.gz", 2000, 6_500},
		{"bfcl_multiturn.b16.jsonl.gz", 500, 26_000},
	} {
		requests, cache := stream(t, s.file)[:s.requests], s.cache
		for _, told := range []int{cache / 2, cache, 2 * cache, 1 << 30} {
			var mean, near [3]float64
			for _, feedback := range []Feedback{Deaf, Prune, Learn} {
				var sum truth
				_, err := Run(Config{
					Nodes: 4, Policy: "longest+pushback", Profile: paper(t), BlockTokens: blockTokens,
					CapacityTokens: cache, TreeTokens: told, Feedback: feedback, Arrival: Arrival{Clients: 4},
					Trace: func(r Record) { sum.add(r, blockTokens) },
				}, slices.Values(requests))
				if err != nil {
					t.Fatal(err)
				}
				mean[feedback], near[feedback] = sum.off/float64(sum.requests), 100*float64(sum.near)/float64(sum.requests)
			}
			t.Logf("%s, told %d of %d tokens: off by %.2f points where nothing is reported, %.2f where trees are pruned, %.2f where nodes learn; within a block %.1f, %.1f, %.1f %%",
				s.file, told, cache, mean[Deaf], mean[Prune], mean[Learn], near[Deaf], near[Prune], near[Learn])
			if mean[Learn] > 3 || mean[Learn] > mean[Prune]+0.3 {
				t.Errorf("%s, told %d of %d tokens: promises are off by %.2f points", s.file, told, cache, mean[Learn])
			}
		}
	}
}
