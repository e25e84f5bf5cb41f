package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hearsay-project/hearsay/experiment"
)

// simCellsFlags say which cells are simulated, under which policies.
type simCellsFlags struct {
	config experiment.CellsConfig
	test   string // the policy under test
	out    string
	json   bool
	list   bool
	done   atomic.Int64 // requests simulated
}

func simCellsCommand() *cobra.Command {
	f := &simCellsFlags{config: experiment.CellsConfig{Parallel: runtime.GOMAXPROCS(0)}}
	f.config.Done = &f.done
	cmd := &cobra.Command{
		Use:   "cells",
		Short: "Compare policies in every cell of a table of clusters, loads and caches",
		Long: "Cells simulates policies side by side in every cell of a table: MMLU at five delays, four loads and three sizes\n" +
			"of caches; conversations, traces and a control at three sizes of clusters; two regions; a slow engine; bad views.\n" +
			"It prints the mean time to first token of each policy in each cell, and what the cells say of one policy, the\n" +
			"worst cell first. Every policy gets the same requests at the same times. The same data and flags give the same\n" +
			"output, to the byte.\n\n" +
			"A cell's name says what it is: mmlu/skewed/50ms/poisson60/cache30 has a one-way delay of 50 ms, requests at 60 %\n" +
			"of what the engines can do without routing, and room in each cache for 30 % of what requests share.\n\n" +
			"Policies: " + strings.Join(experiment.CellPolicies(), ", "),
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
	flags.StringVar(&f.config.Data, "data", "", "folder with mmlu/, mooncake/, claude_code/, bfcl/, tot/ and streams/; without it MMLU is synthetic and the others are left out")
	flags.StringSliceVar(&f.config.Only, "only", nil, "parts of the names of the cells to run, separated by commas; default all")
	flags.StringSliceVar(&f.config.Policies, "policy", experiment.CellPolicies(), "policies to compare, separated by commas")
	flags.StringVar(&f.test, "policy-under-test", "economic", "the policy that the verdict is on, where it is among those")
	flags.IntVar(&f.config.Requests, "requests", 0, "most requests of a run, for a quick look; 0 sets no limit")
	flags.IntVar(&f.config.Seeds, "seeds", 1, "seeds of each cell, from 1 on; the table has their means")
	flags.StringVar(&f.out, "out", "", "folder for cells.txt, cells.csv and cells.json; made if it is not there")
	flags.BoolVar(&f.json, "json", false, "print one JSON object instead of tables")
	flags.BoolVar(&f.list, "list", false, "print the names of the cells, and run none")
	return cmd
}

// check refuses what cannot be.
func (f *simCellsFlags) check(flags *pflag.FlagSet) (err error) {
	if err := refuseEmpty(flags); err != nil {
		return usageError{err}
	}
	if f.config.Policies, err = checkPolicies(f.config.Policies, experiment.CellPolicies()); err != nil {
		return usageError{err}
	}
	if f.config.Requests < 0 {
		return misuse("--requests %d is out of range; choose 1 or more, or 0 for all", f.config.Requests)
	}
	if f.config.Seeds < 1 {
		return misuse("--seeds %d is out of range; choose 1 or more", f.config.Seeds)
	}
	if !slices.Contains(f.config.Policies, f.test) && flags.Changed("policy-under-test") {
		return misuse("--policy-under-test %s is not among the policies; add it to --policy", f.test)
	}
	if len(f.config.Cells()) == 0 {
		return misuse("--only %s: no cell has that in its name; --list prints the names", strings.Join(f.config.Only, ","))
	}
	if f.out != "" {
		if err := tryFolder(f.out); err != nil {
			return misuse("--out: %w; name a folder that can be written", err)
		}
	}
	return nil
}

// run prints the tables and the verdict, or the names alone.
func (f *simCellsFlags) run(ctx context.Context, out, progress io.Writer) error {
	if f.list {
		for _, c := range f.config.Cells() {
			fmt.Fprintln(out, c.Name)
		}
		return nil
	}
	stop := func() {}
	f.config.Begin = func(requests int) { stop = showProgress(progress, requests, &f.done) }
	results, err := experiment.RunCells(ctx, f.config)
	stop()
	if errors.Is(err, context.Canceled) {
		return errors.New("broken off before all was simulated; nothing is written")
	}
	if err != nil {
		return err
	}
	if len(results.Cells) == 0 {
		return misuse("no cell is left to run: %s", strings.Join(results.Skipped, "; "))
	}
	verdict := results.Verdict(f.test)
	text := results.String()
	if slices.Contains(f.config.Policies, f.test) {
		text += "\n" + verdict.String()
	}
	object, err := results.JSON(verdict)
	if err != nil {
		return err
	}
	object = append(object, '\n')
	printed := []byte(text)
	if f.json {
		printed = object
	}
	if _, err := out.Write(printed); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if f.out == "" {
		return nil
	}
	for name, content := range map[string][]byte{"cells.txt": []byte(text), "cells.csv": results.CSV(), "cells.json": object} {
		if err := os.WriteFile(filepath.Join(f.out, name), content, 0o644); err != nil {
			return fmt.Errorf("--out: %w; the report is above, its files are not complete", err)
		}
	}
	return nil
}
