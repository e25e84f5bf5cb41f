package route_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/route"
	"pgregory.net/rapid"
)

// priced makes a candidate: trip, wait, prefill and toll in milliseconds, "*" before
// the name for self and "!" for paused.
func priced(name string, trip, wait, prefill, toll int) route.Candidate {
	c := route.Candidate{Price: route.Price{
		Trip: ms(trip), Wait: ms(wait), Prefill: ms(prefill), Toll: ms(toll),
	}}
	for ; name[0] == '*' || name[0] == '!'; name = name[1:] {
		c.Self, c.Paused = c.Self || name[0] == '*', c.Paused || name[0] == '!'
	}
	c.Name = name
	return c
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// The choice is the least price, this node before peers that are no cheaper, and the
// reason says what it was made of, for the chosen and for here.
func TestEconomicChooses(t *testing.T) {
	here := priced("*a", 0, 0, 400, 8)
	for _, test := range []struct {
		name   string
		cands  []route.Candidate
		want   string
		reason string
	}{
		{"alone", []route.Candidate{here}, "a", "economic here 408ms = wait 0 + prefill 400 + toll 8"},
		{
			"a trip that pays",
			[]route.Candidate{here, priced("b", 4, 30, 40, 1)},
			"b", "economic b 75ms = trip 4 + wait 30 + prefill 40 + toll 1, here 408ms = wait 0 + prefill 400 + toll 8",
		},
		{"a trip that does not", []route.Candidate{priced("b", 380, 0, 40, 1), here}, "a", "economic here 408ms = wait 0 + prefill 400 + toll 8"},
		{"as cheap elsewhere, after", []route.Candidate{here, priced("b", 8, 0, 400, 0)}, "a", "economic here 408ms = wait 0 + prefill 400 + toll 8"},
		{"as cheap elsewhere, before", []route.Candidate{priced("b", 8, 0, 400, 0), here}, "a", "economic here 408ms = wait 0 + prefill 400 + toll 8"},
		{"others' time counts", []route.Candidate{here, priced("b", 4, 0, 300, 200)}, "a", "economic here 408ms = wait 0 + prefill 400 + toll 8"},
		{
			"the cheapest is paused",
			[]route.Candidate{here, priced("!b", 4, 0, 40, 0), priced("c", 4, 0, 200, 0)},
			"c", "economic c 204ms = trip 4 + wait 0 + prefill 200 + toll 0, here 408ms = wait 0 + prefill 400 + toll 8",
		},
		{
			"this node is the last resort",
			[]route.Candidate{priced("!*a", 0, 0, 40, 0), priced("b", 90, 0, 400, 0)},
			"b", "economic b 490ms = trip 90 + wait 0 + prefill 400 + toll 0, here 40ms = wait 0 + prefill 40 + toll 0",
		},
		{
			"all are paused",
			[]route.Candidate{priced("!b", 4, 0, 40, 0), priced("!*a", 0, 50, 400, 0)},
			"a", "economic all paused, stay here 450ms = wait 50 + prefill 400 + toll 0",
		},
	} {
		i, reason := route.Economic{}.Choose(test.cands, newRand())
		if got := test.cands[i].Name; got != test.want || reason != test.reason {
			t.Errorf("%s: %s, %q\nwant %s, %q", test.name, got, reason, test.want, test.reason)
		}
	}
}

// Peers that are as fast but for their queues share the work: of two drawn the
// cheaper is taken, so the dearest of three never, and those that are dearer by a
// whole prefill or slower by trip and prefill are not drawn at all.
func TestEconomicDrawsTwo(t *testing.T) {
	cands := []route.Candidate{
		priced("*a", 0, 0, 900, 0),
		priced("b", 4, 0, 100, 0),
		priced("c", 5, 20, 100, 0),     // a millisecond of trip is no difference
		priced("d", 4, 60, 100, 0),     // the dearest of three that are drawn
		priced("far", 9, 0, 100, 0),    // no queue, but a longer way
		priced("cold", 4, 0, 120, 0),   // the same with prefill
		priced("busy", 4, 101, 100, 0), // dearer by more than a prefill
	}
	rng, drawn := newRand(), map[string]int{}
	for range 3000 {
		i, _ := route.Economic{}.Choose(cands, rng)
		drawn[cands[i].Name]++
	}
	if drawn["b"] < 1900 || drawn["b"] > 2100 || drawn["c"] < 900 || drawn["c"] > 1100 || len(drawn) != 2 {
		t.Errorf("drawn %v; want b of two pairs and c of the third", drawn)
	}
	for i := range cands {
		cands[i].Price = cands[1].Price
		if cands[i].Self {
			cands[i].Price.Wait += 3 * time.Millisecond
		}
	}
	clear(drawn)
	for range 6000 {
		i, _ := route.Economic{}.Choose(cands, rng)
		drawn[cands[i].Name]++
	}
	for _, c := range cands[1:] {
		if n := drawn[c.Name]; n < 900 || n > 1100 {
			t.Errorf("%s is drawn %d times of 6000, of six alike", c.Name, n)
		}
	}
}

// Whatever the candidates: no peer is chosen that is paused, or cheaper than this node by
// no more than a millisecond or a fiftieth, and none that is dearer than the cheapest by
// more than a prefill.
func TestEconomicKeepsItsPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cands := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) route.Candidate {
			n := func(what string) int { return rapid.IntRange(0, 40).Draw(t, what) }
			c := priced("b", n("trip"), n("wait"), n("prefill"), n("toll"))
			c.Paused = rapid.IntRange(0, 3).Draw(t, "paused") == 0
			return c
		}), 1, 8).Draw(t, "candidates")
		self := rapid.IntRange(0, len(cands)-1).Draw(t, "self")
		for i := range cands {
			cands[i].Name = fmt.Sprint("n", i)
		}
		cands[self].Self, cands[self].Price.Trip = true, 0
		i, _ := route.Economic{}.Choose(cands, newRand())
		best := -1
		for j, c := range cands {
			if !c.Paused && (best < 0 || c.Price.Total() < cands[best].Price.Total()) {
				best = j
			}
		}
		least := cands[max(best, 0)].Price
		about := func(d time.Duration) time.Duration { return d + max(d/50, time.Millisecond) }
		most := least.Total() + least.Prefill
		if i == self {
			most = about(most)
		}
		switch here, c := cands[self], cands[i]; {
		case best < 0 && i != self:
			t.Fatalf("all are paused, and %d was chosen", i)
		case best < 0:
		case c.Paused:
			t.Fatalf("%d is paused", i)
		case c.Price.Total() > most:
			t.Fatalf("%d costs %v, the cheapest %v", i, c.Price.Total(), least.Total())
		case i != self && !here.Paused && about(c.Price.Total()) >= here.Price.Total():
			t.Fatalf("%d costs %v, here %v", i, c.Price.Total(), here.Price.Total())
		case i != self && c.Price.Trip+c.Price.Prefill > about(least.Trip+least.Prefill) && c.Price.Total() > least.Total():
			t.Fatalf("%d is slower than %d but for what waits", i, best)
		}
	})
}
