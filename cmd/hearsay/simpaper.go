package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/hearsay-project/hearsay/experiment"
)

// simPaperFlags say with which prompts the paper is computed again, and whereto.
type simPaperFlags struct {
	config experiment.Config
	out    string
	json   bool
}

func simPaperCommand() *cobra.Command {
	f := simPaperFlags{config: experiment.Config{Parallel: parallelRuns}}
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
			return f.run(cmd.Context(), cmd.OutOrStdout(), progressTo(os.Stderr))
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

func (f *simPaperFlags) run(ctx context.Context, out, progress io.Writer) error {
	if f.config.Seed == 0 {
		return misuse("--seed 0 is none; give 1 or more")
	}
	if f.config.Requests < 0 {
		return misuse("--requests %d; give 1 or more, or 0 for all", f.config.Requests)
	}
	if f.out != "" { // a folder that cannot be written is better known before the work than after it
		if err := os.MkdirAll(f.out, 0o755); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	var done atomic.Int64
	f.config.Done = &done
	_, total := experiment.Plan(f.config)
	stop := showProgress(progress, total, &done)
	results, err := experiment.Run(ctx, f.config)
	stop()
	if errors.Is(err, context.Canceled) {
		return errors.New("broken off before all was simulated; nothing is written")
	}
	if err != nil {
		return err
	}
	paths, err := f.write(results)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	text := []byte(results.String())
	if f.json {
		if text, err = results.JSON(paths); err != nil {
			return err
		}
		text = append(text, '\n')
	} else if f.out != "" {
		text = fmt.Appendf(text, "\nThe page is %s, with %d figures beside it.\n", filepath.Join(f.out, "index.html"), len(paths))
	}
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("write the report: %w", err)
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
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}
