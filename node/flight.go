package node

import (
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

// A Flight is a request under way: from Dispatch to the engine beside this node, or
// to a peer, until it has landed in Served or was dropped. Its node owns it.
type Flight struct {
	Node     string // that is to serve it
	req      Request
	match    int // leading blocks that were counted on
	tokens   int // of the prompt
	uncached int // of them, to be computed as far as is known
	at       time.Time
	service  time.Duration // of its prefill, as expected
	took     time.Duration // of its prefill, as it was; 0 while not known
	first    time.Time     // when its first token came; zero before
	rent     time.Duration // that it pays for not being served here
	relief   time.Duration // that others would gain if it were
	warming  bool          // of this node's own will, not for a client
	passed   bool          // one that came later has had its first token before
	over     bool

	// Late says that the first that is seen of the answer comes long after its first
	// token: of a long answer that is no stream. Its driver sets it before Prefilled,
	// and nothing is learnt from it of the engine's speed.
	Late bool
}

// A Report is what the node that served a forward says beside the answer: what its
// client's node learns from.
type Report struct {
	Known   bool
	Took    time.Duration // from its coming to its first token
	Backlog time.Duration // at its first token, see gossip.Load
	Shared  int           // leading blocks that it has in common with others there
	Others  int           // prompts that end there, or go on differently
}

// Dispatch records that req is on its way to the node that d names: it will keep an
// engine busy from now on, and its prompt be cached there. What is returned goes to
// Prefilled, and then to Served in an Outcome or to Drop.
func (n *Node) Dispatch(now time.Time, req Request, d Decision) *Flight {
	f := &Flight{Node: d.Node, req: req, match: d.Match, tokens: n.tokens(req, req.Bytes), at: now, rent: max(0, d.rent), relief: d.relief}
	f.uncached = max(f.tokens-d.Expected, 1)
	if n.priced && !d.forwarded {
		n.ledger.ask(req.Chain)
	}
	n.flights++
	if d.Node == n.cfg.Name {
		f.uncached = min(f.uncached, n.lacking(now, req, f.tokens, d.Match))
		f.service = n.ownSpeed().prefill(f.uncached)
		n.meter.come(now, len(n.pending) > 0)
		n.pending = append(n.pending, f)
		n.begins(f)
		return f
	}
	n.ledger.owe(req.Chain, d.Match, f.rent.Seconds(), n.stay())
	a := n.account(d.Node)
	load, _ := n.view.Load(d.Node)
	f.service = n.speedOf(load).prefill(f.uncached)
	a.sent = append(a.sent, f)
	if n.priced {
		n.view.Credit(now, d.Node, req.Chain)
	}
	return f
}

// Drop records that a flight will not land: it failed, was refused, or its client
// left. What was credited at Dispatch is taken back.
func (n *Node) Drop(now time.Time, f *Flight) {
	if f == nil || f.over {
		return
	}
	f.over = true
	n.flights--
	if f.Node == n.cfg.Name {
		if n.warming == f {
			n.warming = nil
			n.warmed.Cancelled++
		}
		n.leave(now, f)
		return
	}
	if a := n.accounts[f.Node]; a != nil {
		a.sent = remove(a.sent, f)
	}
	n.ledger.owe(f.req.Chain, f.match, -f.rent.Seconds(), n.stay())
	if n.priced {
		n.view.Uncredit(f.Node)
	}
}

// Prefilled records that the first token of a request has come from this node's
// engine, so that others may find its prompt cached while the answer, of which
// Served will tell, is still being written.
func (n *Node) Prefilled(now time.Time, req Request, f *Flight) {
	tokens := n.tokens(req, req.Bytes)
	if n.priced {
		held := min(n.tree.Match(req.Chain)*prefix.BlockBytes, req.Bytes)
		n.inflow.Add(float64(tokens - n.tokens(req, held)))
	}
	n.tree.Insert(req.Chain, tokens)
	if n.priced && (f == nil || !f.warming) {
		n.revive(req)
	}
	if f != nil && f.first.IsZero() {
		f.first = now
		n.overtake(f)
		n.leave(now, f)
		if !f.Late && !f.passed {
			f.took = max(0, now.Sub(later(f.at, n.lastFirst)))
		}
		if !f.Late {
			n.lastFirst = now
		}
	}
}

// overtake marks the flights that came before f and have no first token yet: an engine
// that runs several at once has worked on them all along, and how long it took for
// one cannot be told by when those before it were done.
func (n *Node) overtake(f *Flight) {
	for _, other := range n.pending {
		if other == f {
			return
		}
		other.passed = true
	}
}

// leave ends a flight's stay in this node's queue for prefill.
func (n *Node) leave(now time.Time, f *Flight) {
	n.meter.tick(now, len(n.pending) > 0)
	n.pending = remove(n.pending, f)
}

// land takes in what a flight's answer tells.
func (n *Node) land(now time.Time, out Outcome) {
	f := out.Flight
	if f == nil || f.over {
		return
	}
	f.over = true
	n.flights--
	if f.Node == n.cfg.Name {
		if n.warming == f {
			n.warming = nil
		}
		n.leave(now, f)
		if out.Known && f.took > 0 {
			n.speed.line.Add(float64(max(out.PromptTokens-out.CachedTokens, 1)), f.took.Seconds())
		}
		return
	}
	a := n.accounts[f.Node]
	if a == nil {
		return // it has left
	}
	a.sent = remove(a.sent, f)
	if !out.Report.Known {
		return
	}
	first := f.first
	if first.IsZero() {
		first = now
	}
	a.trip.Add(float64(f.req.Bytes), max(0, first.Sub(f.at)-out.Report.Took).Seconds())
	a.idle = 0
	if at := first.Add(-n.oneWay(a)); at.After(a.backlogAt) || a.backlogAt.After(now) { // a long answer lands late
		a.backlog, a.backlogAt = out.Report.Backlog, at
	}
	n.consider(now, f, out.Report)
	if out.Known && out.Promised > 0 && out.PromptTokens > 0 {
		promised := float64(out.Promised * prefix.BlockBytes)
		found := float64(out.CachedTokens) * float64(f.req.Bytes) / float64(out.PromptTokens)
		a.truth.Add(promised, min(promised, found))
	}
}

// Begun records that the first token of a forwarded request has reached this node.
func (n *Node) Begun(now time.Time, f *Flight) {
	if f != nil && f.first.IsZero() {
		f.first = now
	}
}

// backlog is how long a request that came now would wait for its prefill to begin. A
// prefill that is overdue is taken to need as long again as it is late: an engine that
// is slower than was thought, or hangs, does not pass for one that is about to be idle.
func (n *Node) backlog(now time.Time) time.Duration {
	var total time.Duration
	for i, f := range n.pending {
		if f.warming && n.Yield(now) {
			continue
		}
		if i > 0 {
			total += f.service
			continue
		}
		left := later(f.at, n.lastFirst).Add(f.service).Sub(now)
		total += max(min(f.service, left), -left)
	}
	return total
}

func remove(list []*Flight, f *Flight) []*Flight {
	if i := slices.Index(list, f); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// A Promise travels with a forward: what it was sent there for. What the sender takes
// for cached there goes without saying, since the price that it is held to is that of
// the exact tree.
type Promise struct {
	Within time.Duration // its price elsewhere, by the sender's reckoning; 0: it is to be served in any case
}

// Admit decides whether a forwarded request is served here. When it would clearly cost
// more than what the sender could have elsewhere, it is bounced: told at once is better
// than served late. The sender routes it again, with this node's fresh word, and after
// bouncesMax of them without a condition.
func (n *Node) Admit(now time.Time, req Request, p Promise) (d Decision, admitted bool) {
	d = n.Stay(req, "forwarded")
	d.forwarded = true
	price := n.priceHere(now, req, n.tokens(req, req.Bytes), d.Match)
	if n.priced && p.Within > 0 && price.Total() > p.Within+max(p.Within/8, bounceSlack) {
		n.bounced++
		return d, false
	}
	return d, true
}

const (
	// bounceSlack is how much more than elsewhere is not worth the way back.
	bounceSlack = 5 * time.Millisecond
	// bouncesMax is how often a request is bounced at most. Where many nodes go by the
	// same old news the second best is as overrun as the best.
	bouncesMax = 2
)

// Report says what the sender of a forward is to learn beside the answer, at its
// first token. The request must not have been served yet when shared is asked.
func (n *Node) Report(now time.Time, f *Flight, shared, others int) Report {
	return Report{Known: true, Took: now.Sub(f.at), Backlog: n.backlog(now), Shared: shared, Others: others}
}

// Shared returns how many leading blocks of a prompt this node knows from others'
// too, and how many of those end there or go on differently.
func (n *Node) Shared(req Request) (blocks, others int) { return n.tree.Branch(req.Chain) }

// Bounced records that a peer has refused a flight that would have cost too much there,
// and what it said of its load.
func (n *Node) Bounced(now time.Time, f *Flight, backlog time.Duration) {
	n.Drop(now, f)
	if a := n.accounts[f.Node]; a != nil {
		a.backlog, a.backlogAt = backlog, now.Add(-n.oneWay(a))
	}
}

// Backlog is what a bounce tells the sender.
func (n *Node) Backlog(now time.Time) time.Duration { return n.backlog(now) }
