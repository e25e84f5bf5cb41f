package daemon

import (
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
)

// decisions are the last ones that this node has taken, for people. Daemon.mu guards
// them. To add one costs a copy of its candidates.
type decisions struct {
	ring [32]choice
	next int
	full bool
}

// A choice is one decision and what it was taken from.
type choice struct {
	at         time.Time
	requestID  string
	decision   node.Decision
	candidates []route.Candidate
}

func (r *decisions) add(now time.Time, q *request, decision node.Decision, candidates []route.Candidate) {
	c := &r.ring[r.next]
	c.at, c.requestID, c.decision = now, brief(q.http.Header.Get(requestIDHeader)), decision
	c.candidates = append(c.candidates[:0], candidates...)
	if r.next++; r.next == len(r.ring) {
		r.next, r.full = 0, true
	}
}

// DecisionStatus is a decision as /hearsay/v1/status tells it.
type DecisionStatus struct {
	AgeMS      float64           `json:"age_ms"`
	RequestID  string            `json:"request_id"`
	Node       string            `json:"node"`
	Reason     string            `json:"reason"`
	Expected   int               `json:"expected_tokens"`
	Candidates []CandidateStatus `json:"candidates"` // the deciding node first
}

// CandidateStatus is a node that a request could have gone to. The times are a
// policy's that goes by prices; total is what it compares.
type CandidateStatus struct {
	Node        string  `json:"node"`
	MatchBlocks int     `json:"match_blocks"` // -1 where it was the last resort
	Queue       int     `json:"queue"`
	Paused      bool    `json:"paused"`
	TripMS      float64 `json:"trip_ms"`
	WaitMS      float64 `json:"wait_ms"`
	PrefillMS   float64 `json:"prefill_ms"`
	TollMS      float64 `json:"toll_ms"`
	TotalMS     float64 `json:"total_ms"`
}

// status lists them, the newest first.
func (r *decisions) status(now time.Time) []DecisionStatus {
	count := r.next
	if r.full {
		count = len(r.ring)
	}
	list := make([]DecisionStatus, 0, count)
	for i := range count {
		c := &r.ring[(r.next-1-i+len(r.ring))%len(r.ring)]
		s := DecisionStatus{
			AgeMS: milliseconds(now.Sub(c.at)), RequestID: c.requestID, Node: c.decision.Node,
			Reason: c.decision.Reason, Expected: c.decision.Expected,
		}
		for _, k := range c.candidates {
			s.Candidates = append(s.Candidates, CandidateStatus{
				Node: k.Name, MatchBlocks: k.Match, Queue: k.Queue, Paused: k.Paused,
				TripMS: milliseconds(k.Price.Trip), WaitMS: milliseconds(k.Price.Wait), PrefillMS: milliseconds(k.Price.Prefill),
				TollMS: milliseconds(k.Price.Toll), TotalMS: milliseconds(k.Price.Total()),
			})
		}
		list = append(list, s)
	}
	return list
}
