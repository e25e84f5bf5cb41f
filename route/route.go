// Package route ranks the nodes that could serve a request.
//
// A Policy is told of each candidate how much of the prompt it is believed to
// have cached and how busy it says it is, and picks one. It is arithmetic over
// these: it knows nothing of trees, rumors or clocks, so that policies can be
// compared on the same inputs. The node that asks is always among the
// candidates, since it can serve anything.
package route

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// A Candidate is a node that could serve the request, as the asking node sees it.
type Candidate struct {
	Name   string
	Self   bool // the node that asks
	Match  int  // leading blocks of the prompt that it is believed to hold; -1 makes it the last resort
	Queue  int  // requests it has admitted and not finished
	Paused bool // its queue is too long: it asks for no more
	Price  Price
}

// A Policy chooses among candidates, of which exactly one is Self. It returns the
// index of its choice and the reason in one short line. All chance comes from rng.
type Policy interface {
	Name() string
	Choose(cands []Candidate, rng *rand.Rand) (i int, reason string)
}

var (
	_ Policy = Local{}
	_ Policy = Longest{}
	_ Policy = LongestPushback{}
)

var policies = []Policy{Local{}, Longest{}, LongestPushback{}, Economic{}}

// ByName returns the policy that flags and files call name.
func ByName(name string) (Policy, error) {
	for _, p := range policies {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("unknown policy %q; choose one of %s", name, Names())
}

// Names lists the policies for people: "local, longest, longest+pushback".
func Names() string {
	names := make([]string, len(policies))
	for i, p := range policies {
		names[i] = p.Name()
	}
	return strings.Join(names, ", ")
}

// Local serves every request where it came in: the paper's no-routing baseline.
type Local struct{}

// Name returns "local".
func (Local) Name() string { return "local" }

// Choose returns self.
func (Local) Choose(cands []Candidate, _ *rand.Rand) (int, string) {
	self := findSelf(cands)
	return self, fmt.Sprintf("local match=%d", cands[self].Match)
}

// Longest is Algorithm 1 of the paper, line 5: the node with the longest match,
// whatever its load. Where several have it, this node comes first, as a trip
// would buy nothing; among peers chance decides, so that equals share the work.
type Longest struct{}

// Name returns "longest".
func (Longest) Name() string { return "longest" }

// Choose returns the candidate with the longest match.
func (Longest) Choose(cands []Candidate, rng *rand.Rand) (int, string) {
	best := pick(cands, rng, func(a, b Candidate) bool { return a.Match > b.Match })
	return best, describe("longest", cands, best)
}

// LongestPushback is Longest among the nodes that have not asked for a pause
// (section 3.2 of the paper): while a hot specialist pauses, its requests spill to
// the next best, at a partial-cache cost, and stay here when there is none. This
// node is paused too while its own queue is too long. Among equals this node comes
// first, then the shortest queue, then chance.
type LongestPushback struct{}

// Name returns "longest+pushback".
func (LongestPushback) Name() string { return "longest+pushback" }

// Choose returns the unpaused candidate with the longest match, or self.
func (LongestPushback) Choose(cands []Candidate, rng *rand.Rand) (int, string) {
	best := pick(cands, rng, func(a, b Candidate) bool {
		switch {
		case a.Paused != b.Paused:
			return b.Paused
		case a.Match != b.Match:
			return a.Match > b.Match
		default:
			return !a.Self && !b.Self && a.Queue < b.Queue
		}
	})
	if cands[best].Paused {
		self := findSelf(cands)
		return self, fmt.Sprintf("longest+pushback all paused, stay here match=%d", cands[self].Match)
	}
	reason := describe("longest+pushback", cands, best)
	if avoided := pick(cands, nil, func(a, b Candidate) bool { return a.Match > b.Match }); cands[avoided].Paused && cands[avoided].Match > cands[best].Match {
		reason += fmt.Sprintf(", %s with %d is paused", cands[avoided].Name, cands[avoided].Match)
	}
	return best, reason
}

// Elsewhere returns the candidate for a request that self cannot serve, whatever
// the policy: of the others the unpaused with the longest match, then the least
// busy. There must be another.
func Elsewhere(cands []Candidate, rng *rand.Rand) (int, string) {
	best := pick(cands, rng, func(a, b Candidate) bool {
		switch {
		case a.Self != b.Self:
			return b.Self
		case a.Paused != b.Paused:
			return b.Paused
		case a.Match != b.Match:
			return a.Match > b.Match
		default:
			return a.Queue < b.Queue
		}
	})
	return best, fmt.Sprintf("not here, match=%d at %s", cands[best].Match, cands[best].Name)
}

// pick returns the best candidate by better, which must order them except for
// ties. Of the tied, self wins; else rng draws one, or without rng the first is it.
func pick(cands []Candidate, rng *rand.Rand, better func(a, b Candidate) bool) int {
	best, tied := 0, 1
	for i := 1; i < len(cands); i++ {
		switch a, b := cands[i], cands[best]; {
		case better(a, b):
			best, tied = i, 1
		case better(b, a) || b.Self:
		case a.Self:
			best, tied = i, 1
		default:
			// Each of the n tied so far is held with chance 1/n.
			if tied++; rng != nil && rng.IntN(tied) == 0 {
				best = i
			}
		}
	}
	return best
}

func findSelf(cands []Candidate) int {
	for i, c := range cands {
		if c.Self {
			return i
		}
	}
	panic("route: self is not among the candidates")
}

func describe(policy string, cands []Candidate, best int) string {
	b := cands[best]
	if b.Self {
		return fmt.Sprintf("%s match=%d here", policy, b.Match)
	}
	here := cands[findSelf(cands)].Match
	if here < 0 {
		return fmt.Sprintf("%s match=%d at %s (not here)", policy, b.Match, b.Name)
	}
	return fmt.Sprintf("%s match=%d at %s (here %d)", policy, b.Match, b.Name, here)
}
