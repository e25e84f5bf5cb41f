package node

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/route"
)

// newPriced returns a node that goes by prices. Its engine takes a millisecond for
// each token, as do those of all peers.
func newPriced(name string, cfg Config) *Node {
	cfg.Name, cfg.Life, cfg.Poll, cfg.Rand = name, 1, poll, rand.New(rand.NewPCG(1, 2))
	n := New(cfg)
	n.speed.line.Base, n.speed.line.Slope = 0, 0.001
	return n
}

// tell has n hear of a peer that holds what r says, of its life's given version.
func tell(n *Node, now time.Time, peer string, version uint64, r gossip.Rumor) {
	r.Author, r.Life, r.Version, r.Every = peer, 1, version, poll
	r.Load.PerToken = time.Millisecond
	n.Hear(now, r)
}

// waits is how long a prefill of so long would wait at the one peer that n has.
func waits(n *Node, now time.Time, prefill time.Duration) time.Duration {
	p := n.view.Peers(now)[0]
	return n.wait(now, p, n.account(p.Name), prefill).Round(time.Microsecond)
}

func at(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// What a peer has told of its queue runs down from when it was so, and a request
// sent now comes a trip later. Of what this node has sent since, only what the peer
// did not know of is behind it, and what has its first token is not waited for.
func TestWait(t *testing.T) {
	n := newPriced("a", Config{})
	n.SetTrip("b", 20*time.Millisecond)
	tell(n, at(0), "b", 1, gossip.Rumor{Load: gossip.Load{Backlog: ms(500)}})
	check := func(what string, now time.Time, want time.Duration) {
		t.Helper()
		if got := waits(n, now, time.Second); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("at once: a trip has passed", at(0), ms(480))
	check("it runs down", at(200), ms(280))
	check("to nothing", at(1000), 0)

	req := request("0123456789") // 160 ms
	first := n.Dispatch(at(100), req, Decision{Node: "b"})
	check("behind what is there", at(200), ms(440))
	second := n.Dispatch(at(600), req, Decision{Node: "b"})
	check("the queue was not empty in between", at(600), ms(200))
	check("until both are computed", at(800), ms(0))
	n.Begun(at(640), first)
	check("one has its first token", at(640), ms(120))

	tell(n, at(619), "b", 2, gossip.Rumor{})
	check("what the peer did not know of", at(630), ms(130))
	tell(n, at(620), "b", 3, gossip.Rumor{})
	check("what it knew of", at(630), 0)
	n.Drop(at(630), second)

	tell(n, at(700), "b", 4, gossip.Rumor{Pause: time.Second})
	until := n.view.Peers(at(700))[0].PausedUntil
	check("a pause is waited for", at(700), until.Sub(at(700)).Round(time.Microsecond))
	check("to its end", until, 0)
}

// An answer says how the queue was at its first token, which may be later than what
// the rumor says, and a bounce how it is now. Of two answers the later one knows.
func TestWaitByTheNewestWord(t *testing.T) {
	n := newPriced("a", Config{})
	n.SetTrip("b", 20*time.Millisecond)
	tell(n, at(0), "b", 1, gossip.Rumor{Load: gossip.Load{Backlog: time.Hour}})
	req := request("0123456789")
	var flights [3]*Flight
	for i := range flights {
		flights[i] = n.Dispatch(at(1), req, Decision{Node: "b"})
	}
	land := func(f *Flight, first, now time.Time, backlog time.Duration) {
		n.Begun(first, f)
		n.Served(now, req, "b", Outcome{Flight: f, Report: Report{Known: true, Took: first.Sub(at(1)) - ms(20), Backlog: backlog}})
	}
	land(flights[0], at(400), at(410), ms(300))
	if got := waits(n, at(410), 0); got != ms(270)+flights[1].service+flights[2].service-2*flights[1].service {
		t.Errorf("by the answer %v, want 270ms", got)
	}
	n.Bounced(at(420), flights[1], ms(900))
	if got := waits(n, at(420), 0); got != ms(880) {
		t.Errorf("by the bounce %v, want 880ms", got)
	}
	land(flights[2], at(390), at(430), ms(5000))
	if got := waits(n, at(430), 0); got != ms(870) {
		t.Errorf("by an answer that began before %v, want 870ms", got)
	}
	tell(n, at(500), "b", 2, gossip.Rumor{Load: gossip.Load{Backlog: ms(50)}})
	if got := waits(n, at(500), 0); got != ms(30) {
		t.Errorf("by the next rumor %v, want 30ms", got)
	}
}

// A word that is old tends to the mean wait, the toll where nothing waits; where none wait for
// another, as with one client, nothing is added however old it is.
func TestWaitAges(t *testing.T) {
	for _, test := range []struct {
		toll float64
		age  time.Duration
		want time.Duration
	}{
		{0, time.Hour, 0},
		{2, 0, 0},
		{2, ms(300), time.Duration(0.01 * (1 - math.Exp(-300./110)) * 1e9)}, // age in a prefill and the mean
		{2, time.Hour, ms(10)},
	} {
		n := newPriced("a", Config{})
		tell(n, start, "b", 1, gossip.Rumor{Load: gossip.Load{Toll: test.toll}})
		if got := waits(n, start.Add(test.age), ms(100)); got != test.want.Round(time.Microsecond) {
			t.Errorf("toll %v after %v: %v, want %v", test.toll, test.age, got, test.want)
		}
	}
}

// A clock that is set back does not make a peer or this engine look busy for as
// long: what they were last known to have in front of them is the most.
func TestClockThatWentBackThrowsNoPrice(t *testing.T) {
	n := newPriced("a", Config{})
	req := request("0123456789")
	tell(n, start, "b", 1, gossip.Rumor{Load: gossip.Load{Backlog: ms(500)}})
	f := n.Dispatch(start, req, Decision{Node: "b"})
	n.Served(start, req, "b", Outcome{Flight: f, Report: Report{Known: true, Backlog: ms(400)}})
	n.Dispatch(start, req, Decision{Node: "b"})
	n.Dispatch(start, req, Decision{Node: "a", Self: true})
	back := start.Add(-time.Hour)
	if got := waits(n, back, ms(100)); got > ms(660) {
		t.Errorf("at a peer %v", got)
	}
	if got := n.Backlog(back); got > ms(160) {
		t.Errorf("here %v", got)
	}
	tell(n, back, "b", 2, gossip.Rumor{Load: gossip.Load{Backlog: ms(30)}})
	if got := waits(n, back.Add(ms(10)), ms(100)); got != ms(20) {
		t.Errorf("by the next rumor %v, want 20ms", got)
	}
	f = n.Dispatch(back.Add(ms(10)), req, Decision{Node: "b"})
	n.Served(back.Add(ms(20)), req, "b", Outcome{Flight: f, Report: Report{Known: true, Took: ms(10), Backlog: ms(70)}})
	if got := waits(n, back.Add(ms(20)), ms(100)); got != ms(70) {
		t.Errorf("by the next answer %v, want 70ms", got)
	}
}

// A stall here, on the way or at a peer, once, is in no price after it; nor is what
// an old rumor says, told again.
func TestOddSamplesThrowNoPrice(t *testing.T) {
	n := newPriced("a", Config{NoWarming: true})
	tell(n, start, "b", 1, gossip.Rumor{})
	now := start
	serve := func(i int, stall time.Duration) {
		req := request(fmt.Sprintf("%04d%*s", i, i%7*3, ""))
		tokens := len(req.Chain) * blockTokens
		f := n.Dispatch(now, req, Decision{Node: "a", Self: true})
		now = now.Add(ms(tokens) + stall)
		n.Prefilled(now, req, f)
		n.Served(now, req, "a", Outcome{Known: true, PromptTokens: tokens, Flight: f})
		f = n.Dispatch(now, req, Decision{Node: "b"})
		now = now.Add(ms(tokens+20) + stall)
		n.Begun(now, f)
		n.Served(now, req, "b", Outcome{Flight: f, Report: Report{Known: true, Took: ms(tokens)}})
	}
	for i := range 30 {
		serve(i, 0)
	}
	e := n.Economy(now)
	serve(30, time.Hour)
	for range 100 {
		r := gossip.Rumor{Author: "b", Life: 1, Version: 1, Every: poll, Load: gossip.Load{Base: time.Hour}}
		if n.Hear(now, r) {
			t.Fatal("an old rumor was heard")
		}
	}
	if got := n.theirs.line.Base; got != 0 {
		t.Errorf("by an old rumor engines take %v s", got)
	}
	after := n.Economy(now)
	for what, pair := range map[string][2]time.Duration{
		"prefill of a token": {e.Engine.PerToken, after.Engine.PerToken},
		"prefill":            {e.Engine.Base + 1, after.Engine.Base + 1},
		"trip":               {e.Accounts[0].Trip, after.Accounts[0].Trip},
	} {
		if math.Abs(float64(pair[1]-pair[0])) > float64(pair[0])/50+1e5 {
			t.Errorf("%s: %v, after a stall %v", what, pair[0], pair[1])
		}
	}
	if got := e.Accounts[0].Trip; got < ms(19) || got > ms(21) {
		t.Errorf("a trip of %v, want 20ms", got)
	}
}

// A prefill is in the way of what comes until the engine is idle again.
func TestToll(t *testing.T) {
	for _, test := range []struct {
		rate float64
		p    route.Price
		want time.Duration
	}{
		{0, route.Price{Wait: time.Hour, Prefill: time.Hour}, 0},
		{2, route.Price{Prefill: time.Second}, time.Second},
		{2, route.Price{Wait: ms(500), Prefill: time.Second}, 2 * time.Second},
		{2, route.Price{Trip: time.Hour, Prefill: ms(100)}, ms(10)},
	} {
		if got := toll(test.rate, test.p); got != test.want {
			t.Errorf("%v a second, %+v: %v, want %v", test.rate, test.p, got, test.want)
		}
	}
}

// One client meets nobody, however busy it keeps the engine.
func TestMeterOfAClosedLoop(t *testing.T) {
	var m meter
	now := start
	for range 1000 {
		m.come(now, false)
		now = now.Add(ms(100))
		m.tick(now, true)
	}
	if got := m.toll(); got != 0 {
		t.Errorf("a toll of %v", got)
	}
	if got := m.rate(); got < 9 || got > 10 {
		t.Errorf("a rate of %v, want 10 after the first seconds", got)
	}
	rate := m.rate()
	m.tick(now.Add(-time.Hour), true)
	if m.rate() != rate || !m.at.Equal(now) {
		t.Error("a clock that was set back moves the meter")
	}
}

// Of Poisson arrivals the toll is their rate over the idle share.
func TestMeterOfPoissonArrivals(t *testing.T) {
	const service = 0.1
	for _, rate := range []float64{1, 4, 7} {
		var m meter
		rng := rand.New(rand.NewPCG(1, 2))
		now, free, sum := start, start, 0.0
		const requests = 50_000
		for range requests {
			now = now.Add(seconds(rng.ExpFloat64() / rate))
			if busy := now.Before(free); busy {
				m.come(now, true)
			} else {
				m.tick(free, true)
				m.come(now, false)
			}
			sum += m.toll()
			free = later(free, now).Add(seconds(service))
		}
		if got, want := sum/requests, rate/(1-rate*service); math.Abs(got-want) > want/8 {
			t.Errorf("%v a second: a toll of %v, want %v", rate, got, want)
		}
		if got := m.rate(); math.Abs(got-rate) > rate/5 {
			t.Errorf("a rate of %v, want %v", got, rate)
		}
	}
}

// What is learnt of peers does not outlive their membership, nor does it grow with
// names that were never heard; what lands after that opens no account again.
func TestAccountsAreBounded(t *testing.T) {
	n := newPriced("a", Config{})
	req := request("0123456789")
	var flights [3]*Flight
	tell(n, start, "b", 1, gossip.Rumor{})
	for i := range flights {
		flights[i] = n.Dispatch(start, req, Decision{Node: "b"})
	}
	n.Forget("b")
	n.Served(start, req, "b", Outcome{Flight: flights[0], Report: Report{Known: true, Took: time.Second}})
	n.Drop(start, flights[1])
	n.Bounced(start, flights[2], time.Second)
	if e := n.Economy(start); len(n.accounts) > 0 || e.Flights > 0 {
		t.Errorf("%d accounts, %d flights", len(n.accounts), e.Flights)
	}
	tell(n, start, "b", 2, gossip.Rumor{})
	n.SetTrip("b", ms(20))
	for i := range 3 * accountsMax {
		n.SetTrip(fmt.Sprint("n", i), ms(20))
		if len(n.accounts) > accountsMax {
			t.Fatalf("%d accounts", len(n.accounts))
		}
	}
	if n.accounts["b"] == nil || n.account("b").trip.Base != 0.02 {
		t.Error("the account of who was heard is gone")
	}
}

// Engines of one speed do as much when as many requests come to each, also while only
// the peer's is known.
func TestWorkIsWeighedAlike(t *testing.T) {
	n := newPriced("a", Config{})
	n.speed = newSpeed() // a guess
	load := gossip.Load{Base: ms(1), PerToken: ms(1), Rate: 2}
	tell(n, start, "b", 1, gossip.Rumor{Load: load})
	n.meter.came, n.meter.all = 20, 10
	if here, there := n.workHere(), n.work(load); math.Abs(here-there) > 1e-9 {
		t.Errorf("two requests a second are %v of the time here, %v there", here, there)
	}
}
