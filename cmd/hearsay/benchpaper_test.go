package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The simulator and running processes tell one story of the same requests: hit rates
// within a point. What is cached where nothing is routed follows from the requests
// alone; routing follows rumors, which a busy machine may delay beyond the next
// request, so there one run of three must agree. Means are printed, not held: what
// the machine adds to them is its own. TestNodesDoAsSimulated holds them.
func TestProcessesDoAsSimulated(t *testing.T) {
	t.Setenv(asProgram, "1")
	f := paperFlags{requests: 60, seed: 1, timeScale: 0.05, blockTokens: 14, port: freePorts(t, 4), peerPort: freePorts(t, 4)}
	rows := paperRows()
	if err := f.check(rows); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows[len(rows)-2:] {
		if _, err := f.simulate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		tries, within := 1, 0.002
		if r.Policy != "local" {
			tries, within = 3, 0.01
		}
		for {
			var said bytes.Buffer
			if err := f.measure(t.Context(), r, &said, nil); err != nil {
				t.Fatalf("%v\n%s", err, &said)
			}
			t.Logf("%s: hit %.3f simulated, %.3f measured; mean %.3f s, %.3f s", r.name(), *r.Simulated.ActualHit, *r.ActualHit, *r.Simulated.Mean, *r.Mean)
			apart := math.Abs(*r.ActualHit - *r.Simulated.ActualHit)
			if tries--; r.Errors == 0 && apart <= within {
				break
			} else if tries == 0 {
				t.Errorf("%s: %d errors; hit rate %.3f simulated, %.3f measured, which may be %g apart", r.name(), r.Errors, *r.Simulated.ActualHit, *r.ActualHit, within)
				break
			}
		}
	}
}

// The rows are the paper's, each once, and what the paper gives of them is all there.
func TestPaperRows(t *testing.T) {
	var got []string
	for _, r := range paperRows() {
		got = append(got, fmt.Sprintf("%s %s %v: %s %s %s", r.Workload, r.name(), r.scenario.Delay,
			digits(r.Paper.Mean, 1, 3), digits(r.Paper.ExpectedHit, 1, 3), digits(r.Paper.ActualHit, 1, 3)))
	}
	want := []string{
		"mmlu uniform, no-route 2ms: 0.323 0.473 0.831",
		"mmlu uniform, routed 2ms: 0.310 0.664 0.837",
		"mmlu uniform, routed 200ms: 0.785 - -",
		"mmlu uniform, routed 1s: 2.271 - -",
		"mmlu-skewed skewed, no-route 2ms: 0.266 0.674 0.856",
		"mmlu-skewed skewed, routed 2ms: 0.206 0.886 0.914",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// A bench that loses a node, or is told to stop, says what it has, fails, and leaves
// no process behind.
func TestBenchPaperBrokenOff(t *testing.T) {
	for _, c := range []struct {
		name, want string
		end        func(bench *os.Process, nodes []int) error
	}{
		{"a node is killed", "broken off in run 1 of 6: n", func(_ *os.Process, nodes []int) error { return syscall.Kill(nodes[2], syscall.SIGKILL) }},
		{"Ctrl-C", "broken off in run 1 of 6: interrupted", func(bench *os.Process, _ []int) error { return bench.Signal(os.Interrupt) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := freePorts(t, 4)
			cmd := program(t, "bench", "paper", "--time-scale", "1", "--requests", "400", "--port", strconv.Itoa(port), "--peer-port", strconv.Itoa(freePorts(t, 4)))
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			served := func() bool { // the load has begun
				s, err := fetchStatus(t.Context(), "http://"+loopback(port))
				return err == nil && s.TreeBlocks > 0
			}
			for !served() {
				select {
				case err := <-ended:
					t.Fatalf("ended with %v before it began, said\n%s", err, &said)
				case <-time.After(20 * time.Millisecond):
				}
			}
			nodes := childrenOf(t, cmd.Process.Pid)
			if len(nodes) != 4 {
				t.Fatalf("children %v", nodes)
			}
			if err := c.end(cmd.Process, nodes); err != nil {
				t.Fatal(err)
			}
			err := <-ended
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(said.String(), c.want) {
				t.Errorf("ended with %v, said\n%s", err, &said)
			}
			for _, pid := range nodes {
				if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("process %d stayed behind: %v", pid, err)
				}
			}
		})
	}
}

// childrenOf lists the processes that pid has started, as Linux tells.
func childrenOf(t *testing.T, pid int) (children []int) {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if len(tasks) == 0 {
		t.Skip("this system does not tell a process's children in /proc")
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(word)
			children = append(children, child)
		}
	}
	return children
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
	r := paperRows()[0]
	for scale, want := range map[float64][2]time.Duration{
		1:    {500 * time.Millisecond, 500 * time.Millisecond},
		0.05: {25 * time.Millisecond, 500 * time.Millisecond},
		0.01: {20 * time.Millisecond, 2 * time.Second},
	} {
		f := paperFlags{timeScale: scale}
		if got := [2]time.Duration{f.poll(r), f.unscaled(f.poll(r))}; got != want {
			t.Errorf("scale %g: polls every %v, which stands for %v; want %v", scale, got[0], got[1], want)
		}
	}
}

// Flags that nothing would read, or that make no engine, are refused in a sentence.
func TestEmulatedMisuse(t *testing.T) {
	const serve = "serve --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0 --engine "
	for _, tc := range []struct{ args, want string }{
		{"bench paper --requests 0", "--requests: 0 make no workload"},
		{"bench paper --requests 9223372036854775807", "--requests"},
		{"bench paper --requests 20000", "ask for fewer with --requests"},
		{"bench paper --time-scale 0", "--time-scale: 0 real seconds to one; choose 0.01 to 1"},
		{"bench paper --time-scale -1", "--time-scale"},
		{"bench paper --time-scale 1e-9", "--time-scale"},
		{"bench paper --time-scale NaN", "--time-scale"},
		{"bench paper --time-scale Inf", "--time-scale"},
		{"bench paper --time-scale 2", "--time-scale"},
		{"bench paper --block-tokens 0", "--block-tokens: 0 in 64 bytes; choose 1 to 64"},
		{"bench paper --block-tokens 65", "--block-tokens"},
		{"bench paper --port 70000", "--port"},
		{"bench paper --peer-port -1", "--peer-port"},
		{"bench paper --port 7946", "overlap; choose them further apart"},
		{"bench paper --data /nowhere", "--data"},
		{"bench paper extra", "unknown command"},
		{serve + "emulated:nosuch", "unknown profile"},
		{serve + "emulated --time-scale 0", "--time-scale must be above 0"},
		{serve + "emulated --block-tokens 9999", "choose 1 to 512"},
		{serve + "builtin --time-scale 0.5", "--engine must be emulated where"},
		{serve + "http://127.0.0.1:1 --engine-kind tgi", "--engine-kind must be auto, vllm, sglang, llamacpp, ollama or openai"},
		{serve + "builtin --engine-kind vllm", "--engine must be a URL where --engine-kind is given"},
	} {
		cmd := rootCommand()
		cmd.SetArgs(strings.Fields(tc.args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", tc.args, err)
		}
		if strings.HasPrefix(tc.args, "bench paper --") && !errors.As(err, new(usageError)) {
			t.Errorf("%s: %v is not misuse", tc.args, err)
		}
	}
}

// A port that another program has is misuse, before anything is simulated.
func TestBenchPaperPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", loopback(0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := paperFlags{requests: 1, timeScale: 1, blockTokens: 14, port: l.Addr().(*net.TCPAddr).Port, peerPort: 1024}
	err = f.check(paperRows())
	if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), "is taken by another program; choose other ports with --port") {
		t.Error(err)
	}
}
