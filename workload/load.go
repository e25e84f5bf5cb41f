package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxInFlight bounds the open requests of an open loop, and with it the
// connections. A request that is due beyond it waits, and its latency counts
// the wait.
const maxInFlight = 1024

// Bounds of Options. Beyond them times overflow, or the machine that drives is what
// is measured.
const (
	maxConcurrency = 10_000
	minRate        = 1e-3
	maxRate        = 1e6
	maxOutput      = 1_000_000
)

// The entries by name: the node at which a request enters the cluster.
const (
	roundRobin  = "round-robin"
	randomEntry = "random"
	first       = "first"
)

// Options says how Run drives the nodes.
type Options struct {
	Workload    *Workload
	Targets     []string      // base URLs of the nodes, http://HOST:PORT
	Entry       string        // round-robin, random or first; "" is round-robin
	Concurrency int           // closed loop: clients at once, up to maxConcurrency; 0 is 1
	Rate        float64       // not 0: open loop, mean arrivals per second, Poisson; minRate to maxRate
	Speed       float64       // not 0: open loop, the times of a Timed workload, so many times as fast; minRate to maxRate
	MaxTokens   int           // output tokens of each answer, up to maxOutput; 0 is what the workload says, else 1
	Model       string        // "" is the first that the first target lists
	Timeout     time.Duration // of one request; 0 is one minute
	Warmup      int           // first requests of the workload, sent but not counted
	Progress    io.Writer     // terminal for a progress line; nil draws none

	// Dial opens connections in place of the network; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Validate reports everything that is wrong with o, by the flags of hearsay bench.
// What concerns the workload is left out where there is none yet.
func (o Options) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	between := func(v, low, high float64) bool { return v == 0 || v >= low && v <= high }
	check(len(o.Targets) > 0, "no node to drive; name one with --target http://HOST:PORT")
	for _, target := range o.Targets {
		check(isNode(target), "--target %q is no URL of a node; write http://HOST:PORT", target)
	}
	check(slices.Contains([]string{"", roundRobin, randomEntry, first}, o.Entry), "--entry: there is no %q; choose %s, %s or %s", o.Entry, roundRobin, randomEntry, first)
	check(o.Concurrency >= 0 && o.Concurrency <= maxConcurrency, "--concurrency: %d requests at once; choose 1 to %d", o.Concurrency, maxConcurrency)
	check(between(o.Rate, minRate, maxRate), "--rate: %g arrivals a second; choose %g to %.0f", o.Rate, minRate, maxRate)
	check(between(o.Speed, minRate, maxRate), "--speed: %g times as fast; choose %g to %.0f", o.Speed, minRate, maxRate)
	check(o.MaxTokens >= 0 && o.MaxTokens <= maxOutput, "--max-tokens: %d of an answer; choose 1 to %d", o.MaxTokens, maxOutput)
	check(o.Timeout >= 0, "--timeout: %v for a request; choose more than 0", o.Timeout)
	check(o.Warmup >= 0, "--warmup: %d requests; choose 0 or more", o.Warmup)
	check(o.Rate == 0 || o.Speed == 0, "--rate and --speed are two open loops; give one of them")
	if w := o.Workload; w != nil {
		check(o.Warmup < w.Len(), "--warmup: %d leave nothing of %d requests; give more --requests", o.Warmup, w.Len())
		check(o.Speed == 0 || w.Timed, "--speed: the workload %s has no times; give --rate or --concurrency", w.Name)
	}
	return errors.Join(problems...)
}

// isNode says whether target is a base URL, to which the API's paths can be added.
func isNode(target string) bool {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	return err == nil && port > 0 && !strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1")
}

// withDefaults fills the zero values in and normalises the targets. MaxTokens stays,
// since a workload's own may take its place.
func (o Options) withDefaults() Options {
	o.Entry = cmp.Or(o.Entry, roundRobin)
	o.Concurrency = cmp.Or(o.Concurrency, 1)
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	o.Targets = slices.Clone(o.Targets)
	for i, target := range o.Targets {
		o.Targets[i] = strings.TrimRight(target, "/")
	}
	return o
}

// Run sends the workload to the targets and reports. It fails if a target
// cannot be reached at the start; what goes wrong later is counted in the
// report. When ctx ends, Run breaks off what is under way and reports what was
// answered before. All its goroutines and connections have ended when it returns.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Workload == nil {
		panic("workload: Run needs a Workload")
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	idle := o.Concurrency
	if o.Rate+o.Speed > 0 {
		idle = maxInFlight
	}
	transport := &http.Transport{ // without a proxy: it would be measured too
		DialContext:         o.Dial,
		MaxIdleConnsPerHost: idle,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true, // a compressed stream has no first token to time
	}
	defer transport.CloseIdleConnections()
	g := &generator{Options: o, client: &http.Client{Transport: transport}}
	about, err := g.probe(ctx)
	if err != nil {
		return nil, err
	}
	g.enter()
	g.results.total = o.Workload.Len() - o.Warmup
	g.results.bar = bar{w: o.Progress}
	start := time.Now()
	g.results.start(start)
	switch {
	case o.Rate > 0:
		rng, next := newRand(o.Workload.Seed, arrivalStream), start
		g.open(ctx, func(int) time.Time {
			next = next.Add(time.Duration(rng.ExpFloat64() / o.Rate * float64(time.Second)))
			return next
		})
	case o.Speed > 0:
		g.open(ctx, func(i int) time.Time {
			return start.Add(time.Duration(min(float64(o.Workload.at(i))/o.Speed, math.MaxInt64/2)))
		})
	default:
		g.closed(ctx)
	}
	g.results.bar.clear()
	return report(o, about, &g.results, time.Since(start)), nil
}

// A generator is one Run.
type generator struct {
	Options
	client  *http.Client
	entries []int32 // by request, an index into Targets; nil: see entry
	results results
}

// enter draws where each request enters, if that is left to chance.
func (g *generator) enter() {
	if g.Entry != randomEntry {
		return
	}
	rng := newRand(g.Workload.Seed, entryStream)
	g.entries = make([]int32, g.Workload.Len())
	for i := range g.entries {
		g.entries[i] = rng.Int32N(int32(len(g.Targets)))
	}
}

// entry is the target of the i-th request.
func (g *generator) entry(i int) string {
	switch g.Entry {
	case roundRobin:
		return g.Targets[i%len(g.Targets)]
	case randomEntry:
		return g.Targets[g.entries[i]]
	}
	return g.Targets[0]
}

// closed runs the closed loop: each client sends when its last is answered.
func (g *generator) closed(ctx context.Context) {
	var next atomic.Int64
	var clients sync.WaitGroup
	for range min(g.Concurrency, g.Workload.Len()) {
		clients.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= g.Workload.Len() {
					return
				}
				g.one(ctx, i, time.Now())
			}
		})
	}
	clients.Wait()
}

// open runs the open loop: requests are sent when they are due, answered or
// not. A latency counts from when the request was due, so that a generator or
// a cluster that falls behind cannot hide it.
func (g *generator) open(ctx context.Context, due func(i int) time.Time) {
	slots := make(chan struct{}, maxInFlight)
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range g.Workload.Len() {
		at := due(i)
		timer.Reset(time.Until(at))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		inFlight.Go(func() {
			defer func() { <-slots }()
			g.one(ctx, i, at)
		})
	}
}

// one sends request i and books what came of it, unless the run was broken off.
func (g *generator) one(ctx context.Context, i int, due time.Time) {
	limited, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	s, failed := g.ask(limited, g.entry(i), g.Workload.Request(i), due)
	if i < g.Warmup || failed != nil && ctx.Err() != nil {
		return
	}
	g.results.book(s, failed, time.Now())
}
