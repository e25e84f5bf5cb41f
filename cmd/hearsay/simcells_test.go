package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/experiment"
)

// The table and the verdict come as text, the same to the byte in a file, with the rows
// for scripts beside it.
func TestSimCells(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	args := []string{"cells", "--only", "mmlu/skewed/20ms/closed,sizes/tot/n4", "--policy", "local,longest,central,smg", "--policy-under-test", "longest", "--requests", "40"}
	out, err := simulate(t.Context(), append(args, "--out", dir)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"cells of tot are left out: there is no folder of data; name it with --data", "mmlu: mean TTFT in seconds",
		"mmlu/skewed/20ms/closed/cache10 ", "Verdict on longest, against local, smg\n", "says nothing of them: longest+pushback", "mean strictly less than of all of those",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("the report has no %q:\n%s", part, out)
		}
	}
	for _, name := range []string{"cells.txt", "cells.csv", "cells.json"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || name == "cells.txt" && string(text) != out {
			t.Errorf("%s: %v, %q", name, err, text)
		}
	}
	if again, err := simulate(t.Context(), args...); err != nil || again != out {
		t.Errorf("%v: the same cells give two reports", err)
	}
	if names, err := simulate(t.Context(), "cells", "--list", "--only", "skewed/20ms"); err != nil || strings.Count(names, "\n") != 12 {
		t.Errorf("%v: %s", err, names)
	}
}

// What cannot be run is refused in one sentence, with what to do.
func TestSimCellsMisuse(t *testing.T) {
	for words, args := range map[string][]string{
		"no cell has that in its name":                                   {"--only", "nothing"},
		"--policy: there is no \"best\"":                                 {"--policy", "best"},
		"choose one of " + strings.Join(experiment.CellPolicies(), ", "): {"--policy", "longest:first"},
		"add it to --policy":                                             {"--policy", "local", "--policy-under-test", "longest"},
		"--seeds 0":                                                      {"--seeds", "0"},
		"--requests -1":                                                  {"--requests", "-1"},
		"no cell is left to run: cells of sharegpt are left out":         {"--only", "sharegpt"},
	} {
		_, err := simulate(t.Context(), append([]string{"cells"}, args...)...)
		if err == nil || !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, want a misuse that says %q", args, err, words)
		}
	}
}
