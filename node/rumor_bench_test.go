package node

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
)

// BenchmarkRumorBytes tells what a node sends, and so hears, a second in a cluster of
// so many nodes that all have so much cached and compute so many new blocks a second,
// in prompts of 10 beyond what is cached, at polls of 500 ms; how many of those blocks
// were told at all, and within how many polls; against whole trees. One operation is
// a poll, without the sending. Use -benchtime 200x.
func BenchmarkRumorBytes(b *testing.B) {
	for _, nodes := range []int{4, 16, 64, 256, 1000} {
		for _, tokens := range []int{100_000, 1_000_000} {
			for _, blocks := range []int{10, 100, 1000} {
				b.Run(fmt.Sprintf("nodes=%d/cached=%dk/new=%d", nodes, tokens/1000, blocks), func(b *testing.B) {
					rumorBytes(b, nodes-1, tokens/16, blocks)
				})
			}
		}
	}
}

func rumorBytes(b *testing.B, peers, cached, newBlocks int) {
	n, rng, now := newNode("self"), rand.New(rand.NewPCG(1, 1)), start
	n.tree = prefix.NewTree(1<<40, cached)
	for n.tree.Len() < cached {
		n.tree.Insert(fresh(rng, 50), 800)
	}
	n.tree.Snapshot()
	for i := range peers {
		n.Hear(now, gossip.Rumor{Author: fmt.Sprint(i), Life: 1, Version: 1, Every: n.cfg.Poll})
	}
	var journal gossip.Journal
	journal.Add(n.Speak(now))
	type prompt struct {
		chain prefix.Chain
		poll  int
	}
	var waiting []prompt
	var late []int
	due, asked, bytes, whole, poll := 0.0, 0, 0, 0, 0
	var frame []byte
	for ; b.Loop(); poll++ {
		for due += float64(newBlocks) * n.cfg.Poll.Seconds() / 10; due >= 1; due-- {
			c := fresh(rng, 10)
			n.tree.Insert(c, 160)
			waiting, asked = append(waiting, prompt{c, poll}), asked+1
		}
		now = now.Add(n.cfg.Poll)
		r := n.Speak(now)
		journal.Add(r)
		whole += 9*n.tree.Len() + headBytes
		waiting = slices.DeleteFunc(waiting, func(p prompt) bool {
			told := r.Tree.Match(p.chain) == len(p.chain)
			if told {
				late = append(late, poll-p.poll)
			}
			return told || !n.tree.Has(p.chain[0])
		})
		r.Tree, r.Change = nil, journal.Since(r.Version-1)
		frame = r.AppendBinary(frame[:0])
		bytes += len(frame)
	}
	perSecond := float64(peers) / (float64(poll) * n.cfg.Poll.Seconds())
	b.ReportMetric(float64(bytes)*perSecond/1000, "kB/s")
	b.ReportMetric(float64(whole)*perSecond/1000, "kB/s-whole")
	b.ReportMetric(100*float64(len(late))/float64(max(1, asked)), "%told")
	slices.Sort(late)
	if len(late) > 0 {
		b.ReportMetric(float64(late[len(late)*99/100]), "polls-p99")
	}
	b.ReportMetric(0, "ns/op")
}
