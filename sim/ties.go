package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"

	"github.com/hearsay-project/hearsay/route"
)

// A tieBreak is one reading of getBestNode, Algorithm 1 line 5: of the nodes with
// the longest match it takes the first by order, and one by chance where that
// leaves several. The paper names no rule; route.Longest, the one of real nodes,
// takes the asking node and then chance. The others are for comparison alone.
type tieBreak struct {
	name  string
	order func(t *tieBreak, a, b route.Candidate) int
	sent  map[string]int // requests that this node has routed, by where
}

var _ route.Policy = (*tieBreak)(nil)

// tieBreaks are policies of their own: longest:NAME.
var tieBreaks = []mode{
	// chance: all who tie are equal, so that the asking node forwards for nothing.
	tie("longest:chance", func(*tieBreak, route.Candidate, route.Candidate) int { return 0 }),
	// ordered: a loop that begins with the asking node and takes what is longer.
	tie("longest:ordered", func(_ *tieBreak, a, b route.Candidate) int { return cmp.Or(selfFirst(a, b), byNumber(a, b)) }),
	// first: argmax over the list of nodes, the same at all of them.
	tie("longest:first", func(_ *tieBreak, a, b route.Candidate) int { return byNumber(a, b) }),
	// peers: the estimates are asked before the node's own tree.
	tie("longest:peers", func(_ *tieBreak, a, b route.Candidate) int { return selfFirst(b, a) }),
	// fewest: the node to which the asking one has routed least, itself counted.
	tie("longest:fewest", func(t *tieBreak, a, b route.Candidate) int { return cmp.Compare(t.sent[a.Name], t.sent[b.Name]) }),
}

func tie(name string, order func(t *tieBreak, a, b route.Candidate) int) mode {
	return mode{name: name, rumors: true, policy: func() route.Policy {
		return &tieBreak{name: name, order: order, sent: map[string]int{}}
	}}
}

// selfFirst orders the asking node before its peers, which are equal.
func selfFirst(a, b route.Candidate) int {
	switch {
	case a.Self == b.Self:
		return 0
	case a.Self:
		return -1
	}
	return 1
}

// byNumber orders n2 before n10.
func byNumber(a, b route.Candidate) int {
	return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
}

// Name returns the policy's name.
func (t *tieBreak) Name() string { return t.name }

// Choose returns the candidate with the longest match that comes first.
func (t *tieBreak) Choose(cands []route.Candidate, rng *rand.Rand) (int, string) {
	best, tied := 0, 1
	for i := 1; i < len(cands); i++ {
		a, b := cands[i], cands[best]
		switch order := cmp.Or(cmp.Compare(b.Match, a.Match), t.order(t, a, b)); {
		case order < 0:
			best, tied = i, 1
		case order == 0:
			// Each of the n tied so far is held with chance 1/n.
			if tied++; rng.IntN(tied) == 0 {
				best = i
			}
		}
	}
	t.sent[cands[best].Name]++
	return best, fmt.Sprintf("%s match=%d at %s", t.name, cands[best].Match, cands[best].Name)
}
