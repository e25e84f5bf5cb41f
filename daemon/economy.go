package daemon

import (
	"time"

	"github.com/hearsay-project/hearsay/node"
)

// EconomyStatus is what a node knows by which it prices requests, as
// /hearsay/v1/status tells it.
type EconomyStatus struct {
	Base       float64 `json:"base_ms"`      // of a prefill here, and what each token adds that is not cached
	PerToken   float64 `json:"per_token_ms"` // both a guess while samples is 0
	Samples    int     `json:"samples"`
	Rate       float64 `json:"rate"`        // requests a second that come here in the long run
	Toll       float64 `json:"toll"`        // requests that wait, in the mean, for a prefill of one second
	BacklogMS  float64 `json:"backlog_ms"`  // that a request which came now would wait
	Flights    int     `json:"flights"`     // requests under way, here and at peers, and a warming
	BouncedOff int     `json:"bounced_off"` // forwards that this node has not taken, as they would have cost more than elsewhere
	Bounced    int     `json:"bounced"`     // of this node's own, by peers

	Warming         bool `json:"warming"`
	WarmedPrefixes  int  `json:"warmed_prefixes"`
	WarmedTokens    int  `json:"warmed_tokens"`
	WarmedGivenUp   int  `json:"warmed_given_up"`  // for clients' requests
	WarmedFailed    int  `json:"warmed_failed"`    // at the engine
	WarmedAllowance int  `json:"warmed_allowance"` // tokens that may be warmed now

	Peers     []AccountStatus  `json:"peers"`
	Decisions []DecisionStatus `json:"decisions"` // the last, the newest first
}

// AccountStatus is what a node has learnt of a peer by dealing with it.
type AccountStatus struct {
	Name        string  `json:"name"`
	Base        float64 `json:"base_ms"`
	PerToken    float64 `json:"per_token_ms"`
	TripMS      float64 `json:"trip_ms"` // there and back
	TripMSPerKB float64 `json:"trip_ms_per_kb"`
	Trips       int     `json:"trips"` // that were measured
	BacklogMS   float64 `json:"backlog_ms"`
	Truth       float64 `json:"truth"` // of what it is said to hold, how much it holds, 0 to 1
	InFlight    int     `json:"in_flight"`
}

// economyStatus is for people: it allocates. Daemon.mu is held.
func (d *Daemon) economyStatus(now time.Time, n *node.Node) EconomyStatus {
	e := n.Economy(now)
	s := EconomyStatus{
		Base: exactly(e.Engine.Base), PerToken: exactly(e.Engine.PerToken), Samples: e.Engine.Samples,
		Rate: e.Rate, Toll: e.Toll, BacklogMS: milliseconds(e.Backlog),
		Flights: e.Flights, BouncedOff: e.Bounced, Bounced: d.bounces,
		Warming: e.Warming, WarmedPrefixes: e.Warmed.Prefixes, WarmedTokens: e.Warmed.Tokens,
		WarmedGivenUp: e.Warmed.Cancelled, WarmedFailed: e.Warmed.Failed, WarmedAllowance: e.Allowance,
		Peers: []AccountStatus{}, Decisions: d.recent.status(now),
	}
	for _, a := range e.Accounts {
		s.Peers = append(s.Peers, AccountStatus{
			Name: a.Name, Base: exactly(a.Speed.Base), PerToken: exactly(a.Speed.PerToken),
			TripMS: exactly(a.Trip), TripMSPerKB: exactly(a.TripPerKB), Trips: a.Trips,
			BacklogMS: milliseconds(a.Backlog), Truth: a.Truth, InFlight: a.InFlight,
		})
	}
	return s
}

// exactly is a duration in milliseconds, which may be less than a thousandth of one.
func exactly(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
