package node

import (
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

// arrive has n serve a request of its own client, and returns its flight.
func arrive(n *Node, now time.Time, req Request) *Flight {
	return n.Dispatch(now, req, Decision{Node: n.cfg.Name, Self: true, Match: n.tree.Match(req.Chain)})
}

// What a node computes its peers count as held there, until its next rumor says
// otherwise: it may have been given up.
func TestPeersWaitForWhatIsComputed(t *testing.T) {
	a, b := newPriced("a", Config{}), newPriced("b", Config{})
	cold := requestOf(1, 0, 0, 100)
	b.Hear(start, a.Speak(start))
	b.SetTrip("a", ms(4))
	matches := func(want int) {
		t.Helper()
		if got := b.view.Match("a", cold.Chain); got != want {
			t.Errorf("a is believed to hold %d blocks, want %d", got, want)
		}
	}
	matches(0)
	f := arrive(a, start, cold)
	b.Hear(start, a.Speak(start))
	matches(100)
	if d := b.Route(at(100), cold); d.Node != "a" {
		t.Errorf("b computes what a does: %s", d.Reason)
	}
	a.Drop(at(200), f)
	b.Hear(at(200), a.Speak(at(200)))
	matches(0)

	f = arrive(a, at(300), cold)
	a.Prefilled(at(1900), cold, f)
	r := a.Speak(at(1900))
	b.Hear(at(1900), r)
	matches(100)
	if len(r.Computing) != 0 {
		t.Errorf("a still computes %d blocks", len(r.Computing))
	}
	longer := requestOf(1, 0, 0, 120)
	arrive(a, at(2000), longer)
	if got := a.Speak(at(2000)).Computing; len(got) != 20 || got[0] != longer.Chain[100] {
		t.Errorf("%d blocks are computed beyond the tree, want 20", len(got))
	}
	arrive(a, at(2000), requestOf(2, 0, 0, gossip.MaxComputing))
	if got := len(a.Speak(at(2000)).Computing); got != gossip.MaxComputing {
		t.Errorf("a tells of %d blocks, want no more than %d", got, gossip.MaxComputing)
	}
}

// Peers are told at once of a prefill that is worth it, once for each, and not more
// often than eight times a poll: one that is held back is told when there is room.
func TestUrgent(t *testing.T) {
	n := newPriced("a", Config{})
	asks := func(ms int, want bool) {
		t.Helper()
		if got := n.Urgent(at(ms)); got != want {
			t.Errorf("after %d ms urgent %v, want %v", ms, got, want)
		}
		if want {
			n.Speak(at(ms))
		}
	}
	long := func(own int) Request { return requestOf(1, own, 0, 10) } // 160 ms
	asks(0, false)
	arrive(n, at(0), long(0))
	asks(0, true)
	asks(100, false)
	arrive(n, at(100), long(1))
	asks(100, true)
	arrive(n, at(101), long(2))
	asks(101, false)
	asks(100+int(poll/noticesPerPoll/time.Millisecond), false)
	asks(101+int(poll/noticesPerPoll/time.Millisecond), true)
	arrive(n, at(300), long(3))
	n.Speak(at(300)) // it was due
	asks(400, false)

	told := 0
	for i := range 1000 {
		arrive(n, at(1000+i), long(10+i))
		if now := at(1000 + i); n.Urgent(now) {
			n.Speak(now)
			told++
		}
	}
	if most := noticesPerPoll * int(time.Second/poll); told > most || told < most*3/4 {
		t.Errorf("%d rumors out of turn in a second, want at most %d", told, most)
	}
}

// Nobody is told of a prefill that is short, of a few blocks, elsewhere or unpriced.
func TestNotUrgent(t *testing.T) {
	for name, test := range map[string]struct {
		req      Request
		perToken float64
		elsewhere,
		unpriced bool
		want bool
	}{
		"worth it":  {req: requestOf(1, 0, 0, 4), perToken: 0.001, want: true},
		"fast":      {req: requestOf(1, 0, 0, 100), perToken: 1e-5},
		"short":     {req: requestOf(1, 0, 0, 3), perToken: 1},
		"nameless":  {req: Request{Model: "m", Bytes: 1 << 20}, perToken: 1},
		"elsewhere": {req: requestOf(1, 0, 0, 4), perToken: 0.001, elsewhere: true},
		"unpriced":  {req: requestOf(1, 0, 0, 4), perToken: 0.001, unpriced: true},
	} {
		n := newPriced("a", Config{})
		n.speed.line.Slope, n.priced = test.perToken, !test.unpriced
		if test.elsewhere {
			tell(n, start, "b", 1, gossip.Rumor{})
			n.Dispatch(start, test.req, Decision{Node: "b"})
		} else {
			arrive(n, start, test.req)
		}
		if got := n.Urgent(start); got != test.want {
			t.Errorf("%s: urgent %v", name, got)
		}
		if got := len(n.Speak(start).Computing) > 0; got && (test.unpriced || test.elsewhere) {
			t.Errorf("%s: it is told to be computed here", name)
		}
	}
}
