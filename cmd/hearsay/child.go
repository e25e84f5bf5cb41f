package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
)

// stopTimeout is how long a node may take to end after it was asked to.
const stopTimeout = 5 * time.Second

// child is one serve process of a demo.
type child struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer     // closing it asks the process to end
	logs   io.Reader     // its log lines
	ended  chan struct{} // closed when it has
	screen *screen
}

func startChild(program, name string, args []string, s *screen) (*child, error) {
	c := &child{name: name, cmd: exec.Command(program, args...), ended: make(chan struct{}), screen: s}
	c.cmd.SysProcAttr = ownGroup() // Ctrl-C reaches the demo, which ends its nodes in order
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.stdin, c.logs = stdin, stderr
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go c.wait()
	return c, nil
}

// wait shows the node's log until it ends, however it ends.
func (c *child) wait() {
	defer close(c.ended)
	lines := bufio.NewScanner(c.logs)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		c.screen.log(c.name, lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, c.logs)
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		c.screen.ended(c.name, c.cmd.Process.Pid, err)
	}
}

// misused says, once c has ended, whether it refused what it was asked to run with.
func (c *child) misused() bool { return c.cmd.ProcessState.ExitCode() == 2 }

// whileAllRun returns a context that ends with ctx, or as soon as a node has ended;
// its cause then says which, as misuse where the node took it for that. The caller
// must call stop.
func whileAllRun(ctx context.Context, nodes []*child) (all context.Context, stop func()) {
	all, cancel := context.WithCancelCause(ctx)
	var watchers sync.WaitGroup
	for _, c := range nodes {
		watchers.Go(func() {
			select {
			case <-c.ended:
				err := fmt.Errorf("%s ended; what it said stands above", c.screen.speaker(c.name))
				if c.misused() {
					err = usageError{err}
				}
				cancel(err)
			case <-all.Done():
			}
		})
	}
	return all, func() { cancel(nil); watchers.Wait() }
}

// stopAll asks all nodes to end, after stopTimeout makes them, and returns when
// they have.
func stopAll(nodes []*child) {
	for _, c := range nodes {
		c.stdin.Close()
	}
	late := time.AfterFunc(stopTimeout, func() {
		for _, c := range nodes {
			_ = c.cmd.Process.Kill() // one that has ended does not mind
		}
	})
	defer late.Stop()
	for _, c := range nodes {
		<-c.ended
	}
}

// screen writes the demo's lines, one at a time.
type screen struct {
	mu   sync.Mutex
	out  io.Writer
	runs bool // all have been started: a node may end without the others

	// Before that nodes end for one reason, a flag of all of them, say, and the first
	// speaks for the others.
	said   map[string]string // who has said first what is no log
	spoken map[string]string // who speaks for a node, that has said the same
}

// once says whether what a node says is to be shown. s.mu is held.
func (s *screen) once(name, what string) bool {
	if s.runs {
		return true
	}
	if s.said == nil {
		s.said, s.spoken = map[string]string{}, map[string]string{}
	}
	switch first := s.said[what]; first {
	case "", name:
		s.said[what] = name
		return true
	default:
		s.spoken[name] = first
		return false
	}
}

// speaker is who has said what a node that ended before all ran has to say.
func (s *screen) speaker(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.spoken[name], name)
}

// goOn says from now on that a node may end without the others.
func (s *screen) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs, s.said, s.spoken = true, nil, nil
}

func (s *screen) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

func (s *screen) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format, args...)
}

func (s *screen) ended(name string, pid int, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spoken[name] != "" {
		return
	}
	others := ""
	if s.runs {
		others = "; the others go on"
	}
	fmt.Fprintf(s.out, "%s (pid %d) ended: %v%s\n", name, pid, why, others)
}

// logLine is what a demo shows of a node's JSON log.
type logLine struct {
	Path     string  `json:"path"`
	Level    string  `json:"level"`
	Msg      string  `json:"msg"`
	Peer     string  `json:"peer"`
	Err      string  `json:"err"`
	Outcome  string  `json:"outcome"`
	Status   int     `json:"status"`
	Hop      string  `json:"hop"`
	Node     string  `json:"node"`
	Reason   string  `json:"reason"`
	Prompt   int     `json:"prompt_tokens"`
	Expected int     `json:"expected_tokens"`
	Cached   int     `json:"cached_tokens"`
	TTFT     float64 `json:"ttft_ms"` // 0 for an answer that was no stream
	Total    float64 `json:"total_ms"`
}

func (s *screen) header() {
	s.printf("%-6s %-10s %8s %8s %8s %9s %10s  %s\n", "entry", "served by", "prompt", "expected", "cached", "TTFT", "total", "why")
}

// log shows a line of a node's log: a request where its client asked, whatever went
// wrong, and who came later than all were started, or came back.
func (s *screen) log(name string, line []byte) {
	var l logLine
	if json.Unmarshal(line, &l) != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.once(name, string(line)) {
			fmt.Fprintf(s.out, "%s: %s\n", name, line) // a panic's trace, say: never hide it
		}
		return
	}
	at, _ := dialect.Lookup(l.Path)
	switch {
	case l.Msg == "request" && !at.Generates(): // a list of models, say
	case l.Msg == "request" && l.Hop != "received" && l.Outcome == "ok":
		ttft := "-"
		if l.TTFT > 0 {
			ttft = fmt.Sprintf("%.1f ms", l.TTFT)
		}
		s.printf("%-6s %-10s %8d %8d %8d %9s %7.1f ms  %s\n", name, l.Node, l.Prompt, l.Expected, l.Cached, ttft, l.Total, l.Reason)
	case l.Msg == "request" && l.Hop != "received":
		why := ""
		switch l.Outcome {
		case "refused": // the code of the error
			why = ": " + l.Reason
		case "rejected":
			why = fmt.Sprintf(" by the engine with status %d", l.Status)
		}
		s.printf("%-6s %-10s %s%s\n", name, l.Node, l.Outcome, why)
	case l.Level == "WARN" || l.Level == "ERROR", s.isRunning() && (l.Msg == "peer is back" || l.Msg == "peer joined"):
		what := strings.Join(strings.Fields(l.Msg+" "+l.Peer+" "+l.Node), " ")
		if l.Err != "" {
			what += ": " + strings.Join(strings.Fields(l.Err), " ")
		}
		s.printf("%s: %s\n", name, what)
	}
}
