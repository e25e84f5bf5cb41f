package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hearsay-project/hearsay/experiment"
)

// simPaperFlags say with which prompts the paper is computed again, and whereto.
type simPaperFlags struct {
	config experiment.Config
	out    string
	json   bool
	done   atomic.Int64 // requests simulated
}

func simPaperCommand() *cobra.Command {
	f := &simPaperFlags{config: experiment.Config{Parallel: parallelRuns}}
	f.config.Done = &f.done
	cmd := &cobra.Command{
		Use:   "paper",
		Short: "Compute the paper's tables and figures again, its own numbers beside ours",
		Long: "Paper simulates Tables 1 to 3 and Figures 2 to 4 of arXiv 2606.17059, and what the paper argues in words:\n" +
			"break-even, staleness, trees on demand, the bytes of snapshots, the size of blocks. What the paper leaves\n" +
			"open is settled by a reading that the output states; a table has the same numbers under other readings.\n" +
			"With --out it also writes a page, index.html, and each figure as SVG. The same data and --seed give the same\n" +
			"files, to the byte.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := f.check(cmd.Flags())
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), set, cmd.OutOrStdout(), progressTo(os.Stderr))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.config.Data, "data", "", "folder with MMLU's dev/ and test/; without it prompts are synthetic")
	flags.StringVar(&f.out, "out", "", "folder for index.html and the figures; made if it is not there")
	flags.Uint64Var(&f.config.Seed, "seed", 1, "seed of the order and of all chance, from 1; the next one draws the skewed set")
	flags.IntVar(&f.config.Requests, "requests", 0, "most requests of a run, for a quick look; 0 sets no limit")
	flags.BoolVar(&f.json, "json", false, "print one JSON object instead of tables")
	return cmd
}

// check refuses what cannot be, and reads the prompts. That a folder cannot be
// written is better known before the work than after it.
func (f *simPaperFlags) check(flags *pflag.FlagSet) (*experiment.Set, error) {
	if err := refuseEmpty(flags); err != nil {
		return nil, usageError{err}
	}
	const most = math.MaxInt64 / 2 // other draws count on from it
	if f.config.Seed == 0 || f.config.Seed > most {
		return nil, misuse("--seed %d is out of range; choose 1 to %d", f.config.Seed, most)
	}
	if f.config.Requests < 0 {
		return nil, misuse("--requests %d is out of range; choose 1 or more, or 0 for all", f.config.Requests)
	}
	if f.out != "" {
		if err := tryFolder(f.out); err != nil {
			return nil, misuse("--out: %w; name a folder that can be written", err)
		}
	}
	set, err := experiment.Open(f.config)
	if err != nil {
		return nil, misuse("--data: %w", err)
	}
	return set, nil
}

// tryFolder makes the folder, if it is not there, and writes a file into it.
func tryFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, ".hearsay-*")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// run writes the report; its text goes to out also where the files cannot be written.
func (f *simPaperFlags) run(ctx context.Context, set *experiment.Set, out, progress io.Writer) error {
	stop := showProgress(progress, set.Requests(), &f.done)
	results, err := set.Run(ctx)
	stop()
	if errors.Is(err, context.Canceled) {
		return errors.New("broken off before all was simulated; nothing is written")
	}
	if err != nil {
		return err
	}
	paths, filesErr := f.write(results)
	text := []byte(results.String())
	switch {
	case f.json:
		if text, err = results.JSON(paths); err != nil {
			return err
		}
		text = append(text, '\n')
	case f.out != "" && filesErr == nil:
		text = fmt.Appendf(text, "\nThe page is %s, with %d figures beside it.\n", filepath.Join(f.out, "index.html"), len(paths))
	}
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if filesErr != nil {
		return fmt.Errorf("--out: %w; the report is above, its files are not complete", filesErr)
	}
	return nil
}

// write puts the page and the figures into the folder, and returns the figures' paths.
func (f *simPaperFlags) write(results *experiment.Results) (paths []string, err error) {
	if f.out == "" {
		return nil, nil
	}
	page, err := results.HTML()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(f.out, "index.html"), page, 0o644); err != nil {
		return nil, err
	}
	for _, figure := range results.Figures() {
		path := filepath.Join(f.out, figure.File)
		if err := os.WriteFile(path, figure.Drawing.SVG(), 0o644); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}
