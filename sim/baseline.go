package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// A mode is how a cluster decides where a request runs.
type mode struct {
	name       string
	policy     route.Policy                  // of the nodes
	rumors     bool                          // nodes speak every poll
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
	{name: "on-demand", policy: route.Longest{}, fetchTrees: true},
	// fetch-kv serves every request where it came in, after pulling the blocks of
	// the longest match from the peer that has them, when that is faster than
	// computing them: the shared cache of Mooncake and LMCache, with a directory
	// that is always exact and costs nothing.
	{name: "fetch-kv", fetchKV: true, choose: func(_ *cluster, k *call) int { return k.origin }},
}

// modeOf returns what a policy's name means.
func modeOf(name string) (mode, error) {
	for _, b := range baselines {
		if b.name == name {
			if b.policy == nil {
				b.policy = route.Local{}
			}
			return b, nil
		}
	}
	p, err := route.ByName(name)
	if err != nil {
		return mode{}, fmt.Errorf("unknown policy %q; choose one of %s", name, strings.Join(Policies(), ", "))
	}
	_, local := p.(route.Local)
	return mode{name: name, policy: p, rumors: !local}, nil
}

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

// fetchTrees asks every peer in the membership for its tree.
func (c *cluster) fetchTrees(k *call) {
	k.fetching = 0
	for _, m := range c.members {
		if m.index != k.origin {
			k.fetching++
			c.after(c.delay(k.origin, m.index), event{what: ask, node: int32(m.index), call: k})
		}
	}
	if k.fetching == 0 {
		k.fetched = true
		c.dispatch(k)
		return
	}
	c.after(c.patience()+2*c.slowest(), event{what: giveUp, node: int32(k.origin), call: k})
}

// fetching carries on what fetchTrees began.
func (c *cluster) fetching(e *event) {
	k := e.call
	if k.closed || k.fetched {
		return
	}
	origin, m := c.members[k.origin], c.members[e.node]
	switch {
	case e.what == giveUp:
		k.fetching = 0
	case !c.reaches(k.origin, int(e.node)) || !m.up:
		return // no answer: the origin waits until it gives up
	case e.what == ask:
		r := c.utter(m)
		at := c.delay(m.index, k.origin) + c.transfer(origin, r.bytes)
		c.after(at, event{what: told, node: e.node, call: k, rumor: r})
		return
	default:
		news := origin.Hear(c.now, e.rumor.Rumor)
		if c.check != nil {
			c.check.heard(origin, e.rumor, news)
		}
		k.fetching--
	}
	if k.fetching == 0 {
		k.fetched = true
		c.dispatch(k)
	}
}

// fetchKV begins to pull the longest match, if a peer has more than the origin and
// the transfer is faster than computing it, and reports whether it did.
func (c *cluster) fetchKV(k *call) bool {
	here := c.members[k.origin].engine.Match(k.Chain)
	from := c.best(k, func(m *member) int { return -m.engine.Match(k.Chain) })
	k.fetched = true
	match := c.members[from].engine.Match(k.Chain)
	if match <= here {
		return false
	}
	bytes := kvBytes(c.cfg, match-here)
	trips := c.trip(k.origin, from) + c.trip(from, k.origin)
	origin := c.members[k.origin]
	wait := max(0, origin.linkFree-c.now.Sub(start))
	if trips+wait+c.over(bytes) >= c.cfg.Profile.PerToken*time.Duration((match-here)*c.cfg.BlockTokens) {
		return false
	}
	at := c.delay(k.origin, from) + c.delay(from, k.origin) + c.transfer(origin, bytes)
	c.after(at, event{what: loaded, node: int32(k.origin), first: int32(match), call: k})
	return true
}

// kvBytes is the size of the KV cache of so many blocks.
func kvBytes(cfg Config, blocks int) int64 {
	return int64(blocks) * int64(cfg.BlockTokens) * int64(cfg.Profile.KVBytesPerToken)
}

// loaded puts a fetched KV cache into the engine and serves the request.
func (c *cluster) loaded(k *call, blocks int) {
	if k.closed {
		return
	}
	m, chain := c.members[k.origin], prefix.Chain(k.Chain[:blocks])
	m.engine.Load(chain)
	m.Prefilled(node.Request{Model: model, Chain: chain, Bytes: blocks * prefix.BlockBytes})
	c.dispatch(k)
}
