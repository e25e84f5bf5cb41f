package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
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
			"Workloads:\n" +
			"  mmlu         five answered questions of a subject, then one to answer; shuffled\n" +
			"  mmlu-skewed  the same, with 80 % of requests from 20 % of the subjects\n" +
			"  bbh          few-shot questions of BIG-Bench Hard, from --data\n" +
			"  chat:FILE    JSON lines of OpenAI chat requests, in the order of the file",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("rate") && cmd.Flags().Changed("concurrency") {
				return misuse("--rate is an open loop and --concurrency a closed one; give one of them")
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), progressTo(os.Stderr))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.options.Targets, "target", []string{"http://127.0.0.1:8080"}, "URL of a node to send to; repeatable")
	flags.StringVar(&f.workload.Name, "workload", "mmlu", "mmlu, mmlu-skewed, bbh or chat:FILE")
	flags.StringVar(&f.workload.Data, "data", "", "folder with MMLU's dev/ and test/; without it prompts are synthetic")
	flags.IntVar(&f.workload.Requests, "requests", 400, "requests to send, the warm-up included")
	flags.IntVar(&f.options.Concurrency, "concurrency", 1, "closed loop: requests under way at once")
	flags.Float64Var(&f.options.Rate, "rate", 0, "open loop: Poisson arrivals per second, instead of --concurrency")
	flags.StringVar(&f.options.Entry, "entry", "round-robin", "target of each request: round-robin, random or first")
	flags.IntVar(&f.options.MaxTokens, "max-tokens", 1, "output tokens of each request")
	flags.Uint64Var(&f.workload.Seed, "seed", 1, "seed of the order, the hot subjects, random entries and arrivals")
	flags.BoolVar(&f.workload.Repeats, "repeats", false, "draw with replacement; else no request is sent twice")
	flags.StringVar(&f.options.Model, "model", "", "model to ask for (default the first that the first target lists)")
	flags.DurationVar(&f.options.Timeout, "timeout", time.Minute, "longest that one request may take")
	flags.IntVar(&f.options.Warmup, "warmup", 0, "first requests of the workload that are sent but not counted")
	flags.BoolVar(&f.json, "json", false, "print one JSON object instead of a table")
	cmd.AddCommand(benchPaperCommand())
	return cmd
}

// run reports what was measured also when ctx ends early, and then fails.
func (f *benchFlags) run(ctx context.Context, out, progress io.Writer) error {
	if err := errors.Join(f.workload.Validate(), f.options.Validate()); err != nil {
		return usageError{err}
	}
	if f.options.Concurrency < 1 || f.options.MaxTokens < 1 || f.options.Timeout <= 0 {
		return misuse("--concurrency, --max-tokens and --timeout must be above 0")
	}
	requests, err := workload.New(f.workload)
	if err != nil {
		return err
	}
	f.options.Workload, f.options.Progress = requests, progress
	report, err := workload.Run(ctx, f.options)
	if err != nil {
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
