package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

// numbered is a chain of n blocks, the first shared ones common to all chains.
func numbered(tail, shared, n int) prefix.Chain {
	c := make(prefix.Chain, n)
	for i := range c {
		c[i] = prefix.Hash(i + 1)
		if i >= shared {
			c[i] |= prefix.Hash(tail+1)<<32 | prefix.Hash(shared+1)<<56
		}
	}
	return c
}

// One request at a time, a latency is exactly its trips, the engine's base and the
// tokens that it had to compute.
func TestLatencyIsTripsAndPrefill(t *testing.T) {
	for _, policy := range []string{"local", "longest", "longest+pushback", "round-robin", "central"} {
		var records []Record
		cfg := Config{
			Policy: policy, Profile: paper(t), Check: true, Arrival: Arrival{Clients: 1}, Entry: Random,
			Network: Network{Delay: 20 * time.Millisecond},
			Trace:   func(r Record) { records = append(records, r) },
		}
		var requests []Request
		for i := range 200 {
			requests = append(requests, Request{Chain: numbered(i, i%20, 25), Tokens: 25*16 + i%16, Output: 1 + i%3})
		}
		result, err := Run(cfg, slices.Values(requests))
		if err != nil {
			t.Fatal(err)
		}
		forwards := 0
		for _, r := range records {
			ttft := cfg.Profile.Base + cfg.Profile.PerToken*time.Duration(r.Tokens-r.Cached)
			if r.Forwarded {
				ttft += 2 * cfg.Network.Delay
				forwards++
			}
			latency := ttft + cfg.Profile.Decode*time.Duration(requests[r.Index].Output-1)
			if r.TTFT != ttft || r.Latency != latency {
				t.Fatalf("%s: request %d took %v and %v, want %v and %v", policy, r.Index, r.TTFT, r.Latency, ttft, latency)
			}
		}
		if share := float64(forwards) / 200; share != result.ForwardedShare || policy != "local" && share == 0 {
			t.Errorf("%s: %v of requests forwarded, reported %v", policy, share, result.ForwardedShare)
		}
	}
}

// Forwarding pays while two trips cost less than the prefill that they save
// (section 5 of the paper). Each prompt's head is cached at one node of two and
// comes in at the other: the two policies cross where the model says.
func TestBreakEvenOfForwarding(t *testing.T) {
	const saved = 20 * 16 // tokens
	even := paper(t).PerToken * saved / 2
	mean := func(policy string, delay time.Duration) time.Duration {
		var sum time.Duration
		cfg := Config{
			Nodes: 2, Policy: policy, Profile: paper(t), Network: Network{Delay: delay},
			Trace: func(r Record) {
				if r.Index%2 == 1 {
					sum += r.Latency
				}
			},
		}
		var requests []Request
		for i := range 100 {
			c := numbered(i/2, 0, 20)
			if i%2 == 1 {
				c = append(c, numbered(i, 0, 25)[20:]...)
			}
			requests = append(requests, Request{Chain: c, Tokens: 16 * len(c), At: time.Duration(i) * 5 * time.Second})
		}
		if _, err := Run(cfg, slices.Values(requests)); err != nil {
			t.Fatal(err)
		}
		return sum / 50
	}
	for _, delay := range []time.Duration{0, even / 2, even - time.Millisecond, even + time.Millisecond, 2 * even} {
		gain := mean("local", delay) - mean("longest", delay)
		if want := 2 * (even - delay); gain != want {
			t.Errorf("at %v forwarding gains %v, want %v", delay, gain, want)
		}
	}
}

// Section 2: the KV cache of 3000 tokens at 14 KB is 42 MB. Over a link of 1 Gb/s
// a third of a second, and the request waits for it.
func TestFetchedKVIsThePapersArithmetic(t *testing.T) {
	profile := paper(t)
	cfg := Config{
		Nodes: 2, Policy: "fetch-kv", Profile: profile, BlockTokens: 8, Check: true,
		Network: Network{Delay: 2 * time.Millisecond, Bandwidth: 125_000_000},
	}
	var records []Record
	cfg.Trace = func(r Record) { records = append(records, r) }
	c := numbered(0, 0, 375)
	result, err := Run(cfg, slices.Values([]Request{{Chain: c, Tokens: 3001}, {Chain: c, Tokens: 3001, At: time.Minute}}))
	if err != nil {
		t.Fatal(err)
	}
	if result.FetchedBytes != 42_000_000 {
		t.Errorf("%d bytes fetched, want 42 MB", result.FetchedBytes)
	}
	want := 4*time.Millisecond + 336*time.Millisecond + profile.Base + profile.PerToken
	if got := records[1].Latency; got != want {
		t.Errorf("the second request took %v, want %v", got, want)
	}
	if records[1].Forwarded || records[1].Cached != 3000 {
		t.Errorf("the second request: %+v, want 3000 tokens cached here", records[1])
	}
}

// On-demand pays a round trip to the slowest peer before each request, and then
// its estimates are exact.
func TestOnDemandWaitsForTheSlowestPeer(t *testing.T) {
	ms := time.Millisecond
	cfg := Config{
		Nodes: 3, Policy: "on-demand", Profile: paper(t), Arrival: Arrival{Clients: 1}, Check: true, Entry: First,
		Network: Network{Matrix: [][]time.Duration{{0, 5 * ms, 70 * ms}, {5 * ms, 0, 9 * ms}, {80 * ms, 9 * ms, 0}}},
	}
	cfg.Trace = func(r Record) {
		want := 150*ms + cfg.Profile.Base + cfg.Profile.PerToken*time.Duration(r.Tokens-r.Cached)
		if r.Latency != want || math.Abs(float64(r.Expected-r.Cached)) > 1 {
			t.Errorf("request %d took %v, want %v; %d tokens cached, %d expected", r.Index, r.Latency, want, r.Cached, r.Expected)
		}
	}
	var requests []Request
	for i := range 20 {
		requests = append(requests, Request{Chain: numbered(i%4, i%7, 10), Tokens: 170})
	}
	if _, err := Run(cfg, slices.Values(requests)); err != nil {
		t.Fatal(err)
	}
}

// A config with mistakes is refused with a sentence for each.
func TestValidate(t *testing.T) {
	err := Config{Nodes: 2000, Policy: "best", Poll: time.Hour, Arrival: Arrival{Clients: 1, Rate: 1}}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"2000 nodes", `unknown policy "best"`, "poll 1h0m0s", "exclude each other", "MaxBatch 0"} {
		if !contains(err, want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

// A run that is told to stop ends soon, also where its next request is years away.
func TestStop(t *testing.T) {
	asked := 0
	result, err := Run(Config{
		Profile: paper(t), Policy: "longest", Arrival: Arrival{Rate: 1e-8}, Seed: 1,
		Stop: func() bool { asked++; return asked == 3 },
	}, func(yield func(Request) bool) {
		for yield(Request{Tokens: 16}) {
		}
	})
	if err != nil || asked != 3 || result.Events > 20_000 {
		t.Errorf("asked %d times, %d events, %v", asked, result.Events, err)
	}
}
