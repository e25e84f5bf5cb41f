package experiment

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/sim"
	"github.com/hearsay-project/hearsay/workload"
)

// What holds of all cells.
//
// MMLU and Tree of Thoughts, with prompts of some hundred tokens, run on the paper's
// engine, the others on Llama 3 8B as llama.cpp runs it on an RTX 4090.
//
// The working set of a workload is the tokens of the distinct blocks that two or more
// of its requests name, as many requests as four nodes get. A cache is a share of it
// on each node, so that four caches of 30 % hold more than all of it, and four of
// 10 % do not.
//
// Capacity is the rate at which a cell's engines answer when they always have work and
// each request is served where it comes in, with that cache and no routing. The rate
// of a cell is a share of it. Every policy gets the same requests at the same times.
//
// A larger cluster has more users, not busier ones: a conversation or a trace is
// replayed side by side, once for every four nodes, by others who share what is shared
// by design. Caches stay as they are. MMLU's questions are asked once each.
const (
	mmluRequests = 3_000 // of a cell
	sizeRequests = 1_000 // of each replay of another workload
	cellRequests = 8_000 // of a cell, at most: then each replay has fewer
	usersNodes   = 4     // for each replay
	cellPoll     = 500 * time.Millisecond
	cellLink     = 1_250_000_000 // bytes a second into a node, 10 Gbit/s, for what is fetched
	stuckAfter   = 0.25          // of the run's length, when rumors stick
	slowFactor   = 3
)

// A Cell is one cluster under one load, in which policies are compared.
type Cell struct {
	Name  string // the group, and what sets it apart, between slashes
	Group string
	Nodes int
	Delay time.Duration // one way, within a site
	Apart time.Duration // one way, between two sites that each have half of the nodes; 0 is one site
	Load  float64       // share of capacity that comes, at Poisson times; 0 is a closed loop of one client
	Cache float64       // of every node, as a share of the working set; 0 is what the profile has

	Poll  time.Duration
	Loss  float64 // of rumors
	Slow  bool    // the first engine takes slowFactor times as long
	Stuck bool    // the first node's rumors tell old things from stuckAfter on

	from *cellSource
}

// CellPolicies are the policies that cells can compare: all but the other readings of
// the paper's ties.
func CellPolicies() []string {
	return slices.DeleteFunc(sim.Policies(), func(name string) bool { return strings.HasPrefix(name, "longest:") })
}

// The groups of cells, in the order of reports.
const (
	groupMMLU    = "mmlu"
	groupSizes   = "sizes"
	groupRegions = "regions"
	groupSlow    = "slow"
	groupViews   = "views"
)

// A cellSource is what the clients of cells ask, and of what engines.
type cellSource struct {
	name     string // in names of cells
	stream   string // workload.StreamConfig.Name
	data     string // under CellsConfig.Data
	profile  string // emulate.ByName
	block    int    // tokens; 0 is the workload's own
	requests int    // of a replay
	caches   []float64
}

var (
	uniformMMLU = &cellSource{"uniform", "mmlu", "mmlu", "paper", 0, mmluRequests, []float64{1, .3, .1}}
	skewedMMLU  = &cellSource{"skewed", "mmlu-skewed", "mmlu", "paper", 0, mmluRequests, []float64{1, .3, .1}}
	bothMMLU    = []*cellSource{uniformMMLU, skewedMMLU}

	others = []*cellSource{
		{"mooncake", "mooncake", "mooncake/raw/conversation_trace.jsonl", llama, 0, sizeRequests, []float64{.3, .1}},
		{"claude-code", "claude-code", "claude_code/dev", llama, 512, sizeRequests, []float64{.3, .1}},
		{"bfcl", "bfcl", "bfcl/raw", llama, 0, sizeRequests, []float64{1, .3}},
		{"tot", "tot", "tot/raw", "paper", 0, sizeRequests, []float64{0}},
		{control, "stream", "streams/sharegpt_tokens.b16.jsonl.gz", llama, 0, sizeRequests, []float64{0}},
	}
)

const llama = "llama3-8b-rtx4090"

// control shares little: there is next to nothing to gain.
const control = "sharegpt"

// Cells are all cells.
func Cells() []Cell {
	var all []Cell
	ms := time.Millisecond
	add := func(group, first string, s *cellSource, load, cache float64, change func(*Cell)) {
		c := Cell{
			Group: group, Nodes: usersNodes, Delay: 2 * ms, Load: load, Cache: cache, Poll: cellPoll, from: s,
		}
		change(&c)
		setting := []string{first, s.name, fmt.Sprintf("n%d", c.Nodes), fmt.Sprintf("%dms", c.Delay.Milliseconds()), loadName(load), cacheName(cache)}
		if c.Group == groupMMLU {
			setting = slices.Delete(setting, 2, 3)
		}
		c.Name = strings.Join(setting, "/")
		all = append(all, c)
	}
	for _, s := range bothMMLU {
		for _, delay := range []time.Duration{2 * ms, 20 * ms, 50 * ms, 200 * ms, 1000 * ms} {
			for _, load := range []float64{0, .3, .6, .85} {
				for _, cache := range s.caches {
					add(groupMMLU, groupMMLU, s, load, cache, func(c *Cell) { c.Delay = delay })
				}
			}
		}
	}
	for _, s := range others {
		for _, nodes := range []int{4, 16, 64} {
			for _, cache := range s.caches {
				add(groupSizes, groupSizes, s, .6, cache, func(c *Cell) { c.Nodes = nodes })
			}
		}
	}
	for _, s := range bothMMLU {
		for _, load := range []float64{0, .3, .6, .85} {
			for _, cache := range []float64{1, .3} {
				add(groupRegions, groupRegions, s, load, cache, func(c *Cell) { c.Nodes, c.Apart = 8, 80*ms })
				add(groupSlow, groupSlow, s, load, cache, func(c *Cell) { c.Slow = true })
			}
		}
		for _, delay := range []time.Duration{2 * ms, 50 * ms} {
			for _, load := range []float64{0, .6} {
				const cache = .3
				add(groupViews, "lost50", s, load, cache, func(c *Cell) { c.Delay, c.Loss = delay, .5 })
				add(groupViews, "poll10s", s, load, cache, func(c *Cell) { c.Delay, c.Poll = delay, 10*time.Second })
				add(groupViews, "stuck", s, load, cache, func(c *Cell) { c.Delay, c.Stuck = delay, true })
			}
		}
	}
	groups := []string{groupMMLU, groupSizes, groupRegions, groupSlow, groupViews}
	slices.SortStableFunc(all, func(a, b Cell) int { return cmp.Compare(slices.Index(groups, a.Group), slices.Index(groups, b.Group)) })
	return all
}

func loadName(load float64) string {
	if load == 0 {
		return "closed"
	}
	return fmt.Sprintf("poisson%.0f", 100*load)
}

func cacheName(cache float64) string {
	if cache == 0 {
		return "cachefull"
	}
	return fmt.Sprintf("cache%.0f", 100*cache)
}

// Requests is how many a run of the cell has, where each has at most so many; 0 sets
// no limit.
func (c Cell) Requests(most int) int {
	n := min(c.from.requests*c.users(), cellRequests)
	if most > 0 {
		n = min(n, most)
	}
	return n
}

// users is how many replays of the workload go on side by side. MMLU's questions are
// asked once each, however many nodes there are.
func (c Cell) users() int {
	if c.from == uniformMMLU || c.from == skewedMMLU {
		return 1
	}
	return max(1, c.Nodes/usersNodes)
}

// balanced says whether all engines are equally fast.
func (c Cell) balanced() bool { return !c.Slow }

// control says whether the cell has next to nothing to gain.
func (c Cell) control() bool { return c.from.name == control }

// stream says what to open: a workload with as many requests as one replay has.
func (c Cell) stream(folder string, seed uint64, most int) workload.StreamConfig {
	s := workload.StreamConfig{Name: c.from.stream, Seed: seed, BlockTokens: c.from.block, Requests: c.from.requests}
	if most > 0 {
		s.Requests = min(s.Requests, most)
	}
	if folder != "" {
		s.Data = filepath.Join(folder, filepath.FromSlash(c.from.data))
	}
	return s
}

// network is the cell's.
func (c Cell) network() sim.Network {
	n := sim.Network{Delay: c.Delay, Loss: c.Loss, Bandwidth: cellLink}
	if c.Apart == 0 {
		return n
	}
	n.Matrix = make([][]time.Duration, c.Nodes)
	for from := range n.Matrix {
		for to := range c.Nodes {
			d := c.Delay
			if 2*from/c.Nodes != 2*to/c.Nodes {
				d = c.Apart
			}
			n.Matrix[from] = append(n.Matrix[from], d)
		}
	}
	return n
}

// faults are what befalls the cell in a run that lasts about so long.
func (c Cell) faults(length time.Duration) []sim.Fault {
	switch {
	case c.Slow:
		return []sim.Fault{{Kind: sim.Slow, Nodes: []int{0}, Factor: slowFactor}}
	case c.Stuck:
		return []sim.Fault{{At: time.Duration(stuckAfter * float64(length)), Kind: sim.Stuck, Nodes: []int{0}}}
	}
	return nil
}

// speed is that of the cell's engines all together, over that of as many of normal
// speed.
func (c Cell) speed() float64 {
	if !c.Slow {
		return 1
	}
	return (float64(c.Nodes-1) + 1./slowFactor) / float64(c.Nodes)
}
