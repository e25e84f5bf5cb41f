package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hearsay-project/hearsay/route"
)

// Of the nodes with the longest match each rule takes its own, whatever the order
// in which they are given, and chance shares evenly what it leaves open.
func TestTieBreaks(t *testing.T) {
	all := []route.Candidate{{Name: "n3", Self: true, Match: 7}, {Name: "n1", Match: 6}, {Name: "n2", Match: 7}, {Name: "n10", Match: 7}}
	longer := slices.Concat(all, []route.Candidate{{Name: "n4", Match: 8}})
	for name, want := range map[string][]string{ // of all
		"longest:chance":  {"n10", "n2", "n3"},
		"longest:ordered": {"n3"},
		"longest:first":   {"n2"},
		"longest:peers":   {"n10", "n2"},
		"longest:fewest":  {"n10", "n2", "n3"},
	} {
		m, err := modeOf(name)
		if err != nil {
			t.Fatal(err)
		}
		p, rng, drawn := m.policy(), rand.New(rand.NewPCG(1, 2)), map[string]int{}
		if p.Name() != name || !m.rumors {
			t.Errorf("%s is called %s, its nodes speak: %v", name, p.Name(), m.rumors)
		}
		const draws = 3000
		for range draws {
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			i, _ := p.Choose(all, rng)
			drawn[all[i].Name]++
		}
		if got := slices.Sorted(maps.Keys(drawn)); !slices.Equal(got, want) {
			t.Errorf("%s takes %v, want %v", name, got, want)
		}
		even, slack := draws/len(want), draws/20
		if name == "longest:fewest" {
			slack = 0
		}
		for node, n := range drawn {
			if n < even-slack || n > even+slack {
				t.Errorf("%s takes %s %d times of %d", name, node, n, draws)
			}
		}
		if i, reason := p.Choose(longer, rng); longer[i].Name != "n4" || reason != name+" match=8 at n4" {
			t.Errorf("%s takes %s of a longer match: %q", name, longer[i].Name, reason)
		}
	}
	if i, _ := mustPolicy(t, "longest:ordered").Choose(slices.Concat(all[:0:0], []route.Candidate{{Name: "n3", Self: true}, {Name: "n10", Match: 2}, {Name: "n2", Match: 2}}), nil); i != 2 {
		t.Errorf("longest:ordered takes candidate %d of two peers, want n2", i)
	}
}

// What a node has routed weighs with that node alone.
func TestFewestIsOfOneNode(t *testing.T) {
	cands, rng := []route.Candidate{{Name: "n1", Self: true}, {Name: "n2"}}, rand.New(rand.NewPCG(1, 2))
	firsts := map[int]bool{}
	for range 20 {
		p := mustPolicy(t, "longest:fewest")
		first, _ := p.Choose(cands, rng)
		if second, _ := p.Choose(cands, rng); second == first {
			t.Fatal("the same node twice")
		}
		firsts[first] = true
	}
	if len(firsts) != 2 {
		t.Error("the first choice is not open")
	}
}

func mustPolicy(t *testing.T, name string) route.Policy {
	t.Helper()
	m, err := modeOf(name)
	if err != nil {
		t.Fatal(err)
	}
	return m.policy()
}
