package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

// The simulator and running processes tell one story of the same requests. What
// is cached where nothing is routed follows from the requests alone; routing
// follows rumors, whose timing in processes is not in anyone's hands, so there a
// handful of requests may go another way.
func TestProcessesDoAsSimulated(t *testing.T) {
	t.Setenv(asProgram, "1")
	f := paperFlags{requests: 60, seed: 1, timeScale: 0.05, blockTokens: 14, port: freePorts(t, paperNodes), peerPort: freePorts(t, paperNodes)}
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	for i, tolerance := range map[int]float64{4: 0.002, 5: 0.12} {
		r := paperRows()[i]
		var err error
		if r.sample, err = f.draw(r.Workload); err != nil {
			t.Fatal(err)
		}
		if _, err = f.simulate(r); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		if err = f.measure(t.Context(), r, &said, nil); err != nil {
			t.Fatalf("%v\n%s", err, &said)
		}
		t.Logf("%s: hit %.3f simulated, %.3f measured; mean %.3f s, %.3f s", r.name, *r.Simulated.ActualHit, *r.ActualHit, *r.Simulated.Mean, *r.Mean)
		if apart := math.Abs(*r.ActualHit - *r.Simulated.ActualHit); r.Errors > 0 || apart > tolerance {
			t.Errorf("%s: %d errors; hit rate %.3f simulated, %.3f measured, which may be %g apart", r.name, r.Errors, *r.Simulated.ActualHit, *r.ActualHit, tolerance)
		}
	}
}

// Every node answers a prompt in the same words, whoever has it cached.
func TestEmulatedNodesAnswerAlike(t *testing.T) {
	d := startDemo(t, "--", "--engine", "emulated:paper", "--time-scale", "0.01")
	defer d.stop(t)
	body := `{"prompt":"` + strings.Repeat("It is written that whales are many. ", 20) + `","max_tokens":8}`
	var first string
	for i, url := range append(d.urls, d.urls[0]) {
		resp, err := statusClient.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Choices []struct{ Text string }
			Usage   struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		err = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&answer)
		resp.Body.Close()
		if err != nil || len(answer.Choices) != 1 {
			t.Fatalf("status %d, %v", resp.StatusCode, err)
		}
		if i == 0 {
			first = answer.Choices[0].Text
		}
		if answer.Choices[0].Text != first || len(strings.Fields(first)) != 8 {
			t.Errorf("%s answers %q, the first %q", url, answer.Choices[0].Text, first)
		}
		if i == len(d.urls) && answer.Usage.Details.Cached == 0 {
			t.Errorf("asked again, %s found nothing cached", url)
		}
	}
}

// A poll interval that scaling would bring below what nodes take is kept at that,
// and the simulator is told.
func TestPollIsBounded(t *testing.T) {
	for scale, want := range map[float64][2]time.Duration{
		1:    {500 * time.Millisecond, 500 * time.Millisecond},
		0.05: {25 * time.Millisecond, 500 * time.Millisecond},
		0.01: {20 * time.Millisecond, 2 * time.Second},
	} {
		f := paperFlags{timeScale: scale}
		if got := [2]time.Duration{f.poll(), f.unscaled(f.poll())}; got != want {
			t.Errorf("scale %g: polls every %v, which stands for %v; want %v", scale, got[0], got[1], want)
		}
	}
}

// Flags that nothing would read, or that make no engine, are refused in a sentence.
func TestEmulatedMisuse(t *testing.T) {
	const serve = "serve --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0 --engine "
	for _, tc := range []struct{ args, want string }{
		{"bench paper --requests 0", "--requests"},
		{"bench paper --time-scale 0", "--time-scale"},
		{"bench paper --time-scale 2", "--time-scale"},
		{"bench paper --block-tokens 65", "--block-tokens"},
		{"bench paper extra", "unknown command"},
		{serve + "emulated:nosuch", "unknown profile"},
		{serve + "emulated --time-scale 0", "--time-scale must be above 0"},
		{serve + "emulated --block-tokens 9999", "choose 1 to 512"},
		{serve + "builtin --time-scale 0.5", "--engine must be emulated where"},
	} {
		cmd := rootCommand()
		cmd.SetArgs(strings.Fields(tc.args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.args, err)
		}
	}
}
