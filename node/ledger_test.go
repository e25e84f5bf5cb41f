package node

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"pgregory.net/rapid"
)

// chain names n blocks, the first shared of which all chains with one topic have.
func chain(topic, own, shared, n int) prefix.Chain {
	c := make(prefix.Chain, n)
	for i := range c {
		c[i] = prefix.Hash(topic)<<48 | prefix.Hash(i)
		if i >= shared {
			c[i] |= prefix.Hash(own+1) << 24
		}
	}
	return c
}

// requestOf is for a prompt of n blocks of which it shares the first with all of its topic.
func requestOf(topic, own, shared, n int) Request {
	return Request{Model: "m", Chain: chain(topic, own, shared, n), Bytes: n * prefix.BlockBytes}
}

// A chain of any length is kept at its first 16 depths and at 16 of each doubling
// from there, and every depth goes by the next of these above it.
func TestCheckpoints(t *testing.T) {
	var depths []int
	for depth := 1; depth < 1<<20; depth += stride(depth) {
		depths = append(depths, depth)
	}
	of := map[int]int{} // by the power of two
	for _, depth := range depths {
		of[int(math.Log2(float64(depth)))]++
	}
	for k, n := range of {
		if want := min(1<<k, 16); n != want {
			t.Errorf("%d depths from 2^%d on, want %d", n, k, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		depth := rapid.IntRange(0, 1<<20-1).Draw(t, "depth")
		i, found := slices.BinarySearch(depths, depth)
		want := 0
		if found {
			want = depth
		} else if i > 0 {
			want = depths[i-1]
		}
		if got := checkpoint(depth); got != want {
			t.Fatalf("%d goes by %d, want %d", depth, got, want)
		}
	})
	for length, want := range map[int]int{0: 0, 1: 1, 16: 16, 31: 31, 32: 32, 33: 32, 1024: 112, 100_000: 216} {
		var l ledger
		l.ask(chain(1, 1, 0, length))
		if got := len(l.young); got != want {
			t.Errorf("a chain of %d costs %d entries, want %d", length, got, want)
		}
	}
}

// Rates are of this node's requests: what all begin with has 1, what each second one
// does a half, and what nobody has asked for in ledgerSpan requests nothing.
func TestLedgerRates(t *testing.T) {
	var l ledger
	if got := l.rate(chain(1, 0, 10, 40), 10); got != 0 {
		t.Errorf("a rate of %v in an empty ledger", got)
	}
	check := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.05 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for i := range 4 * ledgerSpan {
		l.ask(chain(1, i%2, 10, 40))
		if i == 99 || i == 4*ledgerSpan-1 {
			check(fmt.Sprint("of all, after ", i+1), l.rate(chain(1, 0, 10, 40), 10), 1)
			check(fmt.Sprint("of half, after ", i+1), l.rate(chain(1, 0, 10, 40), 40), 0.5)
			check("between two checkpoints", l.rate(chain(1, 0, 10, 40), 39), 0.5)
			check("of nothing", l.rate(chain(1, 0, 10, 40), 0), 0)
			check("of what was not asked for", l.rate(chain(2, 0, 10, 40), 10), 0)
		}
	}
	for range ledgerSpan {
		l.ask(nil)
	}
	check("of what was last asked for a span ago", l.rate(chain(1, 0, 10, 40), 10), 0)
}

// Debts add up, and fade within as many requests as what is bought for them stays.
func TestLedgerDebts(t *testing.T) {
	var l ledger
	c, other := chain(1, 0, 10, 40), chain(2, 0, 10, 40)
	l.owe(c, 10, 1, 100)
	if got := l.owed(c, 10, 100); got != 0 {
		t.Errorf("%v owed for what was never asked for", got)
	}
	pass := func(requests int) {
		for range requests {
			l.ask(other)
		}
	}
	l.ask(c)
	l.owe(c, 10, -5, 100)
	l.owe(c, 10, 4, 100)
	l.owe(c, 10, -3, 100)
	pass(50)
	if got := l.owed(c, 10, 100); got != 0.5 {
		t.Errorf("half a stay later %v are owed, want 0.5", got)
	}
	l.owe(c, 10, 2, 100)
	if got := l.owed(c, 10, 100); got != 2.5 {
		t.Errorf("%v owed, want 2.5", got)
	}
	if got := l.owed(c, 9, 100) + l.owed(c, 11, 100) + l.owed(other, 10, 100); got != 0 {
		t.Errorf("%v owed for something else", got)
	}
	pass(100)
	if got := l.owed(c, 10, 100); got != 0 {
		t.Errorf("%v owed a stay later", got)
	}
	if got := l.owed(c, 10, 0); got != 0 {
		t.Errorf("%v owed for what does not stay", got)
	}
}

// Whatever is asked for, a ledger holds ledgerMax entries at most, keeps what is
// asked for often, and two that are told the same hold the same.
func TestLedgerIsBounded(t *testing.T) {
	var ledgers [2]ledger
	often := chain(1, 0, 8, 8)
	for i := range ledgers {
		l, rng := &ledgers[i], rand.New(rand.NewPCG(1, 2))
		for j := range 3 * ledgerMax / 8 {
			l.ask(chain(2, int(rng.ExpFloat64()*4000), 0, 8))
			if j%10 == 0 {
				l.ask(often)
			}
			if held := len(l.young) + len(l.old); held > ledgerMax {
				t.Fatalf("%d entries", held)
			}
		}
		if got := l.rate(often, 8); got < 0.05 {
			t.Errorf("what is asked for often has a rate of %v", got)
		}
	}
	same := func(a, b *entry) bool { return *a == *b }
	if !maps.EqualFunc(ledgers[0].young, ledgers[1].young, same) || !maps.EqualFunc(ledgers[0].old, ledgers[1].old, same) {
		t.Error("the same requests give two ledgers")
	}
}

// Where all is asked for once, the debts of the last half are kept at any time.
func TestLedgerForgetsByAge(t *testing.T) {
	var l ledger
	for i := range 2 * ledgerMax {
		l.ask(chain(i, 0, 1, 1))
		l.owe(chain(i, 0, 1, 1), 1, 1, 10*ledgerMax)
		if i%1000 > 0 {
			continue
		}
		for j := max(0, i-ledgerMax/2+1); j <= i; j += 500 {
			if l.owed(chain(j, 0, 1, 1), 1, 10*ledgerMax) == 0 {
				t.Fatalf("after %d requests the debt of request %d is gone", i, j)
			}
		}
	}
}

// A prefix is bought once trips for it have cost as much as computing it: of 640 ms
// at 100 ms a trip with the seventh request, and not before.
func TestBuysWhatTripsHaveCost(t *testing.T) {
	n := newPriced("a", Config{NoWarming: true})
	n.SetTrip("b", ms(100))
	tell(n, start, "b", 1, gossip.Rumor{Tree: treeOf(requestOf(1, 0, 40, 40))})
	for i := range 9 {
		req := requestOf(1, i, 40, 41)
		d := n.Route(start, req)
		want := "b"
		if i >= 6 {
			want = "a"
		}
		if d.Node != want {
			t.Errorf("request %d goes to %s: %s", i+1, d.Node, d.Reason)
		}
		if i == 6 && d.Reason != "economic bought here for 640ms, after rents of 699ms" {
			t.Errorf("it was bought by %q", d.Reason)
		}
		if i == 7 && d.Reason != "economic here 16ms = wait 0 + prefill 16 + toll 0" {
			t.Errorf("what was bought is used by %q", d.Reason)
		}
		f := n.Dispatch(start, req, d)
		if d.Self {
			n.Prefilled(start, req, f)
		}
		n.Served(start, req, d.Node, Outcome{Flight: f})
	}
}

// What the tree would not keep until it is asked for again is not bought, whatever
// the trips cost together; where there is room, in the same rounds, it is.
func TestBuysNothingThatWouldNotStay(t *testing.T) {
	for capacity, want := range map[int]bool{700: false, 100_000: true} {
		n := newPriced("a", Config{NoWarming: true, CapacityTokens: capacity})
		n.SetTrip("b", ms(100))
		tell(n, start, "b", 1, gossip.Rumor{Tree: treeOf(requestOf(1, 0, 40, 40))})
		bought := false
		for i := range 30 {
			for _, req := range []Request{requestOf(1, i, 40, 41), requestOf(2, 2*i, 0, 41), requestOf(2, 2*i+1, 0, 41)} {
				d := n.Route(start, req)
				if req.Chain[0]>>48 == 1 {
					bought = bought || d.Self
				} else if !d.Self {
					t.Fatalf("what nobody has goes to %s: %s", d.Node, d.Reason)
				}
				f := n.Dispatch(start, req, d)
				if d.Self {
					n.Prefilled(start, req, f)
				}
				n.Served(start, req, d.Node, Outcome{Flight: f})
			}
		}
		if bought != want {
			t.Errorf("with room for %d tokens: bought %v, want %v", capacity, bought, want)
		}
	}
}

// What a purchase would cost is not known before any engine was measured: it may be
// many times the guess, and a client would pay it.
func TestBuysNothingAtAGuess(t *testing.T) {
	n := newPriced("a", Config{})
	n.SetTrip("b", 100*time.Millisecond)
	held := treeOf(requestOf(1, 0, 40, 40))
	n.Hear(start, gossip.Rumor{Author: "b", Life: 1, Version: 1, Every: poll, Tree: held})
	for i := range 20 {
		req := requestOf(1, i+1, 40, 41)
		d := n.Route(start, req)
		if d.Self && strings.Contains(d.Reason, "bought") {
			t.Fatalf("request %d: %s", i, d.Reason)
		}
		f := n.Dispatch(start, req, d)
		n.Served(start, req, d.Node, Outcome{Flight: f})
	}
}
