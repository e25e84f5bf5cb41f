package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/sim"
)

var update = flag.Bool("update", false, "write what the commands in testdata print into it")

// simulate runs `hearsay sim` and returns what it printed.
func simulate(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	cmd := rootCommand()
	cmd.SetArgs(append([]string{"sim"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// rows runs `hearsay sim run --json` and returns its rows.
func rows(t *testing.T, args ...string) []map[string]any {
	t.Helper()
	out, err := simulate(t.Context(), append([]string{"run", "--json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Rows []map[string]any }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("printed %q: %v", out, err)
	}
	return got.Rows
}

// The same flags print the same, to the byte. Each section of the golden file is
// a command line and what it printed.
func TestSimRunPrintsTheSame(t *testing.T) {
	const golden = "testdata/sim.txt"
	old, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var now strings.Builder
	for section := range strings.SplitSeq(string(old), "\n$ hearsay ") {
		line, _, _ := strings.Cut(strings.TrimPrefix(section, "$ hearsay "), "\n")
		var args []string
		for i, part := range strings.Split(line, `"`) {
			if i%2 == 1 {
				args = append(args, part) // quoted
			} else {
				args = append(args, strings.Fields(part)...)
			}
		}
		out, err := simulate(t.Context(), args[1:]...)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		fmt.Fprintf(&now, "\n$ hearsay %s\n%s", line, out)
	}
	got := strings.TrimPrefix(now.String(), "\n")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != string(old) {
		t.Errorf("printed\n%s\nwant\n%s\ngo test ./cmd/hearsay -run SimRunPrints -update writes it anew", got, old)
	}
}

// A row has the keys that all experiments share, and what it takes to run it again.
func TestSimRunKeys(t *testing.T) {
	given := map[string]float64{"loss": .1, "duplicate": .2, "reorder": .3, "bandwidth": 1e6, "queue_threshold": 5, "max_tokens": 3}
	args := []string{"--requests", "60", "--policy", "longest"}
	for key, v := range given {
		args = append(args, "--"+strings.ReplaceAll(key, "_", "-"), fmt.Sprint(int(v)))
		if v < 1 {
			args[len(args)-1] = fmt.Sprint(v)
		}
	}
	row := rows(t, args...)[0]
	for key, v := range given {
		if row[key] != v {
			t.Errorf("%s is %v, want %v", key, row[key], v)
		}
	}
	want := []string{
		"policy", "workload", "nodes", "delay_ms", "poll_ms", "requests", "errors", "mean_s", "p50_s", "p99_s",
		"ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "expected_hit", "actual_hit", "fullest_share", "share_by_node",
		"forwarded_share", "rumor_bytes_per_node_s", "data", "seed", "repeats", "by_topic", "profile", "history",
		"jitter_ms", "loss", "duplicate", "reorder", "bandwidth", "queue_threshold", "max_tokens", "fetched_bytes", "fetches_timed_out",
	}
	for _, key := range want {
		if _, ok := row[key]; !ok {
			t.Errorf("no key %s among %v", key, slices.Sorted(maps.Keys(row)))
		}
	}
	if row["requests"] != 60. || row["nodes"] != 4. || row["delay_ms"] != 2. || row["poll_ms"] != 500. || row["data"] != "synthetic" {
		t.Errorf("row %v", row)
	}
	if shares := row["share_by_node"].(map[string]any); len(shares) != 4 || shares["n1"] == 0. {
		t.Errorf("share_by_node %v", shares)
	}
}

// Policies side by side come out as each does alone: they get the same requests
// and share nothing else.
func TestSimRunSideBySide(t *testing.T) {
	policies := sim.Policies()
	args := []string{"--requests", "150", "--rate", "8", "--workload", "mmlu-skewed", "--seed", "7", "--bandwidth", "100000000"}
	together := rows(t, append(args, "--policy", strings.Join(policies, ","))...)
	for i, policy := range policies {
		alone := rows(t, append(args, "--policy", policy)...)[0]
		if alone["policy"] != policy || !reflect.DeepEqual(alone, together[i]) {
			t.Errorf("%s alone %v\nand among others %v", policy, alone, together[i])
		}
	}
}

// What went wrong in a simulation is told by kind, and only a run without any
// answer fails.
func TestSimRunTellsFailures(t *testing.T) {
	args := []string{"run", "--requests", "40", "--closed", "8", "--nodes", "2", "--policy", "local", "--fault"}
	out, err := simulate(t.Context(), append(args, "1s crash 1")...)
	if err != nil || !strings.Contains(out, "local: 5 of 40 requests failed: the node it came to has died") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
	out, err = simulate(t.Context(), append(args, "0s crash 1-2")...)
	if err == nil || errors.As(err, new(usageError)) || !strings.Contains(out, "40 of 40 requests failed: no node is up") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
}

// Trees that did not come in time are told, and their bytes are not counted.
func TestSimRunTellsFetches(t *testing.T) {
	args := []string{"--requests", "40", "--policy", "on-demand"}
	if row := rows(t, args...)[0]; row["fetches_timed_out"] != 0. || row["fetched_bytes"] == 0. {
		t.Errorf("row %v", row)
	}
	args = append(args, "--bandwidth", "1000")
	row := rows(t, args...)[0]
	if n := row["fetches_timed_out"].(float64); n < 20 || n > 120 {
		t.Errorf("row %v", row)
	}
	out, err := simulate(t.Context(), append([]string{"run"}, args...)...)
	if want := fmt.Sprintf("on-demand: %v fetches timed out", row["fetches_timed_out"]); err != nil || !strings.Contains(out, want) || !strings.Contains(out, "1000 bytes a second") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
}

// A fault that lies beyond the run is told when the run's end is known, behind the
// report.
func TestSimRunTellsLateFaults(t *testing.T) {
	out, err := simulate(t.Context(), "run", "--requests", "20", "--policy", "local,longest", "--fault", "1s slow 1 x2", "--fault", "1h crash 2")
	want := `--fault "1h crash 2": the run under local was over before it`
	if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), want) || !strings.Contains(out, "longest") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
}

// A run that is broken off prints what it has, and fails.
func TestSimRunBrokenOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, err := simulate(ctx, "run", "--requests", "1000")
	if err == nil || !strings.Contains(err.Error(), "broken off") || !strings.Contains(out, "longest+pushback") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
}

// A trace's times hold unless an arrival is asked for; without times one client asks.
func TestSimRunArrivals(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.b16.jsonl")
	write(t, trace, `{"timestamp": 0, "input_length": 40, "hash_ids": [1, 2, 3]}
{"timestamp": 60000, "input_length": 40, "hash_ids": [1, 2, 4]}
`)
	arrivals := filepath.Join(t.TempDir(), "azure.csv")
	write(t, arrivals, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.5,1,1\n2023-11-16 18:02:00.5,1,1\n")
	for _, c := range []struct {
		args  []string
		want  string
		after float64 // seconds, at least
	}{
		{[]string{"--workload", "stream:" + trace}, "at the times of the workload", 60},
		{[]string{"--workload", "stream:" + trace, "--closed", "1"}, "closed loop of 1", 0},
		{[]string{"--workload", "stream:" + trace, "--rate", "100"}, "open loop at 100/s", 0},
		{[]string{"--workload", "stream:" + trace, "--arrivals", arrivals}, "at the times of " + arrivals, 120},
		{[]string{"--requests", "2"}, "closed loop of 1", 0},
	} {
		row := rows(t, c.args...)[0]
		if end := row["end_s"].(float64); row["arrivals"] != c.want || end < c.after || end > c.after+10 {
			t.Errorf("%v: %v, end %v s", c.args, row["arrivals"], end)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Regions stand for the matrix of their nodes, in order.
func TestRegions(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		text, problem string
		want          [][]time.Duration
	}{
		{text: "regions:\n- {name: eu, nodes: 2, within: 1ms, to: {us: 40ms}}\n- {name: us, nodes: 1, to: {eu: 45.5}}", want: [][]time.Duration{
			{ms, ms, 40 * ms},
			{ms, ms, 40 * ms},
			{45500 * time.Microsecond, 45500 * time.Microsecond, 0},
		}},
		{text: "regions:\n- {name: a, nodes: 1}\n- {name: b, nodes: 1, to: {a: 7ms}}", want: [][]time.Duration{{0, 7 * ms}, {7 * ms, 0}}},
		{text: "regions:\n- {name: a, nodes: 2}", problem: "region a has no delay between its nodes; add within: 1ms to it"},
		{text: "regions:\n- {name: a, nodes: 1}\n- {name: b, nodes: 1}", problem: "no delay between a and b; add to: {b: 40ms} to a"},
		{text: "regions:\n- {name: a, nodes: 1, to: {c: 1ms}}", problem: `"c", which is no other region`},
		{text: "regions:\n- {name: a, nodes: 1, to: {a: 1ms}}", problem: `"a", which is no other region`},
		{text: "regions:\n- {name: a, nodes: 1}\n- {name: a, nodes: 1}", problem: `region 2 is called "a"; give each a name`},
		{text: "regions:\n- {nodes: 1}", problem: `region 1 is called ""`},
		{text: "regions:\n- {name: a}", problem: "region a has 0 nodes"},
		{text: "regions:\n- {name: a, nodes: 1000, within: 1}\n- {name: b, nodes: 1000, within: 1}", problem: "2000 nodes in 2 regions"},
		{text: "regions:\n- {name: a, nodes: 2, within: soon}", problem: `region a: "soon" is no delay`},
		{text: "regions:\n- {name: a, nodes: 2, within: -1ms}", problem: `"-1ms" is no delay`},
		{text: "regions:\n- {name: a, nodes: 2, within: .nan}", problem: "is no delay"},
		{text: "regions:\n- {name: a, nodes: 2, within: 1ms, delay: 2ms}", problem: `regions.yaml, line 2: unknown field "delay"`},
		{text: "", problem: "0 nodes in 0 regions"},
		{text: "regions:\n- {name: a, nodes: 1}\n---\nregions:\n- {name: b, nodes: 1}", problem: "holds 2 documents; write all regions into one"},
		{text: "regions:\n- {name: a, nodes: two}", problem: "regions.yaml, line 2: cannot unmarshal string into Go struct field"},
		{text: "regions:\n- {name: a, nodes: 1\n", problem: "regions.yaml, line 2:"},
		{text: "regions: [\n\n}", problem: "regions.yaml, line"},
		{text: "- a\n- b", problem: "regions.yaml, line 1:"},
	} {
		path := filepath.Join(t.TempDir(), "regions.yaml")
		write(t, path, c.text)
		got, err := regionMatrix(path)
		checkFile(t, c.text, got, err, c.want, c.problem)
	}
}

// A matrix has a row for each node; anything else is told with its place.
func TestMatrix(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		text, problem string
		want          [][]time.Duration
	}{
		{text: "# from a, b\n0 1.5ms\n2, 0 # back\n\n", want: [][]time.Duration{{0, 1500 * time.Microsecond}, {2 * ms, 0}}},
		{text: "0,1\n0", problem: "row 2 has 1 delays and there are 2 rows"},
		{text: "0 x", problem: `line 1: cell 2: "x" is no delay`},
		{text: "0,1\n1,0\n", want: [][]time.Duration{{0, ms}, {ms, 0}}},
		{text: "0,,1\n1,0", problem: `line 1: cell 2: "" is no delay`},
		{text: "0,1,\n1,0", problem: `line 1: cell 3: "" is no delay`},
		{text: "0 1\n1 ;; 0", problem: `line 2: cell 2: "" is no delay`},
		{text: "0 1e99", problem: `"1e99" is no delay`},
		{text: "# none", problem: "holds 0 rows; write one for each node, 1 to 1024"},
		{text: "0\n" + strings.Repeat("0\n", 1024), problem: "has 1 delays and there are 1025 rows"},
		{text: strings.Repeat(strings.Repeat("0 ", 1025)+"\n", 1025), problem: "holds 1025 rows; write one for each node, 1 to 1024"},
	} {
		path := filepath.Join(t.TempDir(), "matrix.csv")
		write(t, path, c.text)
		got, err := readMatrix(path)
		checkFile(t, c.text, got, err, c.want, c.problem)
	}
}

func checkFile(t *testing.T, text string, got [][]time.Duration, err error, want [][]time.Duration, problem string) {
	t.Helper()
	if problem == "" && (err != nil || !reflect.DeepEqual(got, want)) {
		t.Errorf("%q is %v, %v; want %v", text, got, err, want)
	}
	if problem != "" && (err == nil || !strings.Contains(err.Error(), problem) || strings.Contains(err.Error(), "\n")) {
		t.Errorf("%.200q: error %v, want %q in one line", text, err, problem)
	}
}

func TestSimProgress(t *testing.T) {
	if got, want := simProgress(50, 200, time.Minute), "[#####...............] 50/200 simulated  3m0s left"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := simProgress(0, 0, 0); !strings.Contains(got, "0/0") {
		t.Errorf("%q", got)
	}
}
