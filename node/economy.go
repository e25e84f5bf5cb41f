package node

import (
	"maps"
	"math"
	"time"

	"github.com/hearsay-project/hearsay/estimate"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/route"
)

// What a node believes of an engine of which it knows nothing: a mid-sized model on
// one GPU. The first sample scales it, so that only the proportion matters for long.
const (
	priorBase     = 20 * time.Millisecond
	priorPerToken = 250 * time.Microsecond

	// spreadTokens is how far two prompts' uncached tokens must be apart for the
	// pair to tell the price of a token from that of a request.
	spreadTokens = 32

	// spreadBytes is the same for a forward's bytes and the bandwidth of a link.
	spreadBytes = 4096

	// truthPrior is how many bytes of a peer's promises count as kept before the
	// first was put to the test: some prompts.
	truthPrior = 8 << 10
	truthSpan  = 32
)

// A speed is how long an engine's prefill takes, in seconds on tokens not cached.
type speed struct{ line estimate.Line }

func newSpeed() speed {
	return speed{estimate.Line{Base: priorBase.Seconds(), Slope: priorPerToken.Seconds(), MinSpread: spreadTokens}}
}

func (s *speed) prefill(uncached int) time.Duration { return seconds(s.line.At(float64(uncached))) }

// known reports whether the speed rests on enough samples to prefer an engine for it,
// of more than one size: what the line says of others would be a guess.
func (s *speed) known() bool { return s.line.Samples() >= knownSamples && s.line.Fitted() }

const knownSamples = 8

// ownSpeed is that of the engine beside this node; while it is not known, what peers
// tell of theirs, if they do.
func (n *Node) ownSpeed() *speed {
	if n.speed.known() || n.theirs.line.Base+n.theirs.line.Slope == 0 {
		return &n.speed
	}
	return &n.theirs
}

// guessing reports whether the speed of the engine beside this node is but a guess:
// no prefill here has been measured, and no peer tells of its own.
func (n *Node) guessing() bool { return n.speed.line.Samples() == 0 && n.ownSpeed() == &n.speed }

// hearSpeed takes in what a peer tells of its engine. Of all such it keeps a mean.
func (n *Node) hearSpeed(load gossip.Load) {
	line := &n.theirs.line
	switch {
	case load.PerToken == 0 && load.Base == 0:
	case line.Base+line.Slope == 0:
		line.Base, line.Slope = load.Base.Seconds(), load.PerToken.Seconds()
	default:
		line.Base += (load.Base.Seconds() - line.Base) / 8
		line.Slope += (load.PerToken.Seconds() - line.Slope) / 8
	}
}

// speedOf is a peer's speed as it tells it; while it does not, this node's own.
func (n *Node) speedOf(load gossip.Load) *speed {
	if load.PerToken == 0 && load.Base == 0 {
		return n.ownSpeed()
	}
	n.scratch.line.Base, n.scratch.line.Slope = load.Base.Seconds(), load.PerToken.Seconds()
	return &n.scratch
}

// An account is what this node has learnt of a peer by dealing with it.
type account struct {
	trip  estimate.Line  // seconds there and back, on bytes of the request
	truth estimate.Share // of the bytes that it was said to hold, how many it held
	sent  []*Flight      // that it has not answered
	idle  int            // rumors sent since an answer told the trip

	backlog   time.Duration // as its last answer told
	backlogAt time.Time     // when that was so; zero before
}

// accountsMax is at how many accounts those of peers that are not known any more are
// dropped: more than a view has peers. Most go when their peer leaves, in Forget.
const accountsMax = 1 << 12

// account returns the account of peer, opened when there is none.
func (n *Node) account(peer string) *account {
	a := n.accounts[peer]
	if a == nil {
		if len(n.accounts) >= accountsMax {
			maps.DeleteFunc(n.accounts, func(name string, _ *account) bool { _, known := n.view.Load(name); return !known })
		}
		a = &account{
			trip:  newTrip(),
			truth: estimate.Share{Prior: truthPrior, Span: truthSpan},
		}
		n.accounts[peer] = a
	}
	return a
}

func newTrip() estimate.Line { return estimate.Line{MinSpread: spreadBytes} }

// SetTrip tells, with each rumor, how long a small message takes to peer and back, as
// whoever carries rumors has measured. It is what is believed of a forward until one
// has been tried, and again when none has been for idleRumors and messages take less
// than half of what the last ones told: a link that has healed would else be thought
// slow for as long as that keeps it from being tried. What forwards take beyond
// messages by tripSlack or less is no such thing.
func (n *Node) SetTrip(peer string, rtt time.Duration) {
	if rtt < 0 {
		return
	}
	a := n.account(peer)
	if a.idle++; a.idle > idleRumors && rtt.Seconds() < min(a.trip.Base/2, a.trip.Base-tripSlack.Seconds()) {
		a.trip = newTrip()
	}
	if a.trip.Samples() == 0 {
		a.trip.Base = rtt.Seconds()
	}
}

const (
	idleRumors = 4

	// tripSlack is what HTTP, a larger body and a busy machine add to any trip.
	tripSlack = 5 * time.Millisecond
)

func (n *Node) oneWay(a *account) time.Duration { return seconds(a.trip.Base / 2) }

// wait is how long the prefill of a request that is sent to a peer now would wait
// there: the newest backlog it told, which has since run down, behind it what this
// node has sent that the peer did not know of then, and what others will have sent.
// The latter tends, within some prefills, to what requests wait there on average,
// which for prefills of this one's length is the toll on it where nothing waits
// (Pollaczek and Khinchine, of a queue with one server and Poisson arrivals).
func (n *Node) wait(now time.Time, p gossip.Peer, a *account, prefill time.Duration) time.Duration {
	oneWay := n.oneWay(a)
	at := now.Add(oneWay)
	told, backlog := p.Heard.Add(-oneWay), p.Load.Backlog
	if told.After(now) { // the clock was set back
		told = now
	}
	if a.backlogAt.After(told) && !a.backlogAt.After(now) {
		told, backlog = a.backlogAt, a.backlog
	}
	free := told.Add(backlog)
	for _, f := range a.sent {
		if came := f.at.Add(oneWay); came.After(told) && !came.After(at) && f.first.IsZero() {
			free = later(free, came).Add(f.service)
		}
	}
	service := prefill.Seconds()
	mean := toll(p.Load.Toll, route.Price{Prefill: prefill}).Seconds()
	age := at.Sub(told).Seconds() / max(service+mean, 1e-9)
	pause := p.PausedUntil.Sub(later(now, p.Heard))
	return max(0, free.Sub(at), pause) + seconds(mean*(1-math.Exp(-max(age, 0))))
}

// price says what it would cost to serve a request of so many tokens at a peer.
func (n *Node) price(now time.Time, req Request, tokens int, p gossip.Peer, match int) route.Price {
	a := n.account(p.Name)
	held := float64(tokens) * req.share(match) * a.truth.Value()
	pr := route.Price{
		Trip:    seconds(a.trip.At(float64(req.Bytes))),
		Prefill: n.speedOf(p.Load).prefill(max(tokens-int(held), 1)),
	}
	pr.Wait = n.wait(now, p, a, pr.Prefill)
	pr.Toll = toll(p.Load.Toll, pr)
	return pr
}

// priceHere says what it would cost to serve it on this node's own engine.
func (n *Node) priceHere(now time.Time, req Request, tokens, match int) route.Price {
	pr := route.Price{Wait: n.backlog(now), Prefill: n.ownSpeed().prefill(n.lacking(now, req, tokens, match))}
	pr.Toll = toll(n.meter.toll(), pr)
	return pr
}

// lacking is how many of a prompt's tokens are to be computed here when its prefill
// begins, of which the first blocks are cached: those in front of it bring more.
func (n *Node) lacking(now time.Time, req Request, tokens, match int) int {
	held := float64(tokens) * req.share(max(match, n.coming(now, req.Chain)))
	return max(tokens-int(held), 1)
}

// excess is by what share an engine does more than the mean of all.
func (n *Node) excess(work float64) float64 {
	if n.meanWork <= 0 {
		return 0
	}
	return work/n.meanWork - 1
}

// work is how much of its time an engine would spend on the requests that it serves
// if all were alike: so many tokens each that are not cached.
func (n *Node) work(l gossip.Load) float64 {
	return l.Rate * n.speedOf(l).prefill(alikeTokens).Seconds()
}

func (n *Node) workHere() float64 {
	return n.meter.rate() * n.ownSpeed().prefill(alikeTokens).Seconds()
}

const alikeTokens = 256

// relief is what others gain when a request that an engine serves is served by this
// node from then on: nothing while that engine does no more than its share, or than
// may be chance, and beyond it more than the request's own time. Of n requests that
// an engine gets by chance the number strays by one in the square root of n.
// It is warmed for, and not bought: no client waits for the sake of an even load.
func (n *Node) relief(load gossip.Load, p route.Price) time.Duration {
	excess := min(n.excess(n.work(load)), 1) - max(n.excess(n.workHere()), 0)
	chance := 1 / math.Sqrt(max(load.Rate*n.meter.all, 1))
	return seconds(reliefSteep * p.Prefill.Seconds() * (excess - chance))
}

// reliefSteep prefills of a request are what it is worth to have it served off an
// engine that does twice its share.
const reliefSteep = 7

// weigh takes the mean of what all nodes do, once a poll.
func (n *Node) weigh(now time.Time) {
	if !n.priced {
		return
	}
	n.meter.tick(now, len(n.pending) > 0)
	sum, count := n.workHere(), 1.0
	for _, p := range n.view.Peers(now) {
		if p.Usable() {
			sum += n.work(p.Load)
			count++
		}
	}
	n.meanWork = sum / count
}

// toll is how much longer later requests wait because of a prefill. Until the
// engine is idle again, which takes the wait and the prefill over the idle share of
// its time, some come, and each that does so before then waits for that prefill.
func toll(rate float64, p route.Price) time.Duration {
	s := p.Prefill.Seconds()
	return seconds(rate * s * (p.Wait.Seconds() + s/2))
}

// A meter measures how busy this node's engine is, over about the last meterSpan.
type meter struct {
	at          time.Time
	busy, total float64 // seconds
	met         float64 // requests that came while it was busy
	came, all   float64 // requests and seconds, over about workSpan
}

const (
	meterSpan = 30 * time.Second
	workSpan  = 5 * time.Minute
	// meterPrior is an idle time that every meter begins with, so that its first
	// second does not make an engine look busy.
	meterPrior = 5
)

// tick lets time pass, in which the engine was busy or not.
func (m *meter) tick(now time.Time, busy bool) {
	if m.at.IsZero() {
		m.at, m.total, m.all = now, meterPrior, meterPrior
		return
	}
	d := now.Sub(m.at).Seconds()
	if d <= 0 {
		return // a clock that was set back stands still
	}
	m.at = now
	keep := math.Exp(-d / meterSpan.Seconds())
	m.busy, m.total, m.met = m.busy*keep, m.total*keep, m.met*keep
	keep = math.Exp(-d / workSpan.Seconds())
	m.came, m.all = m.came*keep, m.all*keep+d
	if m.total += d; busy {
		m.busy += d
	}
}

// come counts a request that comes now, to an engine that is busy or not.
func (m *meter) come(now time.Time, busy bool) {
	m.tick(now, busy)
	m.came++
	if busy {
		m.met++
	}
}

// rate is how many requests a second have come in the long run.
func (m *meter) rate() float64 {
	if m.all <= 0 {
		return 0
	}
	return m.came / m.all
}

// toll is the rate at which requests come while the engine is busy, in one a
// second, over the share of time that it is not.
func (m *meter) toll() float64 {
	if m.busy <= 0 {
		return 0
	}
	return m.met / max(m.busy, 1) / max(1-m.busy/m.total, 0.05)
}

func seconds(s float64) time.Duration {
	const most = float64(24 * time.Hour)
	return time.Duration(max(0, min(s*float64(time.Second), most)))
}
