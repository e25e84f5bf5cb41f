package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/route"
)

// A mode is how a cluster decides where a request runs.
type mode struct {
	name       string
	policy     func() route.Policy           // of one life of a node
	rumors     bool                          // nodes speak every poll
	usage      bool                          // and tell in it what their engines have on their hands
	fetchTrees bool                          // the origin asks all peers for their trees before it routes
	fetchKV    bool                          // the origin pulls the KV cache of the longest match
	choose     func(c *cluster, k *call) int // nil: the origin's node routes
}

// baselines are what the node's policies are compared with. Where chance decides
// among equals, the node that the request came to comes first: a trip buys nothing.
var baselines = []mode{
	// round-robin gives the i-th request to the i-th node, wherever it came in.
	{name: "round-robin", choose: func(c *cluster, k *call) int {
		i := k.index % len(c.members)
		return c.best(k, func(m *member) int { return (m.index - i + len(c.members)) % len(c.members) })
	}},
	{name: "random", choose: func(c *cluster, k *call) int {
		return c.best(k, func(*member) int { return c.rng.Int() })
	}},
	// least-loaded knows all queues at once.
	{name: "least-loaded", choose: func(c *cluster, k *call) int {
		return c.best(k, func(m *member) int { return m.engine.Queue() })
	}},
	// central knows all caches and queues at once, and takes the node whose first
	// token reaches the client first. To be told all this costs it nothing.
	{name: "central", choose: func(c *cluster, k *call) int {
		return c.best(k, func(m *member) int {
			wait := m.engine.Wait(c.now, k.Chain, k.Tokens)
			return int(wait + c.trip(k.origin, m.index) + c.trip(m.index, k.origin))
		})
	}},
	// on-demand routes by trees fetched for each request (section 2 of the paper):
	// it waits for the slowest peer and then knows all there is to know.
	{name: "on-demand", policy: always(route.Longest{}), fetchTrees: true},
	// fetch-kv serves every request where it came in, after pulling the blocks of
	// the longest match from the peer that has them, when that is faster than
	// computing them: the shared cache of Mooncake and LMCache, with a directory
	// that is always exact and costs nothing.
	{name: "fetch-kv", fetchKV: true, choose: func(_ *cluster, k *call) int { return k.origin }},
}

// always is a policy without state.
func always(p route.Policy) func() route.Policy { return func() route.Policy { return p } }

// modeOf returns what a policy's name means.
func modeOf(name string) (mode, error) {
	for _, m := range slices.Concat(tieBreaks, baselines, rivals) {
		if m.name == name {
			if m.policy == nil {
				m.policy = always(route.Local{})
			}
			return m, nil
		}
	}
	p, err := route.ByName(name)
	if err != nil {
		return mode{}, fmt.Errorf("unknown policy %q; choose one of %s", name, strings.Join(Policies(), ", "))
	}
	_, local := p.(route.Local)
	return mode{name: name, policy: always(p), rumors: !local}, nil
}

// economic is the name of the policy by which nodes deal with prices.
var economic = route.Economic{}.Name()

// best returns the node with the least cost among those that are up, in reach of
// the origin and not tried; of equals the origin, then one by chance.
func (c *cluster) best(k *call, cost func(*member) int) int {
	best, least, tied := k.origin, 0, 0
	for _, m := range c.members {
		if !m.up || !c.reaches(k.origin, m.index) || slices.Contains(k.tried, m.name) {
			continue
		}
		v := cost(m)
		switch {
		case tied == 0 || v < least:
			best, least, tied = m.index, v, 1
		case v > least || best == k.origin:
		case m.index == k.origin:
			best = m.index
		default:
			if tied++; c.rng.IntN(tied) == 0 {
				best = m.index
			}
		}
	}
	return best
}

// trip is how long a message takes from one node to another, without jitter.
func (c *cluster) trip(from, to int) time.Duration {
	switch {
	case from == to:
		return 0
	case c.cfg.Network.Matrix != nil:
		return c.cfg.Network.Matrix[from][to]
	default:
		return c.cfg.Network.Delay
	}
}
