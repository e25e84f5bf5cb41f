package route_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/route"
	"pgregory.net/rapid"
)

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// candidates reads "name:match" with ",q=N" for a queue, "!" for paused and "*" for self.
func candidates(t *testing.T, text string) (cands []route.Candidate) {
	t.Helper()
	for _, word := range strings.Fields(text) {
		c := route.Candidate{Self: strings.Contains(word, "*"), Paused: strings.Contains(word, "!")}
		word = strings.Trim(word, "*!")
		if _, err := fmt.Sscanf(strings.Replace(word, ":", " ", 1), "%s %d,q=%d", &c.Name, &c.Match, &c.Queue); err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		cands = append(cands, c)
	}
	return cands
}

func TestPoliciesChoose(t *testing.T) {
	for _, test := range []struct{ policy, cands, want, reason string }{
		{"local", "a:0,q=9*! b:31,q=0", "a", "local match=0"},

		{"longest", "a:0,q=0* b:0,q=0 c:0,q=0", "a", "longest match=0 here"},
		{"longest", "a:4,q=0* b:28,q=0 c:31,q=99!", "c", "longest match=31 at c (here 4)"},
		{"longest", "c:31,q=0 b:31,q=0 a:31,q=99*!", "a", "longest match=31 here"},

		{"longest+pushback", "a:4,q=0* b:28,q=0 c:31,q=0", "c", "longest+pushback match=31 at c (here 4)"},
		{"longest+pushback", "a:4,q=0* b:28,q=0 c:31,q=99!", "b", "longest+pushback match=28 at b (here 4), c with 31 is paused"},
		{"longest+pushback", "a:4,q=0* b:28,q=9! c:31,q=99!", "a", "longest+pushback match=4 here, c with 31 is paused"},
		{"longest+pushback", "c:31,q=99! b:28,q=9! a:4,q=10*!", "a", "longest+pushback all paused, stay here match=4"},
		{"longest+pushback", "a:31,q=10*! b:28,q=1 c:4,q=0", "b", "longest+pushback match=28 at b (here 31), a with 31 is paused"},
		{"longest+pushback", "a:0,q=10*! b:0,q=3 c:0,q=1 d:0,q=2", "c", "longest+pushback match=0 at c (here 0)"},
		{"longest+pushback", "b:9,q=0 a:9,q=5* c:9,q=0", "a", "longest+pushback match=9 here"},
	} {
		p, err := route.ByName(test.policy)
		if err != nil {
			t.Fatal(err)
		}
		cands := candidates(t, test.cands)
		i, reason := p.Choose(cands, newRand())
		if cands[i].Name != test.want || reason != test.reason {
			t.Errorf("%s of %s: %s, %q; want %s, %q", test.policy, test.cands, cands[i].Name, reason, test.want, test.reason)
		}
	}
}

// Equals share the work: each of three tied peers is drawn a third of the time.
func TestTiesAreDrawnEvenly(t *testing.T) {
	for _, p := range []route.Policy{route.Longest{}, route.LongestPushback{}} {
		cands := candidates(t, "a:0,q=0* b:7,q=1 x:3,q=0 c:7,q=1 d:7,q=1")
		rng, drawn := newRand(), map[string]int{}
		for range 3000 {
			i, _ := p.Choose(cands, rng)
			drawn[cands[i].Name]++
		}
		for _, name := range []string{"b", "c", "d"} {
			if drawn[name] < 900 || drawn[name] > 1100 {
				t.Errorf("%s draws %v", p.Name(), drawn)
			}
		}
	}
}

// Whatever the candidates and their order: longest has a match that none exceeds,
// leaves here only for a longer one, and push-back leaves for no paused node.
func TestPoliciesKeepTheirPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cands := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) route.Candidate {
			return route.Candidate{
				Match:  rapid.IntRange(0, 3).Draw(t, "match"),
				Queue:  rapid.IntRange(0, 3).Draw(t, "queue"),
				Paused: rapid.Bool().Draw(t, "paused"),
			}
		}), 1, 8).Draw(t, "candidates")
		self := rapid.IntRange(0, len(cands)-1).Draw(t, "self")
		cands[self].Self = true

		i, _ := route.Longest{}.Choose(cands, newRand())
		for _, c := range cands {
			if c.Match > cands[i].Match || cands[self].Match == cands[i].Match && i != self {
				t.Fatalf("longest chose %d", i)
			}
		}
		i, _ = route.LongestPushback{}.Choose(cands, newRand())
		if cands[i].Paused && i != self {
			t.Fatalf("push-back chose %d, which is paused", i)
		}
		for _, c := range cands {
			if c.Paused {
				continue
			}
			if cands[i].Paused || c.Match > cands[i].Match || c.Match == cands[i].Match && i != self && (c.Self || c.Queue < cands[i].Queue) {
				t.Fatalf("push-back chose %d over %+v", i, c)
			}
		}
	})
}

func TestUnknownPolicyNamesThemAll(t *testing.T) {
	_, err := route.ByName("best")
	if want := `unknown policy "best"; choose one of local, longest, longest+pushback, economic`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func BenchmarkChoose64(b *testing.B) {
	cands := make([]route.Candidate, 64)
	for i := range cands {
		cands[i] = route.Candidate{Name: fmt.Sprintf("n%d", i), Self: i == 0, Match: i % 7}
	}
	rng := newRand()
	for b.Loop() {
		route.LongestPushback{}.Choose(cands, rng)
	}
}
