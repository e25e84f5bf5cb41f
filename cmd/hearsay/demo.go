package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
	"github.com/hearsay-project/hearsay/workload"
)

// demoFlags describe a cluster on this machine.
type demoFlags struct {
	nodes    int
	policy   string
	port     int
	peerPort int
	model    string
	requests int
	poll     time.Duration
	extra    []string // flags of serve, for every node
}

func demoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo [flags] [-- flags of serve]",
		Short: "Run a cluster of nodes on this machine and show each request",
		Long: "Demo starts serve processes on loopback, each with the built-in engine, joined through the first.\n" +
			"It sends a few prompts of its own, then shows every request that you send. Ctrl-C ends all of it.\n" +
			"What follows -- goes to every node: hearsay demo -- --link-delay 20ms",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return fmt.Errorf("unknown argument %q; flags for every node come after --", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.extra = args
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&f.nodes, "nodes", 4, "how many nodes, 1 to 64")
	flags.StringVar(&f.policy, "policy", route.Economic{}.Name(), "routing policy of all nodes; see hearsay serve --help")
	flags.IntVar(&f.port, "port", 8080, "API port of the first node; the others follow")
	flags.IntVar(&f.peerPort, "peer-port", 7946, "peer port of the first node; the others follow")
	flags.StringVar(&f.model, "model", "", "model of all nodes; see hearsay serve --help")
	flags.IntVar(&f.requests, "requests", 24, "prompts that the demo sends itself at the start; 0 is none")
	flags.DurationVar(&f.poll, "poll", 500*time.Millisecond, "interval between rumors")
	return cmd
}

// maxDemoRequests take most of an hour.
const maxDemoRequests = 10_000

// readyTimeout is how long a demo waits for its nodes to serve and to know
// each other. They take about a second; a machine that swaps takes longer.
const readyTimeout = 30 * time.Second

// run starts the nodes, shows what happens and, when ctx is done or all nodes
// have ended, leaves nothing behind.
func (f *demoFlags) run(ctx context.Context, out io.Writer) error {
	if f.nodes < 1 || f.nodes > 64 {
		return misuse("--nodes: %d is not between 1 and 64", f.nodes)
	}
	if f.requests < 0 || f.requests > maxDemoRequests {
		return misuse("--requests: %d prompts; choose 0 to %d", f.requests, maxDemoRequests)
	}
	if f.poll < node.MinPoll || f.poll > node.MaxPoll {
		return misuse("--poll: %v between rumors; choose %v to %v", f.poll, node.MinPoll, node.MaxPoll)
	}
	if _, err := route.ByName(f.policy); err != nil {
		return misuse("--policy: %w", err)
	}
	if err := f.checkPorts(); err != nil {
		return err
	}
	screen := &screen{out: out}
	nodes, err := f.start(screen)
	defer stopAll(nodes)
	if err == nil {
		err = f.show(ctx, nodes, screen)
	}
	if ctx.Err() != nil {
		return nil // Ctrl-C is how a demo is meant to end
	}
	return err
}

// start starts the processes and returns those that it has started.
func (f *demoFlags) start(screen *screen) (nodes []*child, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the hearsay program: %w", err)
	}
	for i := range f.nodes {
		c, err := startChild(self, f.name(i), f.serveArgs(i), screen)
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, c)
	}
	return nodes, nil
}

// show is the demo once its processes run. It returns when ctx is done, or when
// there is nothing left to show.
func (f *demoFlags) show(ctx context.Context, nodes []*child, screen *screen) error {
	if err := f.waitReady(ctx, nodes); err != nil {
		return err
	}
	screen.goOn()
	f.introduce(nodes, screen)
	if f.requests > 0 {
		if err := f.drive(ctx, screen); err != nil {
			return err
		}
	}
	for _, c := range nodes {
		select {
		case <-c.ended:
		case <-ctx.Done():
			return nil
		}
	}
	return errors.New("every node has ended")
}

func (f *demoFlags) name(i int) string  { return "n" + strconv.Itoa(i+1) }
func (f *demoFlags) api(i int) string   { return loopback(f.port + i) }
func (f *demoFlags) peers(i int) string { return loopback(f.peerPort + i) }
func loopback(port int) string          { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
func portTaken(err error) bool          { return errors.Is(err, syscall.EADDRINUSE) }

func (f *demoFlags) serveArgs(i int) []string {
	args := append([]string{"serve"}, f.extra...) // first: what the demo says of a node stands
	args = append(args,
		"--name", f.name(i), "--listen", f.api(i), "--peer-listen", f.peers(i),
		"--policy", f.policy, "--poll", f.poll.String(), "--log-json", "--until-stdin-ends")
	if i > 0 {
		args = append(args, "--join", f.peers(0))
	}
	if f.model != "" {
		args = append(args, "--model", f.model)
	}
	return args
}

// checkPorts finds out about a taken port while one sentence can still say so.
func (f *demoFlags) checkPorts() error {
	const last = 65535
	for flag, first := range map[string]int{"port": f.port, "peer-port": f.peerPort} {
		if first < 1 || first+f.nodes-1 > last {
			return misuse("--%s: %d nodes have no ports from %d on; choose 1 to %d", flag, f.nodes, first, last-f.nodes+1)
		}
	}
	if apart := f.port - f.peerPort; apart < f.nodes && -apart < f.nodes {
		return misuse("--port %d and --peer-port %d: the ports of %d nodes overlap; choose them further apart", f.port, f.peerPort, f.nodes)
	}
	check := func(flag, address string) error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			return l.Close()
		}
		if portTaken(err) {
			return misuse("%s is taken by another program; choose other ports with --%s", address, flag)
		}
		return misuse("--%s: %w", flag, err)
	}
	for i := range f.nodes {
		if err := errors.Join(check("port", f.api(i)), check("peer-port", f.peers(i))); err != nil {
			return err
		}
	}
	return nil
}

// waitReady returns when every node serves and has heard from every other.
func (f *demoFlags) waitReady(ctx context.Context, nodes []*child) error {
	ctx, stop := whileAllRun(ctx, nodes)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout,
		fmt.Errorf("the nodes did not find each other within %s", readyTimeout))
	defer cancel()
	for i := range f.nodes {
		for {
			s, err := fetchStatus(ctx, "http://"+f.api(i))
			if err == nil && knows(s, f.nodes-1) {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// knows says whether a node has heard from so many peers.
func knows(s daemon.Status, peers int) bool {
	heard := 0
	for _, p := range s.Peers {
		if p.State == string(node.Alive) {
			heard++
		}
	}
	return heard == peers
}

func (f *demoFlags) introduce(nodes []*child, s *screen) {
	s.printf("%d nodes serve the OpenAI API, policy %s:\n", f.nodes, f.policy)
	for i := range f.nodes {
		s.printf("  %-4s http://%s  pid %d\n", f.name(i), f.api(i), nodes[i].cmd.Process.Pid)
	}
	s.printf("\nTry any of them:\n  curl http://%s/v1/completions -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"prompt\": \"In the beginning\", \"max_tokens\": 40, \"temperature\": 0}'\n"+
		"  %s status --node http://%s\n\n", f.api(f.nodes-1), programName(), f.api(0))
	s.header()
}

// programName is how the user can start this program again.
func programName() string {
	if strings.Contains(os.Args[0], "go-build") {
		return "go run ./cmd/hearsay"
	}
	return os.Args[0]
}

// drive sends the demo's own prompts: few-shot questions of a handful of
// topics, which share long prefixes, entering at each node in turn.
func (f *demoFlags) drive(ctx context.Context, s *screen) error {
	var targets []string
	for i := range f.nodes {
		targets = append(targets, "http://"+f.api(i))
	}
	report, err := workload.Demo(ctx, targets, f.requests)
	if err != nil || ctx.Err() != nil {
		return err
	}
	s.printf("\n%s\nNow it is your turn; each request appears below. Ctrl-C ends the nodes.\n\n", report)
	return nil
}

// untilEOF returns a context that ends with ctx or with r. A node started by a
// demo reads a pipe that the demo holds open, so that it ends with the demo
// however the demo ends.
func untilEOF(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel()
	}()
	return ctx
}
