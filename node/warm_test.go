package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

// wishing returns a node that has just forwarded a request for a prefix of so many
// blocks, over a trip of 100 ms, to a peer that knows it from others too.
func wishing(cfg Config, blocks int) *Node {
	n := newPriced("a", cfg)
	n.SetTrip("b", ms(100))
	tell(n, start, "b", 1, gossip.Rumor{Tree: treeOf(requestOf(1, 0, blocks, blocks))})
	forwardShared(n, start, requestOf(1, 0, blocks, blocks+1), blocks)
	return n
}

// forwardShared has b serve req, of which it has so many blocks from others too.
func forwardShared(n *Node, now time.Time, req Request, shared int) {
	f := n.Dispatch(now, req, n.Route(now, req))
	n.Begun(now.Add(ms(100)), f)
	n.Served(now, req, f.Node, Outcome{Flight: f, Report: Report{Known: true, Shared: shared, Others: 2}})
}

// warmed computes what a warming says in as long as it is expected to take.
func warmed(n *Node, now time.Time, w Warming) time.Time {
	now = now.Add(w.Flight.service)
	n.Warmed(now, w.Flight, Outcome{Known: true, PromptTokens: w.Tokens, CachedTokens: w.Tokens - w.Flight.uncached})
	return now
}

// A prefix that was worth a trip is computed in steps of about a second, one at a
// time, from the engine's first idle moment, until it is whole.
func TestWarmsInSteps(t *testing.T) {
	const blocks = 200 // 3.2 s
	n := wishing(Config{}, blocks)
	req := requestOf(1, 0, blocks, blocks+1)
	if n.Wish() == nil || n.Wish().req.Bytes != req.Bytes {
		t.Fatal("nothing is wished for")
	}
	now, have, steps := start, 0, 0
	for ; have < blocks; steps++ {
		w, ok := n.NextWarming(now)
		if !ok || steps > 4 {
			t.Fatalf("stopped at %d blocks after %d steps", have, steps)
		}
		if took := w.Flight.service; took > warmStep || took < warmStep/8 {
			t.Errorf("step %d from %d to %d takes %v", steps, have, w.Blocks, took)
		}
		if _, ok := n.NextWarming(now); ok {
			t.Error("two at once")
		}
		if e := n.Economy(now); !e.Warming || e.Flights != 1 {
			t.Errorf("under way: %+v", e)
		}
		now = warmed(n, now, w)
		if got := n.tree.Match(req.Chain); got != w.Blocks || got <= have {
			t.Errorf("%d blocks are cached after a step to %d", got, w.Blocks)
		}
		have = w.Blocks
	}
	if _, ok := n.NextWarming(now); ok || n.Wish() != nil {
		t.Error("it goes on when all is warm")
	}
	e := n.Economy(now)
	if want := (WarmTotals{Prefixes: steps, Tokens: blocks * blockTokens}); e.Warmed != want || e.Flights != 0 || e.Warming {
		t.Errorf("%+v in the end, want %+v", e, want)
	}
	if e.Allowance != warmBurst-blocks*blockTokens {
		t.Errorf("%d tokens are left to warm", e.Allowance)
	}
	if d := n.Route(now, requestOf(1, 7, blocks, blocks+1)); !d.Self {
		t.Errorf("the next goes to %s: %s", d.Node, d.Reason)
	}
}

// Nothing is warmed on an engine that has anything to do, that cannot, or where an
// operator or the room's worth forbids; a wish waits for a while, and no longer.
func TestWarmsOnlyOnAnIdleEngine(t *testing.T) {
	other := requestOf(9, 0, 0, 10)
	for name, test := range map[string]struct {
		cfg   Config
		upset func(n *Node)
		after time.Duration
		want  bool
	}{
		"idle":          {after: warmFor, want: true},
		"too late":      {after: warmFor + 1},
		"no warming":    {cfg: Config{NoWarming: true}},
		"a prefill":     {upset: func(n *Node) { n.Dispatch(start, other, Decision{Node: "a", Self: true}) }},
		"a request":     {upset: func(n *Node) { n.Queued(start, 1) }},
		"down":          {upset: func(n *Node) { n.SetDown(true) }},
		"other models":  {upset: func(n *Node) { n.SetModels([]string{"x"}) }},
		"forgone":       {upset: func(n *Node) { n.Forgo() }},
		"no allowance":  {upset: func(n *Node) { n.allowance = 639 }},
		"all it needs":  {upset: func(n *Node) { n.allowance = 640 }, want: true},
		"full of worth": {upset: func(n *Node) { n.tailWorth.Value = 1 }},
		"others wait": {upset: func(n *Node) {
			n.meter.total, n.meter.busy, n.meter.met = 100, 99, 1e6
		}},
		"cached": {upset: func(n *Node) { n.Served(start, requestOf(1, 0, 40, 40), "a", Outcome{}) }},
	} {
		n := wishing(test.cfg, 40)
		if test.upset != nil {
			test.upset(n)
		}
		if _, ok := n.NextWarming(start.Add(test.after)); ok != test.want {
			t.Errorf("%s: warms %v, want %v", name, ok, test.want)
		}
	}
}

// What is not common, hardly longer than what is here or beyond the burst is not
// wished for; of two prefixes the one that saves more is.
func TestWishes(t *testing.T) {
	for _, test := range []struct {
		name                 string
		cached, depth, other int
		want                 bool
	}{
		{"common", 0, 40, 1, true},
		{"nobody else's", 0, 40, 0, false},
		{"nearly here", 37, 40, 1, false},
		{"worth a request", 36, 40, 1, true},
	} {
		n := newPriced("a", Config{})
		n.SetTrip("b", ms(30))
		tell(n, start, "b", 1, gossip.Rumor{Tree: treeOf(requestOf(1, 0, 40, 41))})
		if test.cached > 0 {
			n.Served(start, requestOf(1, 0, 40, test.cached), "a", Outcome{})
		}
		req := requestOf(1, 0, 40, 41)
		f := n.Dispatch(start, req, n.Route(start, req))
		n.Served(start, req, "b", Outcome{Flight: f, Report: Report{Known: true, Shared: test.depth, Others: test.other}})
		if got := n.Wish() != nil; got != test.want {
			t.Errorf("%s: a wish %v, want %v", test.name, got, test.want)
		}
	}
	n := wishing(Config{}, warmBurst/blockTokens+1)
	if _, ok := n.NextWarming(start); ok {
		t.Error("more than the burst is warmed")
	}
	n = newPriced("a", Config{})
	n.SetTrip("b", ms(100))
	for range 10 {
		n.ledger.ask(chain(3, 0, 0, 1))
	}
	for topic := 1; topic <= 2; topic++ {
		tell(n, start, "b", uint64(topic), gossip.Rumor{Tree: treeOf(requestOf(topic, 0, 40, 40))})
		forwardShared(n, start, requestOf(topic, 0, 40, 41), 40)
	}
	if got := n.Wish().req.Chain[0] >> 48; got != 1 {
		t.Error("no more frequent, the second takes the place of the first")
	}
	for i := range 3 {
		forwardShared(n, start, requestOf(2, i, 40, 41), 40)
	}
	if got := n.Wish().req.Chain[0] >> 48; got != 2 {
		t.Error("asked for again, the second does not take the place of the first")
	}
}

// For every prompt token served a twentieth may be warmed, up to the burst.
func TestWarmAllowance(t *testing.T) {
	n := newPriced("a", Config{})
	allowance := func() int { return n.Economy(start).Allowance }
	serve := func(by string, tokens int) {
		n.Served(start, requestOf(1, 0, 0, 4), by, Outcome{Known: true, PromptTokens: tokens})
	}
	serve("a", 1000)
	if got := allowance(); got != warmBurst {
		t.Errorf("an allowance of %d, want the burst", got)
	}
	n.allowance = 100
	serve("a", 1000)
	serve("b", 1000)
	if got := allowance(); got != 150 {
		t.Errorf("an allowance of %d, want 100 and a twentieth of what was served here", got)
	}
}

// A warming gives way to a client until two thirds of it are done. It is dropped,
// counted and taken up again; one that is to give way is in nobody's backlog.
func TestWarmingYields(t *testing.T) {
	n := wishing(Config{}, 42) // 672 ms
	if n.Yield(start) {
		t.Error("there is nothing to give way")
	}
	w, _ := n.NextWarming(start)
	for _, test := range []struct {
		after   int
		want    bool
		backlog int
	}{{0, true, 0}, {447, true, 0}, {448, false, 224}, {672, false, 0}, {900, false, 228}, {1009, true, 0}} {
		if got := n.Yield(at(test.after)); got != test.want {
			t.Errorf("after %d ms it yields: %v", test.after, got)
		}
		if got := n.Backlog(at(test.after)); got != ms(test.backlog) {
			t.Errorf("after %d ms a client would wait %v, want %d ms", test.after, got, test.backlog)
		}
	}
	n.Drop(at(100), w.Flight)
	n.Drop(at(100), w.Flight)
	if e := n.Economy(at(100)); e.Warming || e.Flights != 0 || e.Warmed != (WarmTotals{Cancelled: 1}) {
		t.Errorf("dropped: %+v", e)
	}
	n.WarmFailed(at(110), w.Flight, true) // it has ended already
	if e := n.Economy(at(110)); e.Warmed.Failed != 0 {
		t.Errorf("what was given up has failed: %+v", e)
	}
	n = wishing(Config{}, 40)
	w, _ = n.NextWarming(at(100))
	n.WarmFailed(at(100), w.Flight, true)
	if e := n.Economy(at(110)); e.Warming || e.Flights != 0 || e.Warmed != (WarmTotals{Failed: 1}) || n.Wish() != nil {
		t.Errorf("failed: %+v, %v wished for", e, n.Wish())
	}
}

// What was idle until a warming began was not busy.
func TestWarmingIsTimed(t *testing.T) {
	n := wishing(Config{}, 40)
	n.Economy(at(100))
	w, ok := n.NextWarming(at(5100))
	if !ok {
		t.Fatal("nothing is warmed")
	}
	warmed(n, at(5100), w)
	if busy, want := n.meter.busy, w.Flight.service.Seconds(); busy > want || busy < want/2 {
		t.Errorf("busy for %v s, of which the warming was %v", busy, want)
	}
}

// A prefix that was asked for first, and then by few, is not worth its room by the time
// at which the engine is idle.
func TestWishFadesAsOthersAsk(t *testing.T) {
	for others, want := range map[int]bool{0: true, 200: false} {
		n := wishing(Config{}, 40)
		n.tailWorth.Value = n.worth(*n.wish) / float64(n.wish.tokens) / 2 // half of what it saves
		for i := range others {
			n.ledger.ask(requestOf(2+i, 0, 1, 1).Chain)
		}
		if _, ok := n.NextWarming(at(100)); ok != want {
			t.Errorf("after %d other requests it is warmed: %v", others, ok)
		}
	}
}

// What an engine that serves more than its share is asked for is worth more to those who
// ask it, to compute unasked: no client waits for that.
func TestReliefIsWarmedForAndNotBought(t *testing.T) {
	for rate, want := range map[float64]bool{0: false, 10: true} {
		n := newPriced("a", Config{})
		n.SetTrip("b", ms(10))
		tell(n, start, "b", 1, gossip.Rumor{Tree: treeOf(requestOf(1, 0, 40, 40)), Load: gossip.Load{Rate: rate}})
		n.weigh(start)
		n.meter.all = 100 // seconds: what b serves is no chance
		for i := range 20 {
			if i == 19 {
				n.Forgo()
				n.tailWorth.Value = 0.05 / 640 // room for the 640 tokens saves 50 ms a request: more than a trip
			}
			req := requestOf(1, i, 40, 41)
			d := n.Route(start, req)
			if d.Self {
				t.Fatalf("at %v requests a second there, request %d: %s", rate, i, d.Reason)
			}
			f := n.Dispatch(start, req, d)
			n.Begun(at(10), f)
			n.Served(start, req, d.Node, Outcome{Flight: f, Report: Report{Known: true, Shared: 40, Others: 2}})
		}
		if got := n.Wish() != nil; got != want {
			t.Errorf("at %v requests a second there it is to be warmed: %v", rate, got)
		}
	}
}

// What was given up for a request is taken up again.
func TestWarmsAgain(t *testing.T) {
	n := wishing(Config{}, 40)
	w, _ := n.NextWarming(at(100))
	n.Drop(at(110), w.Flight)
	again, ok := n.NextWarming(at(200))
	if !ok || again.Blocks != w.Blocks || again.Flight == w.Flight {
		t.Errorf("it is not taken up again: %+v", again)
	}
}

// holders returns nodes that all hold a prefix of 40 blocks, have others like it,
// and have heard of one another.
func holders(topic int, names ...string) (nodes []*Node) {
	for _, name := range names {
		n := newPriced(name, Config{NoWarming: true})
		for i := range 10 {
			req := requestOf(topic, i, 40, 41)
			f := n.Dispatch(start, req, Decision{Node: name, Self: true})
			n.Prefilled(start, req, f)
			n.Served(start, req, name, Outcome{Flight: f})
		}
		nodes = append(nodes, n)
	}
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				a.SetTrip(b.cfg.Name, ms(100))
				tell(a, start, b.cfg.Name, 1, gossip.Rumor{Tree: b.tree.Snapshot()})
			}
		}
	}
	return nodes
}

// Of the nodes that hold a prefix exactly one keeps it where a copy costs more than
// it saves, another one for another prefix, and all do where it pays. With 100 ms a
// trip for each request, 640 tokens pay for themselves up to 156 us each.
func TestOneKeepsWhatDoesNotPay(t *testing.T) {
	keepers := map[string]int{}
	for topic := 1; topic <= 40; topic++ {
		for worth, want := range map[float64]int{1e-3: 1, 1e-4: 3, 0: 3} {
			kept := 0
			for _, n := range holders(topic, "n1", "n2", "n3") {
				n.tailWorth.Value = worth
				d := n.Route(start, requestOf(topic, 99, 40, 41))
				if d.Self {
					kept++
				}
				if d.Self && want == 1 {
					keepers[d.Node]++
				}
				if !d.Self && d.Reason != "economic one copy is enough, at "+d.Node {
					t.Errorf("it went to %s by %q", d.Node, d.Reason)
				}
			}
			if kept != want {
				t.Errorf("topic %d at %v a token: %d keep it, want %d", topic, worth, kept, want)
			}
		}
	}
	for name, n := range keepers {
		if n < 5 || len(keepers) != 3 {
			t.Errorf("%s keeps %d of 40 prefixes, of %v", name, n, keepers)
		}
	}
}

// A trip may be paid to save room, but no queue is stood in, nor a pause waited for.
func TestShedsToNoQueue(t *testing.T) {
	for topic := 1; topic <= 10; topic++ {
		for what, r := range map[string]gossip.Rumor{"a queue": {Load: gossip.Load{Backlog: ms(200)}}, "a pause": {Pause: time.Second}} {
			for i, n := range holders(topic, "n1", "n2") {
				n.tailWorth.Value = 1
				r.Tree = n.tree.Snapshot()
				tell(n, start, []string{"n2", "n1"}[i], 2, r)
				if d := n.Route(start, requestOf(topic, 99, 40, 41)); !d.Self {
					t.Errorf("topic %d goes to %s: %s", topic, what, d.Reason)
				}
			}
		}
	}
}

// The mean trip is one number, in whatever order accounts are gone through.
func TestMeanTripIsOneNumber(t *testing.T) {
	n := newPriced("a", Config{})
	if got := n.meanTrip(); got != 0 {
		t.Errorf("%v without peers", got)
	}
	for i := range 100 {
		n.SetTrip(fmt.Sprint("n", i), time.Second/time.Duration(3+7*i))
	}
	want := n.meanTrip()
	for range 100 {
		if got := n.meanTrip(); got != want {
			t.Fatalf("%v and %v", got, want)
		}
	}
}
