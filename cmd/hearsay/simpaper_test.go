package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The paper's tables come as one JSON object with the keys that scripts rely on, the
// page and the figures as files that it names; twice the same, to the byte.
func TestSimPaper(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "report")
	args := []string{"paper", "--requests", "30", "--seed", "5", "--json", "--out", dir}
	out, err := simulate(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Table1, Table2, Table3, Readings []map[string]any
		Figures                          []string
		Source                           string
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("printed %.200q: %v", out, err)
	}
	if len(got.Table1) != 4 || len(got.Table2) != 4 || len(got.Table3) != 10 || len(got.Readings) < 40 || !strings.Contains(got.Source, "synthetic") {
		t.Errorf("tables of %d, %d, %d and %d rows, from %q", len(got.Table1), len(got.Table2), len(got.Table3), len(got.Readings), got.Source)
	}
	for _, row := range slices.Concat(got.Table1, got.Table2, got.Table3) {
		for _, key := range []string{
			"policy", "workload", "nodes", "delay_ms", "poll_ms", "requests", "errors", "mean_s", "p50_s", "p99_s", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s",
			"expected_hit", "actual_hit", "fullest_share", "share_by_node", "forwarded_share", "rumor_bytes_per_node_s", "paper",
		} {
			if row[key] == nil {
				t.Errorf("%v has no %s", row["label"], key)
			}
		}
		if row["requests"] != 30. || row["errors"] != 0. {
			t.Errorf("%v: %v requests, %v errors", row["label"], row["requests"], row["errors"])
		}
	}
	files := append(slices.Clone(got.Figures), filepath.Join(dir, "index.html"))
	if made, _ := filepath.Glob(filepath.Join(dir, "*")); len(made) != len(files) || len(got.Figures) != 8 {
		t.Errorf("the folder holds %v, the output names %v", made, got.Figures)
	}
	first := map[string][]byte{}
	for _, name := range files {
		first[name], err = os.ReadFile(name)
		if err != nil || filepath.Ext(name) == ".svg" && xml.Unmarshal(first[name], new(any)) != nil {
			t.Errorf("%s: %v, %d bytes", name, err, len(first[name]))
		}
	}
	again, err := simulate(t.Context(), args...)
	if err != nil || again != out {
		t.Errorf("the same command prints something else; error %v", err)
	}
	for _, name := range files {
		if text, _ := os.ReadFile(name); !bytes.Equal(text, first[name]) {
			t.Errorf("the same command writes another %s", name)
		}
	}
}

// Without --out nothing is written, and no figure is named.
func TestSimPaperWithoutFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	out, err := simulate(t.Context(), "paper", "--requests", "5", "--json")
	var got struct{ Figures []string }
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || got.Figures == nil || len(got.Figures) > 0 {
		t.Errorf("error %v, figures %v", err, got.Figures)
	}
	out, err = simulate(t.Context(), "paper", "--requests", "5")
	for _, want := range []string{"Table 1", "Table 2", "Table 3", "Seed 1.", "synthetic", "At most 5 requests"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q is not in what is printed; error %v", want, err)
		}
	}
	if files, _ := os.ReadDir("."); len(files) > 0 {
		t.Errorf("it has written %v", files)
	}
}

// mmlu writes subjects of so many questions in the form of MMLU, and returns their folder.
func mmlu(t *testing.T, subjects, questions int) string {
	t.Helper()
	dir := t.TempDir()
	for _, part := range []string{"dev", "test"} {
		if err := os.Mkdir(filepath.Join(dir, part), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range subjects {
		var rows strings.Builder
		for q := range questions {
			fmt.Fprintf(&rows, "What is %d times %d?,one,two,three,\"four, or more\",%c\n", i, q, 'A'+q%4)
		}
		write(t, filepath.Join(dir, "dev", fmt.Sprintf("s%d_dev.csv", i)), rows.String())
		write(t, filepath.Join(dir, "test", fmt.Sprintf("s%d_test.csv", i)), rows.String())
	}
	return dir
}

// Prompts that are not there, or not MMLU's, are misuse, told before any work; a part
// of them is simulated and not passed off as the paper's.
func TestSimPaperData(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nosuch")
	empty, malformed, noTest := mmlu(t, 3, 6), mmlu(t, 3, 6), mmlu(t, 3, 6)
	write(t, filepath.Join(empty, "test", "s1_test.csv"), "")
	write(t, filepath.Join(malformed, "test", "s2_test.csv"), "a,b,c,d,e,A\na,b,\"c\n")
	if err := os.Remove(filepath.Join(noTest, "test", "s0_test.csv")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ data, want string }{
		{missing, "no files dev/*_dev.csv; give the folder that holds dev/ and test/ with --data, or leave --data out"},
		{filepath.Join(empty, "test", "s1_test.csv"), "no files dev/*_dev.csv"},
		{empty, "s1_test.csv is empty; fetch the data again"},
		{malformed, "s2_test.csv: parse error on line 2"},
		{noTest, "s0_test.csv: no such file"},
		{mmlu(t, 1, 6), "one subject cannot be asked more than others; give the data of two or more"},
		{mmlu(t, 3, 4), "has 4 questions; a prompt needs 5"},
	} {
		out, err := simulate(t.Context(), "paper", "--requests", "5", "--data", c.data)
		if !errors.As(err, new(usageError)) || !strings.HasPrefix(err.Error(), "--data: ") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%s: error %v, printed %.80q; want %q", c.data, err, out, c.want)
		}
	}
	out, err := simulate(t.Context(), "paper", "--requests", "50", "--data", mmlu(t, 2, 6))
	if err != nil || !strings.Contains(out, "not all of MMLU's") || strings.Contains(out, "With MMLU and seed 1") {
		t.Errorf("two small subjects: error %v, printed %.300q", err, out)
	}
}

// A folder that cannot be written is told before the work, with what to do.
func TestSimPaperOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for _, out := range []string{file, filepath.Join(file, "below"), "/dev/null/report"} {
		text, err := simulate(t.Context(), "paper", "--out", out)
		if !errors.As(err, new(usageError)) || !strings.HasPrefix(err.Error(), "--out: ") || !strings.HasSuffix(err.Error(), "; name a folder that can be written") || text != "" {
			t.Errorf("%s: error %v, printed %.80q", out, err, text)
		}
	}
	// What goes wrong after the work costs the files alone.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "index.html"), 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := simulate(t.Context(), "paper", "--requests", "5", "--out", dir)
	if err == nil || errors.As(err, new(usageError)) || !strings.Contains(text, "Table 3") {
		t.Errorf("error %v, printed %.80q", err, text)
	}
}
