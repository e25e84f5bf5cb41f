package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/report"
	"github.com/hearsay-project/hearsay/sim"
	"github.com/hearsay-project/hearsay/workload"
)

// A simRow is one policy's run in numbers. What the clock of the run says, End
// and the rates, is virtual.
type simRow struct {
	workload.Row
	RumorRate    float64 `json:"rumor_bytes_per_node_s"`
	FetchedBytes int64   `json:"fetched_bytes"`     // KV caches and trees that came
	Unfetched    int     `json:"fetches_timed_out"` // and those that did not in time

	// What it takes to run it again, and to see that it was the same.
	Profile        string   `json:"profile"`
	ProfileSource  string   `json:"profile_source"`
	CapacityTokens int      `json:"capacity_tokens"` // of each node's cache
	BlockTokens    int      `json:"block_tokens"`
	Arrivals       string   `json:"arrivals"`
	Entry          string   `json:"entry"`
	Delays         string   `json:"delays,omitempty"` // file of regions or of a matrix
	JitterMS       float64  `json:"jitter_ms"`
	Loss           float64  `json:"loss"`
	Duplicate      float64  `json:"duplicate"`
	Reorder        float64  `json:"reorder"`
	Bandwidth      int64    `json:"bandwidth,omitempty"` // bytes a second; left out: without limit
	QueueThreshold int      `json:"queue_threshold"`
	MaxTokens      int      `json:"max_tokens"`
	ByTopic        bool     `json:"by_topic"`
	Faults         []string `json:"faults,omitempty"`
	End            float64  `json:"end_s"`
	Events         int      `json:"events"`
	History        string   `json:"history"` // digest of all that happened

	befallen int // of the faults
}

func (f *simFlags) row(policy string, r sim.Result, failures map[string]int) simRow {
	c := f.cluster.WithDefaults()
	value := func(v float64) *float64 { return &v }
	ms := func(d time.Duration) *float64 { return value(float64(d) / float64(time.Millisecond)) }
	row := simRow{
		Row: workload.Row{
			Policy: policy, Workload: f.source.Name, Nodes: c.Nodes, DelayMS: ms(c.Network.Delay), PollMS: ms(c.Poll),
			Requests: r.Requests, Errors: r.Errors, ErrorsByKind: failures, ShareByNode: map[string]float64{},
			Data: cmp.Or(f.source.Data, "synthetic"), Seed: c.Seed, Repeats: f.source.Repeats,
		},
		RumorRate: r.RumorRate, FetchedBytes: r.FetchedBytes, Unfetched: r.Unfetched,
		Profile: c.Profile.Name, ProfileSource: c.Profile.Source, CapacityTokens: c.CapacityTokens, BlockTokens: c.BlockTokens,
		Arrivals: f.arrivals(), Entry: c.Entry.String(), Delays: cmp.Or(f.regions, f.matrix), JitterMS: *ms(c.Network.Jitter),
		Loss: c.Network.Loss, Duplicate: c.Network.Duplicate, Reorder: c.Network.Reorder, Bandwidth: c.Network.Bandwidth,
		QueueThreshold: f.queueThreshold(), MaxTokens: f.source.Output, ByTopic: f.source.ByTopic,
		Faults: f.faults, befallen: r.Befallen,
		End: r.End.Seconds(), Events: r.Events, History: fmt.Sprintf("%016x", r.Hash),
	}
	if _, path, inName := strings.Cut(f.source.Name, ":"); inName {
		row.Data = path
	}
	if c.Network.Matrix != nil {
		row.DelayMS = nil
	}
	if r.Requests == r.Errors {
		return row
	}
	row.Mean, row.P50, row.P99 = value(r.Latency.Mean.Seconds()), value(r.Latency.P50.Seconds()), value(r.Latency.P99.Seconds())
	row.TTFTMean, row.TTFTP50, row.TTFTP99 = value(r.TTFT.Mean.Seconds()), value(r.TTFT.P50.Seconds()), value(r.TTFT.P99.Seconds())
	row.ExpectedHit, row.ActualHit = value(r.ExpectedHit), value(r.ActualHit)
	row.FullestShare, row.ForwardedShare = value(r.FullestShare), value(r.ForwardedShare)
	for i, share := range r.ShareByNode {
		row.ShareByNode[fmt.Sprintf("n%d", i+1)] = share
	}
	return row
}

// queueThreshold is the nodes' own where none is given.
func (f *simFlags) queueThreshold() int {
	return cmp.Or(f.cluster.QueueThreshold, node.Config{}.WithDefaults().QueueThreshold)
}

// arrivals says for people when requests come.
func (f *simFlags) arrivals() string {
	switch a := f.cluster.Arrival; {
	case a.Clients > 0:
		return fmt.Sprintf("closed loop of %d", a.Clients)
	case a.Rate > 0:
		return fmt.Sprintf("open loop at %g/s", a.Rate)
	}
	return "at the times of " + cmp.Or(f.source.Arrivals, "the workload")
}

// table sets the policies side by side, below what they share.
func (f *simFlags) table(stream *workload.Stream, rows []simRow) string {
	c := f.cluster.WithDefaults()
	repeats := "without repeats"
	switch {
	case f.source.ByTopic:
		repeats = "with repeats by topic"
	case f.source.Repeats:
		repeats = "with repeats"
	}
	delays := fmt.Sprintf("%v one way", c.Network.Delay)
	if file := cmp.Or(f.regions, f.matrix); file != "" {
		delays = "of " + file
	}
	rumors := fmt.Sprintf("rumors lost %g, doubled %g, late %g", c.Network.Loss, c.Network.Duplicate, c.Network.Reorder)
	if c.Network.Bandwidth > 0 {
		rumors += fmt.Sprintf("; %d bytes a second into a node", c.Network.Bandwidth)
	}
	setting := [][2]string{
		{"workload", fmt.Sprintf("%s, %d requests, %s, seed %d, %s, max tokens %d", f.source.Name, stream.Requests, f.arrivals(), c.Seed, repeats, f.source.Output)},
		{"data", stream.Source},
		{"cluster", fmt.Sprintf("%d nodes, entry %s, poll %v, gossip %s, pause above %d queued", c.Nodes, c.Entry, c.Poll, f.gossip, f.queueThreshold())},
		{"network", fmt.Sprintf("delay %s, jitter %v; %s", delays, c.Network.Jitter, rumors)},
		{"engines", fmt.Sprintf("cache of %d tokens, blocks of %d", c.CapacityTokens, c.BlockTokens)},
		{"assumed", fmt.Sprintf("timings of profile %s: %s", c.Profile.Name, c.Profile.Source)},
	}
	if len(f.faults) > 0 {
		setting = append(setting, [2]string{"faults", strings.Join(f.faults, "; ")})
	}
	var b strings.Builder
	for _, line := range setting {
		fmt.Fprintf(&b, "%-8s  %s\n", line[0], line[1])
	}
	t := report.Table{
		Columns: []string{
			"policy", "latency s", "p50 s", "p99 s", "TTFT s", "TTFT p99 s", "expected %", "actual %", "fullest %", "forwarded %", "rumors kB/s", "fetched MB", "errors",
		},
		Note: "Times are virtual, at the client. Expected, actual: share of prompt tokens said to be, and found, cached. " +
			"Fullest: share of requests on the busiest node. Rumors: sent by each node.",
	}
	for _, r := range rows {
		t.Rows = append(t.Rows, r.cells())
	}
	fmt.Fprintf(&b, "\n%s", t)
	for _, r := range rows {
		for _, kind := range slices.Sorted(maps.Keys(r.ErrorsByKind)) {
			fmt.Fprintf(&b, "%s: %d of %d requests failed: %s\n", r.Policy, r.ErrorsByKind[kind], r.Requests, kind)
		}
		if r.Unfetched > 0 {
			fmt.Fprintf(&b, "%s: %d fetches timed out: their trees or KV caches did not come\n", r.Policy, r.Unfetched)
		}
	}
	return b.String()
}

// cells are the row in the table's units.
func (r simRow) cells() []string {
	cells := []string{r.Policy}
	for _, v := range []*float64{r.Mean, r.P50, r.P99, r.TTFTMean, r.TTFTP99} {
		cells = append(cells, digits(v, 1, 3))
	}
	for _, v := range []*float64{r.ExpectedHit, r.ActualHit, r.FullestShare, r.ForwardedShare} {
		cells = append(cells, digits(v, 100, 1))
	}
	return append(cells, fmt.Sprintf("%.1f", r.RumorRate/1e3), fmt.Sprintf("%.1f", float64(r.FetchedBytes)/1e6), fmt.Sprint(r.Errors))
}

// digits writes what there is of v, in units of 1/scale.
func digits(v *float64, scale float64, decimals int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, scale**v)
}
