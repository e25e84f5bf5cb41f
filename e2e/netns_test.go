//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/e2e/process"
)

const (
	netnsNodes = 8
	netnsRate  = 200 // requests a second

	// netnsModel runs four times as fast as that machine would.
	netnsProfile, netnsModel, netnsScale = "llama2-7b-h100", "emulated-llama2-7b-h100", "0.25"

	// netnsKV is the cache of a node, a quarter of all topics.
	netnsKV = "16384"
)

// phaseLength is how long each fault lasts. That of a run of which figures are
// published is a minute; see experiments/netns.sh.
func phaseLength(t *testing.T) time.Duration {
	text := os.Getenv("HEARSAY_NETNS_PHASE")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		t.Fatalf("HEARSAY_NETNS_PHASE is %q; give a duration of a second or more", text)
	}
	return d
}

// After a fault the cluster is watched until its hit rate is backTo of what it was
// before any, and no longer than restMax: all of that where phases are as long. There it
// has to be back within backWithin; a machine that runs tests beside this one may stall.
const (
	backTo     = 0.95
	restMax    = 15 * time.Second
	backWithin = 5 * time.Second
)

// Eight nodes on hosts of their own, of which the network, then the processes, are
// disturbed in every way that operators know: each request is answered right or refused
// as it may be, and soon after each fault as much is found cached as before all of them.
//
// Faults of the network lie between nodes; the client reaches every one.
func TestNetns(t *testing.T) {
	if os.Getenv("HEARSAY_NETNS_INSIDE") == "" {
		phaseLength(t)
		netnsOutside(t)
		return
	}
	r := startNetns(t, phaseLength(t))
	r.run()
	r.check()
	if *soakOut != "" {
		if err := r.write(*soakOut); err != nil {
			t.Error(err)
		}
	}
}

// netnsOutside runs the test once more, in a network namespace of its own, which is the
// client's host.
func netnsOutside(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces are made by root alone")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("ip is not installed: it is in Debian's package iproute2")
	}
	sweepNamespaces()
	t.Cleanup(sweepNamespaces)
	if err := tryNamespace(); err != nil {
		t.Skipf("this machine lets nobody make network namespaces or TUN devices: %v", err)
	}
	args := []string{"-test.run=^TestNetns$", "-test.v", "-test.timeout=24h", "-soak-out=" + *soakOut, fmt.Sprint("-soak-seed=", *soakSeed)}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "HEARSAY_NETNS_INSIDE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("inside: %v", err)
	}
}

// A netnsRun is a cluster of nodes on a lan, a load, and faults.
type netnsRun struct {
	*soak
	lan   *lan
	phase time.Duration
	least float64 // hit rate to come back to, once that is known

	running sync.WaitGroup // requests under way
	mu      sync.Mutex
	results []netnsResult
	spans   []span
}

// A span is one part of a run: a fault, or the time before the first or after one.
type span struct {
	name     string
	fault    bool
	from, to time.Duration
}

func startNetns(t *testing.T, phase time.Duration) *netnsRun {
	r := &netnsRun{soak: &soak{t: t, log: &outages{}}, lan: newLAN(t, netnsNodes), phase: phase}
	emulated := []string{
		"--engine", "emulated:" + netnsProfile, "--token-bytes", "4", "--kv-tokens", netnsKV, "--poll", "500ms",
	}
	peer := func(i int) string { return address(i) + ":7946" }
	for i := 1; i <= netnsNodes; i++ {
		n := node(fmt.Sprint("n", i), address(i)+":8080", peer(i), peer(1), emulated...)
		n.Args = append(n.Args, "--time-scale", netnsScale, "--insecure-peers", "--join", peer(netnsNodes))
		line := append(within(i, n.Program), n.Args...)
		n.Program, n.Args = line[0], line[1:]
		r.nodes = append(r.nodes, n)
	}
	undisturbed := node("e0", "127.0.0.1:8080", "127.0.0.1:7946", "127.0.0.1:7946",
		append(emulated, "--policy", "local", "--time-scale", "0.01")...)
	start(t, append(r.nodes, undisturbed)...)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := undisturbed.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for _, n := range r.nodes {
		r.wait(ctx, n)
	}
	r.right = &oracle{url: undisturbed.URL()}
	return r
}

// wait returns once a node is ready and may forward to all others.
func (r *netnsRun) wait(ctx context.Context, n *process.Server) {
	r.t.Helper()
	if err := n.Wait(ctx); err != nil {
		r.t.Fatal(err)
	}
	waitForPeers(ctx, r.t, n.URL(), netnsNodes-1)
}

// left says on which side of a partition a host is; the client is on both.
func left(host int) bool { return host <= netnsNodes/2 }

// between makes a link of all links from node to node, the client's excepted.
func between(of func(from, to int) link) func(from, to int) link {
	return func(from, to int) link {
		if from > netnsNodes || to > netnsNodes {
			return link{}
		}
		return of(from, to)
	}
}

// run offers the load while one fault follows another.
func (r *netnsRun) run() {
	r.begun = time.Now()
	ctx, cancel := context.WithCancel(r.t.Context())
	var offering sync.WaitGroup
	offering.Go(func() { r.offer(ctx) })
	warmed := 2 * min(r.phase, restMax)
	r.during("before", false, warmed, func() {})
	r.least = backTo * r.hitRate(warmed/2, warmed)
	for _, f := range []struct {
		name string
		link func(from, to int) link
	}{
		{"loss 30 %", func(int, int) link { return link{loss: 0.3} }},
		{"200 ms and reorder", func(int, int) link { return link{delay: 200 * time.Millisecond, hasten: 0.25} }},
		{"two-way cut", func(from, to int) link { return cutIf(left(from) != left(to)) }},
		{"one-way cut", func(from, to int) link { return cutIf(left(from) && !left(to)) }},
	} {
		r.fault(f.name, func() {
			r.lan.set(between(f.link))
			time.Sleep(r.phase)
			r.lan.set(nil)
		})
	}
	r.fault("kill 3 nodes", func() { r.killAndRestart(r.nodes[netnsNodes-3:]) })
	r.fault("n1 at 10 %", func() { r.slow(r.nodes[0]) })
	cancel()
	offering.Wait()
	r.running.Wait()
}

func cutIf(cut bool) link {
	if cut {
		return link{loss: 1}
	}
	return link{}
}

// during has act begin now and notes from when to when it was, which is for at least d.
func (r *netnsRun) during(name string, fault bool, d time.Duration, act func()) {
	from := r.since()
	act()
	time.Sleep(d - (r.since() - from))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, span{name, fault, from, r.since()})
}

// fault is an outage for the judge while act lasts, and a rest after that.
func (r *netnsRun) fault(name string, act func()) {
	r.during(name, true, r.phase, func() {
		o := r.log.begin(name, r.since())
		act()
		r.log.end(o, r.since())
	})
	r.during("after "+name, false, 0, func() {
		for healed := r.since(); r.since() < healed+restMax; time.Sleep(100 * time.Millisecond) {
			if r.phase < restMax && r.backAfter(healed, r.since()) >= 0 {
				return
			}
		}
	})
}

// killAndRestart has nodes be gone for a phase. They count as down until they have
// heard of all others again.
func (r *netnsRun) killAndRestart(nodes []*process.Server) {
	down := map[*process.Server]*outage{}
	for _, n := range nodes {
		down[n] = r.log.begin(n.Name, r.since())
		n.Kill()
	}
	time.Sleep(r.phase)
	ctx, cancel := context.WithTimeout(r.t.Context(), startTimeout)
	defer cancel()
	for _, n := range nodes {
		if err := n.Start(); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, n := range nodes {
		r.wait(ctx, n)
		r.log.end(down[n], r.since())
	}
}

// slow lets a node run for a tenth of the time.
func (r *netnsRun) slow(n *process.Server) {
	for end := time.Now().Add(r.phase); time.Now().Before(end); {
		_ = syscall.Kill(n.PID(), syscall.SIGSTOP)
		time.Sleep(90 * time.Millisecond)
		_ = syscall.Kill(n.PID(), syscall.SIGCONT)
		time.Sleep(10 * time.Millisecond)
	}
}

// check holds the run to what is promised, and says how it went.
func (r *netnsRun) check() {
	var table strings.Builder
	fmt.Fprintf(&table, "%-24s %8s %8s %8s %8s %8s %10s\n", "", "requests", "right", "refused", "lost", "hit rate", "p99")
	for _, s := range r.spans {
		in := r.within(s.from, s.to)
		fmt.Fprintf(&table, "%-24s %8d %8d %8d %8d %8.3f %10v\n", s.name, len(in), count(in, answered), count(in, refused),
			count(in, unreachable)+count(in, brokenOff), hits(in), quantile(in, 0.99).Round(time.Millisecond))
	}
	r.t.Logf("%d nodes, %d requests/s, faults of %v, seed %d\n%s", netnsNodes, netnsRate, r.phase, *soakSeed, table.String())
	for i, s := range r.spans {
		if !s.fault {
			continue
		}
		rest := r.spans[i+1]
		switch back := r.backAfter(rest.from, rest.to); {
		case back < 0:
			r.t.Errorf("%s: the hit rate is not back to %.3f within %v", s.name, r.least, rest.to-rest.from)
		case back > backWithin && r.phase >= restMax:
			r.t.Errorf("%s: the hit rate was back to %.3f after %v; want %v", s.name, r.least, back, backWithin)
		default:
			r.t.Logf("%s: the hit rate was back to %.3f after %v", s.name, r.least, back)
		}
	}
	refusals := map[string]int{}
	for _, res := range r.results {
		if res.how == refused {
			refusals[res.refusal]++
		}
		if res.wrong != "" {
			r.t.Errorf("%6.1fs %s: %s", res.at.Seconds(), res.asked, res.wrong)
		}
	}
	for refusal, n := range refusals {
		r.t.Logf("%d times %s", n, refusal)
	}
	if r.least < 0.7 {
		r.t.Errorf("a hit rate of %.3f, what it was before any fault, is nothing to come back to", r.least/backTo)
	}
}
