package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/cobra"
)

// answering is a server of the OpenAI API that answers every prompt with one token.
func answering(t *testing.T, each func(n int64)) string {
	t.Helper()
	var n atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Hearsay-Node", "n1")
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"A\"}]}\n\n",
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":6}}}\n\ndata: [DONE]\n\n")
		each(n.Add(1))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// bench runs the command and returns what it printed.
func bench(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	cmd := benchCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// With --json nothing but the object stands on standard output.
func TestBenchReports(t *testing.T) {
	url := answering(t, func(int64) {})
	out, err := bench(t.Context(), "--target", url, "--target", url+"/", "--requests", "20", "--concurrency", "3", "--workload", "mmlu-skewed", "--repeats", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Rows []map[string]any }
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Rows) != 1 {
		t.Fatalf("printed %q: %v", out, err)
	}
	row := got.Rows[0]
	if row["requests"] != 20. || row["actual_hit"] != .75 || row["workload"] != "mmlu-skewed" || row["repeats"] != true || row["nodes"] != 2. {
		t.Errorf("row %v", row)
	}

	out, err = bench(t.Context(), "--target", url, "--requests", "20", "--rate", "10000")
	if err != nil || !strings.Contains(out, "20 of 20 requests done") || !strings.Contains(out, "open loop at 10000/s") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
}

// A run that is broken off prints what it has, and fails.
func TestBenchBrokenOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := answering(t, func(n int64) {
		if n == 5 {
			cancel()
		}
	})
	out, err := bench(ctx, "--target", url)
	if err == nil || !strings.Contains(err.Error(), "of 400 requests") || !strings.Contains(out, "of 400 requests done") {
		t.Errorf("error %v, printed\n%s", err, out)
	}
}

// Some requests that fail are in the report, and fail the run.
func TestBenchWithFailures(t *testing.T) {
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
			return
		}
		if n++; n%4 == 0 {
			http.Error(w, `{"error":{"message":"busy"}}`, http.StatusTooManyRequests)
			return
		}
		io.WriteString(w, "data: {\"choices\":[{\"text\":\"A\"}]}\n\ndata: [DONE]\n\n")
	}))
	defer server.Close()
	out, err := bench(t.Context(), "--target", server.URL, "--requests", "20")
	if err == nil || err.Error() != "5 of 20 requests failed; the times of the report are of the others" || errors.As(err, new(usageError)) {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(out, "20 of 20 requests done") || !strings.Contains(out, "errors: 5\n  status 429: 5, the first: busy") {
		t.Errorf("printed\n%s", out)
	}
}

// A trace is sent at its own speed, with its own lengths, as words or as ids.
func TestBenchReplaysTraces(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.b16.jsonl")
	if err := os.WriteFile(file, []byte(`{"hash_ids":[1],"input_length":16,"output_length":3,"timestamp":0}`+"\n"+`{"hash_ids":[1],"input_length":16,"timestamp":10}`), 0o600); err != nil {
		t.Fatal(err)
	}
	url := answering(t, func(int64) {})
	for _, args := range [][]string{{"--speed", "1000"}, {"--token-ids"}, {"--concurrency", "2", "--requests", "7"}} {
		out, err := bench(t.Context(), append([]string{"--target", url, "--workload", "stream:" + file, "--requests", "2"}, args...)...)
		if err != nil || !strings.Contains(out, "max tokens the trace's") || !strings.Contains(out, "requests done") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// What was asked for and cannot be is misuse, exit 2: one sentence with flag and
// remedy, and nothing is sent. What goes wrong later is failure, exit 1.
func TestBenchMisuse(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		args   string
		want   string
		misuse bool
	}{
		{"--workload nosuch", "choose mmlu, mmlu-skewed, bbh:DIR, chat:FILE, stream:FILE or mooncake:FILE", true},
		{"--rate 1 --concurrency 2", "give one of them", true},
		{"--rate 1 --speed 2", "give one of them", true},
		{"--speed 1", "--speed: the workload mmlu has no times; give --rate or --concurrency", true},
		{"--concurrency 0", "--concurrency must be above 0", true},
		{"--rate 0", "--rate must be above 0", true},
		{"--rate NaN", "--rate: NaN", true},
		{"--rate 1e-9", "choose 0.001 to 1000000", true},
		{"--max-tokens 0", "--max-tokens must be above 0", true},
		{"--timeout 0", "--timeout must be above 0", true},
		{"--timeout -1s", "--timeout: -1s for a request; choose more than 0", true},
		{"--requests 9223372036854775807", "ask for 1 to 10000000", true},
		{"--requests 20000", "ask for fewer with --requests, or allow --repeats", true},
		{"--requests x", "--requests: \"x\" is no whole number; see `hearsay bench --help`", true},
		{"--timeout 5", "is no duration such as 500ms or 2m", true},
		{"--json=maybe", "is neither true nor false", true},
		{"--nosuch", "unknown flag: --nosuch; see", true},
		{"--entry best", "choose round-robin, random or first", true},
		{"--target localhost", "write http://HOST:PORT", true},
		{"--data .", "leave --data out for synthetic prompts", true},
		{"--workload stream:gone.b16.jsonl", "gone.b16.jsonl: no such file or directory; name a file of JSON lines", true},
		{"--workload mooncake:gone", "no such file", true},
		{"--workload chat:gone", "chat:FILE names JSON lines", true},
		{"--workload bbh:gone", "name the folder of the data", true},
		{"--target http://127.0.0.1:1", "cannot reach http://127.0.0.1:1", false},
	} {
		var out strings.Builder
		ran, cmd := false, rootCommand()
		cmd.SetArgs(append([]string{"bench"}, strings.Fields(c.args)...))
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.PersistentPreRun = func(*cobra.Command, []string) { ran = true }
		err := cmd.ExecuteContext(t.Context())
		misuse := !ran || errors.As(err, new(usageError)) // as in run
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || misuse != c.misuse || out.Len() > 0 {
			t.Errorf("%s: error %v (misuse %v), printed %q", c.args, err, misuse, &out)
		}
	}
}
