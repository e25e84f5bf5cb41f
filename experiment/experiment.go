// Package experiment holds experiments as data: what is run, and what came out.
//
// Those of "Towards Distributed Inference of LLMs on a P2P Network" stand beside the
// paper's own numbers. The paper leaves open how large its routers' trees and engines'
// caches are, how it draws its skewed set and what a hot spot is a share of. A reading
// settles all of it; plan.go states the one that is used, with its reasons, and runs
// others beside it. A Scenario names only in what it differs from the reading, a Table
// is rows of scenarios with the paper's values, and a figure is drawn of rows.
//
// Cells compare policies where a cluster, its load or its caches differ; cells.go
// states what holds of all. A Verdict is what they say of one policy.
//
// A simulation is one thread and has one history, so that a seed gives the same
// results, to the byte, on any machine, however many run at once.
package experiment

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/sim"
	"github.com/hearsay-project/hearsay/workload"
)

// A Scenario is one simulation. Zero fields take what the reading has.
type Scenario struct {
	Skewed   bool
	Distinct bool // no question of the skewed set comes twice
	ByTopic  bool // a request of the skewed set draws its topic first: topics weigh the same
	Policy   string
	Nodes    int
	Delay    time.Duration // one way
	Poll     time.Duration
	Seed     uint64

	Requests    int // of the uniform set; the skewed one has the reading's own number unless this is set
	BlockTokens int
	TreeTokens  int // of a node's tree: what its router knows of its own engine
	CacheTokens int // of an engine's cache
}

// fill returns s with the reading's values in the place of zeros. Without routing
// no message travels, so that delay and poll interval make no difference.
func (s Scenario) fill(r Scenario) Scenario {
	s.Policy = cmp.Or(s.Policy, r.Policy)
	s.Nodes = cmp.Or(s.Nodes, r.Nodes)
	s.Delay, s.Poll = cmp.Or(s.Delay, r.Delay), cmp.Or(s.Poll, r.Poll)
	s.Seed = cmp.Or(s.Seed, r.Seed)
	if s.Skewed {
		s.Seed++
	}
	s.BlockTokens = cmp.Or(s.BlockTokens, r.BlockTokens)
	s.TreeTokens, s.CacheTokens = cmp.Or(s.TreeTokens, r.TreeTokens), cmp.Or(s.CacheTokens, r.CacheTokens)
	if s.Requests == 0 && s.Skewed && !s.Distinct {
		s.Requests = skewedRequests
	}
	if r.Requests > 0 && r.Requests < cmp.Or(s.Requests, mostRequests) {
		s.Requests = r.Requests
	}
	if s.Policy == noRoute {
		s.Delay, s.Poll = r.Delay, r.Poll
	}
	return s
}

// source is the stream that the scenario reads.
func (s Scenario) source(data string) workload.StreamConfig {
	name := "mmlu"
	if s.Skewed {
		name = "mmlu-skewed"
	}
	return workload.StreamConfig{
		Name: name, Data: data, BlockTokens: s.BlockTokens,
		Requests: s.Requests, Seed: s.Seed, Repeats: s.Skewed && !s.Distinct, ByTopic: s.ByTopic,
	}
}

// An Outcome is what a scenario came to.
type Outcome struct {
	sim.Result
	Scenario   Scenario // as run
	TopicShare float64  // share of a topic's requests that its fullest node served, mean over topics
	PerToken   time.Duration
	Tokens     float64           // of a prompt, mean
	served     map[string][]byte // by topic: the node of each of its requests
}

// Config says what is read and how much of it.
type Config struct {
	Data     string        // folder with MMLU's dev/ and test/; "" takes the synthetic set
	Seed     uint64        // 0 is the reading's
	Requests int           // no scenario has more; 0 sets no limit
	Parallel int           // simulations at once; 0 is 1
	Done     *atomic.Int64 // counts simulated requests, if not nil
}

// reading is the paper's, with what the user has changed.
func (c Config) reading() Scenario {
	r := reading
	r.Seed, r.Requests = cmp.Or(c.Seed, r.Seed), c.Requests
	return r
}

// A Set is all experiments on the prompts of one Config.
type Set struct {
	config   Config
	source   string // of the prompts, for people
	whole    bool   // they are as many as MMLU has
	profile  emulate.Profile
	mu       sync.Mutex
	streams  map[workload.StreamConfig]func() (*workload.Stream, error)
	outcomes map[Scenario]*Outcome
}

// Open reads the prompts. It fails where they are not there, or not such that both
// sets can be drawn from them.
func Open(c Config) (*Set, error) {
	s := &Set{config: c, streams: map[workload.StreamConfig]func() (*workload.Stream, error){}, outcomes: map[Scenario]*Outcome{}}
	if err := s.calibrate(); err != nil {
		return nil, err
	}
	for _, drawn := range []Scenario{{Skewed: true}, {Skewed: true, Distinct: true, BlockTokens: 16}} { // that are run
		if _, err := s.stream(drawn.fill(c.reading()).source(c.Data)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// stream opens each source once, whatever its blocks: prompts are cut when they are
// asked for.
func (s *Set) stream(c workload.StreamConfig) (*workload.Stream, error) {
	blockTokens := c.BlockTokens
	c.BlockTokens = 1
	s.mu.Lock()
	open := s.streams[c]
	if open == nil {
		open = sync.OnceValues(func() (*workload.Stream, error) { return workload.Open(c) })
		s.streams[c] = open
	}
	s.mu.Unlock()
	stream, err := open()
	if err != nil {
		return nil, err
	}
	cut := *stream
	cut.BlockTokens = blockTokens
	return &cut, nil
}

// calibrate fits the paper's profile to the prompts. The paper's timings are known
// by share of a prompt of about 540 tokens alone; prompts here may be longer or
// shorter, by their form and the tokenizer, and a token then costs less or more.
func (s *Set) calibrate() error {
	profile, err := emulate.ByName("paper")
	if err != nil {
		return err
	}
	all := Scenario{}.fill(s.config.reading())
	all.Requests, all.BlockTokens = 0, workloadBlock
	stream, err := s.stream(all.source(s.config.Data))
	if err != nil {
		return err
	}
	tokens := 0
	for item := range stream.Items() {
		tokens += item.Tokens
	}
	profile.PerToken = time.Duration(float64(profile.PerToken) * paperTokens * float64(stream.Len()) / float64(tokens))
	s.profile, s.source, s.whole = profile, stream.Source, stream.Len() == mostRequests
	return nil
}

// run simulates all scenarios, the longest first, so that none is left over for
// one core at the end.
func (s *Set) run(ctx context.Context, scenarios []Scenario) error {
	scenarios = slices.SortedStableFunc(slices.Values(scenarios), func(a, b Scenario) int { return cmp.Compare(b.work(), a.work()) })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, s.config.Parallel))
	for _, one := range scenarios {
		group.Go(func() error {
			o, err := s.simulate(ctx, one)
			if err != nil {
				return fmt.Errorf("scenario %+v: %w", one, err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.outcomes[one] = o
			return nil
		})
	}
	return group.Wait()
}

// work grows with what a scenario costs to run.
func (s Scenario) work() int {
	return cmp.Or(s.Requests, mostRequests) * (64/s.BlockTokens + s.Nodes)
}

func (s *Set) simulate(ctx context.Context, of Scenario) (*Outcome, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	stream, err := s.stream(of.source(s.config.Data))
	if err != nil {
		return nil, err
	}
	o := &Outcome{Scenario: of, PerToken: s.profile.PerToken, served: map[string][]byte{}}
	tokens := 0
	o.Result, err = sim.Run(sim.Config{
		Nodes: of.Nodes, Policy: of.Policy, Seed: of.Seed,
		Profile: s.profile, BlockTokens: of.BlockTokens, CapacityTokens: of.CacheTokens, TreeTokens: of.TreeTokens,
		Poll: of.Poll, Whole: true, Network: sim.Network{Delay: of.Delay, Jitter: jitter}, Arrival: sim.Arrival{Clients: 1},
		Stop: func() bool { return ctx.Err() != nil },
		Trace: func(rec sim.Record) {
			o.served[rec.Topic] = append(o.served[rec.Topic], byte(rec.Node))
			tokens += rec.Tokens
			if s.config.Done != nil {
				s.config.Done.Add(1)
			}
		},
	}, Requests(ctx, stream))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	o.Tokens = float64(tokens) / float64(max(1, o.Requests))
	o.TopicShare = topicShare(o.served, of.Nodes)
	return o, nil
}

// Requests are those of a stream as the simulator takes them, made one at a time,
// until ctx ends.
func Requests(ctx context.Context, s *workload.Stream) iter.Seq[sim.Request] {
	return func(yield func(sim.Request) bool) {
		for item := range s.Items() {
			if ctx.Err() != nil || !yield(sim.Request(item)) {
				return
			}
		}
	}
}

// topicShare is the share of its fullest node among a topic's requests, in the mean
// over topics, each counting the same.
func topicShare(served map[string][]byte, nodes int) float64 {
	if len(served) == 0 {
		return math.NaN()
	}
	var sum float64
	for _, topic := range topics(served) {
		counts := make([]int, nodes)
		for _, n := range served[topic] {
			counts[n]++
		}
		sum += float64(slices.Max(counts)) / float64(len(served[topic]))
	}
	return sum / float64(len(served))
}

// topics are sorted by their number of requests, the most first.
func topics(served map[string][]byte) []string {
	names := make([]string, 0, len(served))
	for name := range served {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(served[b]), len(served[a])), strings.Compare(a, b))
	})
	return names
}
