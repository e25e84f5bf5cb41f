package node

import (
	"math"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

const (
	// defaultWarmShare is how many prompt tokens a node may warm for each that it serves.
	defaultWarmShare = 0.05
	// warmBurst is what it may warm beyond that at once: a new node's first topics.
	warmBurst = 1 << 14
	// warmFor is how long a prefix that is worth warming waits for an idle engine.
	warmFor = 10 * time.Second
	// warmMin blocks or less are not worth a request of their own.
	warmMin = 4
	// lookAhead is how many requests of this node a warmed prefix is expected to
	// serve within, where nothing is ever evicted.
	lookAhead = 1000
)

// A Warming is a prefix that this node computes of its own will on its idle engine,
// so that the next request for it need not travel (rent or buy: it has paid trips
// for that prefix, or is about to). The driver cuts the request after Blocks and has
// one token generated.
type Warming struct {
	Req    Request // whose prompt begins with the prefix
	Of     *Flight // by which Req went elsewhere
	Blocks int
	Tokens int
	Flight *Flight
}

// A wish is a prefix worth warming once the engine is idle.
type wish struct {
	of     *Flight // that went elsewhere
	req    Request
	blocks int
	tokens int // to be computed
	since  time.Time
	rent   time.Duration // that each request for it pays
	rate   float64       // of such requests, for each request of this node
}

// consider sees whether the prefix for which a request has just been forwarded is
// worth having here: what it has in common with others, by the word of the peer
// that served it.
func (n *Node) consider(now time.Time, f *Flight, r Report) {
	have := n.tree.Match(f.req.Chain)
	depth := min(r.Shared, len(f.req.Chain))
	if !n.priced || n.cfg.NoWarming || f.req.Chain == nil || r.Others == 0 || depth-have < warmMin || !n.Able(f.req.Model) {
		return
	}
	tokens := n.tokens(f.req, (depth-have)*prefix.BlockBytes)
	w := wish{
		of: f, req: f.req, blocks: depth, tokens: tokens, since: now,
		rent: min(f.rent, n.speed.prefill(tokens)),
		rate: n.asks.rate(f.req.Chain[depth-1]),
	}
	if n.worth(now, w) > 0 && (n.wish == nil || now.Sub(n.wish.since) > warmFor || n.worth(now, *n.wish) < n.worth(now, w)) {
		n.wish = &w
	}
}

// Wish returns the flight whose prompt begins with what this node would compute if
// its engine were idle, nil where there is none: its driver keeps that text until
// NextWarming or another wish.
func (n *Node) Wish() *Flight {
	if n.wish == nil {
		return nil
	}
	return n.wish.of
}

// worth is what a wish would save for each request of this node, in seconds, less
// what it would cost.
func (n *Node) worth(now time.Time, w wish) float64 {
	stay := float64(lookAhead)
	gain := w.rate * w.rent.Seconds()
	cost := n.meter.toll(now) * n.speed.prefill(w.tokens).Seconds() * n.speed.prefill(w.tokens).Seconds() / 2 / stay
	return gain - cost - n.displaced(w.tokens)
}

// displaced is what the room for so many tokens saves for each request of this
// node, in seconds: what the tail of its tree does, for each of its tokens. While
// there is room to spare that is so in as far as it will be filled before long.
func (n *Node) displaced(tokens int) float64 {
	return n.tailWorth.Value * float64(tokens)
}

// revive books what a request saved by what it found in the tail of the tree: the
// prefill of it, or a trip where some peer has it too.
func (n *Node) revive(req Request) {
	tokens := n.tree.Revived()
	saved := n.speed.line.Slope * float64(tokens)
	if tokens > 0 && saved > 0 {
		if match := n.tree.Match(req.Chain); match > 0 && n.view.Held(req.Chain[match-1]) {
			saved = min(saved, n.meanTrip())
		}
	}
	if tail := n.tree.TailTokens(); tail > 0 {
		full := float64(n.tree.Tokens()) / float64(n.tree.Tokens()+n.tree.Room())
		n.tailWorth.Add(saved / float64(tail) * math.Pow(min(1, full), tailPow))
	}
}

// shed returns the candidate that is to serve a request in the place of this node,
// which holds its prefix too but keeps it at more than it saves; 0 where it is to
// keep it. Of the nodes that hold the prefix all who ask agree on one that keeps it.
func (n *Node) shed(req Request) int {
	self := n.cands[0]
	depth, _ := n.tree.Branch(req.Chain)
	if depth == 0 || n.tailWorth.Value == 0 {
		return 0
	}
	h := req.Chain[depth-1]
	keeper, most := 0, rank(n.cfg.Name, h)
	for i, c := range n.cands[1:] {
		if c.Match >= self.Match && !c.Paused {
			if r := rank(c.Name, h); r > most {
				keeper, most = i+1, r
			}
		}
	}
	if keeper == 0 {
		return 0
	}
	saved := n.asks.rate(h) * (n.cands[keeper].Price.Total() - self.Price.Total()).Seconds()
	cost := n.displaced(n.tokens(req, depth*prefix.BlockBytes))
	if saved >= cost {
		return 0
	}
	return keeper
}

// rank orders nodes for a prefix, the same wherever it is asked (rendezvous hashing).
func rank(name string, h prefix.Hash) uint64 {
	x := uint64(h)
	for i := range len(name) {
		x = (x ^ uint64(name[i])) * 0x9e3779b97f4a7c15
		x ^= x >> 29
	}
	return x
}

// meanTrip is about how long a forward to some peer takes, in seconds.
func (n *Node) meanTrip() float64 {
	var sum, count float64
	for _, a := range n.accounts {
		sum += a.trip.Base
		count++
	}
	return sum / max(count, 1)
}

// NextWarming returns a prefix to compute now, if the engine is idle and one is
// worth it. It is under way until Warmed or Drop.
func (n *Node) NextWarming(now time.Time) (Warming, bool) {
	w := n.wish
	if w == nil || len(n.pending) > 0 || n.queue > 0 || n.warming != nil {
		return Warming{}, false
	}
	n.wish = nil
	have := n.tree.Match(w.req.Chain)
	w.tokens = n.tokens(w.req, max(w.blocks-have, 0)*prefix.BlockBytes)
	if now.Sub(w.since) > warmFor || w.blocks-have < warmMin || float64(w.tokens) > n.allowance || n.worth(now, *w) <= 0 || !n.Able(w.req.Model) {
		return Warming{}, false
	}
	n.allowance -= float64(w.tokens)
	req := w.req
	req.Chain, req.Bytes = req.Chain[:w.blocks], min(req.Bytes, w.blocks*prefix.BlockBytes)
	tokens := n.tokens(req, req.Bytes)
	f := &Flight{
		Node: n.cfg.Name, req: req, match: have, tokens: tokens, uncached: w.tokens, at: now,
		service: n.speed.prefill(w.tokens), warming: true,
	}
	n.flights++
	n.pending, n.warming = append(n.pending, f), f
	return Warming{Req: w.req, Of: w.of, Blocks: w.blocks, Tokens: tokens, Flight: f}, true
}

// Yield reports whether the warming that is under way is to be cancelled for a
// request that has come: when less than half of it is done, so that neither the
// client nor the work done loses more than the other.
func (n *Node) Yield(now time.Time) bool {
	f := n.warming
	return f != nil && now.Sub(f.at) < f.service/2
}

// Warmed records that a warming is done: its prefix is cached here.
func (n *Node) Warmed(now time.Time, f *Flight, out Outcome) {
	out.Flight = f
	n.Prefilled(now, f.req, f)
	n.land(now, out)
	n.warmed.Prefixes++
	n.warmed.Tokens += max(0, out.PromptTokens-out.CachedTokens)
}

// WarmTotals count what a node has warmed.
type WarmTotals struct {
	Prefixes  int
	Tokens    int // computed for them
	Cancelled int // for clients' requests that came
}

// asks counts, for prefixes at a few depths, how many of this node's clients'
// requests begin with them, of about the last asksSpan.
type asks struct {
	clock  float64
	counts map[prefix.Hash]*asked
}

type asked struct{ count, at float64 }

const (
	asksSpan = 2000    // requests
	asksMax  = 1 << 15 // prefixes
)

// add counts a request at the checkpoints of its chain.
func (s *asks) add(c prefix.Chain) {
	if s.counts == nil {
		s.counts = map[prefix.Hash]*asked{}
	}
	s.clock++
	for _, h := range c {
		e := s.counts[h]
		if e == nil {
			if len(s.counts) >= asksMax {
				s.shrink()
			}
			e = &asked{at: s.clock}
			s.counts[h] = e
		}
		e.count = e.fade(s.clock) + 1
		e.at = s.clock
	}
}

func (e *asked) fade(clock float64) float64 { return e.count * max(0, 1-(clock-e.at)/asksSpan) }

// rate is how many of this node's requests, of one, begin with the prefix.
func (s *asks) rate(h prefix.Hash) float64 {
	e := s.counts[h]
	if e == nil {
		return 0
	}
	return e.fade(s.clock) / max(1, min(s.clock, asksSpan))
}

// shrink forgets the rarest.
func (s *asks) shrink() {
	for h, e := range s.counts {
		if e.fade(s.clock) < 1.5 || e.count < 1.5 {
			delete(s.counts, h)
		}
	}
	if len(s.counts) >= asksMax {
		clear(s.counts)
	}
}

const tailPow = 2
