package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/prefix"
)

// rivals are other routers' formulas, written anew from what their sources and pages
// say, with the defaults they ship. They are ours, not theirs: those routers stand in
// front of all engines, and here each node runs the formula by itself on what it has
// heard. They are told more than gossip.Rumor says - a rumor of theirs carries
// emulate.Usage - and no less fresh: what a node has itself sent to a peer since the
// peer's last rumor counts at once. Where a formula leaves several, the node that was
// asked comes first, since a trip buys nothing, and then chance.
var rivals = []mode{
	rival("smg", smg),
	rival("dynamo", dynamo),
	rival("llm-d", llmd),
	rival("aibrix", aibrix),
	rival("gotoni", gotoni),
}

// A sighting is what a router knows of one node, itself or a peer.
type sighting struct {
	node  int
	self  bool
	match int // leading blocks of the prompt
	emulate.Usage
	trip time.Duration // there and back
}

// A prompt is what a formula asks of the request and of the engines, which are alike.
type prompt struct {
	blocks, tokens int
	blockTokens    int
	capacity       int // of a cache, in tokens
	perToken       time.Duration
}

// A formula returns which of the sightings it takes.
type formula func(seen []sighting, p prompt, rng *rand.Rand) int

func rival(name string, f formula) mode {
	return mode{name: name, rumors: true, usage: true, choose: func(c *cluster, k *call) int {
		seen := c.sight(k)
		if len(seen) == 0 {
			return k.origin
		}
		p := prompt{
			blocks: len(k.Chain), tokens: k.Tokens,
			blockTokens: c.cfg.BlockTokens, capacity: c.cfg.CapacityTokens, perToken: c.cfg.Profile.PerToken,
		}
		s := seen[f(seen, p, c.rng)]
		if !s.self {
			c.members[k.origin].peers[s.node].send(k, s.match*p.blockTokens)
		}
		return s.node
	}}
}

// smg is cache_aware of the Shepherd Model Gateway (smg-project/smg,
// model_gateway/src/policies/cache_aware.rs, with the defaults of its command): when
// the busiest node has more than 64 requests above the idlest and more than 1.5 times
// as many, the idlest; else the longest match, of equals the idlest, where it is more
// than 0.3 of the prompt; else the idlest.
func smg(seen []sighting, p prompt, rng *rand.Rand) int {
	const threshold, absolute, relative = 0.3, 64, 1.5
	load := func(s sighting) float64 { return float64(s.Requests()) }
	low, high := bounds(seen, load)
	if high-low > absolute && high > relative*low {
		return least(seen, rng, load)
	}
	best := least(seen, rng, func(s sighting) float64 { return -float64(s.match) }, load)
	if float64(seen[best].match) > threshold*float64(p.blocks) {
		return best
	}
	return least(seen, rng, load)
}

// dynamo is the KV router of NVIDIA Dynamo (ai-dynamo/dynamo, docs/components/router)
// at temperature 0: the least sum of the blocks that the node would have to prefill,
// with this prompt's but without those that it has, and of those that it would have in
// use.
func dynamo(seen []sighting, p prompt, rng *rand.Rand) int {
	return least(seen, rng, func(s sighting) float64 {
		prefill := max(0, s.Prefill/p.blockTokens+p.blocks-s.match)
		return float64(prefill + s.Held/p.blockTokens + p.blocks)
	})
}

// llmd is llm-d's endpoint picker (llm-d/llm-d-router, pkg/epp/config/loader) with its
// default weights: three times the share of the prompt that matches, twice how short
// the queue is between the longest and the shortest, twice how much of the cache is not
// in use. The most wins.
func llmd(seen []sighting, p prompt, rng *rand.Rand) int {
	waiting := func(s sighting) float64 { return float64(s.Waiting) }
	low, high := bounds(seen, waiting)
	return least(seen, rng, func(s sighting) float64 {
		queue := 1.
		if high > low {
			queue = (high - waiting(s)) / (high - low)
		}
		matched := float64(s.match) / float64(max(1, p.blocks))
		free := 1 - min(1, float64(s.Held)/float64(p.capacity))
		return -(3*matched + 2*queue + 2*free)
	})
}

// aibrix is AIBrix's prefix-cache policy (vllm-project/aibrix,
// pkg/plugins/gateway/algorithms/prefix_cache.go): when the busiest node has more than
// 8 requests above the idlest, the idlest; else of those that match anything, by
// percent of the prompt and then the fewest requests, the first with no more requests
// than one standard deviation above the mean; else the idlest.
func aibrix(seen []sighting, p prompt, rng *rand.Rand) int {
	load := func(s sighting) float64 { return float64(s.Requests()) }
	if low, high := bounds(seen, load); high-low > 8 {
		return least(seen, rng, load)
	}
	var sum, squares float64
	for _, s := range seen {
		sum, squares = sum+load(s), squares+load(s)*load(s)
	}
	mean := sum / float64(len(seen))
	most := mean + math.Sqrt(max(0, squares/float64(len(seen))-mean*mean))
	percent := func(s sighting) float64 {
		if s.match == 0 || load(s) > most {
			return 0 // not among the matched
		}
		return -1 - float64(100*s.match/p.blocks)
	}
	if best := least(seen, rng, percent, load); percent(seen[best]) < 0 {
		return best
	}
	return least(seen, rng, load)
}

// gotoni is GORGO's policy (atoniolo76/gotoni, pkg/cluster/loadbalancer.go, GORGO2;
// arXiv 2602.11688) with the engines' own time for a token: a peer costs the trip
// there and back and the tokens that it does not have, this node what waits and half of
// what runs, in whole prompts, and the tokens that it does not have. Of equals, this
// node. It does not look at a peer's load.
func gotoni(seen []sighting, p prompt, rng *rand.Rand) int {
	const running = 0.5
	return least(seen, rng, func(s sighting) float64 {
		tokens := float64(max(0, p.tokens-s.match*p.blockTokens))
		trip := s.trip
		if s.self {
			tokens += running*float64(s.RunningTokens) + float64(s.WaitingTokens)
			trip = 0
		}
		return trip.Seconds() + tokens*p.perToken.Seconds()
	})
}

// least returns the sighting with the least first cost, of those that tie with the
// least second, and so on; of the rest the node itself, or one by chance.
func least(seen []sighting, rng *rand.Rand, costs ...func(sighting) float64) int {
	best, tied := 0, 1
	for i := 1; i < len(seen); i++ {
		order := 0
		for _, cost := range costs {
			order = cmp.Or(order, cmp.Compare(cost(seen[i]), cost(seen[best])))
		}
		switch {
		case order < 0:
			best, tied = i, 1
		case order > 0 || seen[best].self:
		case seen[i].self:
			best, tied = i, 1
		default:
			// Each of the n tied so far is held with chance 1/n.
			if tied++; rng.IntN(tied) == 0 {
				best = i
			}
		}
	}
	return best
}

// bounds are the least and the largest value.
func bounds(seen []sighting, of func(sighting) float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range seen {
		low, high = min(low, of(s)), max(high, of(s))
	}
	return low, high
}

// A peer is what a node knows of another under a rival: its last rumor, and what it
// has been sent by this node since.
type peer struct {
	rumor   *spoken // nil before the first
	sent    emulate.Usage
	credits map[prefix.Hash]bool // of what it was sent
}

// send counts a request in that is on its way to the peer, which is believed to have so
// many of its tokens cached.
func (p *peer) send(k *call, cached int) {
	p.sent.Waiting++
	p.sent.WaitingTokens += k.Tokens
	p.sent.Prefill += max(1, k.Tokens-cached)
	p.sent.Held += k.Tokens
	if p.credits == nil {
		p.credits = map[prefix.Hash]bool{}
	}
	for _, h := range k.Chain {
		p.credits[h] = true
	}
}

func (p *peer) match(c prefix.Chain) int {
	return c.Longest(func(h prefix.Hash) bool { return p.rumor.Tree.Has(h) || p.credits[h] })
}

// note takes in a rumor that was news to a node under a rival.
func (m *member) note(r *spoken, nodes int) {
	if m.peers == nil {
		m.peers = make([]peer, nodes)
	}
	m.peers[r.author.index] = peer{rumor: r}
}

// sight is what the node that a call came to knows of itself, exactly, and of every peer
// that it has heard of lately, less those tried.
func (c *cluster) sight(k *call) []sighting {
	origin := c.members[k.origin]
	c.seen = c.seen[:0]
	if !slices.Contains(k.tried, origin.name) {
		c.seen = append(c.seen, sighting{node: k.origin, self: true, match: origin.engine.Match(k.Chain), Usage: origin.engine.Usage()})
	}
	for i := range origin.peers {
		p, name := &origin.peers[i], c.members[i].name
		if p.rumor == nil || p.rumor.Down || slices.Contains(k.tried, name) || origin.Suspected(c.now, name) {
			continue
		}
		u := p.rumor.usage
		u.Waiting += p.sent.Waiting
		u.WaitingTokens += p.sent.WaitingTokens
		u.Prefill += p.sent.Prefill
		u.Held += p.sent.Held
		c.seen = append(c.seen, sighting{
			node: i, match: p.match(k.Chain), Usage: u, trip: c.trip(k.origin, i) + c.trip(i, k.origin),
		})
	}
	return c.seen
}
