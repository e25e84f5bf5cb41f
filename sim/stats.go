package sim

import (
	"math"
	"slices"
	"time"
)

// stats add up the records of a run.
type stats struct {
	requests, errors, forwarded int
	byNode                      []int
	latency, ttft               []time.Duration
	tokens, expected, cached    int64
	rumors, fetched             int64 // bytes
	warmed                      int64 // tokens
	bounced                     int
	unfetched                   int // fetches given up
	events                      int
	end                         time.Duration
	hash                        hash
}

func (s *stats) add(r Record) {
	s.requests++
	s.hash.mix(uint64(r.Index), uint64(r.At), uint64(r.Latency), uint64(r.TTFT), uint64(r.Node+1), uint64(r.Cached), uint64(r.Expected), uint64(len(r.Err)))
	if r.Err != "" {
		s.errors++
		return
	}
	s.byNode[r.Node]++
	if r.Forwarded {
		s.forwarded++
	}
	s.latency = append(s.latency, r.Latency)
	s.ttft = append(s.ttft, r.TTFT)
	s.tokens += int64(r.Tokens)
	s.expected += int64(min(r.Expected, r.Tokens))
	s.cached += int64(r.Cached)
}

func (c *cluster) result() Result {
	s := &c.stats
	r := Result{
		Requests: s.requests, Errors: s.errors,
		Latency: summarize(s.latency), TTFT: summarize(s.ttft),
		RumorBytes: s.rumors, FetchedBytes: s.fetched, Unfetched: s.unfetched,
		Befallen: c.faultsAt, Warmed: s.warmed, Bounced: s.bounced,
		End: s.end, Events: s.events, Hash: uint64(s.hash),
	}
	if s.tokens > 0 {
		r.ExpectedHit = float64(s.expected) / float64(s.tokens)
		r.ActualHit = float64(s.cached) / float64(s.tokens)
	}
	for _, n := range s.byNode {
		share := float64(n) / float64(max(1, s.requests-s.errors))
		r.ShareByNode = append(r.ShareByNode, share)
		r.FullestShare = max(r.FullestShare, share)
	}
	r.ForwardedShare = float64(s.forwarded) / float64(max(1, s.requests-s.errors))
	if s.end > 0 {
		r.RumorRate = float64(s.rumors) / s.end.Seconds() / float64(c.cfg.Nodes)
	}
	return r
}

// summarize sorts times.
func summarize(times []time.Duration) Summary {
	if len(times) == 0 {
		return Summary{}
	}
	slices.Sort(times)
	var sum float64
	for _, t := range times {
		sum += float64(t)
	}
	at := func(share float64) time.Duration { return times[max(int(math.Ceil(share*float64(len(times))))-1, 0)] } // nearest rank
	return Summary{Mean: time.Duration(sum / float64(len(times))), P50: at(0.5), P99: at(0.99)}
}

// A hash is a running digest of a history: a multiplication, a shift and an exclusive or a word.
type hash uint64

func (h *hash) mix(words ...uint64) {
	for _, w := range words {
		x := (uint64(*h) ^ w) * 0x9e3779b97f4a7c15
		*h = hash(x ^ x>>29)
	}
}
