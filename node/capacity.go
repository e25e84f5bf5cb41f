package node

import (
	"math"

	"github.com/hearsay-project/hearsay/prefix"
)

// A gauge learns how many tokens an engine's cache holds from what the engine
// finds cached, whatever it was told before.
//
// A cache that forgets what was used longest ago still has a block exactly if the
// tokens used since fit into it beside the block: the block's reuse distance
// (Mattson et al., "Evaluation techniques for storage hierarchies", 1970). So each
// answer is evidence. A block that the engine found says that it holds at least
// the block's distance, one that it did not find that it holds less, in the tree
// or not. The capacity is where the fewest tokens contradict it, and it stays where
// it is while another explains the evidence no better. Old evidence fades, so that
// it follows a cache that other clients fill too: what counts is what is left for
// this node's requests.
//
// An engine that finds nothing, again and again, of what all evidence says is there
// has not run out of room. It has lost its cache, and that is no evidence.
type gauge struct {
	told   int // by the engine or the operator; 0 where nobody knows
	tokens int // believed; 0 while nothing speaks for a limit
	stack  stack

	kept, lost [gaugeBins]float64 // tokens found and not found, by distance
	weight     float64            // of a token of evidence; it grows, so that old evidence counts less

	cold     int        // answers in a row that found nothing of what should be there
	doubtful []evidence // of them
	since    int        // tokens served since the cache was last believed lost
	patch    int        // what has to be served before that is believed again
	losses   int
}

// evidence is what one block adds to the tokens of a bin.
type evidence struct {
	bin    int
	weight float64
}

const (
	gaugeBins      = 896 // distances from 16 tokens up, to 2^32
	binsPerOctave  = 32  // 2.2 % apart
	leastDistance  = 16
	evidenceMemory = 4       // cache turnovers after which evidence has faded to 1/e
	patience       = 0.002   // share of all evidence by which another capacity has to be better
	coldMin        = 4       // promised blocks that make an answer without any of them a cold one
	coldLimit      = 2       // of them in a row; one may be a request that the engine does not cache
	weightMax      = 1 << 40 // then all evidence is scaled back
	stackReach     = 4       // distances are told up to so many times the capacity
)

func newGauge(told, maxBlocks int) gauge {
	g := gauge{weight: 1, stack: newStack(maxBlocks)}
	g.tell(told)
	return g
}

// measure has the gauge learn from an answer of this node's engine, and the tree
// follow.
func (n *Node) measure(req Request, out Outcome, chain prefix.Chain, tokens int) {
	if !n.cfg.LearnCapacity {
		return
	}
	before := n.gauge.tokens
	if n.gauge.served(req, out, chain, tokens) {
		n.tree.Clear()
	}
	if n.gauge.tokens != before {
		n.tree.SetMaxTokens(capacity(n.gauge.tokens))
	}
}

// tell takes the word of the engine or the operator, 0 for none. A new one ends
// what was learnt of an engine that had another.
func (g *gauge) tell(tokens int) {
	if tokens != g.told {
		g.told, g.tokens = tokens, tokens
		g.kept, g.lost = [gaugeBins]float64{}, [gaugeBins]float64{}
	}
}

// forget says that the cache is empty. Its size is what it was.
func (g *gauge) forget() {
	g.stack.clear()
	g.cold, g.doubtful, g.since = 0, nil, 0
}

// served takes in what the engine found of req, of whose blocks it then holds all
// of chain with so many tokens. It reports whether the engine has lost its cache.
func (g *gauge) served(req Request, out Outcome, chain prefix.Chain, tokens int) (lost bool) {
	g.since += tokens
	if out.Known && out.PromptTokens > 0 && req.Bytes > 0 && len(req.Chain) > 0 {
		perBlock := prefix.BlockBytes * float64(out.PromptTokens) / float64(req.Bytes)
		found := float64(out.CachedTokens)
		if found > perBlock+pageTokens {
			g.cold, g.doubtful = 0, nil
		}
		doubt := out.Promised >= coldMin && found <= perBlock+pageTokens && g.surprised(req.Chain, within(found, perBlock))
		g.observe(req.Chain, found, perBlock, doubt)
		if doubt {
			g.cold++
		}
		if lost = g.cold >= coldLimit; lost {
			g.lose()
		} else if g.cold == 0 {
			g.settle(float64(out.PromptTokens))
		}
	}
	g.stack.touch(chain, tokens, stackReach*g.tokens)
	return lost
}

// surprised says whether all evidence is that the engine has the block of c behind
// the first so many, which it may have. It is not asked for a turnover after a loss:
// what is lost again and again is being displaced.
func (g *gauge) surprised(c prefix.Chain, may int) bool {
	d, known := g.stack.newest(c[min(may, len(c)):])
	if !known || g.since < g.patch {
		return false
	}
	at, held, against := bin(d), 0.0, 0.0
	for i := range gaugeBins {
		if i >= at {
			held += g.kept[i]
		}
		if i <= at {
			against += g.lost[i]
		}
	}
	return held > against
}

// lose takes back what the last answers seemed to say of the capacity.
func (g *gauge) lose() {
	for _, e := range g.doubtful {
		g.lost[e.bin] -= e.weight
	}
	g.patch = g.span()
	g.losses++
	g.forget()
}

// span is how far back the engine is believed to remember, in tokens.
func (g *gauge) span() int {
	if all := int(g.stack.tokens()); g.tokens == 0 || all < g.tokens {
		return all
	}
	return g.tokens
}

// observe books each block of c, whose distance is known, as found or as not found.
// Those on the edge of what was cached may be either, see shortfall. Of an answer
// in doubt it remembers what it has booked.
func (g *gauge) observe(c prefix.Chain, cached, perBlock float64, doubt bool) {
	slack := perBlock + pageTokens + 1 + cached/unevenShare
	for i, h := range c {
		from := float64(i) * perBlock
		into := &g.kept
		if from >= cached+slack {
			into = &g.lost
		} else if from+perBlock > cached {
			continue
		}
		d, known := g.stack.distance(h)
		if !known {
			continue
		}
		e := evidence{bin(d), perBlock * g.weight}
		into[e.bin] += e.weight
		if doubt {
			g.doubtful = append(g.doubtful, e)
		}
	}
}

// settle moves the capacity to where the evidence has it, and lets evidence fade.
func (g *gauge) settle(tokens float64) {
	against := 0.0 // of a capacity below all bins: everything found
	for _, kept := range g.kept {
		against += kept
	}
	all, least, best, now := against, against, 0, against
	at := gaugeBins
	if g.tokens > 0 {
		at = bin(float64(g.tokens))
	}
	for i := range gaugeBins { // the capacity is the upper end of bin i
		against += g.lost[i] - g.kept[i]
		all += g.lost[i]
		if against < least || against == least && abs(i+1-at) < abs(best-at) {
			least, best = against, i+1
		}
		if i+1 <= at {
			now = against
		}
	}
	if now-least > patience*all {
		g.tokens = int(edge(best)) + 1 // so that it falls into that bin again
	}
	g.weight *= math.Exp(tokens / (evidenceMemory * float64(max(g.span(), 1))))
	if g.weight > weightMax {
		for i := range gaugeBins {
			g.kept[i] /= g.weight
			g.lost[i] /= g.weight
		}
		g.weight, g.doubtful = 1, nil
	}
}

func abs(n int) int { return max(n, -n) }

// bin is that of a distance, and edge the distance at which a bin begins.
func bin(distance float64) int {
	if distance <= leastDistance {
		return 0
	}
	return min(int(math.Log2(distance/leastDistance)*binsPerOctave), gaugeBins-1)
}

func edge(bin int) float64 { return leastDistance * math.Exp2(float64(bin)/binsPerOctave) }
