package experiment

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hearsay-project/hearsay/report"
)

// A measure is a column: a number of ours and, where the paper has it, the paper's.
type measure struct {
	name, key string
	decimals  int
	scale     float64 // 100 for shares in percent
	ours      func(*Row) float64
	paper     func(Numbers) float64
}

var (
	mean      = measure{"mean (s)", "", 3, 1, func(r *Row) float64 { return r.Outcome.Latency.Mean.Seconds() }, func(n Numbers) float64 { return n.Mean }}
	baseMean  = measure{"no routing (s)", "no_route_mean_s", 3, 1, func(r *Row) float64 { return r.Base.Latency.Mean.Seconds() }, func(n Numbers) float64 { return n.NoRoute }}
	gap       = measure{"gap (s)", "gap_s", 3, 1, func(r *Row) float64 { return mean.ours(r) - baseMean.ours(r) }, func(n Numbers) float64 { return n.Gap }}
	predicted = measure{"predicted gap (s)", "", 3, 1, nil, nil} // of several rows: see Results.predict
	expected  = measure{"expected hit (%)", "", 1, 100, func(r *Row) float64 { return r.Outcome.ExpectedHit }, func(n Numbers) float64 { return n.Expected }}
	actual    = measure{"actual hit (%)", "", 1, 100, func(r *Row) float64 { return r.Outcome.ActualHit }, func(n Numbers) float64 { return n.Actual }}
	hotspot   = measure{"fullest, of a topic (%)", "", 1, 100, func(r *Row) float64 { return r.Outcome.TopicShare }, func(n Numbers) float64 { return n.Hotspot }}
	fullest   = measure{"fullest, of the run (%)", "", 1, 100, func(r *Row) float64 { return r.Outcome.FullestShare }, nil}
	forwarded = measure{"forwarded (%)", "", 1, 100, func(r *Row) float64 { return r.Outcome.ForwardedShare }, nil}
	rumors    = measure{"rumors (kB/s a node)", "", 1, 1e-3, func(r *Row) float64 { return r.Outcome.RumorRate }, nil}
)

// Results are the experiments with their outcomes.
type Results struct {
	Tables []*Table
	Source string // of the prompts, for people
	config Config
	whole  bool // as of Set
}

// scenarios returns every scenario of every experiment once.
func (s *Set) scenarios() []Scenario {
	var all []Scenario
	known := map[Scenario]bool{}
	add := func(of ...Scenario) {
		for _, one := range of {
			if !known[one] {
				known[one] = true
				all = append(all, one)
			}
		}
	}
	r := s.config.reading()
	for _, t := range plan() {
		for _, row := range t.Rows {
			add(row.draws(r)...)
			if row.Against != nil {
				add(row.Against.fill(r))
			}
		}
	}
	add(figure4.fill(r))
	return all
}

// Requests is how many all simulations have together.
func (s *Set) Requests() int {
	n := 0
	for _, one := range s.scenarios() {
		n += cmp.Or(one.Requests, mostRequests)
	}
	return n
}

// Run simulates all experiments. It returns early, with an error, when ctx ends.
func (s *Set) Run(ctx context.Context) (*Results, error) {
	if err := s.run(ctx, s.scenarios()); err != nil {
		return nil, err
	}
	r := s.config.reading()
	res := &Results{Tables: plan(), Source: s.source, config: s.config, whole: s.whole}
	for _, t := range res.Tables {
		for i := range t.Rows {
			row := &t.Rows[i]
			for _, drawn := range row.draws(r) {
				row.Outcomes = append(row.Outcomes, s.outcomes[drawn])
			}
			row.Outcome = row.Outcomes[0]
			if row.Against != nil {
				row.Base = s.outcomes[row.Against.fill(r)]
			}
		}
	}
	return res, nil
}

func (res *Results) table(key string) *Table {
	for _, t := range res.Tables {
		if t.Key == key {
			return t
		}
	}
	panic("experiment: no table " + key)
}

// predict is the model of section 5: two trips for each forwarded request, less the
// prefill that hits save, both taken from the table's first row.
func predict(t *Table, r *Row) float64 {
	first := t.Rows[0].Outcome
	saved := (first.ActualHit - t.Rows[0].Base.ActualHit) * first.Tokens * first.PerToken.Seconds()
	return 2*first.ForwardedShare*r.Outcome.Scenario.Delay.Seconds() - saved
}

func (m measure) of(t *Table, r *Row) float64 {
	if m.ours == nil {
		return predict(t, r)
	}
	return m.ours(r)
}

func (m measure) text(v float64) string { return strconv.FormatFloat(v*m.scale, 'f', m.decimals, 64) }

// cell is the measure of a row, of one with several draws their mean and range: a
// narrow column breaks between the two.
func (m measure) cell(t *Table, r *Row) string {
	if len(r.Outcomes) <= 1 {
		return m.text(m.of(t, r))
	}
	sum, low, high := 0.0, math.Inf(1), math.Inf(-1)
	for _, one := range r.each() {
		v := m.of(t, &one)
		sum, low, high = sum+v, min(low, v), max(high, v)
	}
	return fmt.Sprintf("%s (%s\u00a0to\u00a0%s)", m.text(sum/float64(len(r.Outcomes))), m.text(low), m.text(high))
}

// print sets the table for people, the paper's values beside ours where it has any.
func (t *Table) print(found bool) report.Table {
	p := report.Table{Title: t.Title, Note: t.Note, Columns: []string{""}}
	if found && t.Finding != "" {
		p.Note += " With MMLU and seed 1: " + t.Finding
	}
	var published []bool
	for _, m := range t.Measures {
		has := false
		for _, r := range t.Rows {
			has = has || m.paper != nil && m.paper(r.Paper) != 0
		}
		published = append(published, has)
		p.Columns = append(p.Columns, m.name)
		if has {
			p.Columns = append(p.Columns, "paper")
		}
	}
	for i := range t.Rows {
		r := &t.Rows[i]
		cells := []string{r.Label}
		for k, m := range t.Measures {
			cells = append(cells, m.cell(t, r))
			if !published[k] {
				continue
			}
			cell := ""
			if v := m.paper(r.Paper); v != 0 {
				cell = m.text(v)
			}
			cells = append(cells, cell)
		}
		p.Rows = append(p.Rows, cells)
	}
	return p
}

// jsonRow has the keys that every experiment of hearsay shares, and what a table adds.
type jsonRow struct {
	Label      string             `json:"label"`
	Policy     string             `json:"policy"`
	Workload   string             `json:"workload"`
	Nodes      int                `json:"nodes"`
	DelayMS    float64            `json:"delay_ms"`
	PollMS     float64            `json:"poll_ms"`
	Requests   int                `json:"requests"`
	Errors     int                `json:"errors"`
	Mean       float64            `json:"mean_s"`
	P50        float64            `json:"p50_s"`
	P99        float64            `json:"p99_s"`
	TTFTMean   float64            `json:"ttft_mean_s"`
	TTFTP50    float64            `json:"ttft_p50_s"`
	TTFTP99    float64            `json:"ttft_p99_s"`
	Expected   float64            `json:"expected_hit"`
	Actual     float64            `json:"actual_hit"`
	Fullest    float64            `json:"fullest_share"`
	Topic      float64            `json:"topic_fullest_share"`
	Share      map[string]float64 `json:"share_by_node"`
	Forwarded  float64            `json:"forwarded_share"`
	Rumors     float64            `json:"rumor_bytes_per_node_s"`
	NoRoute    *float64           `json:"no_route_mean_s,omitempty"`
	Gap        *float64           `json:"gap_s,omitempty"`
	Block      int                `json:"block_tokens"`
	TreeTokens int                `json:"tree_tokens"`
	Cache      int                `json:"cache_tokens"`
	Seed       uint64             `json:"seed"`
	Paper      *Numbers           `json:"paper,omitempty"`
}

func (r *Row) json() jsonRow {
	o := r.Outcome
	s := o.Scenario
	j := jsonRow{
		Label: r.Label, Policy: s.Policy, Workload: s.source("").Name, Nodes: s.Nodes,
		DelayMS: 1e3 * s.Delay.Seconds(), PollMS: 1e3 * s.Poll.Seconds(), Requests: o.Requests, Errors: o.Errors,
		Mean: o.Latency.Mean.Seconds(), P50: o.Latency.P50.Seconds(), P99: o.Latency.P99.Seconds(),
		TTFTMean: o.TTFT.Mean.Seconds(), TTFTP50: o.TTFT.P50.Seconds(), TTFTP99: o.TTFT.P99.Seconds(),
		Expected: o.ExpectedHit, Actual: o.ActualHit, Fullest: o.FullestShare, Topic: o.TopicShare,
		Share: map[string]float64{}, Forwarded: o.ForwardedShare, Rumors: o.RumorRate,
		Block: s.BlockTokens, TreeTokens: s.TreeTokens, Cache: s.CacheTokens, Seed: s.Seed,
	}
	for i, share := range o.ShareByNode {
		j.Share["n"+strconv.Itoa(i+1)] = share
	}
	if r.Base != nil {
		base, g := baseMean.ours(r), gap.ours(r)
		j.NoRoute, j.Gap = &base, &g
	}
	if r.Paper != (Numbers{}) {
		j.Paper = &r.Paper
	}
	return j
}

// JSON is one object: an array of rows by the key of each table, one for each draw of
// a row with several, the paths of the figures, and where the prompts came from.
func (res *Results) JSON(figures []string) ([]byte, error) {
	if figures == nil {
		figures = []string{}
	}
	all := map[string]any{"figures": figures, "source": res.Source}
	for _, t := range res.Tables {
		rows := []jsonRow{}
		for i := range t.Rows {
			for _, one := range t.Rows[i].each() {
				rows = append(rows, one.json())
			}
		}
		all[t.Key] = rows
	}
	return json.Marshal(all)
}

// String is the text for a terminal: where the prompts are from, and the tables.
func (res *Results) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Prompts: %s. Seed %d.\n%s\n", res.Source, res.config.reading().Seed, res.caveat())
	for _, t := range res.Tables {
		fmt.Fprintf(&b, "\n%s", t.print(res.canonical()))
	}
	return b.String()
}

// canonical says whether this is the run of which the findings tell.
func (res *Results) canonical() bool {
	return res.whole && res.config.Data != "" && res.config.Requests == 0 && res.config.reading().Seed == 1
}

// caveat says when the numbers are not to be held against the paper's.
func (res *Results) caveat() string {
	switch {
	case !res.whole:
		return "These prompts are not all of MMLU's: the paper's numbers are of those."
	case res.config.Requests > 0:
		return fmt.Sprintf("At most %d requests a run: the paper's numbers are of more.", res.config.Requests)
	case res.config.Data == "":
		return "These prompts are synthetic, in the shape of MMLU; --data names the folder of the real ones."
	}
	return "The paper's numbers stand beside ours."
}

// HTML is the page: assumptions, tables, figures, and how to compute them again.
func (res *Results) HTML() ([]byte, error) {
	again := "hearsay sim paper --out DIR --seed " + strconv.FormatUint(res.config.reading().Seed, 10)
	if res.config.Data != "" {
		again += " --data " + strconv.Quote(res.config.Data)
	}
	if res.config.Requests > 0 {
		again += " --requests " + strconv.Itoa(res.config.Requests)
	}
	page := report.Page{
		Title: "The paper's experiments, simulated",
		Lead:  "Towards Distributed Inference of LLMs on a P2P Network (arXiv 2606.17059): its Tables 1 to 3 and Figures 2 to 4, computed again on the production node in virtual time. Prompts: " + res.Source + ". " + res.caveat(),
		Sections: []report.Section{{
			Heading: "What is assumed",
			Text:    res.assumptions() + "\n\nAll of it once more, to the byte:\n\n    " + again + "\n\nA row of a table is one run: its policy, delay, poll interval, block, tree and cache sizes and seed are in the output of --json. One with a tree as large as its cache is also hearsay sim run with the same flags.",
		}},
	}
	figures := res.Figures()
	for _, t := range res.Tables {
		s := report.Section{Heading: t.Title, Tables: []report.Table{t.print(res.canonical())}}
		s.Tables[0].Title = ""
		for _, f := range figures {
			if f.table == t.Key {
				s.Figures = append(s.Figures, f.Figure)
			}
		}
		page.Sections = append(page.Sections, s)
	}
	var b bytes.Buffer
	err := page.WriteHTML(&b)
	return b.Bytes(), err
}

func (res *Results) assumptions() string {
	r := res.config.reading()
	o := res.table("table2").Rows[0].Outcome
	return fmt.Sprintf(`- %d nodes, a request at a time, entering in round robin; one token is generated.
- Uniform: every question of 57 subjects once. Skewed: %s requests drawn with repeats, 80 %% from 12 of the subjects.
- A message takes the delay, %v unless said, plus or minus %v; every node tells all others what it holds every %v.
- Of equal matches the node that was asked is taken, then chance decides. The table of readings has other rules.
- Blocks of %d token; a router's tree holds %s tokens, an engine's cache %s.
- An engine takes 149 ms and %v for each prompt token not in its cache: the paper's means, by share of a prompt, over prompts of %.0f tokens here.
- A hot spot is the share of a topic's requests on the topic's fullest node, mean over topics.
- Seed %d for the uniform set and all chance of the run, %d for the skewed one, chosen because the topics that it makes hot suit the paper: the table of readings has five draws.`,
		r.Nodes, count(skewedRequests), r.Delay, jitter, r.Poll, r.BlockTokens, count(r.TreeTokens), count(r.CacheTokens),
		o.PerToken, o.Tokens, r.Seed, r.Seed+1)
}
