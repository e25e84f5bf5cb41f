package mesh

import (
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
)

// BenchmarkRumor tells what a poll costs a node for each of its peers: one operation
// is a rumor told to 16 over loopback, heard and acknowledged by all, with 8 blocks
// come and as many gone of 62,500 that a million tokens make, or the tree as a whole.
// CPU is that of both ends, so of one that tells a rumor and hears another.
func BenchmarkRumor(b *testing.B) {
	for _, whole := range []bool{false, true} {
		b.Run(fmt.Sprintf("whole=%v", whole), func(b *testing.B) {
			const peers = 16
			heard := make(chan uint64, peers)
			open := func(name string, onRumor func(gossip.Rumor), told func(string) (uint64, uint64), join ...string) *Mesh {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				m, err := Open(Config{Name: name, Listener: listener, Join: join, Whole: whole, OnRumor: onRumor, Told: told})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { m.Close() })
				return m
			}
			a := open("a", nil, nil)
			for i := range peers {
				view := gossip.NewView(gossip.Config{})
				open(fmt.Sprintf("b%d", i), func(r gossip.Rumor) {
					view.Hear(time.Now(), r)
					heard <- r.Version
				}, view.Told, a.Addr())
			}
			for up := 0; up < peers; time.Sleep(10 * time.Millisecond) {
				up = 0
				for _, p := range a.Peers() {
					if p.State == StateAlive {
						up++
					}
				}
			}
			rng, tree := rand.New(rand.NewPCG(1, 1)), prefix.NewTree(1<<30, 62_500)
			r := gossip.Rumor{Author: "a", Life: 1, Every: time.Second}
			tell := func() {
				c := make(prefix.Chain, 8)
				for i := range c {
					c[i] = prefix.Hash(rng.Uint64())
				}
				tree.Insert(c, 128)
				r.Version++
				r.Tree = tree.Snapshot()
				a.Broadcast(r)
				for range peers {
					<-heard
				}
			}
			for tree.Len() < 62_500 {
				c := make(prefix.Chain, 500)
				for i := range c {
					c[i] = prefix.Hash(rng.Uint64())
				}
				tree.Insert(c, 8000)
			}
			for range 40 {
				tell()
			}
			began, before := cpu(), a.Stats().RumorBytesSent
			n := 0
			for b.Loop() {
				tell()
				n++
			}
			b.ReportMetric(float64((cpu()-began).Microseconds())/float64(n*peers), "cpu-us/peer")
			b.ReportMetric(float64(a.Stats().RumorBytesSent-before)/float64(n*peers), "B/peer")
		})
	}
}

// cpu is the time that this process has spent.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
