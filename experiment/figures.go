package experiment

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/hearsay-project/hearsay/report"
)

// A Figure is a drawing, the file it goes by and the table beside which it stands.
type Figure struct {
	report.Figure
	File  string
	table string
}

// figure4 is the run of Figure 4.
var figure4 = Scenario{Delay: msec(200)}

// A plot draws measures of a table's rows over one of their scenarios' numbers.
type plot struct {
	file, table, title, xLabel, yLabel string
	x                                  func(Scenario) float64
	measures                           []measure
	split                              func(Scenario) string // into series, by name; nil: one for each measure
	caption                            string
}

var plots = []plot{
	{
		"break-even", "break_even", "Break-even of forwarding", "one-way delay (ms)", "gap to no routing (s)",
		func(s Scenario) float64 { return 1e3 * s.Delay.Seconds() },
		[]measure{gap, predicted},
		nil,
		"Forwarding pays below zero. The prediction takes two trips for each forwarded request less the prefill that hits save, as measured at the smallest delay.",
	},
	{
		"staleness", "staleness", "Staleness against hit rate", "poll interval (s)", "share (%)",
		func(s Scenario) float64 { return s.Poll.Seconds() },
		[]measure{expected, actual, fullest},
		nil, "Old knowledge costs little: what is not known is served where it came in.",
	},
	{
		"on-demand", "on_demand", "Trees on demand against periodic ones", "one-way delay (ms)", "mean latency (s)",
		func(s Scenario) float64 { return 1e3 * s.Delay.Seconds() },
		[]measure{mean},
		func(s Scenario) string { return s.Policy }, "longest hears of trees every 500 ms; on-demand asks before each request; local does not route.",
	},
	{
		"snapshot-bytes", "snapshot_bytes", "Bytes of full snapshots", "nodes", "rumors (kB/s a node)",
		func(s Scenario) float64 { return float64(s.Nodes) },
		[]measure{rumors},
		func(s Scenario) string { return "trees of " + count(s.TreeTokens) }, "Each node sends its whole tree to every peer, every 500 ms.",
	},
	{
		"block-size", "block_size", "Block size, hot spots and hits", "block (tokens)", "share (%)",
		func(s Scenario) float64 { return float64(s.BlockTokens) },
		[]measure{hotspot, fullest, actual},
		func(s Scenario) string {
			if s.TreeTokens == reading.TreeTokens {
				return "trees of 12,300"
			}
			return "trees as large as caches"
		}, "The words with which all prompts begin make one node the fullest while blocks are small.",
	},
}

// Figures draws the paper's figures, then ours.
func (res *Results) Figures() []Figure {
	all := []Figure{res.figure2(), res.figure3(), res.figure4()}
	for _, p := range plots {
		all = append(all, Figure{report.Figure{Drawing: p.chart(res.table(p.table)), Caption: p.caption}, p.file + ".svg", p.table})
	}
	return all
}

func (p plot) chart(t *Table) report.Chart {
	c := report.Chart{Title: p.title, XLabel: p.xLabel, YLabel: p.yLabel, LogX: true}
	at := map[string]int{}
	for _, m := range p.measures {
		for i := range t.Rows {
			r := &t.Rows[i]
			name := m.name
			switch {
			case p.split != nil && len(p.measures) == 1:
				name = p.split(r.Outcome.Scenario)
			case p.split != nil:
				name += ", " + p.split(r.Outcome.Scenario)
			}
			k, known := at[name]
			if !known {
				k = len(c.Series)
				at[name] = k
				c.Series = append(c.Series, report.Series{Name: name, Points: true, Dashed: m.ours == nil})
			}
			s := &c.Series[k]
			s.X = append(s.X, p.x(r.asked()))
			s.Y = append(s.Y, m.scale*m.of(t, r))
		}
	}
	return c
}

// asked is the scenario as run, with the delay that its row names: without routing
// it ran at another, since none matters.
func (r *Row) asked() Scenario {
	s := r.Outcome.Scenario
	if r.Scenario.Delay > 0 {
		s.Delay = r.Scenario.Delay
	}
	return s
}

func (res *Results) figure2() Figure {
	b := report.Bars{Title: "Figure 2: mean latency by delay", YLabel: "mean latency (s)"}
	series := []struct {
		name string
		of   func(*Row) float64
		ours bool
	}{
		{"routed", mean.ours, true},
		{"routed, paper", func(r *Row) float64 { return r.Paper.Mean }, false},
		{"no routing", baseMean.ours, true},
		{"no routing, paper", func(r *Row) float64 { return r.Paper.NoRoute }, false},
	}
	for k, s := range series {
		line := report.Series{Name: s.name, Dashed: !s.ours, Color: 1 + k/2}
		for i := range res.table("table1").Rows {
			line.Y = append(line.Y, s.of(&res.table("table1").Rows[i]))
		}
		b.Series = append(b.Series, line)
	}
	for _, r := range res.table("table1").Rows {
		b.Groups = append(b.Groups, r.Label)
	}
	return Figure{report.Figure{Drawing: b, Caption: "Mean latency of a request; hollow bars are the paper's."}, "figure2.svg", "table1"}
}

func (res *Results) figure3() Figure {
	t3 := res.table("table3")
	p := report.Panels{Title: "Figure 3: who serves a subject", Columns: 2, Note: "Share of each node in the last " + count(window) + " requests of the subject, every " + count(stride) + "; of a subject with fewer than 1,200 in the last quarter of as many."}
	subjects := topics(t3.Rows[1].Outcome.served)
	subjects = subjects[:min(2, len(subjects))]
	for _, c := range []struct {
		name string
		row  int
	}{{"skewed, routed", 9}, {"uniform, routed", 4}, {"uniform, no routing", 0}, {"uniform, poll 300 s", 8}} {
		for _, s := range subjects {
			p.Charts = append(p.Charts, shares(c.name+": "+s, t3.Rows[c.row].Outcome, s))
		}
	}
	return Figure{report.Figure{Drawing: p, Caption: "The two subjects with most requests in the skewed set, in four configurations."}, "figure3.svg", "table3"}
}

func (res *Results) figure4() Figure {
	o := res.table("table1").Rows[1].Outcome // figure4
	p := report.Panels{Title: "Figure 4: specialisation and eviction", Columns: 1, Note: "Zone 2 is the longest stretch in which one node has 90 % or more, zone 1 is before it and zone 3 behind. Windows are those of Figure 3."}
	for _, s := range cyclic(o) {
		c := shares(s, o, s)
		c.Bands = zones(c)
		p.Charts = append(p.Charts, c)
	}
	return Figure{report.Figure{Drawing: p, Caption: "At 200 ms of delay, the two subjects of 200 requests or more that show the cycle best: the shortest of their three zones takes the largest share of their windows."}, "figure4.svg", "table3"}
}

// shares draws each node's share of a subject's requests in a window that moves.
// Where there are fewer than four windows' worth, the window is a quarter of all.
func shares(title string, o *Outcome, subject string) report.Chart {
	c := report.Chart{Title: title, XLabel: "requests of the subject", YLabel: "share (%)", YMax: 100}
	served := o.served[subject]
	width := max(1, min(window, len(served)/4))
	step := max(1, width*stride/window)
	for n := range o.Scenario.Nodes {
		s := report.Series{Name: "n" + strconv.Itoa(n+1)}
		for end := width; end <= len(served); end += step {
			count := 0
			for _, by := range served[end-width : end] {
				if int(by) == n {
					count++
				}
			}
			s.X, s.Y = append(s.X, float64(end)), append(s.Y, 100*float64(count)/float64(width))
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// specialist is where one node has 90 % of a subject or more, in the longest stretch.
func specialist(c report.Chart) (from, to int) {
	const essentiallyAll = 90
	for _, s := range c.Series {
		begin := 0
		for i := range s.Y {
			if s.Y[i] < essentiallyAll {
				begin = i + 1
			} else if i+1-begin > to-from {
				from, to = begin, i+1
			}
		}
	}
	return from, to
}

// zones are those of Figure 4; without a specialist all is zone 1.
func zones(c report.Chart) []report.Band {
	x := c.Series[0].X
	if len(x) == 0 {
		return nil
	}
	first, last := x[0], x[len(x)-1]
	from, to := specialist(c)
	if to == 0 {
		return []report.Band{{From: first, To: last, Label: "Zone 1"}}
	}
	begin, end := x[from], x[min(to, len(x)-1)]
	return []report.Band{{From: first, To: begin, Label: "Zone 1"}, {From: begin, To: end, Label: "Zone 2"}, {From: end, To: last, Label: "Zone 3"}}
}

// cyclic picks the two subjects that show the cycle best: the shortest of their three
// zones takes the largest share of their windows. Of equals the larger comes first.
func cyclic(o *Outcome) []string {
	const enough = 200 // requests, for a window of 50
	names := slices.DeleteFunc(topics(o.served), func(name string) bool { return len(o.served[name]) < enough })
	if len(names) < 2 {
		names = topics(o.served)
	}
	least := map[string]float64{}
	for _, name := range names {
		c := shares(name, o, name)
		from, to := specialist(c)
		n := len(c.Series[0].Y)
		least[name] = float64(min(from, to-from, n-to)) / float64(n)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(least[b], least[a]) })
	return names[:min(2, len(names))]
}

// count sets thousands apart.
func count(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}
