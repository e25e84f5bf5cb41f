package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxInFlight bounds the open requests of an open loop, and with it the
// connections. A request that is due beyond it waits, and its latency counts
// the wait.
const maxInFlight = 1024

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
	Concurrency int           // closed loop: clients at once; 0 is 1
	Rate        float64       // above 0: open loop, mean arrivals per second, Poisson
	MaxTokens   int           // output tokens of each answer; 0 is 1
	Model       string        // "" is the first that the first target lists
	Timeout     time.Duration // of one request; 0 is one minute
	Warmup      int           // first requests of the workload, sent but not counted
	Progress    io.Writer     // terminal for a progress line; nil draws none

	// Dial opens connections in place of the network; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Validate reports everything that is wrong with o, the workload aside.
func (o Options) Validate() error {
	var problems []error
	if len(o.Targets) == 0 {
		problems = append(problems, errors.New("no node to drive; name one with --target http://HOST:PORT"))
	}
	for _, target := range o.Targets {
		if u, err := url.Parse(target); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			problems = append(problems, fmt.Errorf("target %q is no URL of a node; write http://HOST:PORT", target))
		}
	}
	if !slices.Contains([]string{"", roundRobin, randomEntry, first}, o.Entry) {
		problems = append(problems, fmt.Errorf("unknown entry %q; choose %s, %s or %s", o.Entry, roundRobin, randomEntry, first))
	}
	if o.Concurrency < 0 || !(o.Rate >= 0) || o.MaxTokens < 0 || o.Timeout < 0 || o.Warmup < 0 {
		problems = append(problems, errors.New("concurrency, rate, max tokens, timeout and warm-up cannot be less than 0"))
	}
	if o.Workload != nil && o.Warmup >= o.Workload.Len() {
		problems = append(problems, fmt.Errorf("a warm-up of %d leaves nothing of %d requests; ask for more requests", o.Warmup, o.Workload.Len()))
	}
	return errors.Join(problems...)
}

// withDefaults fills the zero values in and normalises the targets.
func (o Options) withDefaults() Options {
	if o.Entry == "" {
		o.Entry = roundRobin
	}
	if o.Concurrency == 0 {
		o.Concurrency = 1
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 1
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
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
	if o.Rate > 0 {
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
	if o.Rate > 0 {
		g.open(ctx, start)
	} else {
		g.closed(ctx)
	}
	g.results.bar.clear()
	return report(o, about, &g.results, time.Since(start)), nil
}

// A generator is one Run.
type generator struct {
	Options
	client  *http.Client
	entries []int // by request, an index into Targets
	results results
}

// enter decides where each request enters.
func (g *generator) enter() {
	rng := newRand(g.Workload.Seed, entryStream)
	g.entries = make([]int, g.Workload.Len())
	for i := range g.entries {
		switch g.Entry {
		case roundRobin:
			g.entries[i] = i % len(g.Targets)
		case randomEntry:
			g.entries[i] = rng.IntN(len(g.Targets))
		}
	}
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
func (g *generator) open(ctx context.Context, start time.Time) {
	rng := newRand(g.Workload.Seed, arrivalStream)
	slots := make(chan struct{}, maxInFlight)
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	next := start
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range g.Workload.Len() {
		due := next.Add(time.Duration(rng.ExpFloat64() / g.Rate * float64(time.Second)))
		next = due
		timer.Reset(time.Until(due))
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
			g.one(ctx, i, due)
		})
	}
}

// one sends request i and books what came of it, unless the run was broken off.
func (g *generator) one(ctx context.Context, i int, due time.Time) {
	limited, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	s, failed := g.ask(limited, g.Targets[g.entries[i]], g.Workload.Request(i), due)
	if i < g.Warmup || failed != nil && ctx.Err() != nil {
		return
	}
	g.results.book(s, failed, time.Now())
}
