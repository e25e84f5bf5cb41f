package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/engine/builtin"
)

// asProgram makes the test binary behave as hearsay itself, so that a demo
// started by a test can start its nodes.
const asProgram = "HEARSAY_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// program is hearsay with these arguments, not yet started.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// demo is a running `hearsay demo` of four nodes.
type demo struct {
	cmd   *exec.Cmd
	urls  []string
	pids  []int
	mu    sync.Mutex
	lines []string
	done  chan struct{}

	lastFailure time.Time // when n2 was last said not to have answered
}

var nodeLine = regexp.MustCompile(`^  n\d+ +(http://\S+)  pid (\d+)$`)

func startDemo(t *testing.T, args ...string) *demo {
	t.Helper()
	d := &demo{done: make(chan struct{})}
	d.cmd = program(t, append([]string{
		"demo", "--requests", "0",
		"--port", strconv.Itoa(freePorts(t, 4)), "--peer-port", strconv.Itoa(freePorts(t, 4)),
	}, args...)...)
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd.Stderr = os.Stderr
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.cmd.Process.Kill() })
	ready := make(chan struct{})
	go d.read(out, ready)
	select {
	case <-ready:
	case <-d.done:
		t.Fatalf("the demo ended:\n%s", d.text())
	}
	return d
}

// read takes in what the demo prints until it ends; ready is closed at the
// head of the live lines.
func (d *demo) read(out io.Reader, ready chan<- struct{}) {
	defer close(d.done)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		d.mu.Lock()
		d.lines = append(d.lines, line)
		if m := nodeLine.FindStringSubmatch(line); m != nil {
			pid, _ := strconv.Atoi(m[2])
			d.urls, d.pids = append(d.urls, m[1]), append(d.pids, pid)
		}
		if strings.Contains(line, "no answer n2") {
			d.lastFailure = time.Now()
		}
		d.mu.Unlock()
		if strings.HasPrefix(line, "entry") {
			close(ready)
		}
	}
}

func (d *demo) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// stop presses Ctrl-C and checks that nothing stays behind.
func (d *demo) stop(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-d.done
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("the demo ended with %v:\n%s", err, d.text())
	}
	for _, pid := range d.pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d stayed behind: %v", pid, err)
		}
	}
}

// nextPort is where freePorts goes on: below what systems give to connections that
// ask for no port in particular, of which other tests make many.
var nextPort = 10000 + rand.IntN(10000)

// freePorts finds n free ports in a row on loopback, which it gives once.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for ; nextPort < 32000; nextPort++ {
		free := 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", loopback(nextPort+free))
			if err != nil {
				break
			}
			l.Close()
		}
		if free == n {
			nextPort += n
			return nextPort - n
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// question is one request and the text that a lone engine answers.
type question struct{ body, want string }

func questions(t *testing.T, n int) []question {
	t.Helper()
	e, err := builtin.Open(builtin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var list []question
	for i := range n {
		topic := []string{"whales", "kings", "treaties", "ships", "prophets"}[i%5]
		prompt := strings.Repeat("It is written of "+topic+" that they are many. ", 8) + fmt.Sprint("Chapter ", i, ":")
		stream, err := e.Generate(t.Context(), builtin.Request{Prompt: e.Encode(prompt), MaxTokens: 4})
		if err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for text, ok := stream.Next(); ok; text, ok = stream.Next() {
			want.WriteString(text)
		}
		body, _ := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": 4, "temperature": 0})
		list = append(list, question{string(body), want.String()})
	}
	return list
}

func ask(url string, q question) error {
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(q.body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct{ Choices []struct{ Text string } }
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &answer); err != nil || len(answer.Choices) != 1 {
		return fmt.Errorf("status %d: %s", resp.StatusCode, data)
	}
	if got := answer.Choices[0].Text; got != q.want {
		return fmt.Errorf("answered %q, want %q", got, q.want)
	}
	return nil
}

// A node that dies in the middle of 200 requests, most of which would go to
// it, costs no answer and changes none.
func TestDemoOutlivesANode(t *testing.T) {
	list := questions(t, 205)
	d := startDemo(t)
	defer d.stop(t)
	const victim = 1
	for _, q := range list[200:] { // makes the victim the specialist of every topic
		if err := ask(d.urls[victim], q); err != nil {
			t.Fatal(err)
		}
	}
	list = list[:200]
	var next, wrong atomic.Int64
	var killed atomic.Int64
	var clients sync.WaitGroup
	for client := range 4 {
		entry := d.urls[[]int{0, 2, 3, 0}[client]]
		clients.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(list)) {
					return
				}
				if i == 100 {
					if err := syscall.Kill(d.pids[victim], syscall.SIGKILL); err != nil {
						t.Error(err)
					}
					killed.Store(time.Now().UnixNano())
				}
				if err := ask(entry, list[i]); err != nil {
					wrong.Add(1)
					t.Errorf("request %d at %s: %v", i, entry, err)
				}
			}
		})
	}
	clients.Wait()
	d.mu.Lock()
	last := d.lastFailure
	d.mu.Unlock()
	t.Logf("%d of %d answers right", int64(len(list))-wrong.Load(), len(list))
	if last.IsZero() {
		t.Log("no request was sent to the dead node")
	} else {
		t.Logf("the last request sent to the dead node was set aside %v after SIGKILL", last.Sub(time.Unix(0, killed.Load())))
	}
	if !strings.Contains(d.text(), " n2 ") {
		t.Error("the victim served nothing: the test tests nothing")
	}
}

// A demo whose own process is killed leaves no node behind.
func TestDemoKilledLeavesNothing(t *testing.T) {
	d := startDemo(t)
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-d.done // the nodes hold the pipe's other end no longer
	_ = d.cmd.Wait()
	for _, pid := range d.pids {
		if err := waitGone(pid); err != nil {
			t.Error(err)
		}
	}
}

// waitGone waits until a process that is not our child has ended.
func waitGone(pid int) error {
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return nil
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && bytes.Contains(stat, []byte(") Z ")) {
			return nil // ended, and its new parent has not looked yet
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("process %d stayed behind", pid)
}

// Each mistake of an operator is one sentence with the remedy, and exit 2.
func TestMisuse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	dir := t.TempDir()
	config := dir + "/hearsay.yaml"
	if err := os.WriteFile(config, []byte("listen: 127.0.0.1:0\npolicy: longest\nfrobnicate: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	free := fmt.Sprintf("demo --nodes 1 --port %d --peer-port %d", freePorts(t, 1), freePorts(t, 1))
	for _, c := range []struct {
		args string
		want string
	}{
		{"demo --nodes 1 --port " + port, "127.0.0.1:" + port + " is taken by another program; choose other ports with --port"},
		{"demo --nodes 1 --port " + strconv.Itoa(freePorts(t, 1)) + " --peer-port " + port, "choose other ports with --peer-port"},
		{"demo --nodes 4 --port 0", "--port: 4 nodes have no ports from 0 on"},
		{"demo --nodes 4 --port 7944", "overlap"},
		{"demo --requests -1", "--requests: -1 prompts; choose 0 to 10000"},
		{"demo --requests 99999999999", "--requests"},
		{"demo --poll 1ms", "--poll: 1ms between rumors; choose 20ms to 5m0s"},
		{free + " --model /nowhere.bin", "n1 ended; what it said stands above"},
		{free + " -- --nosuch", "n1 ended; what it said stands above"},
		{"serve --listen=", "--listen is empty"},
		{"status --node=", "--node is empty"},
		{"demo --nodes 0", "--nodes: 0 is not between 1 and 64"},
		{"demo --policy best", `unknown policy "best"; choose one of local, longest, longest+pushback`},
		{"serve --listen 127.0.0.1:" + port, "is taken by another program; choose another with --listen"},
		{"serve --listen 127.0.0.1:0 --peer-listen 127.0.0.1:" + port, "choose another with --peer-listen"},
		{"serve --listen 127.0.0.1:0 --peer-listen 0.0.0.0:0", "--insecure-peers"},
		{"serve --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0 --engine vllm", "is not a URL such as http://127.0.0.1:30000"},
		{"serve --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0 --model /nowhere.gguf", "/nowhere.gguf"},
		{"serve --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0 --poll 1ms", "--poll must be 20ms to 300s"},
		{"serve --forwards-max 0", "--forwards-max must be at least 1"},
		{"serve --body-max 10 --bodies-max 5", "--bodies-max must be at least --body-max"},
		{"serve --link-jitter 1ms", "--link-jitter must be 0 to --link-delay"},
		{"serve --warm-share 0.1 --policy longest", "--warm-share must be left out unless --policy is economic and --warming on: nothing is warmed then"},
		{"serve --warm-share 0.1 --warming=false", "--warm-share must be left out unless"},
		{"serve --engine http://127.0.0.1:1 --model x.gguf", "--engine must be builtin"},
		{"serve --rumor-bytes 9999", "--rumor-bytes must be at least 10000"},
		{"serve --gossip shout", "--gossip must be delta or paper"},
		{"serve --peer-cert x", "--peer-"},
		{"serve --cluster-key /nowhere", "--cluster-key"},
		{"serve --log-level loud", `"loud" is none of debug, info, warn, error`},
		{"serve --config /nowhere.yaml", "--config"},
		{"serve --config " + config, "there is no flag --frobnicate"},
		{"serve extra", "unknown"},
		{"demo extra", "come after --"},
		{"xyzzy", "unknown command"},
		{"bench --workload poems", "poems"},
		{"serve --no-such-flag", "unknown flag: --no-such-flag"},
	} {
		cmd := program(t, strings.Fields(c.args)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") > 2 {
			t.Errorf("hearsay %s: %v, want exit 2 and %q, got\n%s", c.args, err, c.want, stderr.String())
		}
	}
}

// What cannot be done is exit 1, and says what to try.
func TestFailure(t *testing.T) {
	for args, want := range map[string]string{
		"status --node " + loopback(freePorts(t, 1)):            "--node takes the address",
		"bench --target http://" + loopback(freePorts(t, 1)):    "start a node there",
		"bench --target http://" + loopback(1) + " --model any": "cannot reach",
	} {
		out, err := program(t, strings.Fields(args)...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), want) {
			t.Errorf("hearsay %s: %v, want exit 1 and %q, got\n%s", args, err, want, out)
		}
	}
}

// Flags come from the command line, else from the environment, else from the file.
func TestFlagSources(t *testing.T) {
	config := t.TempDir() + "/hearsay.yaml"
	if err := os.WriteFile(config, []byte("policy: longest\npoll: 2s\nlink-delay: 3ms\njoin:\n  - 127.0.0.1:1\n  - 127.0.0.1:2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HEARSAY_POLICY", "local")
	t.Setenv("HEARSAY_POLL", "3s")
	cmd := serveCommand()
	if err := cmd.ParseFlags([]string{"--config", config, "--policy", "longest+pushback"}); err != nil {
		t.Fatal(err)
	}
	if err := fillFlags(cmd); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"policy": "longest+pushback", "poll": "3s", "link-delay": "3ms", "join": "[127.0.0.1:1,127.0.0.1:2]",
	} {
		if got := cmd.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", name, got, want)
		}
	}
	for text, want := range map[string]string{
		"engine:\n":                "engine has no value",
		"join: {a: b}\n":           "join has no value",
		"name: [a, b]\n":           "name has no value",
		"- listen\n":               "holds no mapping",
		"name: a\n---\nname: b\n":  "holds 2 documents",
		"until-stdin-ends: true\n": "there is no flag",
	} {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := serveCommand()
		_ = cmd.ParseFlags([]string{"--config", config})
		if err := fillFlags(cmd); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := os.WriteFile(config, []byte("name: 0123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HEARSAY_JOIN", "a:1, b:2")
	t.Setenv("HEARSAY_LISTEN", "")
	cmd = serveCommand()
	_ = cmd.ParseFlags([]string{"--config", config})
	if err := fillFlags(cmd); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"name": "0123", "join": "[a:1,b:2]", "listen": "127.0.0.1:8080"} {
		if got := cmd.Flags().Lookup(name).Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", name, got, want)
		}
	}
	t.Setenv("HEARSAY_POLL", "soon")
	if err := fillFlags(serveCommand()); err == nil || !strings.Contains(err.Error(), `HEARSAY_POLL="soon"`) {
		t.Errorf("a bad environment variable: %v", err)
	}
}
