package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"pgregory.net/rapid"
)

// A forward is served within what its sender could have elsewhere, an eighth or some
// milliseconds over included; one that would be dearer is bounced and counted. One
// without a promise never is, nor is any by a node that does not go by prices.
func TestAdmit(t *testing.T) {
	for _, test := range []struct {
		name      string
		tokens    int // of the prompt, a millisecond each
		busy      bool
		met       bool // ten requests a second come to its busy engine
		within    time.Duration
		unpriced  bool
		bounced   bool
		forwarded string
	}{
		{name: "as promised", tokens: 160, within: ms(160)},
		{name: "an eighth late", tokens: 160, within: ms(143)},
		{name: "later than that", tokens: 160, within: ms(142), bounced: true},
		{name: "some milliseconds late", tokens: 16, within: ms(11)},
		{name: "more milliseconds", tokens: 16, within: ms(10), bounced: true},
		{name: "behind others", tokens: 160, busy: true, within: ms(160), bounced: true},
		{name: "behind others, and so elsewhere", tokens: 160, busy: true, within: ms(600)},
		{name: "no elsewhere", tokens: 160, busy: true},
		{name: "what others would wait counts", tokens: 160, met: true, within: ms(160), bounced: true},
		{name: "what others would wait, and so elsewhere", tokens: 160, met: true, within: ms(260)},
		{name: "unpriced", tokens: 160, busy: true, within: 1, unpriced: true},
	} {
		n := newPriced("a", Config{})
		n.priced = !test.unpriced
		if test.busy {
			arrive(n, start, requestOf(2, 0, 0, 30))
		}
		if test.met {
			n.meter.busy, n.meter.total, n.meter.met = 10, 1e6, 100
		}
		d, admitted := n.Admit(start, requestOf(1, 0, 0, test.tokens/blockTokens), Promise{Within: test.within})
		if admitted == test.bounced || d.Node != "a" || d.Reason != "forwarded" {
			t.Errorf("%s: admitted %v, %+v", test.name, admitted, d)
		}
		if got := n.Economy(start).Bounced; got != map[bool]int{true: 1}[test.bounced] {
			t.Errorf("%s: %d bounced", test.name, got)
		}
	}
	n := newPriced("a", Config{})
	arrive(n, start, requestOf(1, 0, 60, 60))
	for range 3 { // what is in front of it brings all but 16 ms, for each of them
		d, ok := n.Admit(start, requestOf(1, 1, 60, 61), Promise{Within: 977 * time.Millisecond})
		if !ok {
			t.Error("what is computed here already is bounced")
		}
		n.Dispatch(start, requestOf(1, 1, 60, 61), d)
	}
	if got := n.Backlog(start); got != ms(960+16+1+1) {
		t.Errorf("a backlog of %v", got)
	}
	n = newPriced("a", Config{})
	n.Served(start, requestOf(1, 0, 10, 10), "a", Outcome{})
	if d, ok := n.Admit(start, requestOf(1, 0, 10, 11), Promise{Within: ms(11)}); !ok || d.Match != 10 || d.Expected != 160 {
		t.Errorf("of what is cached: admitted %v, %+v", ok, d)
	}
	n.Dispatch(start, requestOf(1, 0, 10, 11), Decision{Node: "a", forwarded: true})
	if n.ledger.clock != 0 {
		t.Error("a peer's client counts as this node's")
	}
}

// What is bounced was not computed there: it is no longer believed to be held, nor
// counted as under way, and the peer is as busy as it says. That is no failure.
func TestBounced(t *testing.T) {
	n := newPriced("a", Config{})
	n.SetTrip("b", ms(20))
	tell(n, start, "b", 1, gossip.Rumor{})
	req := requestOf(1, 0, 0, 10)
	f := n.Dispatch(start, req, Decision{Node: "b", Match: 10, rent: time.Second})
	if got := n.ledger.owed(req.Chain, 10, 100); got != 1 {
		t.Errorf("%v s are owed for the trip, want 1", got)
	}
	if got := n.view.Match("b", req.Chain); got != 10 {
		t.Errorf("on its way it counts for %d blocks, want 10", got)
	}
	for range 2 {
		n.Bounced(at(20), f, ms(500))
	}
	if got := n.view.Match("b", req.Chain); got != 0 {
		t.Errorf("bounced it counts for %d blocks", got)
	}
	if got := n.ledger.owed(req.Chain, 10, 100); got != 0 {
		t.Errorf("%v s are owed for a trip that brought nothing", got)
	}
	e := n.Economy(at(20))
	if e.Flights != 0 || e.Accounts[0].InFlight != 0 || e.Accounts[0].Backlog != ms(480) {
		t.Errorf("bounced: %d flights, %+v", e.Flights, e.Accounts[0])
	}
	if p := n.view.Peers(at(20))[0]; !p.Usable() {
		t.Error("who bounces is doubted")
	}
}

// A request that has been bounced twice runs here, or at one of those who have just said
// how long it would take there, in any case: no more where hearsay leads.
func TestBouncedTwice(t *testing.T) {
	n := newPriced("a", Config{})
	req := requestOf(1, 0, 0, 10) // 160 ms
	for i, peer := range []string{"b", "c", "d"} {
		n.SetTrip(peer, ms(10*(i+1)))
		tell(n, start, peer, 1, gossip.Rumor{Tree: treeOf(req)})
	}
	bounce := func(peer string, backlog time.Duration) {
		f := n.Dispatch(at(50), req, Decision{Node: peer})
		n.Bounced(at(50), f, backlog)
		req.Bounced = append(req.Bounced, peer)
	}
	want := func(node string, condition bool) {
		t.Helper()
		if d := n.Route(at(50), req); d.Node != node || d.Elsewhere > 0 != condition {
			t.Errorf("bounced by %v: to %s, %v elsewhere", req.Bounced, d.Node, d.Elsewhere)
		}
	}
	want("b", true)
	bounce("b", ms(100))
	want("c", true)
	bounce("c", ms(500))
	want("b", false)
	n.Bounced(at(50), n.Dispatch(at(50), req, Decision{Node: "b"}), ms(400))
	want("a", false)
	n.Failed(at(50), "a")
	if d := n.Route(at(50), req, "a"); d.Node != "d" || d.Elsewhere != 0 {
		t.Errorf("with no engine here: %+v", d)
	}
}

// A prefill that is overdue keeps others waiting for as long again as it is late.
func TestOverdue(t *testing.T) {
	n := newPriced("a", Config{})
	arrive(n, start, requestOf(1, 0, 0, 10)) // 160 ms
	arrive(n, start, requestOf(2, 0, 0, 10))
	for after, want := range map[int]int{0: 320, 100: 220, 160: 160, 200: 200, 1000: 1000} {
		if got := n.Backlog(at(after)); got != ms(want) {
			t.Errorf("after %d ms a backlog of %v, want %d ms", after, got, want)
		}
	}
}

// By prices a node asks for a pause when many wait for their first token, not when many
// answers are being written.
func TestAnswersAskForNoPause(t *testing.T) {
	for _, priced := range []bool{true, false} {
		n := newPriced("a", Config{QueueThreshold: 4})
		n.priced = priced
		var flights []*Flight
		for i := range 5 {
			req := requestOf(i+1, 0, 0, 10)
			flights = append(flights, arrive(n, start, req))
			n.Queued(start, i+1)
			if got := n.Pause(start) > 0; got != (i == 4) {
				t.Errorf("priced %v: %d wait: a pause %v", priced, i+1, got)
			}
		}
		n.Prefilled(start, flights[0].req, flights[0])
		n.Queued(at(5000), 5)
		if got := n.Pause(at(5000)) > 0; got == priced {
			t.Errorf("priced %v: four wait, and one is being answered: a pause %v", priced, got)
		}
	}
}

// A flights is a node beside the list of its flights under way.
type flights struct {
	n    *Node
	now  time.Time
	live []*Flight
	over []*Flight
	asks int
}

// some draws a flight, under way or long over.
func (s *flights) some(t *rapid.T) *Flight {
	all := slices.Concat(s.live, s.over)
	if len(all) == 0 {
		t.Skip("no flight yet")
	}
	return rapid.SampledFrom(all).Draw(t, "flight")
}

func (s *flights) end(f *Flight) {
	if i := slices.Index(s.live, f); i >= 0 {
		s.live = slices.Delete(s.live, i, i+1)
		s.over = append(s.over, f)
	}
}

func (s *flights) outcome(f *Flight) Outcome {
	return Outcome{
		Known: true, PromptTokens: f.tokens, Promised: f.match, Flight: f,
		Report: Report{Known: true, Shared: len(f.req.Chain), Others: 1},
	}
}

// dispatch sends a request where the node says, or here as if a peer had.
func (s *flights) dispatch(t *rapid.T) {
	s.asks++
	req := requestOf(rapid.IntRange(1, 3).Draw(t, "topic"), s.asks, 10, 12)
	d := s.n.Route(s.now, req)
	switch rapid.IntRange(0, 2).Draw(t, "where") {
	case 1:
		d, _ = s.n.Admit(s.now, req, Promise{})
	case 2:
		d = Decision{Node: rapid.SampledFrom([]string{"b", "c", "unheard"}).Draw(t, "peer")}
	}
	s.live = append(s.live, s.n.Dispatch(s.now, req, d))
}

func (s *flights) served(t *rapid.T) {
	f := s.some(t)
	if f.warming {
		s.n.Warmed(s.now, f, s.outcome(f))
	} else {
		s.n.Served(s.now, f.req, f.Node, s.outcome(f))
	}
	s.end(f)
}

func (s *flights) check(t *rapid.T) {
	here, there := 0, 0
	for _, f := range s.n.pending {
		if !slices.Contains(s.live, f) {
			t.Fatal("what is over is pending")
		}
	}
	for _, f := range s.live {
		if f.Node == "a" && f.first.IsZero() {
			here++
		}
	}
	for name, a := range s.n.accounts {
		there += len(a.sent)
		for _, f := range a.sent {
			if f.Node != name || !slices.Contains(s.live, f) {
				t.Fatal("what is over counts at a peer")
			}
		}
	}
	e := s.n.Economy(s.now)
	if e.Flights != len(s.live) || len(s.n.pending) != here || e.Warming != (s.n.warming != nil) || there > len(s.live) {
		t.Fatalf("%d flights, %d pending, want %d and %d", e.Flights, len(s.n.pending), len(s.live), here)
	}
}

// However flights begin and end, in whatever order and however often that is told,
// those under way are counted and no other; in the end there are none.
func TestFlightsNeverLeak(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &flights{n: newPriced("a", Config{}), now: start}
		version := uint64(0)
		hear := func(t *rapid.T) {
			version++
			tell(s.n, s.now, rapid.SampledFrom([]string{"b", "c"}).Draw(t, "peer"), version, gossip.Rumor{Tree: treeOf(requestOf(1, 0, 10, 12))})
		}
		hear(t)
		t.Repeat(map[string]func(*rapid.T){
			"dispatch": s.dispatch,
			"hear":     hear,
			"pass":     func(t *rapid.T) { s.now = s.now.Add(ms(rapid.IntRange(0, 3000).Draw(t, "ms"))) },
			"first token": func(t *rapid.T) {
				if f := s.some(t); f.Node == "a" {
					s.n.Prefilled(s.now, f.req, f)
				} else {
					s.n.Begun(s.now, f)
				}
			},
			"served": s.served,
			"drop": func(t *rapid.T) {
				f := s.some(t)
				s.n.Drop(s.now, f)
				s.end(f)
			},
			"bounced": func(t *rapid.T) {
				if f := s.some(t); f.Node != "a" {
					s.n.Bounced(s.now, f, ms(100))
					s.end(f)
				}
			},
			"warm": func(*rapid.T) {
				if w, ok := s.n.NextWarming(s.now); ok {
					s.live = append(s.live, w.Flight)
				}
			},
			"forget": func(t *rapid.T) { s.n.Forget(rapid.SampledFrom([]string{"b", "c"}).Draw(t, "peer")) },
			"":       s.check,
		})
		for _, f := range slices.Clone(s.live) {
			s.n.Drop(s.now, f)
			s.end(f)
		}
		s.check(t)
		if e := s.n.Economy(s.now); e.Flights != 0 || e.Backlog != 0 || e.Warming {
			t.Fatal(fmt.Sprintf("in the end %+v", e))
		}
	})
}
