package experiment

import (
	"cmp"
	"slices"
)

// Published is the paper's Tables 1 and 2 as one list: each configuration once, its
// scenario as the reading runs it, with the mean and the hit rates that the paper
// gives of it. Uniform stands before skewed, unrouted before routed, these by delay.
func Published() []Row {
	var rows []Row
	for _, t := range plan() {
		if t.Key != "table1" && t.Key != "table2" {
			continue
		}
		for _, r := range t.Rows {
			r.Scenario = r.Scenario.fill(reading)
			rows = append(rows, r)
		}
	}
	rank := func(s Scenario) int {
		n := 0
		if s.Skewed {
			n += 2
		}
		if s.Policy != noRoute {
			n++
		}
		return n
	}
	order := func(a, b Row) int {
		return cmp.Or(cmp.Compare(rank(a.Scenario), rank(b.Scenario)), cmp.Compare(a.Scenario.Delay, b.Scenario.Delay))
	}
	slices.SortStableFunc(rows, order)
	merged := rows[:1]
	for _, r := range rows[1:] {
		last := &merged[len(merged)-1]
		if order(*last, r) != 0 {
			merged = append(merged, r)
			continue
		}
		p := &last.Paper
		p.Mean, p.Expected, p.Actual = cmp.Or(p.Mean, r.Paper.Mean), cmp.Or(p.Expected, r.Paper.Expected), cmp.Or(p.Actual, r.Paper.Actual)
	}
	return merged
}
