package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/prefix"
)

// scenario draws a cluster, its faults and its requests.
func scenario(seed uint64) (Config, []Request) {
	rng := rand.New(rand.NewPCG(seed, 99))
	pick := func(of ...time.Duration) time.Duration { return of[rng.IntN(len(of))] }
	cfg := Config{
		Seed: seed, Nodes: 1 + rng.IntN(8), Check: true, Whole: seed%4 == 0,
		Policy:      Policies()[rng.IntN(len(Policies()))],
		BlockTokens: []int{1, 16, 64, 512}[rng.IntN(4)],
		Poll:        pick(20*time.Millisecond, 100*time.Millisecond, 500*time.Millisecond, 2*time.Second),
		Entry:       Entry(rng.IntN(3)), QueueThreshold: rng.IntN(10),
		Profile: emulate.Profile{
			Name: "drawn", Base: pick(0, 5*time.Millisecond, 149*time.Millisecond),
			PerToken: pick(time.Microsecond, 100*time.Microsecond), Decode: pick(0, 10*time.Millisecond),
			MaxBatch: 1 + rng.IntN(16), CapacityTokens: 512 << rng.IntN(8), KVBytesPerToken: 14_000,
		},
		Network: Network{Delay: pick(0, 2*time.Millisecond, 200*time.Millisecond), Jitter: pick(0, time.Millisecond)},
	}
	if rng.IntN(2) == 0 {
		cfg.Network.Loss, cfg.Network.Duplicate, cfg.Network.Reorder = rng.Float64()/2, rng.Float64()/2, rng.Float64()/2
	}
	if rng.IntN(3) == 0 {
		cfg.Network.Bandwidth = 1_000_000 << rng.IntN(8)
	}
	if rng.IntN(3) == 0 {
		for range cfg.Nodes {
			row := make([]time.Duration, cfg.Nodes)
			for i := range row {
				row[i] = time.Duration(rng.IntN(100)) * time.Millisecond
			}
			cfg.Network.Matrix = append(cfg.Network.Matrix, row)
		}
	}
	switch rng.IntN(3) {
	case 0:
		cfg.Arrival.Clients = 1 + rng.IntN(12)
	case 1:
		cfg.Arrival.Rate = 1 + 40*rng.Float64()
	}
	if rng.IntN(3) > 0 {
		kinds := []Kind{Crash, Restart, Restart, Partition, Heal, Heal, Slow}
		at := time.Duration(0)
		for range rng.IntN(12) {
			at += time.Duration(rng.Int64N(int64(3 * time.Second)))
			f := Fault{At: at, Kind: kinds[rng.IntN(len(kinds))], Factor: 0.5 + 4*rng.Float64()}
			for i := range cfg.Nodes {
				if rng.IntN(3) == 0 {
					f.Nodes = append(f.Nodes, i)
				}
			}
			cfg.Faults = append(cfg.Faults, f)
		}
	}
	return cfg, prompts(rng, 200, cfg.BlockTokens)
}

// prompts draws requests of some topics: a shared head, a tail of their own, now
// and then the same prompt again.
func prompts(rng *rand.Rand, n, blockTokens int) []Request {
	var all []Request
	at := time.Duration(0)
	for i := range n {
		at += time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
		if i > 0 && rng.IntN(10) == 0 {
			again := all[rng.IntN(i)]
			again.At = at
			all = append(all, again)
			continue
		}
		topic := rng.IntN(8)
		r := Request{Topic: fmt.Sprint(topic), At: at, Output: 1 + rng.IntN(3)*rng.IntN(8)}
		for b := range 1 + topic {
			r.Chain = append(r.Chain, prefix.Hash(1+topic*100+b))
		}
		for b := range rng.IntN(5) {
			r.Chain = append(r.Chain, prefix.Hash(10_000+100*i+b))
		}
		r.Tokens = len(r.Chain)*blockTokens + rng.IntN(blockTokens)
		all = append(all, r)
	}
	return all
}

// Whatever the cluster, its load and its faults, the promises of the design hold
// after every event, and a seed has one history.
func TestSeeds(t *testing.T) {
	seeds := 60
	if s, err := strconv.Atoi(os.Getenv("HEARSAY_SEEDS")); err == nil {
		seeds = s
	}
	for seed := range uint64(seeds) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			cfg, requests := scenario(seed)
			first, err := Run(cfg, slices.Values(requests))
			if err == nil && first.Requests != len(requests) {
				err = fmt.Errorf("%d answers to %d requests", first.Requests, len(requests))
			}
			if err == nil && cfg.Faults == nil && first.Errors > 0 {
				err = fmt.Errorf("%d errors without a fault", first.Errors)
			}
			var second Result
			if err == nil {
				second, err = Run(cfg, slices.Values(requests))
			}
			if err == nil && first.Hash != second.Hash {
				err = fmt.Errorf("two histories: %x and %x", first.Hash, second.Hash)
			}
			if err != nil {
				t.Fatalf("%v\npolicy %s, %d nodes\nreplay: HEARSAY_SEEDS=%d go test ./sim -run 'TestSeeds/^%d$'", err, cfg.Policy, cfg.Nodes, seed+1, seed)
			}
		})
	}
}
