package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/prefix"
)

// herd are requests for one cold prompt of 64 blocks, one to each node, over a time,
// after each node has served some others of all lengths.
func herd(nodes int, within time.Duration) (requests []Request, entries []int) {
	ask := func(entry, topic, blocks int, at time.Duration) {
		c := make(prefix.Chain, blocks)
		for i := range c {
			c[i] = prefix.Hash(topic)<<16 | prefix.Hash(i)
		}
		requests = append(requests, Request{Topic: "", Chain: c, Tokens: 16 * blocks, Output: 1, At: at})
		entries = append(entries, entry)
	}
	topic := 1
	for i := range 20 {
		for entry := range nodes {
			topic++
			ask(entry, topic, 8+8*(i%4), time.Duration(i)*time.Second)
		}
	}
	for entry := range nodes {
		ask(entry, 1, 64, 30*time.Second+time.Duration(entry)*within/time.Duration(max(nodes-1, 1)))
		requests[len(requests)-1].Topic = "herd"
	}
	return requests, entries
}

// One cold prompt that comes to every node within 50 ms is computed by those to which
// it came before waiting for the first saves more than prices are known to, here in
// the first 25 ms; the others follow, and are not turned away.
func TestHerdFollowsTheFirst(t *testing.T) {
	profile := emulate.Profile{Name: "test", Base: 5 * time.Millisecond, PerToken: time.Millisecond, MaxBatch: 8, CapacityTokens: 1 << 20}
	for seed := range uint64(10) {
		requests, entries := herd(8, 50*time.Millisecond)
		computed := 0
		cfg := Config{
			Nodes: 8, Policy: economic, Seed: seed, Profile: profile, Check: true, NoWarming: true,
			Network: Network{Delay: 2 * time.Millisecond},
			entry:   func(i int) int { return entries[i] },
			Trace: func(r Record) {
				if r.Topic == "herd" && r.Cached < r.Tokens/2 {
					computed++
				}
			},
		}
		if _, err := Run(cfg, slices.Values(requests)); err != nil {
			t.Fatal(err)
		}
		if computed < 1 || computed > 5 {
			t.Errorf("seed %d: computed %d times by 8 nodes", seed, computed)
		}
	}
}
