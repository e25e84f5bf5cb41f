package main

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/hearsay-project/hearsay/sim"
)

func TestParseFault(t *testing.T) {
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
		{text: "1e300s crash 2", problem: "is no time since the start"},
		{text: "1s explode 2", problem: `unknown kind "explode"; choose crash`},
		{text: "1s crash", problem: "name the nodes"},
		{text: "1s crash 5", problem: `"5" names no nodes of 1 to 4`},
		{text: "1s crash 0", problem: "names no nodes"},
		{text: "1s crash 3-2", problem: "names no nodes"},
		{text: "1s crash n2", problem: "names no nodes"},
		{text: "1s crash 1-3,2", problem: "node 2 is named twice"},
		{text: "1s heal 2", problem: "name no nodes"},
		{text: "1s slow 2", problem: `such as "10s slow 2 x4"`},
		{text: "1s slow 2 x0", problem: `"x0" is no factor`},
		{text: "1s slow 2 xnan", problem: "is no factor"},
		{text: "1s slow 2 x1e-300", problem: `"x1e-300" is no factor from x0.01 to x1000`},
		{text: "1s slow 2 xinf", problem: "is no factor"},
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

// A fault that would change nothing is refused, in whatever order they are given; a
// restart always changes something.
func TestFaultsThatChangeNothing(t *testing.T) {
	for _, c := range []struct{ faults, problem string }{
		{"1s crash 1; 2s restart 1; 3s crash 1", ""},
		{"1s restart 1; 2s restart 1-4", ""},
		{"1s partition 1; 2s partition 2; 3s heal; 4s partition 1; 5s partition 1-2", ""},
		{"1s slow 1 x2; 2s slow 1-2 x2; 3s slow 1-4 x1", ""},
		{"3s heal; 1s partition 1", ""},

		{"2s crash 2; 1s crash 2,3", `--fault "2s crash 2": node 2 is down by then; restart it`},
		{"1s heal", `--fault "1s heal": no partition is there to end`},
		{"1s partition 1; 2s heal; 3s heal", `--fault "3s heal": no partition`},
		{"1s partition 1-4", `--fault "1s partition 1-4": these are all nodes`},
		{"1s partition 1; 2s partition 1-4", "these are all nodes"},
		{"1s partition 1; 2s partition 1", `--fault "2s partition 1": these nodes are cut off`},
		{"1s partition 1; 2s partition 2-4", "these nodes are cut off"},
		{"1s slow 2 x1", `--fault "1s slow 2 x1": these engines are at x1`},
		{"1s slow 2 x3; 2s slow 2 x3", "at x3 by then"},
	} {
		faults, err := readFaults(strings.Split(c.faults, "; "), 4)
		switch {
		case c.problem == "" && (err != nil || len(faults) != strings.Count(c.faults, ";")+1):
			t.Errorf("%s: %v, %v", c.faults, faults, err)
		case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
			t.Errorf("%s: error %v, want %q", c.faults, err, c.problem)
		}
	}
	if _, err := readFaults([]string{"1s partition 1"}, 1); err == nil {
		t.Error("a partition of the only node is accepted")
	}
}

// isMisuse says whether err exits 2: a mistake, or a flag that cannot be read.
func isMisuse(err error) bool {
	return errors.As(err, new(usageError)) || err != nil && strings.HasSuffix(err.Error(), "--help`")
}

// Whatever is absurd is refused in one sentence that names the flag, of every flag
// of the simulator's commands.
func TestSimFlagsRefuseWhatCannotBe(t *testing.T) {
	absurd := map[string][]string{
		"int":         {"", "x", "-1", "1.5", "99999999999999999999", "9223372036854775807", "NaN", "Inf"},
		"int64":       {"", "x", "-1", "1", "99999999999999999999", "9223372036854775807", "NaN"},
		"uint64":      {"", "x", "-1", "99999999999999999999", "NaN"},
		"float64":     {"", "x", "-1", "1e999", "1e300", "NaN", "+Inf", "-Inf"},
		"duration":    {"", "x", "-1ms", "9999h", "1e300s", "NaN", "5"},
		"bool":        {"maybe"},
		"string":      {"", " ", "/nosuch"},
		"stringSlice": {"", "/nosuch", "local,local", "local,", `"`},
		"stringArray": {"", "/nosuch"},
	}
	run, _, err := rootCommand().Find([]string{"sim", "run"})
	if err != nil {
		t.Fatal(err)
	}
	paper, _, _ := rootCommand().Find([]string{"sim", "paper"})
	for _, cmd := range []struct {
		name  string
		flags *pflag.FlagSet
	}{{"run", run.Flags()}, {"paper", paper.Flags()}} {
		cmd.flags.VisitAll(func(f *pflag.Flag) {
			for _, value := range absurd[f.Value.Type()] {
				switch {
				case f.Name == "out" && value == "/nosuch":
					value = "/dev/null/nosuch" // the other can be made
				case cmd.name == "paper" && f.Name == "requests" && !strings.HasPrefix(value, "-") && len(value) == 19:
					continue // no run has as many, and none has more
				}
				args := []string{cmd.name, "--" + f.Name + "=" + value}
				if f.Name != "requests" {
					args = append(args, "--requests=1")
				}
				out, err := simulate(t.Context(), args...)
				if !isMisuse(err) || out != "" || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "--"+f.Name) && f.Name != "data" || !strings.Contains(err.Error(), "; ") {
					t.Errorf("%q: error %v, printed %.80q", args, err, out)
				}
			}
			if absurd[f.Value.Type()] == nil {
				t.Errorf("--%s: nothing absurd is known of a %s", f.Name, f.Value.Type())
			}
		})
	}
}

// Flags that do not go together are refused, as are files that are not what they
// are named for; all of it is misuse.
func TestSimMisuse(t *testing.T) {
	dir := t.TempDir()
	matrix, broken := filepath.Join(dir, "matrix"), filepath.Join(dir, "broken.jsonl")
	write(t, matrix, "0 1\n1 0")
	write(t, broken, `{"hash_ids":[1,2],"input_length":1000,"timestamp":1}`+"\nnot json\n")
	write(t, filepath.Join(dir, "good.b16.jsonl"), `{"hash_ids":[1,2],"input_length":32}`)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"nosuch"}, `there is no "nosuch" to simulate`},
		{[]string{"run", "--workload", "nosuch"}, "choose mmlu"},
		{[]string{"run", "--workload", "bbh"}, "bbh needs its data"},
		{[]string{"run", "--policy", "nosuch"}, `--policy: there is no "nosuch"; choose one of local`},
		{[]string{"run", "--policy", ""}, "--policy names none"},
		{[]string{"run", "--policy", "local, longest,local"}, "--policy names local twice; name it once"},
		{[]string{"run", "--nodes", "5000"}, "--nodes 5000 is out of range; choose 1 to 1024"},
		{[]string{"run", "--bandwidth", "1"}, "--bandwidth 1 is out of range; choose 1000"},
		{[]string{"run", "--poll", "1ms"}, "--poll 1ms is out of range; choose 20ms to 5m0s"},
		{[]string{"run", "--rate", "1", "--closed", "2"}, "--rate and --closed exclude each other"},
		{[]string{"run", "--rate", "1", "--arrivals", "x.csv"}, "--rate and --arrivals exclude each other"},
		{[]string{"run", "--regions", "r.yaml", "--nodes", "4"}, "--regions and --nodes exclude each other"},
		{[]string{"run", "--matrix", matrix, "--delay", "1ms"}, "--matrix and --delay exclude each other"},
		{[]string{"run", "--matrix", "/nosuch"}, "--matrix: open /nosuch: no such file or directory; name a file"},
		{[]string{"run", "--regions", "/nosuch"}, "--regions: open /nosuch: no such file or directory; name a file"},
		{[]string{"run", "--matrix", matrix, "--fault", "1s crash 3"}, `--fault "1s crash 3": "3" names no nodes of 1 to 2`},
		{[]string{"run", "--by-topic"}, "add --repeats"},
		{[]string{"run", "--capacity", "some"}, "--capacity some is no number of tokens"},
		{[]string{"run", "--capacity", "15"}, "--capacity 15 holds no block of 16 tokens"},
		{[]string{"run", "--rate", "0.001", "--repeats", "--requests", "10000000"}, "take more than a century"},
		{[]string{"run", "--data", dir}, "leave --data out for synthetic prompts"},
		{[]string{"run", "--workload", "mooncake:/nosuch"}, "--workload: read trace: open /nosuch"},
		{[]string{"run", "--workload", "mooncake:" + broken}, "broken.jsonl, line 2"},
		{[]string{"run", "--workload", "stream:" + broken}, "name it like trace.b16.jsonl, or say so with --block-tokens"},
		{[]string{"run", "--workload", "stream:" + dir + "/good.b16.jsonl", "--block-tokens", "20"}, "take a multiple or a divisor with --block-tokens"},
		{[]string{"run", "--arrivals", matrix}, "--arrivals: read arrivals: " + matrix},
	} {
		out, err := simulate(t.Context(), c.args...)
		if !isMisuse(err) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%v: error %v (misuse %v), printed %q", c.args, err, isMisuse(err), out)
		}
	}
}
