package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

// record runs the requests and returns what became of each, by index.
func record(t *testing.T, cfg Config, requests ...Request) ([]Record, Result) {
	t.Helper()
	records := make([]Record, len(requests))
	cfg.Trace, cfg.Check = func(r Record) { records[r.Index] = r }, true
	result, err := Run(cfg, slices.Values(requests))
	if err != nil {
		t.Fatal(err)
	}
	return records, result
}

// A node's death is news that no partition lets through: the origin learns of it
// when the partition heals, or gives up after the silence of three polls.
func TestRefusalDoesNotCrossAPartition(t *testing.T) {
	long := Request{Tokens: 10_000} // 19 s
	for _, c := range []struct {
		faults      []Fault
		least, most time.Duration // until the origin serves it itself
	}{
		{[]Fault{{At: 2 * time.Second, Kind: Crash, Nodes: []int{1}}}, 2 * time.Second, 2100 * time.Millisecond},
		{[]Fault{{At: time.Second, Kind: Partition, Nodes: []int{1}}, {At: 2 * time.Second, Kind: Crash, Nodes: []int{1}}}, 3500 * time.Millisecond, 4100 * time.Millisecond},
		{[]Fault{{At: time.Second, Kind: Partition, Nodes: []int{1}}, {At: 2 * time.Second, Kind: Crash, Nodes: []int{1}}, {At: 2600 * time.Millisecond, Kind: Heal}}, 2600 * time.Millisecond, 3200 * time.Millisecond},
	} {
		profile := paper(t)
		records, _ := record(t, Config{Nodes: 2, Policy: "round-robin", Profile: profile, Faults: c.faults, Entry: First}, Request{Tokens: 16}, long)
		alone := profile.Base + profile.PerToken*time.Duration(long.Tokens)
		if learnt := records[1].Latency - alone; learnt < c.least || learnt > c.most || records[1].Node != 0 || records[1].Err != "" {
			t.Errorf("%v: served by n%d after %v, %q; want n1 between %v and %v", c.faults, records[1].Node+1, learnt, records[1].Err, c.least, c.most)
		}
	}
}

// A KV cache on its way into a node waits for a partition to heal, for so long, and
// is lost with its sender. What did not come is not counted.
func TestFetchedKVDoesNotCrossAPartition(t *testing.T) {
	profile := paper(t)
	c := numbered(0, 0, 375)
	at := func(s float64) time.Duration { return time.Minute + time.Duration(s*float64(time.Second)) }
	whole := profile.Base + profile.PerToken*3001
	for _, tc := range []struct {
		faults      []Fault
		bytes       int64
		unfetched   int
		least, most time.Duration
	}{
		{nil, 42_000_000, 0, 480 * time.Millisecond, 500 * time.Millisecond},
		{[]Fault{{At: at(.1), Kind: Partition, Nodes: []int{1}}}, 0, 1, whole + 1800*time.Millisecond, whole + 2400*time.Millisecond},
		{[]Fault{{At: at(.1), Kind: Partition, Nodes: []int{1}}, {At: at(1), Kind: Heal}}, 42_000_000, 0, time.Second, 2 * time.Second},
		{[]Fault{{At: at(.1), Kind: Crash, Nodes: []int{0}}}, 0, 1, whole + 300*time.Millisecond, whole + 400*time.Millisecond},
	} {
		records, result := record(t, Config{
			Nodes: 2, Policy: "fetch-kv", Profile: profile, BlockTokens: 8, Faults: tc.faults,
			Network: Network{Delay: 2 * time.Millisecond, Bandwidth: 125_000_000},
		}, Request{Chain: c, Tokens: 3001}, Request{Chain: c, Tokens: 3001, At: time.Minute})
		if got := records[1].Latency; got < tc.least || got > tc.most || result.FetchedBytes != tc.bytes || result.Unfetched != tc.unfetched {
			t.Errorf("%v: %v, %d bytes, %d given up; want %v to %v, %d and %d", tc.faults, got, result.FetchedBytes, result.Unfetched, tc.least, tc.most, tc.bytes, tc.unfetched)
		}
	}
}

// Trees that do not come in time are told, and their bytes are not; a link is free
// again when its node no longer waits.
func TestTreesThatDoNotCome(t *testing.T) {
	cfg := Config{Nodes: 4, Policy: "on-demand", Profile: paper(t), Entry: First, Arrival: Arrival{Clients: 1}}
	var requests []Request
	for i := range 20 {
		requests = append(requests, Request{Chain: numbered(i, 0, 100), Tokens: 1600})
	}
	_, free := record(t, cfg, requests...)
	if free.FetchedBytes == 0 || free.Unfetched != 0 {
		t.Errorf("%d bytes, %d trees given up", free.FetchedBytes, free.Unfetched)
	}
	down := cfg
	down.Faults = []Fault{{Kind: Crash, Nodes: []int{3}}}
	if _, r := record(t, down, requests...); r.Unfetched != len(requests) || r.FetchedBytes == 0 || r.Errors > 0 {
		t.Errorf("with a node down %d trees are given up of %d, %d bytes fetched", r.Unfetched, 3*len(requests), r.FetchedBytes)
	}
	slow := cfg
	slow.Network.Bandwidth = MinBandwidth
	slow.Entry = Random // trees of 900 bytes and more
	records, r := record(t, slow, requests...)
	if r.Unfetched == 0 || r.FetchedBytes >= free.FetchedBytes {
		t.Errorf("at %d bytes a second %d trees are given up, %d bytes fetched", MinBandwidth, r.Unfetched, r.FetchedBytes)
	}
	for _, rec := range records {
		if wait := rec.Latency - cfg.Profile.Base - cfg.Profile.PerToken*1600; wait > 2*time.Second {
			t.Errorf("request %d waits %v for trees", rec.Index, wait)
		}
	}
}

// A transfer that its node no longer waits for leaves the link to the next.
func TestLinkIsFreeAfterGivingUp(t *testing.T) {
	_, r := record(t, Config{
		Nodes: 2, Policy: "on-demand", Profile: paper(t), Network: Network{Bandwidth: MinBandwidth},
		entry:  func(i int) int { return []int{1, 0, 0}[i] },
		Faults: []Fault{{At: 3 * time.Minute, Kind: Restart, Nodes: []int{1}}},
	},
		Request{Chain: numbered(0, 0, 4000), Tokens: 64_000}, // n2's tree is then of 36 kB, 36 s on the link
		Request{Tokens: 16, At: 3*time.Minute - 3*time.Second},
		Request{Tokens: 16, At: 3*time.Minute + 3*time.Second})
	if r.Unfetched != 1 {
		t.Errorf("%d trees are given up, want the one large one", r.Unfetched)
	}
}

// Clients who find no node up wait a second between two requests: a cluster that
// comes back finds the rest.
func TestClientsWaitForANode(t *testing.T) {
	requests := slices.Repeat([]Request{{Tokens: 16}}, 200)
	records, r := record(t, Config{
		Nodes: 2, Policy: "local", Profile: paper(t), Arrival: Arrival{Clients: 2},
		Faults: []Fault{{At: 5 * time.Second, Kind: Crash, Nodes: []int{0, 1}}, {At: 9500 * time.Millisecond, Kind: Restart, Nodes: []int{0}}},
	}, requests...)
	none := 0
	for _, rec := range records {
		if rec.Err == "no node is up" {
			none++
		}
	}
	if none != 10 || r.Requests != 200 {
		t.Errorf("%d of %d requests found no node, want those of five seconds", none, r.Requests)
	}
	if records[199].Err != "" || r.Befallen != 2 {
		t.Errorf("the last request: %+v; %d faults befell", records[199], r.Befallen)
	}
}

// Rumors that are stuck tell of what a node held then, and of nothing since; their
// author lives, and a restart frees it.
func TestStuckRumors(t *testing.T) {
	old, late, last := numbered(1, 0, 10), numbered(2, 0, 10), numbered(3, 0, 10)
	ask := func(s int, c prefix.Chain) Request {
		return Request{Chain: c, Tokens: 160, At: time.Duration(s) * time.Second}
	}
	records, r := record(t, Config{
		Nodes: 2, Policy: "longest", Profile: paper(t),
		entry:  func(i int) int { return []int{1, 1, 0, 0, 1, 0}[i] },
		Faults: []Fault{{At: 5 * time.Second, Kind: Stuck, Nodes: []int{1}}, {At: 40 * time.Second, Kind: Restart, Nodes: []int{1}}},
	}, ask(0, old), ask(10, late), ask(20, late), ask(30, old), ask(50, last), ask(60, last))
	for i, want := range []struct{ node, expected int }{{1, 0}, {1, 0}, {0, 0}, {1, 160}, {1, 0}, {1, 160}} {
		if got := records[i]; got.Node != want.node || got.Expected != want.expected {
			t.Errorf("request %d is served by n%d for %d tokens, want n%d for %d", i, got.Node+1, got.Expected, want.node+1, want.expected)
		}
	}
	if r.Befallen != 2 {
		t.Errorf("%d faults befell", r.Befallen)
	}
}

// Faults that lie beyond the last answer do not befall, and the result says so.
func TestFaultsBeyondTheEnd(t *testing.T) {
	_, r := record(t, Config{Nodes: 2, Profile: paper(t), Policy: "local", Faults: []Fault{{At: time.Millisecond, Kind: Slow, Nodes: []int{0}, Factor: 2}, {At: time.Hour, Kind: Heal}}}, Request{Tokens: 16})
	if r.Befallen != 1 {
		t.Errorf("%d of 2 faults befell, want the first", r.Befallen)
	}
}

// A run that takes more than a century ends with a sentence; an int64 of nanoseconds
// holds three.
func TestTimeHasAnEnd(t *testing.T) {
	profile := paper(t)
	profile.Decode = 24 * 365 * time.Hour
	_, err := Run(Config{Nodes: 1, Policy: "local", Profile: profile, Arrival: Arrival{Clients: 1}},
		slices.Values(slices.Repeat([]Request{{Chain: prefix.Chain{1}, Tokens: 16, Output: 31}}, 4)))
	if err == nil || !strings.Contains(err.Error(), "beyond a century") {
		t.Errorf("ended with %v", err)
	}
}
