package node

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
)

// BenchmarkRelayedRumors tells, of the clusters of BenchmarkRumorBytes and with the
// encodings that nodes use, what each hears and sends a second where rumors are
// relayed, and after how many polls a change that was told has been heard elsewhere.
// Every node tells what the one of that benchmark does, at its own moment. One
// operation is a poll of all nodes. Use -benchtime 60x.
func BenchmarkRelayedRumors(b *testing.B) {
	for _, nodes := range []int{64, 256, 1000} {
		for _, blocks := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("nodes=%d/new=%d", nodes, blocks), func(b *testing.B) { relayedRumors(b, nodes, blocks) })
		}
	}
}

const (
	slots     = 100 // of a poll
	askSlots  = slots / 2
	tripSlots = 2  // from a question to its answer: 10 ms of 500
	signature = 72 // bytes of ECDSA on P-256, with their length
	frameHead = 5
)

// A crowd is nodes that relay rumors to each other.
type crowd struct {
	nodes  []*relaying
	rumors []gossip.Rumor // of every node, by version
	rng    *rand.Rand
	now    int // in slots
	coming map[int][]delivery
	late   []int // rumors heard, by slots since they were told
	gaps   []int // by polls between two of one author
	in     int   // bytes
}

type relaying struct {
	name      string
	relay     gossip.Relay
	near      []int
	said, ask int      // its slots
	held      []uint64 // by author
	heardAt   []int
	out       int
	purse     float64
}

type delivery struct {
	to     *relaying
	rumors [][]byte
}

func (c *crowd) hear(n *relaying, b []byte, measured bool) {
	r, err := gossip.DecodeRumor(b[signature:])
	if err != nil {
		panic(err)
	}
	c.in += len(b) + frameHead
	if !n.relay.News(r.Author, r.Life, r.Version) {
		return
	}
	n.relay.Heard(r, b)
	i := int(r.Life) - 1
	if r.Author == n.name {
		return
	}
	if measured && n.held[i] > 0 {
		for v := n.held[i] + 1; v <= r.Version; v++ {
			c.late[min(len(c.late)-1, c.now-(int(v)*slots+c.nodes[i].said))]++
		}
		c.gaps[min(len(c.gaps)-1, (c.now-n.heardAt[i])/slots)]++
	}
	n.held[i], n.heardAt[i] = r.Version, c.now
}

func (c *crowd) slot(measured bool) {
	for _, d := range c.coming[c.now] {
		for _, b := range d.rumors {
			c.hear(d.to, b, measured)
		}
	}
	delete(c.coming, c.now)
	version := uint64(c.now / slots)
	for i, n := range c.nodes {
		n.purse = min(1<<20, n.purse+(1<<20)/(2*slots))
		if c.now%slots == n.said && version > 0 {
			r := c.rumors[version]
			r.Author, r.Life = n.name, uint64(i+1)
			b := r.AppendBinary(make([]byte, signature))
			n.relay.Heard(r, b)
			for _, to := range n.near {
				c.hear(c.nodes[to], b, measured)
				n.out += len(b) + frameHead
			}
		}
		if c.now%askSlots == n.ask {
			other := c.nodes[n.near[c.rng.IntN(len(n.near))]]
			digest := n.relay.AppendDigest(nil, c.rng.Uint64())
			n.out += len(digest) + frameHead
			c.in += len(digest) + frameHead
			d, err := gossip.DecodeDigest(digest)
			if err != nil {
				panic(err)
			}
			rumors, size := other.relay.Newer(d, int(other.purse))
			size += frameHead * (len(rumors) + 1)
			other.out += size
			other.purse -= float64(size)
			c.coming[c.now+tripSlots] = append(c.coming[c.now+tripSlots], delivery{n, rumors})
		}
	}
	c.now++
}

// newCrowd returns nodes that have heard each other once.
func newCrowd(nodes int, rng *rand.Rand) *crowd {
	c := &crowd{rng: rng, now: slots, coming: map[int][]delivery{}, late: make([]int, 100*slots), gaps: make([]int, 100)}
	names, index := []string{}, map[string]int{}
	for i := range nodes {
		names = append(names, fmt.Sprintf("gpu%d-7946", i))
		index[names[i]] = i
	}
	for _, name := range names {
		n := &relaying{name: name, said: rng.IntN(slots), ask: rng.IntN(askSlots), held: make([]uint64, nodes), heardAt: make([]int, nodes), purse: 1 << 20}
		for _, near := range gossip.Neighbours(name, names) {
			n.near = append(n.near, index[near])
		}
		for i, author := range names {
			n.relay.Heard(gossip.Rumor{Author: author, Life: uint64(i + 1), Version: 1}, nil)
		}
		c.nodes = append(c.nodes, n)
	}
	return c
}

func relayedRumors(b *testing.B, nodes, blocks int) {
	const warm = 12
	a, rng, now := newNode("self"), rand.New(rand.NewPCG(1, 1)), start
	a.tree = prefix.NewTree(1<<40, 62_500)
	for a.tree.Len() < 62_500 {
		a.tree.Insert(fresh(rng, 50), 800)
	}
	a.tree.Snapshot()
	c := newCrowd(nodes, rng)
	for _, n := range c.nodes {
		a.Hear(now, gossip.Rumor{Author: n.name, Life: 1, Version: 1, Every: a.cfg.Poll})
	}
	a.SetRelayed(true)
	a.SetModels([]string{"meta-llama/Llama-3.1-8B-Instruct"})
	var journal gossip.Journal
	c.rumors = append(c.rumors, gossip.Rumor{})
	due, polls, asked, told := 0.0, 0, 0, 0
	poll := func(measured bool) {
		for due += float64(blocks) * a.cfg.Poll.Seconds() / 10; due >= 1; due-- {
			a.tree.Insert(fresh(rng, 10), 160)
			asked += 10
		}
		now = now.Add(a.cfg.Poll)
		r := a.Speak(now)
		journal.Add(r)
		r.Change, r.Tree = journal.Since(r.Version-1), nil
		if r.Change != nil {
			told += len(r.Change.Come)
		}
		c.rumors = append(c.rumors, r)
		for range slots {
			c.slot(measured)
		}
	}
	poll(false)
	for range warm {
		poll(false)
	}
	c.in, asked, told = 0, 0, 0
	for _, n := range c.nodes {
		n.out = 0
	}
	b.ResetTimer()
	for b.Loop() {
		poll(true)
		polls++
	}
	seconds := float64(polls) * a.cfg.Poll.Seconds()
	most, kept := 0, 0
	for _, n := range c.nodes {
		most, kept = max(most, n.out), kept+n.relay.Bytes()
	}
	b.ReportMetric(float64(c.in)/seconds/float64(nodes)/1000, "kB/s")
	b.ReportMetric(float64(most)/seconds/1000, "kB/s-out-most")
	b.ReportMetric(float64(kept)/float64(nodes)/1000, "kB-kept")
	b.ReportMetric(percentile(c.late, 0.5)/slots, "polls-p50")
	b.ReportMetric(percentile(c.late, 0.99)/slots, "polls-p99")
	b.ReportMetric(percentile(c.gaps, 0.999), "gap-p99.9")
	b.ReportMetric(percentile(c.gaps, 0.99999), "gap-p99.999")
	b.ReportMetric(100*float64(told)/float64(asked), "%told")
	b.ReportMetric(0, "ns/op")
}

// percentile is where in a histogram a share lies below.
func percentile(histogram []int, share float64) float64 {
	sum := 0
	for _, n := range histogram {
		sum += n
	}
	below := 0
	for i, n := range histogram {
		if below += n; float64(below) >= share*float64(sum) {
			return float64(i)
		}
	}
	return float64(len(histogram))
}
