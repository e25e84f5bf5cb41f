package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
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

// Misuse is told from failure: the one exits 2, the other 1.
func TestBenchMisuse(t *testing.T) {
	for _, c := range []struct {
		args   []string
		want   string
		misuse bool
	}{
		{[]string{"--workload", "nosuch"}, "choose mmlu, mmlu-skewed, bbh or chat:FILE", true},
		{[]string{"--rate", "1", "--concurrency", "2"}, "give one of them", true},
		{[]string{"--concurrency", "0"}, "must be above 0", true},
		{[]string{"--entry", "best"}, "choose round-robin, random or first", true},
		{[]string{"--target", "localhost"}, "write http://HOST:PORT", true},
		{[]string{"--data", t.TempDir()}, "leave --data out for synthetic prompts", false},
		{[]string{"--target", "http://127.0.0.1:1"}, "cannot reach http://127.0.0.1:1", false},
	} {
		out, err := bench(t.Context(), c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, new(usageError)) != c.misuse || out != "" {
			t.Errorf("%v: error %v (misuse %v), printed %q", c.args, err, errors.As(err, new(usageError)), out)
		}
	}
}
