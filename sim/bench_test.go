package sim

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/prefix"
)

// trace yields n requests in the shape of Mooncake's conversations: a common head,
// growing sessions, 512-token blocks, 12 blocks a prompt in the mean.
func trace(n int) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		rng := rand.New(rand.NewPCG(1, 1))
		sessions := make([]prefix.Chain, 4096)
		block := uint64(1)
		for range n {
			s := &sessions[rng.IntN(len(sessions))]
			if len(*s) > 20 {
				*s = nil
			}
			chain := append(prefix.Chain{1}, *s...)
			if len(*s) > 0 {
				chain = append(prefix.Chain(nil), *s...)
			}
			for range 1 + rng.IntN(4) {
				block++
				chain = append(chain, prefix.Hash(block*0x9e3779b97f4a7c15))
			}
			*s = chain
			if !yield(Request{Chain: chain, Tokens: 512*len(chain) + 100, Output: 100}) {
				return
			}
		}
	}
}

// gpu is a profile of a large engine: 10,000 tokens a second, 1000 blocks of 512.
var gpu = emulate.Profile{
	Name: "gpu", Base: 5 * time.Millisecond, PerToken: 100 * time.Microsecond, Decode: 10 * time.Millisecond,
	MaxBatch: 256, CapacityTokens: 512_000,
}

// BenchmarkRequests tells what a simulated request costs as the cluster grows. At
// one request a second and node, each brings two rumors from every node to every
// other.
func BenchmarkRequests(b *testing.B) {
	for _, nodes := range []int{4, 16, 64, 256} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			b.ReportAllocs()
			r, err := Run(Config{
				Nodes: nodes, Policy: "longest+pushback", Profile: gpu, BlockTokens: 512,
				Network: Network{Delay: 2 * time.Millisecond}, Arrival: Arrival{Rate: float64(nodes)},
			}, trace(b.N))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(r.Events)/float64(b.N), "events/req")
			b.ReportMetric(100*r.ActualHit, "hit%")
		})
	}
}
