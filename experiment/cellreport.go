package experiment

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hearsay-project/hearsay/report"
)

// omniscient are the columns that are shown and not counted: each knows at once, and
// for nothing, what no node of a real cluster does.
var omniscient = []string{"central", "least-loaded", "on-demand", "fetch-kv"}

// A Standing is how the policy under test compares in a cell.
type Standing struct {
	Cell    string  `json:"cell"`
	Best    string  `json:"best"` // of the others that are counted
	Ratio   float64 `json:"ratio"`
	Spread  float64 `json:"ratio_spread"` // over seeds, largest less smallest
	Mean    float64 `json:"ttft_mean_s"`
	Fullest float64 `json:"fullest_over_mean_share"`
	Warmed  float64 `json:"warmed_tokens_per_request"`

	of *CellResult
}

// A Promise is what the policy under test is to hold, and where it does.
type Promise struct {
	What   string   `json:"promise"`
	Kept   int      `json:"kept"`
	Of     int      `json:"of"`
	Needed int      `json:"needed"` // cells
	Broken []string `json:"broken"` // cells, the worst first

	worst []float64
}

// A Verdict is what all cells say of one policy. It is as good as what that was
// compared with: the best of a few is not the best of all.
type Verdict struct {
	Policy    string     `json:"policy"`
	Against   []string   `json:"against"` // the other policies that ran and count
	Left      []string   `json:"left"`    // those that would count, and did not run
	Promises  []*Promise `json:"promises"`
	Standings []Standing `json:"standings"` // the worst first
}

// run returns the cell's run under a policy, nil if there is none.
func (c *CellResult) run(policy string) *CellRun {
	if i := slices.IndexFunc(c.Runs, func(r CellRun) bool { return r.Policy == policy }); i >= 0 {
		return &c.Runs[i]
	}
	return nil
}

// best is the least mean among the others that are counted, nil if there are none.
func (c *CellResult) best(but string) *CellRun {
	var best *CellRun
	for i := range c.Runs {
		r := &c.Runs[i]
		if r.Policy != but && !slices.Contains(omniscient, r.Policy) && (best == nil || r.Mean < best.Mean) {
			best = r
		}
	}
	return best
}

// Verdict holds a policy to its promises. Those for which a column is missing have no
// cells.
func (res *CellResults) Verdict(policy string) *Verdict {
	v := &Verdict{Policy: policy, Against: []string{}, Left: []string{}}
	for _, p := range CellPolicies() {
		switch {
		case p == policy || slices.Contains(omniscient, p):
		case slices.Contains(res.Config.Policies, p):
			v.Against = append(v.Against, p)
		default:
			v.Left = append(v.Left, p)
		}
	}
	for i := range res.Cells {
		c := &res.Cells[i]
		own, best := c.run(policy), c.best(policy)
		if own == nil || best == nil {
			continue
		}
		low, high := ratios(own, best)
		v.Standings = append(v.Standings, Standing{
			Cell: c.Name, Best: best.Policy, Ratio: own.Mean / best.Mean, Spread: high - low,
			Mean: own.Mean, Fullest: own.Fullest * float64(c.Nodes), Warmed: own.Warmed, of: c,
		})
	}
	slices.SortStableFunc(v.Standings, func(a, b Standing) int { return cmp.Compare(b.Ratio, a.Ratio) })
	v.promise("mean at most 1.03 times the best of those", 1, 1.03, func(s *Standing) (float64, bool) { return s.Ratio, true })
	v.promise("mean strictly less than of all of those", 2./3, 1-1e-9, func(s *Standing) (float64, bool) { return s.Ratio, true })
	// What central knows no view makes bad.
	v.promise("mean at most 1.05 times central at 2 ms", 1, 1.05, func(s *Standing) (float64, bool) {
		return s.over("central", s.of.Delay.Milliseconds() == 2 && s.of.Apart == 0 && s.of.Group != groupViews)
	})
	v.promise("MMLU: mean at most that without routing", 1, 1, func(s *Standing) (float64, bool) { return s.over(noRoute, s.of.Group == groupMMLU) })
	v.promise("MMLU: mean at most 1.01 times longest at 2 ms", 1, 1.01, func(s *Standing) (float64, bool) {
		return s.over(longest, s.of.Group == groupMMLU && s.of.Delay.Milliseconds() == 2)
	})
	v.promise("MMLU: fullest node at most 1.15 times the mean share", 1, 1.15, func(s *Standing) (float64, bool) { return s.Fullest, s.of.Group == groupMMLU })
	v.promise("other cells of equal engines: fullest node at most 1.15 times the mean share", 1, 1.15, func(s *Standing) (float64, bool) {
		return s.Fullest, s.of.Group != groupMMLU && s.of.balanced()
	})
	v.promise("control: mean at most 1.005 times that without routing", 1, 1.005, func(s *Standing) (float64, bool) { return s.over(noRoute, s.of.control()) })
	v.promise("bad views: mean at most 1.05 times that without routing", 1, 1.05, func(s *Standing) (float64, bool) {
		return s.over(noRoute, s.of.Group == groupViews)
	})
	return v
}

// ratios are the least and the largest over seeds.
func ratios(own, of *CellRun) (low, high float64) {
	for i := range own.Means {
		r := own.Means[i] / of.Means[i]
		if i == 0 {
			low, high = r, r
		}
		low, high = min(low, r), max(high, r)
	}
	return low, high
}

// over is the ratio to another column, in the cells that are asked about.
func (s *Standing) over(policy string, asked bool) (float64, bool) {
	r := s.of.run(policy)
	if !asked || r == nil {
		return 0, false
	}
	return s.Mean / r.Mean, true
}

// promise counts the cells in which a measure is at most so much.
func (v *Verdict) promise(what string, share, most float64, measure func(*Standing) (float64, bool)) {
	p := &Promise{What: what, Broken: []string{}}
	type broken struct {
		cell string
		by   float64
	}
	var all []broken
	for i := range v.Standings {
		m, asked := measure(&v.Standings[i])
		switch {
		case !asked:
			continue
		case m <= most:
			p.Kept++
		default:
			all = append(all, broken{v.Standings[i].Cell, m})
		}
		p.Of++
	}
	p.Needed = int(share*float64(p.Of) + .999)
	slices.SortStableFunc(all, func(a, b broken) int { return cmp.Compare(b.by, a.by) })
	for _, b := range all {
		p.Broken, p.worst = append(p.Broken, b.cell), append(p.worst, b.by)
	}
	v.Promises = append(v.Promises, p)
}

// listed is how many cells a text names of those where a promise is broken.
const listed = 8

// String is the verdict for a terminal: the promises, then the cells, the worst first.
func (v *Verdict) String() string {
	var b strings.Builder
	if len(v.Standings) == 0 {
		fmt.Fprintf(&b, "No verdict on %s: no other policy that counts has run, but at most the omniscient ones, %s.\n", v.Policy, strings.Join(omniscient, ", "))
		return b.String()
	}
	fmt.Fprintf(&b, "Verdict on %s, against %s\n", v.Policy, strings.Join(v.Against, ", "))
	if len(v.Left) > 0 {
		fmt.Fprintf(&b, "Not run, so that it says nothing of them: %s\n", strings.Join(v.Left, ", "))
	}
	for _, p := range v.Promises {
		word := "kept"
		switch {
		case p.Of == 0:
			continue
		case p.Kept < p.Needed:
			word = "BROKEN"
		}
		fmt.Fprintf(&b, "%-6s  %d of %d cells (%d needed): %s\n", word, p.Kept, p.Of, p.Needed, p.What)
		for i, name := range p.Broken {
			if p.Kept >= p.Needed || i >= listed {
				break
			}
			fmt.Fprintf(&b, "        %.3f  %s\n", p.worst[i], name)
		}
	}
	t := report.Table{
		Columns: []string{"cell, the worst first", "mean s", "best other", "its mean s", "ratio", "spread", "fullest", "warmed"},
		Note:    "Ratio: to the best other. Spread: of the ratio over seeds. Fullest: share of the busiest node over the mean share. Warmed: tokens a request.",
	}
	for _, s := range v.Standings {
		t.Rows = append(t.Rows, []string{
			s.Cell, seconds(s.Mean), s.Best, seconds(s.of.run(s.Best).Mean), fmt.Sprintf("%.3f", s.Ratio), fmt.Sprintf("%.3f", s.Spread),
			fmt.Sprintf("%.2f", s.Fullest), fmt.Sprintf("%.1f", s.Warmed),
		})
	}
	fmt.Fprintf(&b, "\n%s", t)
	return b.String()
}

func seconds(s float64) string { return strconv.FormatFloat(s, 'f', 3, 64) }

// String is a table for each group of cells: the policies' means, and the best.
func (res *CellResults) String() string {
	var b strings.Builder
	for _, s := range res.Skipped {
		fmt.Fprintf(&b, "%s\n", s)
	}
	tables := map[string]*report.Table{}
	var groups []string
	for i := range res.Cells {
		c := &res.Cells[i]
		t := tables[c.Group]
		if t == nil {
			t = &report.Table{Title: c.Group + ": mean TTFT in seconds", Columns: append([]string{"cell"}, res.Config.Policies...)}
			t.Columns = append(t.Columns, "best", "cache tokens", "requests/s")
			tables[c.Group] = t
			groups = append(groups, c.Group)
		}
		row := []string{c.Name}
		for _, r := range c.Runs {
			row = append(row, seconds(r.Mean))
		}
		best := ""
		if r := c.best(""); r != nil {
			best = r.Policy
		}
		t.Rows = append(t.Rows, append(row, best, strconv.Itoa(c.Capacity), strconv.FormatFloat(c.Rate, 'f', 2, 64)))
	}
	for _, g := range groups {
		tables[g].Note = fmt.Sprintf("Means over seeds 1 to %d. ", res.Config.Seeds) + "Best: of those that are not omniscient, as " + strings.Join(omniscient, ", ") + " are. Requests/s: 0 is a closed loop of one client."
		fmt.Fprintf(&b, "\n%s", tables[g])
	}
	return b.String()
}

// A cellRow is one policy in one cell, for scripts.
type cellRow struct {
	Cell       string    `json:"cell"`
	Group      string    `json:"group"`
	Policy     string    `json:"policy"`
	Workload   string    `json:"workload"`
	Nodes      int       `json:"nodes"`
	DelayMS    float64   `json:"delay_ms"`
	PollMS     float64   `json:"poll_ms"`
	Load       float64   `json:"load"`
	Rate       float64   `json:"rate"`
	CacheShare float64   `json:"cache_share"`
	WorkingSet int       `json:"working_set_tokens"`
	Capacity   int       `json:"capacity_tokens"`
	Seeds      int       `json:"seeds"`
	Requests   int       `json:"requests"`
	Errors     int       `json:"errors"`
	Mean       float64   `json:"ttft_mean_s"`
	P99        float64   `json:"ttft_p99_s"`
	Means      []float64 `json:"ttft_mean_by_seed_s"`
	Expected   float64   `json:"expected_hit"`
	Hit        float64   `json:"actual_hit"`
	Fullest    float64   `json:"fullest_share"`
	Forwarded  float64   `json:"forwarded_share"`
	Warmed     float64   `json:"warmed_tokens_per_request"`
	Rumors     float64   `json:"rumor_bytes_per_node_s"`
}

func (res *CellResults) rows() []cellRow {
	rows := []cellRow{}
	for _, c := range res.Cells {
		for _, r := range c.Runs {
			rows = append(rows, cellRow{
				Cell: c.Name, Group: c.Group, Policy: r.Policy, Workload: c.from.stream, Nodes: c.Nodes,
				DelayMS: 1e3 * c.Delay.Seconds(), PollMS: 1e3 * c.Poll.Seconds(), Load: c.Load, Rate: c.Rate,
				CacheShare: c.Cache, WorkingSet: c.WorkingSet, Capacity: c.Capacity, Seeds: res.Config.Seeds,
				Requests: r.Requests, Errors: r.Errors, Mean: r.Mean, P99: r.P99, Means: r.Means, Expected: r.Expected,
				Hit: r.Hit, Fullest: r.Fullest, Forwarded: r.Forwarded, Warmed: r.Warmed, Rumors: r.Rumors,
			})
		}
	}
	return rows
}

// JSON is one object: a row for each policy of each cell, and the verdict.
func (res *CellResults) JSON(v *Verdict) ([]byte, error) {
	return json.Marshal(map[string]any{"rows": res.rows(), "verdict": v, "skipped": res.Skipped})
}

// CSV has a line for each policy of each cell.
func (res *CellResults) CSV() []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	// Writing to memory does not fail.
	_ = w.Write([]string{
		"cell", "policy", "nodes", "delay_ms", "load", "rate", "cache_share", "capacity_tokens", "requests", "errors",
		"ttft_mean_s", "ttft_p99_s", "expected_hit", "actual_hit", "fullest_share", "forwarded_share", "warmed_tokens_per_request", "rumor_bytes_per_node_s",
	})
	for _, r := range res.rows() {
		_ = w.Write([]string{
			r.Cell, r.Policy, strconv.Itoa(r.Nodes), number(r.DelayMS), number(r.Load), number(r.Rate), number(r.CacheShare), strconv.Itoa(r.Capacity),
			strconv.Itoa(r.Requests), strconv.Itoa(r.Errors), number(r.Mean), number(r.P99), number(r.Expected), number(r.Hit), number(r.Fullest),
			number(r.Forwarded), number(r.Warmed), number(r.Rumors),
		})
	}
	w.Flush()
	return b.Bytes()
}
