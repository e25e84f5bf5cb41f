package node

import "time"

// An Economy is what a node knows by which it prices requests.
type Economy struct {
	Engine  Speed         // of the engine beside this node, a guess while Samples is 0
	Rate    float64       // requests a second that come to it in the long run
	Toll    float64       // how many requests wait, in the mean, for a prefill of one second
	Backlog time.Duration // that a request which came now would wait
	Flights int           // requests under way, here and at peers, and a warming
	Bounced int           // forwards refused, as they would have cost more than elsewhere

	Warming   bool // one is under way
	Warmed    WarmTotals
	Allowance int // tokens that may be warmed now

	Accounts []Account // by name
}

// A Speed is how long a prefill takes: Base, and PerToken for each that is not cached.
type Speed struct {
	Base, PerToken time.Duration
	Samples        int
}

// An Account is what a node has learnt of a peer by dealing with it.
type Account struct {
	Name      string
	Speed     Speed         // as it tells; this node's own while it does not
	Trip      time.Duration // there and back, of a small request
	TripPerKB time.Duration // that each 1024 bytes of a request add
	Trips     int           // that were measured
	Backlog   time.Duration // that a request sent now would find there
	Truth     float64       // of what it is said to hold, how much it holds, 0 to 1
	InFlight  int           // requests sent there and not answered
}

// Economy returns what prices rest on now. It allocates; call it for people.
func (n *Node) Economy(now time.Time) Economy {
	n.meter.tick(now, len(n.pending) > 0)
	e := Economy{
		Engine: Speed{seconds(n.speed.line.Base), seconds(n.speed.line.Slope), n.speed.line.Samples()},
		Rate:   n.meter.rate(), Toll: n.meter.toll(), Backlog: n.backlog(now),
		Flights: n.flights, Bounced: n.bounced,
		Warming: n.warming != nil, Warmed: n.warmed, Allowance: int(n.allowance),
	}
	for _, p := range n.view.Peers(now) {
		a, s := n.account(p.Name), n.speedOf(p.Load)
		e.Accounts = append(e.Accounts, Account{
			Name:  p.Name,
			Speed: Speed{Base: seconds(s.line.Base), PerToken: seconds(s.line.Slope)},
			Trip:  seconds(a.trip.Base), TripPerKB: seconds(a.trip.Slope * 1024), Trips: a.trip.Samples(),
			Backlog: n.wait(now, p, a, s.prefill(alikeTokens)), Truth: a.truth.Value(), InFlight: len(a.sent),
		})
	}
	return e
}
