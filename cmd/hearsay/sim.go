package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/experiment"
	"github.com/hearsay-project/hearsay/sim"
	"github.com/hearsay-project/hearsay/workload"
)

func simCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a cluster in virtual time",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return misuse("there is no %q to simulate; see `hearsay sim --help`", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(simRunCommand(), simPaperCommand(), simCellsCommand())
	return cmd
}

// simFlags say what to simulate. Those that are not yet what the simulator
// takes are text.
type simFlags struct {
	cluster  sim.Config
	source   workload.StreamConfig
	policies []string
	profile  string
	capacity string
	gossip   string
	entry    string
	regions  string
	matrix   string
	faults   []string
	timed    []timedFault
	json     bool
}

func simRunCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Replay a workload through a simulated cluster, under one policy or several",
		Long: "Run takes a workload through a cluster of production nodes with emulated engines, in virtual time. Every\n" +
			"policy gets the same requests. The same flags and the same --seed give the same output, to the byte.\n\n" +
			"Workloads:\n" +
			"  mmlu, mmlu-skewed   five answered questions of a subject, then one to answer; --data names the data set\n" +
			"  bbh:DIR             BIG-Bench Hard with chain-of-thought examples\n" +
			"  tot:DIR             Tree of Thoughts, Game of 24\n" +
			"  bfcl:DIR            Berkeley Function Calling, conversations; bfcl-live:DIR for single turns\n" +
			"  stream:FILE         JSON lines of block ids, NAME.b16.jsonl for blocks of 16 tokens, also .gz\n" +
			"  mooncake:FILE       the same, with arrival times, blocks of 512 tokens\n" +
			"  claude-code:DIR     recorded coding sessions, with arrival times\n\n" +
			"Policies: " + strings.Join(sim.Policies(), ", ") + "\n" +
			"longest:RULE is longest, with another rule for nodes that match alike.\n" +
			"Profiles: " + strings.Join(emulate.Names(), ", ") + "\n\n" +
			"A file for --regions, in YAML; a delay from one region to another holds both ways unless both are given:\n" +
			"  regions:\n" +
			"    - {name: eu, nodes: 8, within: 1ms, to: {us: 40ms, asia: 110ms}}\n" +
			"    - {name: us, nodes: 4, within: 1ms, to: {asia: 80ms}}\n" +
			"    - {name: asia, nodes: 1}\n" +
			"A file for --matrix has a line for each node with its delay to each node: 1.5ms, or milliseconds.\n\n" +
			"A --fault is a time, a kind, nodes by number from 1: \"10s crash 2\", \"1m restart 2\", \"30s partition 1,3-4\",\n" +
			"\"90s heal\" (ends all partitions), \"10s slow 2 x4\" (engines take four times as long; x1 is normal again),\n" +
			"\"10s stuck 2\" (rumors go on to tell what they told then, until a restart).\n" +
			"A restart of a node that lives is the death of its process, its cache and its requests, and a new one at once.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.settle(cmd.Flags()); err != nil {
				return usageError{err}
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), progressTo(os.Stderr))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.workloadFlags(flags)
	f.clusterFlags(flags)
	flags.BoolVar(&f.cluster.Check, "check", false, "hold the run to what the design promises after each event, at many times the cost")
	flags.BoolVar(&f.json, "json", false, "print one JSON object instead of a table")
	return cmd
}

func (f *simFlags) workloadFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.source.Name, "workload", "mmlu", "what the clients ask, see above")
	flags.StringVar(&f.source.Data, "data", "", "folder or file of the workload; mmlu without it is synthetic")
	flags.IntVar(&f.source.Requests, "requests", 0, "requests to simulate (default all that the workload has); of more, repeats share only what is shared by design")
	flags.IntVar(&f.source.Output, "max-tokens", 1, "output tokens of each request, where the workload does not say")
	flags.IntVar(&f.source.BlockTokens, "block-tokens", 0, "tokens of a cache block, 1 to 512 (default 16, or the trace's own)")
	flags.Uint64Var(&f.cluster.Seed, "seed", 1, "seed of everything that is left to chance")
	flags.BoolVar(&f.source.Repeats, "repeats", false, "draw questions with replacement; else none is asked twice")
	flags.BoolVar(&f.source.ByTopic, "by-topic", false, "with --repeats: draw a subject, then one of its questions; else subjects weigh as many as they have")
	flags.IntVar(&f.cluster.Arrival.Clients, "closed", 0, "closed loop: clients that send their next request when the last is answered (default 1 where the workload has no times)")
	flags.Float64Var(&f.cluster.Arrival.Rate, "rate", 0, "open loop: Poisson arrivals per second, instead of --closed or the workload's times")
	flags.StringVar(&f.source.Arrivals, "arrivals", "", "CSV `file` with a column TIMESTAMP, as of Azure's traces: its times for any workload")
	flags.StringVar(&f.entry, "entry", "round-robin", "node that a request comes to: round-robin, random or first")
}

func (f *simFlags) clusterFlags(flags *pflag.FlagSet) {
	flags.IntVar(&f.cluster.Nodes, "nodes", 4, fmt.Sprintf("nodes of the cluster, 1 to %d", sim.MaxNodes))
	flags.StringSliceVar(&f.policies, "policy", []string{"longest+pushback"}, "routing policies, separated by commas, see above")
	flags.DurationVar(&f.cluster.Poll, "poll", 500*time.Millisecond, "interval between rumors, 20ms to 300s")
	flags.StringVar(&f.gossip, "gossip", "delta", "rumors of what has changed since what a peer has acknowledged (delta), or of the complete tree (paper)")
	flags.IntVar(&f.cluster.QueueThreshold, "queue-threshold", 0, "requests at an engine above which its node asks for a pause (default 8)")
	flags.StringVar(&f.profile, "profile", "paper", "timings of the engines, see above")
	flags.StringVar(&f.capacity, "capacity", "", "`tokens` of each engine's cache, or unlimited (default the profile's)")
	flags.DurationVar(&f.cluster.Network.Delay, "delay", 2*time.Millisecond, "one-way delay between any two nodes")
	flags.StringVar(&f.regions, "regions", "", "YAML `file` of regions with delays within and between, instead of --nodes and --delay")
	flags.StringVar(&f.matrix, "matrix", "", "`file` of one-way delays from each node to each, instead of --nodes and --delay")
	flags.DurationVar(&f.cluster.Network.Jitter, "jitter", 0, "largest deviation of a delay, either way")
	flags.Float64Var(&f.cluster.Network.Loss, "loss", 0, "share of rumors that are lost, 0 to 1")
	flags.Float64Var(&f.cluster.Network.Duplicate, "duplicate", 0, "share of rumors that come twice, 0 to 1")
	flags.Float64Var(&f.cluster.Network.Reorder, "reorder", 0, "share of rumors that come late by up to two polls, 0 to 1")
	flags.Int64Var(&f.cluster.Network.Bandwidth, "bandwidth", 0, "bytes a second into a node, for KV caches (fetch-kv) and trees (on-demand), 1000 or more (default without limit)")
	flags.StringArrayVar(&f.faults, "fault", nil, "what befalls nodes and when, see above; repeatable")
}

// settle turns the flags into what the simulator takes. What it reports is misuse.
func (f *simFlags) settle(flags *pflag.FlagSet) (err error) {
	if err := checkSimFlags(flags); err != nil {
		return err
	}
	c := &f.cluster
	switch {
	case f.regions != "":
		if c.Network.Matrix, err = regionMatrix(f.regions); err != nil {
			return fmt.Errorf("--regions: %w", err)
		}
	case f.matrix != "":
		if c.Network.Matrix, err = readMatrix(f.matrix); err != nil {
			return fmt.Errorf("--matrix: %w", err)
		}
	}
	if c.Network.Matrix != nil {
		c.Nodes = len(c.Network.Matrix)
	}
	if c.Profile, err = emulate.ByName(f.profile); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	if c.CapacityTokens, err = parseCapacity(f.capacity); err != nil {
		return err
	}
	if f.gossip != "delta" && f.gossip != "paper" {
		return fmt.Errorf("--gossip %q is no way to tell trees; choose delta or paper", f.gossip)
	}
	c.Whole = f.gossip == "paper"
	if c.Entry, err = sim.ParseEntry(f.entry); err != nil {
		return fmt.Errorf("--entry: %w", err)
	}
	if f.policies, err = checkPolicies(f.policies, sim.Policies()); err != nil {
		return err
	}
	if f.timed, err = readFaults(f.faults, c.Nodes); err != nil {
		return err
	}
	for _, t := range f.timed {
		c.Faults = append(c.Faults, t.Fault)
	}
	f.source.Seed = c.Seed
	if err := f.source.Validate(); err != nil {
		return fmt.Errorf("--workload: %w", err)
	}
	return nil
}

// open reads the workload. Data that is not there, or is not what it should be, is
// misuse.
func (f *simFlags) open() (*workload.Stream, error) {
	stream, err := workload.Open(f.source)
	switch {
	case errors.Is(err, workload.ErrBlockSize):
		return nil, misuse("--workload: %w, or say so with --block-tokens", err)
	case errors.Is(err, workload.ErrArrivals):
		return nil, misuse("--arrivals: %w", err)
	case err != nil:
		return nil, misuse("--workload: %w", err)
	}
	c := &f.cluster
	c.BlockTokens = stream.BlockTokens
	if c.Arrival == (sim.Arrival{}) && !stream.Timed {
		c.Arrival.Clients = 1
	}
	if rate := c.Arrival.Rate; rate > 0 && float64(stream.Requests)/rate > mostSeconds {
		return nil, misuse("--rate %g: %d requests take more than a century; choose more, or fewer --requests", rate, stream.Requests)
	}
	if c.CapacityTokens > 0 && c.CapacityTokens < c.BlockTokens {
		return nil, misuse("--capacity %d holds no block of %d tokens; give a multiple of that, or smaller --block-tokens", c.CapacityTokens, c.BlockTokens)
	}
	for _, c.Policy = range f.policies {
		if err := c.Validate(); err != nil {
			return nil, usageError{err}
		}
	}
	return stream, nil
}

// mostSeconds is what a simulation can last.
const mostSeconds = 100 * 365 * 24 * 3600

// run reports what was simulated also when ctx ends early, and then fails.
func (f *simFlags) run(ctx context.Context, out, progress io.Writer) error {
	stream, err := f.open()
	if err != nil {
		return err
	}
	rows, err := f.simulate(ctx, stream, progress)
	if err != nil {
		return err
	}
	if f.json {
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		err = enc.Encode(map[string][]simRow{"rows": rows})
	} else {
		_, err = io.WriteString(out, f.table(stream, rows))
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return f.verdict(stream, rows)
}

// verdict says what a run lacks. Requests that a fault makes fail are what was to
// be found out, and told in the report: it fails when none was answered.
func (f *simFlags) verdict(stream *workload.Stream, rows []simRow) error {
	for _, row := range rows {
		switch {
		case row.Requests < stream.Requests:
			return fmt.Errorf("broken off: %s had come to %d of %d requests; the report is of these", row.Policy, row.Requests, stream.Requests)
		case row.Requests == row.Errors:
			return fmt.Errorf("under %s no request was answered; the report says why", row.Policy)
		case row.befallen < len(f.timed):
			return misuse("--fault %q: the run under %s was over before it, after %gs; give an earlier time, or more --requests", f.timed[row.befallen].text, row.Policy, row.End)
		}
	}
	return nil
}

// parallelRuns bounds the runs at a time, and with them the memory.
const parallelRuns = 2

// simulate runs every policy on the same requests and returns their rows in order.
func (f *simFlags) simulate(ctx context.Context, stream *workload.Stream, progress io.Writer) ([]simRow, error) {
	rows := make([]simRow, len(f.policies))
	var done atomic.Int64
	stop := showProgress(progress, len(rows)*stream.Requests, &done)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelRuns)
	for i, policy := range f.policies {
		group.Go(func() error {
			cfg, failures := f.cluster, map[string]int{}
			cfg.Policy = policy
			cfg.Trace = func(r sim.Record) {
				done.Add(1)
				if r.Err != "" {
					failures[r.Err]++
				}
			}
			cfg.Stop = func() bool { return ctx.Err() != nil }
			result, err := sim.Run(cfg, experiment.Requests(ctx, stream))
			if err != nil {
				return fmt.Errorf("policy %s: %w", policy, err)
			}
			rows[i] = f.row(policy, result, failures)
			return nil
		})
	}
	return rows, group.Wait()
}

// showProgress draws how many of total are done until it is stopped. Without a
// terminal it draws nothing.
func showProgress(w io.Writer, total int, done *atomic.Int64) (stop func()) {
	if w == nil {
		return func() {}
	}
	began, ended, gone := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				fmt.Fprint(w, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprintf(w, "\r%s\x1b[K", simProgress(int(done.Load()), total, time.Since(began)))
			}
		}
	}()
	return func() { close(ended); <-gone }
}

func simProgress(done, total int, elapsed time.Duration) string {
	const width = 20
	filled := width * done / max(total, 1)
	line := fmt.Sprintf("[%s%s] %d/%d simulated", strings.Repeat("#", filled), strings.Repeat(".", width-filled), done, total)
	if done == 0 {
		return line
	}
	left := time.Duration(float64(elapsed) / float64(done) * float64(total-done))
	return fmt.Sprintf("%s  %s left", line, left.Round(time.Second))
}
