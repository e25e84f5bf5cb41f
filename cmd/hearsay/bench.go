package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/hearsay-project/hearsay/workload"
)

// benchFlags say what to send, where and how.
type benchFlags struct {
	workload workload.Config
	options  workload.Options
	json     bool
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Drive running nodes with a workload and report what came back",
		Long: "Bench sends real prompts to running nodes and reports latency, time to first token (TTFT), expected\n" +
			"and actual cache hits and the share of each node. The same workload, --data, --seed and --requests give\n" +
			"the same requests in the same order. Nodes stay warm from run to run: to compare policies, start them anew.\n\n" +
			"Workloads, their data behind the colon or in --data:\n" +
			"  mmlu, mmlu:DIR     five answered questions of a subject, then one to answer; shuffled\n" +
			"  mmlu-skewed        the same, with 80 % of requests from 20 % of the subjects\n" +
			"  bbh:DIR            few-shot questions of BIG-Bench Hard\n" +
			"  chat:FILE          JSON lines of OpenAI chat requests, in the order of the file\n" +
			"  stream:FILE        a trace of blocks, NAME.b16.jsonl of 16 tokens each: prompts of words that are the\n" +
			"                     same as far as the ids are; more --requests than it has share what is shared by design\n" +
			"  mooncake:FILE      the same, of 512 tokens; both are replayed in their order, with their lengths of answers\n\n" +
			"Exit 0: every request was answered. 1: some were not, or the run was broken off; the report says how many.\n" +
			"2: nothing was sent, since what was asked for cannot be.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), progressTo(os.Stderr))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.options.Targets, "target", []string{"http://127.0.0.1:8080"}, "`URL` of a node to send to; repeatable")
	flags.StringVar(&f.workload.Name, "workload", "mmlu", "what to send, see above")
	flags.StringVar(&f.workload.Data, "data", "", "folder or file of the workload; mmlu without it is synthetic")
	flags.IntVar(&f.workload.Requests, "requests", 400, "requests to send, the warm-up included")
	flags.IntVar(&f.options.Concurrency, "concurrency", 1, "closed loop: requests under way at once")
	flags.Float64Var(&f.options.Rate, "rate", 0, "open loop: Poisson arrivals per second, instead of --concurrency")
	flags.Float64Var(&f.options.Speed, "speed", 0, "open loop: the times of the trace, so many times as fast, instead of --concurrency")
	flags.StringVar(&f.options.Entry, "entry", "round-robin", "target of each request: round-robin, random or first")
	flags.IntVar(&f.options.MaxTokens, "max-tokens", 0, "output tokens of each request (default 1, or what a trace says)")
	flags.BoolVar(&f.workload.TokenIDs, "token-ids", false, "traces: send prompts as token ids, exact in number, to engines that take them")
	flags.Uint64Var(&f.workload.Seed, "seed", 1, "seed of the order, the hot subjects, random entries and arrivals")
	flags.BoolVar(&f.workload.Repeats, "repeats", false, "draw with replacement; else no request is sent twice")
	flags.StringVar(&f.options.Model, "model", "", "model to ask for (default the first that the first target lists)")
	flags.DurationVar(&f.options.Timeout, "timeout", time.Minute, "longest that one request may take")
	flags.IntVar(&f.options.Warmup, "warmup", 0, "first requests of the workload that are sent but not counted")
	flags.BoolVar(&f.json, "json", false, "print one JSON object instead of a table")
	cmd.AddCommand(benchPaperCommand())
	return cmd
}

// check refuses what no run could be, and reads the workload.
func (f *benchFlags) check(flags *pflag.FlagSet) error {
	for _, clash := range [][2]string{{"rate", "concurrency"}, {"speed", "concurrency"}, {"rate", "speed"}} {
		if flags.Changed(clash[0]) && flags.Changed(clash[1]) {
			return misuse("--%s and --%s exclude each other; give one of them", clash[0], clash[1])
		}
	}
	for _, name := range []string{"concurrency", "rate", "speed", "max-tokens", "timeout"} {
		if v := flags.Lookup(name).Value.String(); flags.Changed(name) && (v == "0" || v == "0s") {
			return misuse("--%s must be above 0; leave it out for its default", name)
		}
	}
	if err := errors.Join(f.workload.Validate(), f.options.Validate()); err != nil {
		return usageError{err}
	}
	var err error
	if f.options.Workload, err = workload.New(f.workload); err == nil {
		err = f.options.Validate() // of what the workload decides
	}
	if err != nil {
		return usageError{err} // data that is not there, or is not what it should be
	}
	return nil
}

// run reports what was measured also when ctx ends early, and then fails.
func (f *benchFlags) run(ctx context.Context, out, progress io.Writer) error {
	f.options.Progress = progress
	report, err := workload.Run(ctx, f.options)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("broken off before any request was sent")
	case err != nil:
		return err
	}
	write := report.WriteTable
	if f.json {
		write = report.WriteJSON
	}
	if err := write(out); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	switch {
	case report.Requests < report.Asked:
		return fmt.Errorf("broken off after %d of %d requests; the report is of these", report.Requests, report.Asked)
	case report.Requests == report.Errors:
		return errors.New("no request was answered; the report says why")
	case report.Errors > 0:
		return fmt.Errorf("%d of %d requests failed; the times of the report are of the others", report.Errors, report.Requests)
	}
	return nil
}

// progressTo is f if that is a terminal, else nil: a progress line in a file is noise.
func progressTo(f *os.File) io.Writer {
	if !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return f
}
