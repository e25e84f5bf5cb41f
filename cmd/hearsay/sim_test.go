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
	row := rows(t, "--requests", "60", "--policy", "longest")[0]
	want := []string{
		"policy", "workload", "nodes", "delay_ms", "poll_ms", "requests", "errors", "mean_s", "p50_s", "p99_s",
		"ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "expected_hit", "actual_hit", "fullest_share", "share_by_node",
		"forwarded_share", "rumor_bytes_per_node_s", "data", "seed", "repeats", "profile", "history",
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
	policies := append(sim.Policies(), "longest")
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
	args := []string{"run", "--requests", "40", "--closed", "8", "--nodes", "2", "--policy", "local", "--fault", "1s crash 1"}
	out, err := simulate(t.Context(), args...)
	if err != nil || !strings.Contains(out, "failed: the node it came to has died") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
	out, err = simulate(t.Context(), append(args, "--fault", "0s crash 1-2")...)
	if err == nil || errors.As(err, new(usageError)) || !strings.Contains(out, "40 failed: no node is up") {
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
		{text: "regions:\n- {name: a, nodes: 2, within: 1ms, delay: 2ms}", problem: "delay"},
		{text: "", problem: "0 nodes in 0 regions"},
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
		{text: "0 x", problem: `line 1: "x" is no delay`},
		{text: "0 1e99", problem: `"1e99" is no delay`},
		{text: "# none", problem: "holds no delays"},
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
		t.Errorf("%q: error %v, want %q in one line", text, err, problem)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		text, problem string
		want          sim.Fault
	}{
		{text: "10s crash 2", want: sim.Fault{At: 10 * time.Second, Kind: sim.Crash, Nodes: []int{1}}},
		{text: " 1m30s  restart 1,3-4 ", want: sim.Fault{At: 90 * time.Second, Kind: sim.Restart, Nodes: []int{0, 2, 3}}},
		{text: "0s partition 4", want: sim.Fault{Kind: sim.Partition, Nodes: []int{3}}},
		{text: "5s heal", want: sim.Fault{At: 5 * time.Second, Kind: sim.Heal}},
		{text: "5s slow 1 x2.5", want: sim.Fault{At: 5 * time.Second, Kind: sim.Slow, Nodes: []int{0}, Factor: 2.5}},
		{text: "", problem: `such as "10s crash 2"`},
		{text: "10 crash 2", problem: `"10" is no time since the start`},
		{text: "-1s crash 2", problem: `"-1s" is no time since the start`},
		{text: "1s explode 2", problem: `unknown kind "explode"; choose crash`},
		{text: "1s crash", problem: "name the nodes"},
		{text: "1s crash 5", problem: `"5" names no nodes of 1 to 4`},
		{text: "1s crash 0", problem: "names no nodes"},
		{text: "1s crash 3-2", problem: "names no nodes"},
		{text: "1s crash n2", problem: "names no nodes"},
		{text: "1s heal 2", problem: "name no nodes"},
		{text: "1s slow 2", problem: `such as "10s slow 2 x4"`},
		{text: "1s slow 2 x0", problem: `"x0" is no factor`},
		{text: "1s slow 2 xnan", problem: "is no factor"},
	} {
		got, err := parseFault(c.text, 4)
		if c.problem == "" && (err != nil || !reflect.DeepEqual(got, c.want)) {
			t.Errorf("%q is %+v, %v; want %+v", c.text, got, err, c.want)
		}
		if c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%q: error %v, want %q", c.text, err, c.problem)
		}
	}
}

// Misuse is told from failure: the one exits 2, the other 1.
func TestSimMisuse(t *testing.T) {
	matrix := filepath.Join(t.TempDir(), "matrix")
	write(t, matrix, "0 1\n1 0")
	for _, c := range []struct {
		args   []string
		want   string
		misuse bool
	}{
		{[]string{"nosuch"}, `there is no "nosuch" to simulate`, true},
		{[]string{"run", "--workload", "nosuch"}, "choose mmlu", true},
		{[]string{"run", "--workload", "bbh"}, "bbh needs its data", true},
		{[]string{"run", "--policy", "nosuch"}, `unknown policy "nosuch"; choose one of local`, true},
		{[]string{"run", "--policy", ""}, "--policy names none", true},
		{[]string{"run", "--profile", "nosuch"}, "choose one of paper", true},
		{[]string{"run", "--entry", "best"}, "choose round-robin, random or first", true},
		{[]string{"run", "--nodes", "0"}, "--nodes must be above 0", true},
		{[]string{"run", "--nodes", "5000"}, "5000 nodes; choose 1 to 1024", true},
		{[]string{"run", "--requests", "-1"}, "--requests must be above 0", true},
		{[]string{"run", "--rate", "nan"}, "--rate must be above 0", true},
		{[]string{"run", "--rate", "1e-8"}, "--rate must be from 0.001 to 1e+06", true},
		{[]string{"run", "--rate", "inf"}, "--rate must be from 0.001 to 1e+06", true},
		{[]string{"run", "--max-tokens", "10000000000"}, "--max-tokens must be from 1 to 1e+06", true},
		{[]string{"run", "--poll", "0"}, "--poll must be from 20ms", true},
		{[]string{"run", "--rate", "1", "--closed", "2"}, "--rate and --closed exclude each other", true},
		{[]string{"run", "--rate", "1", "--arrivals", "x.csv"}, "--rate and --arrivals exclude each other", true},
		{[]string{"run", "--regions", "r.yaml", "--nodes", "4"}, "--regions and --nodes exclude each other", true},
		{[]string{"run", "--matrix", matrix, "--delay", "1ms"}, "--matrix and --delay exclude each other", true},
		{[]string{"run", "--matrix", "/nosuch"}, "--matrix: open /nosuch", true},
		{[]string{"run", "--regions", "/nosuch"}, "--regions: open /nosuch", true},
		{[]string{"run", "--matrix", matrix, "--fault", "1s crash 3"}, "names no nodes of 1 to 2", true},
		{[]string{"run", "--capacity", "some"}, "--capacity some is no number of tokens", true},
		{[]string{"run", "--block-tokens", "513"}, "513 tokens; choose 1 to 512", true},
		{[]string{"run", "--poll", "1ms"}, "choose between 20ms and 5m0s", true},
		{[]string{"run", "--delay", "2h"}, "must not be above 1h", true},
		{[]string{"run", "--delay", "-2ms"}, "negative", true},
		{[]string{"run", "--loss", "1.5"}, "share 1.5; choose 0 to 1", true},
		{[]string{"run", "--data", t.TempDir()}, "leave --data out for synthetic prompts", false},
		{[]string{"run", "--workload", "mooncake:/nosuch"}, "read trace: open /nosuch", false},
	} {
		out, err := simulate(t.Context(), c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || errors.As(err, new(usageError)) != c.misuse || out != "" {
			t.Errorf("%v: error %v (misuse %v), printed %q", c.args, err, errors.As(err, new(usageError)), out)
		}
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
