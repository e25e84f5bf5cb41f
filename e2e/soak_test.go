package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/e2e/process"
)

var (
	soakFor     = flag.Duration("soak", 22*time.Second, "how long TestSoak runs, in rounds of 20s")
	soakOut     = flag.String("soak-out", "", "folder for the samples of TestSoak as CSV and their plot as SVG")
	soakSeed    = flag.Uint64("soak-seed", 1, "of the load of TestSoak")
	soakClients = flag.Int("soak-clients", 8, "of TestSoak, at a time")
)

// A soak is three nodes, each with an engine in a process of its own, so that either
// can be killed alone, and one more engine that nothing ever befalls: what it answers
// is what is right.
//
//	clients -> n1 -> e1     never killed
//	        -> n2 -> e2     killed, and restarted
//	        -> n3 -> e3     n3 is killed, and restarted
type soak struct {
	t       *testing.T
	begun   time.Time
	nodes   []*process.Server // n1 to n3
	engines []*process.Server // e1 to e3
	right   *oracle
	log     *outages
}

const soakNodes = 3

// soakTokens is the capacity of each KV cache: a tenth of what is asked, so that there is
// evicting all the time.
const soakTokens = "8192"

// Whatever is killed and restarted, a request is answered right, or refused in a way that a
// client understands, or visibly broken off; and the nodes do not grow.
func TestSoak(t *testing.T) {
	s := startSoak(t)
	ctx, cancel := context.WithTimeout(t.Context(), *soakFor)
	defer cancel()

	idle := s.sample()
	var running sync.WaitGroup
	results := make(chan verdict, 64)
	for i := range *soakClients {
		c := newSoakClient(s, uint64(i))
		running.Go(func() { c.run(ctx, results) })
	}
	var samples []sample
	running.Go(func() { samples = s.sampleEvery(ctx, time.Second) })
	running.Go(func() { s.disturb(ctx) })
	go func() {
		running.Wait()
		close(results)
	}()
	var tally tally
	for v := range results {
		tally.add(v)
		if v.wrong != "" {
			t.Errorf("%6.1fs %s: %s", v.at.Seconds(), v.asked, v.wrong)
		}
	}
	t.Logf("%v, %d clients, seed %d\n%s", *soakFor, *soakClients, *soakSeed, tally.String())
	s.checkSettled(idle)
	checkFlat(t, samples)
	if *soakOut != "" {
		if err := writeSamples(*soakOut, samples, s.log.all()); err != nil {
			t.Error(err)
		}
	}
	if 2*tally[answered] < tally.total() {
		t.Error("fewer than half of the requests were answered")
	}
}

func startSoak(t *testing.T) *soak {
	t.Helper()
	addrs, err := process.Ports(2 * (2*soakNodes + 1))
	if err != nil {
		t.Fatal(err)
	}
	api := func(i int) string { return addrs[2*i] }
	peer := func(i int) string { return addrs[2*i+1] }
	s := &soak{t: t, log: &outages{}, begun: time.Now()}
	engine := func(i int, name string) *process.Server {
		return node(name, api(i), peer(i), peer(i), "--engine", "builtin", "--policy", "local", "--kv-tokens", soakTokens, "--poll", "10s")
	}
	for i := range soakNodes {
		e := engine(soakNodes+i, fmt.Sprint("e", i+1))
		s.engines = append(s.engines, e)
		s.nodes = append(s.nodes, node(fmt.Sprint("n", i+1), api(i), peer(i), peer(0), "--join", peer(1),
			"--engine", e.URL(), "--kv-tokens", soakTokens, "--health-interval", "500ms"))
	}
	undisturbed := engine(2*soakNodes, "e0")
	all := append([]*process.Server{undisturbed}, append(s.engines, s.nodes...)...)
	start(t, all...)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, p := range all {
		if err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range s.nodes {
		waitForPeers(ctx, t, n.URL(), soakNodes-1)
	}
	s.right = &oracle{url: undisturbed.URL()}
	s.begun = time.Now()
	return s
}

// disturb kills and restarts an engine and a node, by turns, in rounds of 20 seconds.
func (s *soak) disturb(ctx context.Context) {
	step := func(d time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	for {
		for _, victim := range []*process.Server{s.engines[1], s.nodes[2]} {
			if !step(4 * time.Second) {
				return
			}
			o := s.log.begin(victim.Name, s.since())
			victim.Kill()
			whole := step(3 * time.Second)
			if err := victim.Start(); err != nil {
				s.t.Error(err)
				return
			}
			ready, cancel := context.WithTimeout(context.Background(), startTimeout)
			err := victim.Wait(ready)
			cancel()
			if err != nil {
				s.t.Error(err)
			}
			s.log.end(o, s.since())
			if !whole || !step(3*time.Second) {
				return
			}
		}
	}
}

func (s *soak) since() time.Duration { return time.Since(s.begun) }

// An outage is when a process was down, from the signal until it was ready again.
type outage struct {
	name     string
	from, to time.Duration // since the soak began; to is 0 while it lasts
}

type outages struct {
	mu   sync.Mutex
	list []*outage
}

func (l *outages) begin(name string, at time.Duration) *outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &outage{name: name, from: at}
	l.list = append(l.list, o)
	return o
}

func (l *outages) end(o *outage, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.to = at
}

func (l *outages) all() (copied []outage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.list {
		copied = append(copied, *o)
	}
	return copied
}

// settle is how long after an outage a request may still suffer from it.
const settle = 2 * time.Second

// during says whether an outage of name, or of anything where that is "", touches the
// time between.
func (l *outages) during(name string, from, to time.Duration) bool {
	for _, o := range l.all() {
		if (name == "" || o.name == name) && o.from <= to && (o.to == 0 || from <= o.to+settle) {
			return true
		}
	}
	return false
}

// A tally counts verdicts.
type tally map[string]int

func (t *tally) add(v verdict) {
	if *t == nil {
		*t = tally{}
	}
	(*t)[v.how]++
	if v.resumed {
		(*t)[resumed]++
	}
}

func (t tally) total() (n int) {
	for how, count := range t {
		if how != resumed {
			n += count
		}
	}
	return n
}

func (t tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6d requests\n", t.total())
	for _, how := range []string{answered, leftEarly, refused, brokenOff, unreachable, failed, resumed} {
		fmt.Fprintf(&b, "%6d %s\n", t[how], how)
	}
	return b.String()
}

// writeSamples writes soak.csv and soak.svg into dir.
func writeSamples(dir string, samples []sample, outages []outage) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "soak.csv"), samplesCSV(samples), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "soak.svg"), samplesSVG(samples, outages), 0o644)
}
