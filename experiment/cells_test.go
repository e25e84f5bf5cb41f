package experiment

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/sim"
	"github.com/hearsay-project/hearsay/workload"
)

// Every cell has a name of its own, and a cluster that the simulator takes.
func TestCells(t *testing.T) {
	named := map[string]bool{}
	for _, c := range Cells() {
		if named[c.Name] || !strings.HasPrefix(c.Name, c.Group) && c.Group != groupViews {
			t.Errorf("cell %q of group %s", c.Name, c.Group)
		}
		named[c.Name] = true
		if err := c.stream("data", 1, 0).Validate(); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if m := c.network().Matrix; c.Apart > 0 && (len(m) != 8 || m[0][3] != c.Delay || m[3][4] != c.Apart || m[7][4] != c.Delay) {
			t.Errorf("%s: delays %v", c.Name, m)
		}
		if !c.balanced() && math.Abs(c.speed()-(3+1./3)/4) > 1e-9 {
			t.Errorf("%s: speed %v", c.Name, c.speed())
		}
	}
	for _, name := range []string{
		"mmlu/skewed/1000ms/poisson85/cache10", "sizes/bfcl/n64/2ms/poisson60/cache30", "sizes/sharegpt/n16/2ms/poisson60/cachefull",
		"regions/uniform/n8/2ms/closed/cache100", "slow/skewed/n4/2ms/poisson30/cache30", "lost50/uniform/n4/50ms/closed/cache30",
		"poll10s/skewed/n4/2ms/poisson60/cache30", "stuck/uniform/n4/50ms/poisson60/cache30",
	} {
		if !named[name] {
			t.Errorf("there is no cell %s", name)
		}
	}
}

func runCells(t *testing.T, c CellsConfig) *CellResults {
	t.Helper()
	res, err := RunCells(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// The same cells come out the same, whatever runs at once, and what is not there is
// told.
func TestCellsRepeat(t *testing.T) {
	c := CellsConfig{Only: []string{"mmlu/uniform/20ms/poisson60/cache30", "stuck/skewed/n4/2ms", "/bfcl/"}, Policies: []string{"local", "longest", "smg"}, Requests: 150, Seeds: 2}
	res := runCells(t, c)
	c.Parallel = 3
	one, err := res.JSON(res.Verdict("longest"))
	if err != nil {
		t.Fatal(err)
	}
	again := runCells(t, c)
	again.Config = res.Config
	if two, _ := again.JSON(again.Verdict("longest")); !bytes.Equal(one, two) || res.String() != again.String() {
		t.Error("the same cells give two outputs")
	}
	if len(res.Cells) != 3 || len(res.Skipped) != 1 || !strings.Contains(res.Skipped[0], "bfcl are left out: there is no folder") {
		t.Errorf("%d cells, skipped %q", len(res.Cells), res.Skipped)
	}
	var got struct {
		Rows    []map[string]any
		Verdict struct{ Standings []map[string]any }
	}
	if err := json.Unmarshal(one, &got); err != nil || len(got.Rows) != 9 || len(got.Verdict.Standings) != 3 {
		t.Fatalf("%v: %d rows, %d standings", err, len(got.Rows), len(got.Verdict.Standings))
	}
	for _, key := range []string{"cell", "policy", "ttft_mean_s", "ttft_p99_s", "actual_hit", "fullest_share", "warmed_tokens_per_request", "working_set_tokens", "rate"} {
		if _, ok := got.Rows[0][key]; !ok {
			t.Errorf("a row without %s", key)
		}
	}
	if lines := bytes.Count(res.CSV(), []byte("\n")); lines != 10 {
		t.Errorf("%d lines of CSV", lines)
	}
}

// All policies get the same requests at the same times, and the rate is the share of
// capacity that the cell's name says. Capacity is what engines do that always work.
func TestCellsLoad(t *testing.T) {
	r := newCellRunner(CellsConfig{Requests: 400})
	i := slices.IndexFunc(Cells(), func(c Cell) bool { return c.Name == "mmlu/uniform/2ms/poisson60/cache100" })
	c := Cells()[i]
	capacity, err := r.capacity(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	rate, err := r.rate(t.Context(), c)
	if err != nil || math.Abs(rate-.6*capacity) > 1e-9 {
		t.Errorf("%v: a rate of %v at a capacity of %v", err, rate, capacity)
	}
	requests, err := r.requests(t.Context(), c, 400, 1, rate)
	if err != nil {
		t.Fatal(err)
	}
	tokens, last := 0, time.Duration(0)
	for q := range requests {
		tokens, last = tokens+q.Tokens, q.At
	}
	if mean := 400 / last.Seconds(); math.Abs(mean/rate-1) > .15 {
		t.Errorf("%v requests a second come, want %v", mean, rate)
	}
	cfg, err := r.cluster(c)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Policy, cfg.Arrival = noRoute, sim.Arrival{Clients: 1}
	requests, _ = r.requests(t.Context(), c, 400, 1, 0)
	alone, err := sim.Run(cfg, requests)
	if err != nil {
		t.Fatal(err)
	}
	if each := 4 / alone.TTFT.Mean.Seconds(); math.Abs(capacity/each-1) > .05 {
		t.Errorf("a capacity of %v, and four engines that do one request at a time do %v", capacity, each)
	}
}

// The working set is what two requests or more name, counted once.
func TestWorkingSet(t *testing.T) {
	s, err := workload.Open(workload.StreamConfig{Name: "stream", Data: "testdata/shared.b10.jsonl"})
	if err != nil {
		t.Fatal(err)
	}
	// 1 2 3, 1 2 4, 1 2 4, 5: of these 1, 2 and 4 are named again.
	if got := workingSet(s); got != 30 {
		t.Errorf("%d tokens, want 30", got)
	}
}

// A larger cluster replays a trace side by side: the same requests, of which others
// share what is shared by design.
func TestCellsReplaySideBySide(t *testing.T) {
	from := &cellSource{"trace", "stream", "shared.b10.jsonl", "paper", 0, 4, []float64{0}}
	r := newCellRunner(CellsConfig{Data: "testdata"})
	c := Cell{Nodes: 8, from: from}
	seq, err := r.requests(t.Context(), c, c.Requests(0), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Collect(seq)
	if len(got) != 8 {
		t.Fatalf("%d requests", len(got))
	}
	for i := 0; i < len(got); i += 2 {
		a, b := got[i].Chain, got[i+1].Chain
		if len(a) != len(b) || a[len(a)-1] == b[len(b)-1] {
			t.Errorf("requests %d and %d: %v and %v", i, i+1, a, b)
		}
	}
	if a, b := got[2].Chain, got[4].Chain; !slices.Equal(a, b) {
		t.Errorf("a replay asks %v, then %v; want the same", a, b)
	}
}

// The verdict holds each promise to the cells that it speaks of, and lists the worst
// first. Who is omniscient is no measure.
func TestVerdict(t *testing.T) {
	cell := func(name string, fullest float64, means map[string]float64) CellResult {
		i := slices.IndexFunc(Cells(), func(c Cell) bool { return c.Name == name })
		r := CellResult{Cell: Cells()[i]}
		for _, p := range []string{"local", "longest", "central", "new"} {
			r.Runs = append(r.Runs, CellRun{Policy: p, Mean: means[p], Means: []float64{means[p]}, Fullest: fullest})
		}
		return r
	}
	res := &CellResults{Config: CellsConfig{Policies: []string{"local", "longest", "central", "new"}}, Cells: []CellResult{
		cell("mmlu/uniform/2ms/closed/cache100", .3, map[string]float64{"local": 1, "longest": .9, "central": .5, "new": .8}),
		cell("mmlu/uniform/50ms/closed/cache100", .28, map[string]float64{"local": 1, "longest": 1.1, "central": .9, "new": 1.02}),
		cell("sizes/sharegpt/n4/2ms/poisson60/cachefull", .26, map[string]float64{"local": 1, "longest": 1, "central": 1, "new": 1.04}),
		cell("stuck/uniform/n4/2ms/closed/cache30", .5, map[string]float64{"local": 1, "longest": 2, "central": .99, "new": 1}),
	}}
	v := res.Verdict("new")
	for i, want := range []struct {
		kept, of, needed int
		worst            string
	}{
		{3, 4, 4, "sizes/sharegpt/n4/2ms/poisson60/cachefull"}, // 1.03 of the best
		{1, 4, 3, "sizes/sharegpt/n4/2ms/poisson60/cachefull"}, // strictly the best
		{1, 2, 2, "mmlu/uniform/2ms/closed/cache100"},          // central at 2 ms
		{1, 2, 2, "mmlu/uniform/50ms/closed/cache100"},         // no routing
		{1, 1, 1, ""}, // longest at 2 ms
		{1, 2, 2, "mmlu/uniform/2ms/closed/cache100"},          // 1.2 times the mean share, and 1.12
		{1, 2, 2, "stuck/uniform/n4/2ms/closed/cache30"},       // 1.04 and 2
		{0, 1, 1, "sizes/sharegpt/n4/2ms/poisson60/cachefull"}, // control
		{1, 1, 1, ""}, // bad views
	} {
		p := v.Promises[i]
		worst := ""
		if len(p.Broken) > 0 {
			worst = p.Broken[0]
		}
		if p.Kept != want.kept || p.Of != want.of || p.Needed != want.needed || worst != want.worst {
			t.Errorf("%s: %d of %d, %d needed, worst %q; want %+v", p.What, p.Kept, p.Of, p.Needed, worst, want)
		}
	}
	if s := v.Standings[0]; s.Cell != "sizes/sharegpt/n4/2ms/poisson60/cachefull" || s.Best != "local" || math.Abs(s.Ratio-1.04) > 1e-9 {
		t.Errorf("the worst is %+v", s)
	}
	for _, part := range []string{"BROKEN  3 of 4 cells (4 needed)", "Verdict on new, against local, longest\n", "Not run, so that it says nothing of them: longest+pushback, economic"} {
		if text := v.String(); !strings.Contains(text, part) {
			t.Errorf("the verdict has no %q:\n%s", part, text)
		}
	}
	if text := res.Verdict("nobody").String(); !strings.HasPrefix(text, "No verdict on nobody") {
		t.Errorf("without a run: %s", text)
	}
}
