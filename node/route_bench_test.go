package node

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// textOf is text of so many blocks, no two alike among seeds.
func textOf(blocks int, seed uint64) []byte {
	text := make([]byte, 0, blocks*prefix.BlockBytes)
	for i := range blocks * prefix.BlockBytes / 8 {
		text = binary.LittleEndian.AppendUint64(text, (seed<<32+uint64(i)+1)*0x9e3779b97f4a7c15)
	}
	return text
}

// A full cluster for benchmarks: peers have 1 M cached tokens each at 4 bytes a
// token, 62,500 blocks, in conversations of 500 blocks. All hold the first 100 of the
// asked prompt's 2048 blocks, and those in spread each a part more.
func fullCluster(peers int, policy route.Policy, prompt prefix.Chain, spread func(peer int) int) *Node {
	n := newNode("self")
	n.cfg.Policy = policy
	n.tree.Insert(prompt[:100], 1600)
	for p := range peers {
		tree := prefix.NewTree(1<<30, 62_500)
		var journal gossip.Journal
		for i := range uint64(125) {
			tree.Insert(prefix.NewChain(1, textOf(500, uint64(p)<<20+i)), 8000)
		}
		r := gossip.Rumor{Author: fmt.Sprintf("n%03d", p), Life: 1, Version: 1, Every: n.cfg.Poll, Tree: tree.Snapshot()}
		journal.Add(r)
		n.Hear(start, r)
		tree.Insert(prompt[:100+spread(p)], 1600)
		for r.Version < 20 { // by when all of the tree is in the index
			r.Version, r.Tree, r.Change = r.Version+1, tree.Snapshot(), nil
			journal.Add(r)
			r.Tree, r.Change = nil, journal.Since(r.Version-1)
			n.Hear(start, r)
		}
	}
	return n
}

// BenchmarkRoute32k is one decision for a prompt of 32k tokens, the naming of its
// prefixes included. In "few" every fourth peer holds half of the prompt beyond the
// shared head, as after a rule of replicas; in "all" no two peers hold equally much.
func BenchmarkRoute32k(b *testing.B) {
	text := textOf(2048, 1<<30)
	prompt := prefix.NewChain(1, text)
	for _, spread := range []struct {
		name string
		of   func(peer int) int
	}{
		{"few", func(p int) int { return 950 * (p % 4 / 3) }},
		{"all", func(p int) int { return p * 7 }},
	} {
		for _, policy := range []route.Policy{route.Longest{}, route.Economic{}} {
			for _, peers := range []int{1, 8, 64, 256} {
				b.Run(fmt.Sprintf("%s/%T/peers=%d", spread.name, policy, peers), func(b *testing.B) {
					n := fullCluster(peers, policy, prompt, spread.of)
					b.ReportAllocs()
					took := make([]time.Duration, 0, 1<<16) // the median is that of the code, the mean that of a busy machine
					for b.Loop() {
						began := time.Now()
						n.Route(start, Request{Model: "m", Chain: prefix.NewChain(1, text), Bytes: len(text)})
						if took = append(took, time.Since(began)); len(took) == cap(took) {
							took = took[:0]
						}
					}
					slices.Sort(took)
					b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "us-median")
				})
			}
		}
	}
}

// BenchmarkNewChain names the prefixes of a prompt of 32k tokens.
func BenchmarkNewChain(b *testing.B) {
	text := textOf(2048, 1<<30)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		prefix.NewChain(1, text)
	}
}

// BenchmarkViewMemory tells what a view of so many peers holds for each million
// tokens that a peer has cached: of disjoint trees, and of equal ones.
func BenchmarkViewMemory(b *testing.B) {
	prompt := prefix.NewChain(1, textOf(2048, 1<<30))
	for _, peers := range []int{8, 64} {
		b.Run(fmt.Sprintf("peers=%d", peers), func(b *testing.B) {
			var sizes []float64
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				n := fullCluster(peers, route.Longest{}, prompt, func(int) int { return 0 })
				runtime.GC()
				runtime.ReadMemStats(&after)
				sizes = append(sizes, float64(after.HeapAlloc-before.HeapAlloc)/float64(peers)/1e6)
				runtime.KeepAlive(n)
			}
			b.ReportMetric(slices.Min(sizes), "MB/Mtoken")
		})
	}
}
