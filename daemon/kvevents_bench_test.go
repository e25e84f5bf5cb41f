package daemon

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// BenchmarkEvents takes in blocks that an engine stores and evicts, as fast as they come
// over loopback, while the node routes 200 requests a second of 100 blocks of text. The
// engine holds 16,384 blocks of 16 tokens and is full; each batch stores 8 and evicts 8,
// of prompts that the memo knows. With -cpu 1 the core is the publisher's too.
func BenchmarkEvents(b *testing.B) {
	publisher := kvevents.NewPublisher(kvevents.PublisherConfig{HighWater: 64, Keep: 64})
	defer publisher.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	publisher.Serve(l)
	d := &Daemon{log: slog.New(slog.DiscardHandler)}
	d.node = node.New(node.Config{Name: "n1", Life: 1, Rand: rand.New(rand.NewPCG(1, 2))})
	d.cfg.KVEvents = kvevents.Config{Endpoint: "tcp://" + l.Addr().String()}
	if d.events, err = newEvents(d); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.events.follower.Run(ctx)
	}()
	defer func() { cancel(); <-ended }()
	for publisher.Subscribers() == 0 {
		time.Sleep(time.Millisecond)
	}
	m := &mill{d: d, publisher: publisher}
	m.run(8 * millHolds)
	routed, routing := routeSteadily(ctx, d)
	heap := heapInUse()
	b.ResetTimer()
	begun, busy := time.Now(), cpuTime()
	m.run(b.N)
	took := time.Since(begun)
	busy = cpuTime() - busy
	b.StopTimer()
	grown := heapInUse() - heap
	cancel()
	<-routing
	s := d.events.status()
	b.ReportMetric(float64(b.N)/took.Seconds(), "blocks/s")
	b.ReportMetric(float64(busy.Nanoseconds())/float64(b.N), "cpu-ns/block")
	b.ReportMetric(float64(*routed)/took.Seconds(), "routed/s")
	b.ReportMetric(float64(s.Gaps+s.Clears), "gaps")
	b.ReportMetric(float64(grown)/(1<<20), "MiB-grown")
	if s.Gaps+s.Clears+s.Skipped > 0 || s.Blocks != millHolds {
		b.Errorf("%+v", *s)
	}
}

// A mill is an engine that works through prompts of which each is new. A block's id is
// its number, from 1, and that of its first token its number times their size.
type mill struct {
	d         *Daemon
	publisher *kvevents.Publisher
	next      uint64 // block
}

const (
	millBatch  = 8
	millHolds  = 16_384
	millSize   = 16
	millPrompt = 128 // blocks, of text too
)

// run has the engine store so many blocks. It keeps a few batches on their way, no more
// than the publisher holds.
func (m *mill) run(blocks int) {
	for goal := m.next + uint64(blocks); m.next < goal; {
		if int64(m.next/millBatch)-m.d.events.follower.Stats().Batches < 32 {
			m.batch()
		} else {
			time.Sleep(50 * time.Microsecond) // spinning would keep the core from the network
		}
	}
	for m.d.events.follower.Stats().Batches < int64(m.next/millBatch) {
		time.Sleep(50 * time.Microsecond)
	}
}

func (m *mill) batch() {
	if m.next%millPrompt == 0 {
		m.serve(m.next / millPrompt)
	}
	stored := kvevents.Event{Kind: kvevents.Stored, BlockSize: millSize, HasParent: m.next%millPrompt != 0, Parent: m.next}
	gone := kvevents.Event{Kind: kvevents.Removed}
	for range millBatch {
		for i := range uint64(millSize) {
			stored.Tokens = append(stored.Tokens, uint32(m.next*millSize+i))
		}
		m.next++
		stored.Hashes = append(stored.Hashes, m.next)
		if m.next > millHolds {
			gone.Hashes = append(gone.Hashes, m.next-millHolds)
		}
	}
	m.publisher.Publish(kvevents.AppendBatch(nil, time.Time{}, []kvevents.Event{gone, stored}))
}

// serve has the node know the text of a prompt.
func (m *mill) serve(prompt uint64) {
	ids := make([]uint32, millPrompt*millSize)
	for i := range ids {
		ids[i] = uint32(prompt*millPrompt*millSize + uint64(i))
	}
	chain := make(prefix.Chain, millPrompt)
	for i := range chain {
		chain[i] = prefix.Hash(prompt*millPrompt+uint64(i)+1) * 0x9e3779b97f4a7c15
	}
	e, bytes := m.d.events, millPrompt*prefix.BlockBytes
	names := e.cache.Names(kvevents.Space{}, ids)
	e.memo.Learn(kvevents.Prompt{Chain: chain, Bytes: bytes, Names: names, Tokens: len(ids), BlockSize: millSize})
	m.d.locked(func(now time.Time, n *node.Node) {
		n.Served(now, node.Request{Model: "m", Chain: chain, Bytes: bytes}, "n1", node.Outcome{})
	})
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var use syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &use)
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// routeSteadily routes 200 requests a second until ctx is done.
func routeSteadily(ctx context.Context, d *Daemon) (routed *int, done chan struct{}) {
	routed, done = new(int), make(chan struct{})
	chain := make(prefix.Chain, 100)
	for i := range chain {
		chain[i] = prefix.Hash(i+1) * 0x9e3779b97f4a7c15
	}
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				var decision node.Decision
				d.locked(func(now time.Time, n *node.Node) {
					decision = n.Route(now, node.Request{Model: "m", Chain: chain, Bytes: len(chain) * prefix.BlockBytes})
				})
				d.events.expect(chain, &decision)
				*routed++
			case <-ctx.Done():
				return
			}
		}
	}()
	return routed, done
}
