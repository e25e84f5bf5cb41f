package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/sim"
	"github.com/hearsay-project/hearsay/workload"
)

// CellsConfig says which cells are run and how.
type CellsConfig struct {
	Data     string   // folder with a folder for each data set; "" leaves synthetic MMLU alone
	Only     []string // cells whose names contain one of these; none: all
	Policies []string
	Requests int           // no run has more; 0 sets no limit
	Seeds    int           // of each cell, from 1 on; 0 is 1
	Parallel int           // simulations at once; 0 is 1
	Begin    func(n int)   // told how many requests there will be in all, if not nil
	Done     *atomic.Int64 // counts simulated requests, if not nil
}

// Cells are those that are asked for, whether or not their data is there.
func (c CellsConfig) Cells() []Cell {
	return slices.DeleteFunc(Cells(), func(one Cell) bool {
		return len(c.Only) > 0 && !slices.ContainsFunc(c.Only, func(part string) bool { return strings.Contains(one.Name, part) })
	})
}

// A CellRun is what a policy came to in a cell, in the mean over seeds.
type CellRun struct {
	Policy    string
	Requests  int // of one seed
	Errors    int // of all seeds
	Mean, P99 float64
	Means     []float64 // by seed
	Hit       float64
	Expected  float64
	Fullest   float64 // share
	Forwarded float64 // share
	Warmed    float64 // tokens a request
	Rumors    float64 // bytes a second and node
}

// A CellResult is a cell with its runs, in the order of CellsConfig.Policies.
type CellResult struct {
	Cell
	WorkingSet int     // tokens
	Capacity   int     // tokens of each cache
	Rate       float64 // requests a second; 0 is a closed loop
	Runs       []CellRun
}

// CellResults are all cells that were run.
type CellResults struct {
	Config  CellsConfig
	Cells   []CellResult
	Skipped []string // a sentence for each workload that is not there
}

// cellRunner shares what several cells need.
type cellRunner struct {
	CellsConfig
	mu         sync.Mutex
	streams    map[workload.StreamConfig]func() (*workload.Stream, error)
	sets       map[workload.StreamConfig]func() (int, error)
	capacities map[string]func() (float64, error)
}

func newCellRunner(cfg CellsConfig) *cellRunner {
	cfg.Seeds, cfg.Parallel = max(1, cfg.Seeds), max(1, cfg.Parallel)
	return &cellRunner{
		CellsConfig: cfg,
		streams:     map[workload.StreamConfig]func() (*workload.Stream, error){},
		sets:        map[workload.StreamConfig]func() (int, error){},
		capacities:  map[string]func() (float64, error){},
	}
}

// once returns the one function of a key, made by f.
func once[K comparable, V any](mu *sync.Mutex, all map[K]func() (V, error), key K, f func() (V, error)) func() (V, error) {
	mu.Lock()
	defer mu.Unlock()
	if all[key] == nil {
		all[key] = sync.OnceValues(f)
	}
	return all[key]
}

// RunCells simulates every cell under every policy and seed. It returns early, with an
// error, when ctx ends.
func RunCells(ctx context.Context, cfg CellsConfig) (*CellResults, error) {
	r := newCellRunner(cfg)
	res := &CellResults{Config: r.CellsConfig}
	absent := map[string]bool{}
	requests := 0
	for _, c := range cfg.Cells() {
		if err := r.lacks(c); err != nil {
			if !absent[c.from.data] {
				res.Skipped = append(res.Skipped, fmt.Sprintf("cells of %s are left out: %v", c.from.name, err))
			}
			absent[c.from.data] = true
			continue
		}
		res.Cells = append(res.Cells, CellResult{Cell: c, Runs: make([]CellRun, len(r.Policies))})
		requests += c.Requests(r.Requests) * r.Seeds * len(r.Policies)
	}
	if r.Begin != nil {
		r.Begin(requests)
	}
	return res, r.all(ctx, res.Cells)
}

// lacks says why the cell's data cannot be read, if so.
func (r *cellRunner) lacks(c Cell) error {
	if r.Data == "" {
		if !slices.Contains(bothMMLU, c.from) {
			return errors.New("there is no folder of data; name it with --data")
		}
		return nil
	}
	path := filepath.Join(r.Data, filepath.FromSlash(c.from.data))
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there", path)
	}
	return nil
}

// all runs the cells, the longest first, so that none is left over for one core.
func (r *cellRunner) all(ctx context.Context, cells []CellResult) error {
	order := make([]*CellResult, len(cells))
	for i := range cells {
		order[i] = &cells[i]
	}
	slices.SortStableFunc(order, func(a, b *CellResult) int { return cmp.Compare(b.Nodes, a.Nodes) })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.Parallel)
	for _, c := range order {
		results := make([][]sim.Result, len(r.Policies))
		left := new(atomic.Int64)
		left.Store(int64(len(r.Policies) * r.Seeds))
		for p := range r.Policies {
			results[p] = make([]sim.Result, r.Seeds)
			for seed := range r.Seeds {
				group.Go(func() (err error) {
					if results[p][seed], err = r.run(ctx, c, r.Policies[p], uint64(seed+1)); err != nil {
						return fmt.Errorf("cell %s, policy %s, seed %d: %w", c.Name, r.Policies[p], seed+1, err)
					}
					if left.Add(-1) == 0 { // the last of the cell, who sees what the others wrote
						return r.sum(ctx, c, results)
					}
					return nil
				})
			}
		}
	}
	return group.Wait()
}

// sum puts the results of a cell, by policy and seed, into its runs.
func (r *cellRunner) sum(ctx context.Context, c *CellResult, results [][]sim.Result) (err error) {
	if c.WorkingSet, c.Capacity, err = r.cache(c.Cell); err != nil {
		return err
	}
	if c.Rate, err = r.rate(ctx, c.Cell); err != nil {
		return err
	}
	for p, bySeed := range results {
		run := CellRun{Policy: r.Policies[p]}
		share := 1 / float64(len(bySeed))
		for _, one := range bySeed {
			run.Requests = one.Requests
			run.Errors += one.Errors
			run.Means = append(run.Means, one.TTFT.Mean.Seconds())
			run.Mean += share * one.TTFT.Mean.Seconds()
			run.P99 += share * one.TTFT.P99.Seconds()
			run.Hit += share * one.ActualHit
			run.Expected += share * one.ExpectedHit
			run.Fullest += share * one.FullestShare
			run.Forwarded += share * one.ForwardedShare
			run.Warmed += share * float64(one.Warmed) / float64(max(1, one.Requests))
			run.Rumors += share * one.RumorRate
		}
		c.Runs[p] = run
	}
	return nil
}

// run simulates one policy with one seed.
func (r *cellRunner) run(ctx context.Context, c *CellResult, policy string, seed uint64) (sim.Result, error) {
	cfg, err := r.cluster(c.Cell)
	if err != nil {
		return sim.Result{}, err
	}
	capacity, err := r.capacity(ctx, c.Cell)
	if err != nil {
		return sim.Result{}, err
	}
	rate, err := r.rate(ctx, c.Cell)
	if err != nil {
		return sim.Result{}, err
	}
	n := c.Requests(r.Requests)
	cfg.Policy, cfg.Seed = policy, seed
	cfg.Network, cfg.Poll = c.network(), c.Poll
	cfg.Stop = func() bool { return ctx.Err() != nil }
	// Of a closed loop this is the shortest that it can last: one client keeps one
	// engine busy.
	length := time.Duration(float64(n) / cmp.Or(rate, capacity/float64(c.Nodes)) * float64(time.Second))
	if rate == 0 {
		cfg.Arrival.Clients = 1
	}
	cfg.Faults = c.faults(length)
	if r.Done != nil {
		cfg.Trace = func(sim.Record) { r.Done.Add(1) }
	}
	requests, err := r.requests(ctx, c.Cell, n, seed, rate)
	if err != nil {
		return sim.Result{}, err
	}
	result, err := sim.Run(cfg, requests)
	return result, cmp.Or(err, ctx.Err())
}

// rate is how many requests a second come, 0 for a closed loop.
func (r *cellRunner) rate(ctx context.Context, c Cell) (float64, error) {
	if c.Load == 0 {
		return 0, nil
	}
	capacity, err := r.capacity(ctx, c)
	return c.Load * c.speed() * capacity, err
}

// cluster is the cell's as far as no load, network or fault comes into it.
func (r *cellRunner) cluster(c Cell) (cfg sim.Config, err error) {
	cfg.Nodes = c.Nodes
	if cfg.Profile, err = emulate.ByName(c.from.profile); err != nil {
		return cfg, err
	}
	s, err := r.stream(c, 1)
	if err != nil {
		return cfg, err
	}
	cfg.BlockTokens = s.BlockTokens
	_, cfg.CapacityTokens, err = r.cache(c)
	return cfg, err
}

// stream opens the workload of a cell once for each seed.
func (r *cellRunner) stream(c Cell, seed uint64) (*workload.Stream, error) {
	key := c.stream(r.Data, seed, r.Requests)
	return once(&r.mu, r.streams, key, func() (*workload.Stream, error) { return workload.Open(key) })()
}

// cache is the working set of a cell's workload and what each node can hold, in
// tokens: a block or more, or what the profile has.
func (r *cellRunner) cache(c Cell) (set, capacity int, err error) {
	s, err := r.stream(c, 1)
	if err != nil {
		return 0, 0, err
	}
	set, err = once(&r.mu, r.sets, s.StreamConfig, func() (int, error) { return workingSet(s), nil })()
	if c.Cache == 0 {
		profile, err := emulate.ByName(c.from.profile)
		return set, profile.CapacityTokens, err
	}
	blocks := max(1, int(c.Cache*float64(set))/s.BlockTokens)
	return set, blocks * s.BlockTokens, err
}

// workingSet is the tokens of the blocks that two or more requests name.
func workingSet(s *workload.Stream) int {
	asked := map[prefix.Hash]bool{} // whether twice
	shared := 0
	for item := range s.Items() {
		for _, h := range item.Chain {
			twice, known := asked[h]
			if known && !twice {
				shared++
			}
			asked[h] = known
		}
	}
	return shared * s.BlockTokens
}

// capacity is how many requests a second the cell's engines answer when all requests
// are there from the start, each is served where it came in, and all engines have
// normal speed. The last few answers, for which some engines wait idly, are left out.
func (r *cellRunner) capacity(ctx context.Context, c Cell) (float64, error) {
	cfg, err := r.cluster(c)
	if err != nil {
		return 0, err
	}
	n := c.Requests(r.Requests)
	key := fmt.Sprint(c.from.name, c.Nodes, cfg.CapacityTokens, n)
	return once(&r.mu, r.capacities, key, func() (float64, error) {
		requests, err := r.requests(ctx, c, n, 1, 0)
		if err != nil {
			return 0, err
		}
		var ends []time.Duration
		cfg.Policy = noRoute
		cfg.Trace = func(rec sim.Record) { ends = append(ends, rec.At+rec.Latency) } // in this order
		if _, err := sim.Run(cfg, requests); err != nil || ctx.Err() != nil {
			return 0, cmp.Or(err, ctx.Err())
		}
		counted := max(1, n*95/100)
		return float64(counted) / ends[counted-1].Seconds(), nil
	})()
}

// requests are n of the cell's, which come at a Poisson rate unless it is 0.
func (r *cellRunner) requests(ctx context.Context, c Cell, n int, seed uint64, rate float64) (iter.Seq[sim.Request], error) {
	s, err := r.stream(c, seed)
	if err != nil {
		return nil, err
	}
	users := c.users()
	apart := (n/users/s.Round() + 1) * s.Round() // more than one replay has
	return func(yield func(sim.Request) bool) {
		rng := rand.New(rand.NewPCG(seed, arrivalStream))
		at := time.Duration(0)
		for i := range n {
			if ctx.Err() != nil {
				return
			}
			item := s.Item(i%users*apart + i/users)
			item.At = 0
			if rate > 0 {
				at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
				item.At = at
			}
			if !yield(sim.Request(item)) {
				return
			}
		}
	}, nil
}

// arrivalStream keeps the times of arrivals apart from what else a seed draws.
const arrivalStream = 101
