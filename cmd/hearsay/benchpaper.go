package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/experiment"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/report"
	"github.com/hearsay-project/hearsay/route"
	"github.com/hearsay-project/hearsay/sim"
	"github.com/hearsay-project/hearsay/tokens"
	"github.com/hearsay-project/hearsay/workload"
)

// paperFlags say how the paper's experiments are repeated over real processes.
type paperFlags struct {
	data        string
	requests    int
	seed        uint64
	timeScale   float64
	blockTokens int
	port        int
	peerPort    int
	json        bool

	policies  []string // in the place of the paper's rows
	delays    []time.Duration
	workloads []string

	profile emulate.Profile
}

func benchPaperCommand() *cobra.Command {
	var f paperFlags
	cmd := &cobra.Command{
		Use:   "paper",
		Short: "Repeat the paper's Tables 1 and 2, or compare policies, over real processes, beside the simulator",
		Long: "Paper starts four serve processes for each row of the paper's Tables 1 and 2, with emulated engines\n" +
			"(profile paper) and delayed links, sends them a sample of the paper's workload one request at a time, and\n" +
			"takes the same requests through the simulator. All times - the engines', the links', the poll interval -\n" +
			"are real ones multiplied by --time-scale, and reported divided by it. Nodes name prompts by blocks of text;\n" +
			"so that their engines and the simulator know the same blocks, a block counts as --block-tokens in all of them.\n\n" +
			"With --policy the rows are those policies in the place of the paper's, at each --delay, on each --workload.\n\n" +
			"The paper's own values are of thousands of requests: a short sample is colder. What is to agree is the\n" +
			"simulator and the processes.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), progressTo(os.Stderr))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.data, "data", "", "folder with MMLU's dev/ and test/; without it prompts are synthetic")
	flags.IntVar(&f.requests, "requests", 400, "requests of the sample, for each row")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the sample, and the first of the simulator's")
	flags.Float64Var(&f.timeScale, "time-scale", 0.1, "real seconds to one of the paper's; at 0.1 the machine adds less than a tenth to a latency, at 0.05 up to a sixth")
	flags.IntVar(&f.blockTokens, "block-tokens", 14, "tokens that a block of 64 bytes counts as; 14 is nearest to cl100k_base on MMLU")
	flags.IntVar(&f.port, "port", 8080, "API port of the first node; the others follow")
	flags.IntVar(&f.peerPort, "peer-port", 7946, "peer port of the first node; the others follow")
	flags.StringSliceVar(&f.policies, "policy", nil, "policies to compare, separated by commas; without them the rows are the paper's")
	flags.DurationSliceVar(&f.delays, "delay", []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond}, "with --policy: one-way delays between nodes, separated by commas")
	flags.StringSliceVar(&f.workloads, "workload", []string{uniform, skewed}, "with --policy: mmlu, mmlu-skewed or both, separated by a comma")
	flags.BoolVar(&f.json, "json", false, "print one JSON object instead of tables")
	return cmd
}

// paperProfile is whose timings the engines have.
const paperProfile = "paper"

// histories is how many seeds the simulator's values are the mean of. Which of two
// equals serves a request, and when in a poll a node speaks, is chance: one long
// prompt found or missed is a point of 400 requests' hit rate.
const histories = 8

// A figures is what one source says of a row: the paper, the simulator or a run.
type figures struct {
	Mean        *float64 `json:"mean_s,omitempty"`
	ExpectedHit *float64 `json:"expected_hit,omitempty"`
	ActualHit   *float64 `json:"actual_hit,omitempty"`

	ForwardedShare *float64 `json:"forwarded_share,omitempty"`
	FullestShare   *float64 `json:"fullest_share,omitempty"`
}

// A paperRow is a row of the paper's tables. Its own numbers are those of the run
// over processes, in the paper's seconds.
type paperRow struct {
	workload.Row
	TimeScale float64 `json:"time_scale"`
	Simulated figures `json:"simulated"`
	// The least and the greatest of the simulated hit rates of which ActualHit is the mean.
	SimulatedLow  float64 `json:"simulated_hit_low"`
	SimulatedHigh float64 `json:"simulated_hit_high"`

	Paper figures `json:"paper"`

	scenario experiment.Scenario
	sample   *workload.Workload
	chosen   bool // by --policy
}

// paperRows are the configurations of the paper's tables.
func paperRows() (rows []*paperRow) {
	value := func(v float64) *float64 {
		if v == 0 {
			return nil
		}
		return &v
	}
	for _, p := range experiment.Published() {
		r := &paperRow{scenario: p.Scenario, Paper: figures{Mean: value(p.Paper.Mean), ExpectedHit: value(p.Paper.Expected), ActualHit: value(p.Paper.Actual)}}
		r.Policy, r.Workload = p.Scenario.Policy, uniform
		if p.Scenario.Skewed {
			r.Workload = skewed
		}
		rows = append(rows, r)
	}
	return rows
}

// name is the configuration as the paper calls it.
func (r *paperRow) name() string {
	set, routing := "uniform", "routed"
	if r.scenario.Skewed {
		set = "skewed"
	}
	switch {
	case r.chosen:
		routing = r.Policy
	case r.Policy == (route.Local{}).Name():
		routing = "no-route"
	}
	return set + ", " + routing
}

// run prints the rows that were measured also when it is broken off, and then fails.
func (f *paperFlags) run(ctx context.Context, out, errOut, progress io.Writer) error {
	rows, err := f.rows()
	if err != nil {
		return err
	}
	if err := f.check(rows); err != nil {
		return err
	}
	var total time.Duration
	for _, r := range rows {
		took, err := f.simulate(ctx, r)
		if err != nil {
			return err
		}
		total += f.scaled(took)
	}
	fmt.Fprintf(errOut, "%d runs of %d requests over processes: about %v\n", len(rows), f.requests, total.Round(time.Second))
	done, failed := 0, 0
	var broken error
	for i, r := range rows {
		fmt.Fprintf(errOut, "%d of %d: %s, delay %v\n", i+1, len(rows), r.name(), r.scenario.Delay)
		if broken = f.measure(ctx, r, errOut, progress); broken != nil {
			if ctx.Err() != nil {
				broken = errors.New("interrupted")
			}
			broken = fmt.Errorf("broken off in run %d of %d: %w", i+1, len(rows), broken)
			break
		}
		done, failed = done+1, failed+r.Errors
	}
	if done > 0 {
		if err := f.write(out, rows[:done]); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	if broken == nil && failed > 0 {
		return fmt.Errorf("%d requests failed; what the report says is of the others", failed)
	}
	return broken
}

func (f *paperFlags) write(out io.Writer, rows []*paperRow) error {
	if f.json {
		return json.NewEncoder(out).Encode(map[string]any{"rows": rows})
	}
	_, err := io.WriteString(out, f.tables(rows))
	return err
}

// minTimeScale is where what this machine adds to a request is as much as what is emulated.
const minTimeScale = 0.01

// check refuses what cannot be run, and draws the samples of the rows.
func (f *paperFlags) check(rows []*paperRow) (err error) {
	if !(f.timeScale >= minTimeScale && f.timeScale <= 1) {
		return misuse("--time-scale: %g real seconds to one; choose %g to 1", f.timeScale, minTimeScale)
	}
	if f.blockTokens < 1 || f.blockTokens > prefix.BlockBytes {
		return misuse("--block-tokens: %d in %d bytes; choose 1 to %d", f.blockTokens, prefix.BlockBytes, prefix.BlockBytes)
	}
	if f.profile, err = emulate.ByName(paperProfile); err != nil {
		return err
	}
	for _, r := range rows {
		r.sample, err = workload.New(workload.Config{Name: r.Workload, Data: f.data, Requests: f.requests, Seed: f.seed})
		if err != nil {
			return usageError{err}
		}
		cluster := f.cluster(r)
		if err := cluster.checkPorts(); err != nil {
			return err
		}
	}
	return nil
}

// tokenBytes is how much text counts as one token.
func (f *paperFlags) tokenBytes() float64 { return prefix.BlockBytes / float64(f.blockTokens) }

// tokens counts those of a text.
func (f *paperFlags) tokens(text string) int {
	return tokens.Count(len(text), f.tokenBytes())
}

// poll is the interval between rumors in real time. Nodes take none below
// node.MinPoll; there the simulator polls as slowly as they do.
func (f *paperFlags) poll(r *paperRow) time.Duration {
	return max(f.scaled(r.scenario.Poll), node.MinPoll)
}

func (f *paperFlags) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * f.timeScale)
}

func (f *paperFlags) unscaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / f.timeScale)
}

// simulate runs the row in virtual time, as often as histories says, and tells how
// much of that a run took.
func (f *paperFlags) simulate(ctx context.Context, r *paperRow) (took time.Duration, err error) {
	v := figures{new(float64), new(float64), new(float64), new(float64), new(float64)}
	r.Simulated, r.SimulatedLow, r.SimulatedHigh = v, 1, 0
	for i := range uint64(histories) {
		result, err := sim.Run(sim.Config{
			Nodes: r.scenario.Nodes, Policy: r.Policy, Seed: f.seed + i,
			Profile: f.profile, BlockTokens: f.blockTokens,
			Poll: f.unscaled(f.poll(r)), Network: sim.Network{Delay: r.scenario.Delay},
			Arrival: sim.Arrival{Clients: 1},
			Stop:    func() bool { return ctx.Err() != nil },
		}, f.requestsOf(ctx, r))
		switch {
		case ctx.Err() != nil:
			return 0, errors.New("broken off before anything was measured")
		case err != nil:
			return 0, err
		}
		took += result.End / histories
		*v.Mean += result.Latency.Mean.Seconds() / histories
		*v.ExpectedHit += result.ExpectedHit / histories
		*v.ActualHit += result.ActualHit / histories
		*v.ForwardedShare += result.ForwardedShare / histories
		*v.FullestShare += result.FullestShare / histories
		r.SimulatedLow, r.SimulatedHigh = min(r.SimulatedLow, result.ActualHit), max(r.SimulatedHigh, result.ActualHit)
	}
	return took, nil
}

// requestsOf names the prompts of a row as the nodes do, until ctx ends.
func (f *paperFlags) requestsOf(ctx context.Context, r *paperRow) iter.Seq[sim.Request] {
	return func(yield func(sim.Request) bool) {
		for i := range r.sample.Len() {
			text := r.sample.Request(i).Prompt
			if ctx.Err() != nil || !yield(sim.Request{Chain: prefix.NewChain(1, []byte(text)), Tokens: f.tokens(text), Output: 1}) {
				return
			}
		}
	}
}

// cluster is the four processes of a row.
func (f *paperFlags) cluster(r *paperRow) demoFlags {
	return demoFlags{
		nodes: r.scenario.Nodes, policy: r.Policy, port: f.port, peerPort: f.peerPort, poll: f.poll(r),
		extra: []string{
			"--engine", "emulated:" + paperProfile, "--time-scale", decimal(f.timeScale),
			"--block-tokens", strconv.Itoa(f.blockTokens), "--token-bytes", decimal(f.tokenBytes()),
			"--link-delay", f.scaled(r.scenario.Delay).String(), "--log-level", "warn",
		},
	}
}

// measure runs the row over processes of its own, since caches must begin cold. It
// fails as soon as one of them ends.
func (f *paperFlags) measure(ctx context.Context, r *paperRow, errOut, progress io.Writer) error {
	cluster := f.cluster(r)
	if err := cluster.checkPorts(); err != nil {
		return err
	}
	nodes, err := cluster.start(&screen{out: errOut})
	defer stopAll(nodes)
	if err != nil {
		return err
	}
	if err := cluster.waitReady(ctx, nodes); err != nil {
		return err
	}
	var targets []string
	for i := range nodes {
		targets = append(targets, "http://"+cluster.api(i))
	}
	ctx, stop := whileAllRun(ctx, nodes)
	defer stop()
	got, err := workload.Run(ctx, workload.Options{Workload: r.sample, Targets: targets, Progress: progress})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case got.Requests == got.Errors || got.ActualHit == nil:
		return errors.New("no request was answered; what the nodes said stands above")
	}
	f.take(r, got.Row)
	return nil
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// take puts what was measured into the row, in the paper's seconds.
func (f *paperFlags) take(r *paperRow, got workload.Row) {
	r.Row = got
	r.TimeScale = f.timeScale
	for _, v := range []*float64{r.Mean, r.P50, r.P99, r.TTFTMean, r.TTFTP50, r.TTFTP99, r.DelayMS, r.PollMS} {
		if v != nil {
			*v /= f.timeScale
		}
	}
}

// tables sets the rows out as the paper does.
func (f *paperFlags) tables(rows []*paperRow) string {
	text := fmt.Sprintf("workload  first %d requests of %s, seed %d, one at a time\n"+
		"cluster   %d serve processes, engines of profile %s, poll %v; a block is %d bytes of text, and %d tokens\n"+
		"times     in the paper's seconds; simulated the mean of %d histories, measured one at time scale %g\n",
		f.requests, rows[0].sample.Source, f.seed, rows[0].scenario.Nodes, paperProfile, f.unscaled(f.poll(rows[0])), prefix.BlockBytes, f.blockTokens, histories, f.timeScale)
	if paper := rows[0].scenario.Poll; f.poll(rows[0]) > f.scaled(paper) {
		text += fmt.Sprintf("poll      %v for the paper's %v, in the simulator too: nodes poll no faster than %v\n",
			f.unscaled(f.poll(rows[0])), paper, node.MinPoll)
	}
	latency := report.Table{
		Title:   "Table 1: mean latency, s",
		Columns: []string{"configuration", "delay", "paper", "simulated", "measured", "off %"},
		Note: "Off: measured from simulated. Sockets, timers and the scheduler take some milliseconds of this machine's own for each request, " +
			"which do not scale: a time scale nearer to 1 makes them smaller. Differs from sim paper: caches and trees of the profile's " +
			"500,000 tokens, no jitter, timings not fitted to these prompts' length, and a sample that is colder than the paper's thousands.",
	}
	hits := report.Table{
		Title:   "Table 2: prompt tokens said to be cached (expected) and found cached (actual), and requests by node, %",
		Columns: []string{"configuration", "delay", "source", "expected", "actual", "range", "off", "forwarded", "fullest node"},
		Note:    "Range: of what chance gives in the simulator. Off: measured from simulated, in points.",
	}
	for _, r := range rows {
		latency.Rows = append(latency.Rows, []string{
			r.name(), r.scenario.Delay.String(), digits(r.Paper.Mean, 1, 3), digits(r.Simulated.Mean, 1, 3), digits(r.Mean, 1, 3),
			fmt.Sprintf("%+.1f", 100*(*r.Mean / *r.Simulated.Mean - 1)),
		})
		line := func(source, span, off string, v figures) []string {
			cells := []string{r.name(), r.scenario.Delay.String(), source, digits(v.ExpectedHit, 100, 1), digits(v.ActualHit, 100, 1), span, off}
			return append(cells, digits(v.ForwardedShare, 100, 1), digits(v.FullestShare, 100, 1))
		}
		if r.Paper.ActualHit != nil {
			hits.Rows = append(hits.Rows, line("paper", "-", "-", r.Paper))
		}
		measured := figures{nil, r.ExpectedHit, r.ActualHit, r.ForwardedShare, r.FullestShare}
		hits.Rows = append(hits.Rows, line("simulated", fmt.Sprintf("%.1f to %.1f", 100*r.SimulatedLow, 100*r.SimulatedHigh), "-", r.Simulated),
			line("measured", "-", fmt.Sprintf("%+.2f", 100*(*r.ActualHit-*r.Simulated.ActualHit)), measured))
	}
	text += fmt.Sprintf("\n%s\n%s\n", latency, hits)
	for _, r := range rows {
		if r.Errors > 0 {
			text += fmt.Sprintf("%s, %v: %d of %d requests failed\n", r.name(), r.scenario.Delay, r.Errors, r.Requests)
		}
	}
	return text
}
