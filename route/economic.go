package route

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A Price is what it would cost to serve the request at a candidate, all in time
// until a first token. The first three are the request's own, the fourth falls on
// others.
type Price struct {
	Trip    time.Duration // there and back, the body's bytes included; 0 for self
	Wait    time.Duration // until its prefill would begin
	Prefill time.Duration // of what it is not expected to find cached
	Toll    time.Duration // that later requests wait longer because of this one
}

// Own is the time until the request's own first token.
func (p Price) Own() time.Duration { return p.Trip + p.Wait + p.Prefill }

// Total is what a choice is made by.
func (p Price) Total() time.Duration { return p.Own() + p.Toll }

// Economic takes the candidate with the least price: trip, wait and prefill of this
// request and what others wait for it, in one unit. Among peers that cost about the
// same it draws two and takes the cheaper, so that nodes with the same hearsay do
// not all run to one; this node comes before peers that cost about the same.
type Economic struct{}

var _ Policy = Economic{}

// Name returns "economic".
func (Economic) Name() string { return "economic" }

// tied is how much dearer a candidate may be than the cheapest and pass for as cheap: a
// fiftieth, the order in which prices are known at all, or a millisecond.
func tied(least time.Duration) time.Duration { return max(least/50, time.Millisecond) }

// Choose returns the candidate with the least price, or one of about that.
func (Economic) Choose(cands []Candidate, rng *rand.Rand) (int, string) {
	self, best := findSelf(cands), -1
	for i, c := range cands {
		if c.Paused {
			continue
		}
		if best < 0 || c.Price.Total() < cands[best].Price.Total() || c.Price.Total() == cands[best].Price.Total() && c.Self {
			best = i
		}
	}
	if best < 0 {
		return self, "economic all paused, stay here " + terms(cands[self])
	}
	if best != self {
		best = among(cands, best, rng)
		least := cands[best].Price.Total()
		if !cands[self].Paused && cands[self].Price.Total() <= least+tied(least) {
			best = self
		}
	}
	if best == self {
		return self, "economic here " + terms(cands[self])
	}
	return best, fmt.Sprintf("economic %s %s, here %s", cands[best].Name, terms(cands[best]), terms(cands[self]))
}

// among draws two of the peers that would serve the request as fast as the cheapest
// but for what waits there, of which hearsay is old, and returns the cheaper. Those
// that are dearer by a whole prefill are out.
func among(cands []Candidate, least int, rng *rand.Rand) int {
	l := cands[least].Price
	fast, limit := l.Trip+l.Prefill, l.Total()+l.Prefill
	fast += tied(fast)
	first, second, n := least, least, 0
	for i, c := range cands {
		if c.Self || c.Paused || c.Price.Trip+c.Price.Prefill > fast || c.Price.Total() > limit {
			continue
		}
		// A reservoir of two: each pair of the n so far is held with one chance.
		switch n++; {
		case n == 1:
			first = i
		case n == 2:
			second = i
		default:
			switch j := rng.IntN(n); j {
			case 0:
				first = i
			case 1:
				second = i
			}
		}
	}
	if n == 1 {
		return first
	}
	a, b := cands[first].Price.Total(), cands[second].Price.Total()
	if b < a || a == b && rng.IntN(2) == 0 {
		return second
	}
	return first
}

// terms explains a price: "412ms = trip 4 + wait 0 + prefill 400 + toll 8".
func terms(c Candidate) string {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	if c.Self {
		return fmt.Sprintf("%.0fms = wait %.0f + prefill %.0f + toll %.0f", ms(c.Price.Total()), ms(c.Price.Wait), ms(c.Price.Prefill), ms(c.Price.Toll))
	}
	return fmt.Sprintf("%.0fms = trip %.0f + wait %.0f + prefill %.0f + toll %.0f", ms(c.Price.Total()), ms(c.Price.Trip), ms(c.Price.Wait), ms(c.Price.Prefill), ms(c.Price.Toll))
}
