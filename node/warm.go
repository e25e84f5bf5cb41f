package node

import (
	"fmt"
	"math"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

const (
	// defaultWarmShare is how many prompt tokens a node may warm for each that it serves.
	defaultWarmShare = 0.05
	// warmBurst is what it may warm beyond that at once: a new node's first topics.
	warmBurst = 1 << 14
	// warmFor is how long a prefix that is worth warming waits for an idle engine.
	warmFor = 10 * time.Second
	// warmStep is about how long one request of a warming takes.
	warmStep = time.Second
	// warmMin blocks or less are not worth a request of their own.
	warmMin = 4
	// lookAhead is how many requests of this node a warmed prefix is expected to
	// serve within, where nothing is ever evicted.
	lookAhead = 1000
	// tailPow says how fast what a tree's tail saves falls with the tree's size: the
	// samples of a tree that is not full yet are taken for those of a full one so.
	tailPow = 2
	// meanSpan requests are what the means of the tree's tail and inflow rest on.
	meanSpan = 200
)

// A Warming is a prefix that this node computes of its own will on its idle engine,
// so that the next request for it need not travel (rent or buy: it has paid trips
// for that prefix, or is about to). The driver cuts the request after Blocks and has
// one token generated.
type Warming struct {
	Req    Request // whose prompt begins with the prefix
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
		rent: min(f.rent+f.relief, n.speed.prefill(tokens)),
	}
	worth := n.worth(w)
	if worth > 0 && (n.wish == nil || now.Sub(n.wish.since) > warmFor || worth > n.worth(*n.wish)*9/8) { // clearly more
		n.wish = &w
	}
}

// Wish returns the flight whose prompt begins with what this node would compute if
// its engine were idle, nil where there is none: its driver keeps that text for as
// long as it is this one, since a prefix may be computed in several steps.
func (n *Node) Wish() *Flight {
	if n.wish == nil {
		return nil
	}
	return n.wish.of
}

// Forgo drops what is wished for, as its text cannot be had.
func (n *Node) Forgo() { n.wish = nil }

// worth is what a wish would save for each request of this node, in seconds, less
// what it would cost. It is priced by what share of the requests ask for it by now.
func (n *Node) worth(w wish) float64 {
	gain := n.ledger.rate(w.req.Chain, w.blocks) * w.rent.Seconds()
	took := n.speed.prefill(w.tokens).Seconds()
	cost := n.meter.toll() * took * took / 2 / lookAhead
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

// stay is how many requests of this node a prefix that is computed here can be
// expected to stay, if nobody asks for it.
func (n *Node) stay() float64 {
	return min(lookAhead, float64(n.tree.Tokens()+n.tree.Room())/max(n.inflow.Value, 1))
}

// rent is what it costs more to have a request served by c than it would here if
// this node held as much of it.
func (n *Node) rent(now time.Time, req Request, tokens int, c route.Candidate) time.Duration {
	if c.Self {
		return 0
	}
	return c.Price.Total() - n.priceHere(now, req, tokens, c.Match).Total()
}

// deal looks beyond this one request at what the policy chose, the i-th candidate.
// What is held here and costs more room than it saves is asked for elsewhere, and
// what has been asked for elsewhere at more than it would cost here is bought.
func (n *Node) deal(now time.Time, req Request, tokens, i int, reason string) (int, string) {
	c := n.cands[i]
	if c.Self {
		if j := n.shed(req); j > 0 {
			return j, "economic one copy is enough, at " + n.cands[j].Name
		}
		return i, reason
	}
	had := n.priceHere(now, req, tokens, c.Match)
	rent := n.rent(now, req, tokens, c).Seconds()
	price := (n.cands[0].Price.Total() - had.Total()).Seconds()
	price += n.displaced(n.tokens(req, max(c.Match-n.cands[0].Match, 0)*prefix.BlockBytes)) * n.stay()
	owed := n.ledger.owed(req.Chain, c.Match, n.stay())
	if c.Match > n.cands[0].Match && rent > 0 && owed+rent >= price && !n.guessing() {
		return 0, fmt.Sprintf("economic bought here for %.0fms, after rents of %.0fms", 1000*price, 1000*(owed+rent))
	}
	return i, reason
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
	if k := n.cands[keeper].Price; k.Total()-k.Trip > self.Price.Total()+self.Price.Prefill/8 {
		return 0 // a trip may be paid for the room, but no queue
	}
	load, _ := n.view.Load(n.cands[keeper].Name)
	saved := n.ledger.rate(req.Chain, depth) * (n.cands[keeper].Price.Total() - self.Price.Total() + n.relief(load, self.Price)).Seconds()
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
	var sum time.Duration // whole, since the order of a map is to change nothing
	for _, a := range n.accounts {
		sum += seconds(a.trip.Base)
	}
	return sum.Seconds() / float64(max(len(n.accounts), 1))
}

// NextWarming returns a prefix to compute now, if the engine is idle and one is
// worth it. It is under way until Warmed or Drop.
func (n *Node) NextWarming(now time.Time) (Warming, bool) {
	w := n.wish
	if w == nil || len(n.pending) > 0 || n.queue > 0 || n.warming != nil {
		return Warming{}, false
	}
	have := n.tree.Match(w.req.Chain)
	w.tokens = n.tokens(w.req, max(w.blocks-have, 0)*prefix.BlockBytes)
	if now.Sub(w.since) > warmFor || w.blocks-have < warmMin || float64(w.tokens) > n.allowance || n.worth(*w) <= 0 || !n.Able(w.req.Model) {
		n.wish = nil
		return Warming{}, false
	}
	blocks := w.blocks
	if step := n.step(w.tokens); step < w.tokens {
		blocks = have + max((w.blocks-have)*step/w.tokens, warmMin)
	}
	req := w.req
	req.Chain, req.Bytes = req.Chain[:blocks], min(req.Bytes, blocks*prefix.BlockBytes)
	tokens := n.tokens(req, req.Bytes)
	uncached := max(tokens-n.tokens(req, have*prefix.BlockBytes), 1)
	n.allowance -= float64(uncached)
	f := &Flight{
		Node: n.cfg.Name, req: req, match: have, tokens: tokens, uncached: uncached, at: now,
		service: n.speed.prefill(uncached), warming: true,
	}
	n.flights++
	n.meter.tick(now, false)
	n.pending, n.warming = append(n.pending, f), f
	return Warming{Req: w.req, Blocks: blocks, Tokens: tokens, Flight: f}, true
}

// step is how many of so many tokens are warmed at once: what takes about warmStep,
// since a client that comes meanwhile waits or undoes it, and no less than what
// takes as long as a request that needs no prefill.
func (n *Node) step(tokens int) int {
	line := &n.speed.line
	if line.Slope <= 0 {
		return tokens
	}
	room := max(warmStep.Seconds()-line.Base, line.Base)
	return int(min(float64(tokens), room/line.Slope))
}

// Yield reports whether the warming that is under way is to be cancelled for a
// request that has come: unless it is nearly done, when the client would wait for
// less than half of what is lost. Of one that takes half as long again as it was to
// take, nobody knows when it is done.
func (n *Node) Yield(now time.Time) bool {
	f := n.warming
	if f == nil {
		return false
	}
	done := now.Sub(f.at)
	return f.service-done > done/2 || done > f.service+f.service/2
}

// Warmed records that a warming is done: its prefix is cached here.
func (n *Node) Warmed(now time.Time, f *Flight, out Outcome) {
	out.Flight = f
	n.Prefilled(now, f.req, f)
	n.land(now, out)
	n.warmed.Prefixes++
	n.warmed.Tokens += max(0, out.PromptTokens-out.CachedTokens)
}

// WarmFailed records that what was to be warmed was not: it is wished for no more.
// What the engine was not even asked for takes nothing of what may be warmed.
func (n *Node) WarmFailed(now time.Time, f *Flight, asked bool) {
	if n.warming == f {
		n.warming = nil
		if asked {
			n.warmed.Failed++
		} else {
			n.allowance += float64(f.uncached)
		}
	}
	n.Drop(now, f)
	n.Forgo()
}

// WarmTotals count what a node has warmed.
type WarmTotals struct {
	Prefixes  int
	Tokens    int // computed for them
	Cancelled int // for clients' requests that came
	Failed    int // at the engine
}
