package node

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// What comes late teaches nothing of the engine's speed, neither by itself nor by
// what it would make of the next request's; and no flight is counted on when it is over.
func TestLateAnswersTeachNoSpeed(t *testing.T) {
	now := time.Unix(1000, 0)
	n := New(Config{Name: "n1", Life: 1, Policy: route.Economic{}, Rand: rand.New(rand.NewPCG(1, 1))})
	request := func(i int) Request {
		text := []byte(fmt.Sprintf("%04d%4092s", i, ""))
		return Request{Model: "m", Chain: prefix.NewChain(prefix.Key("").Root(prefix.Scope{Model: "m"}), text), Bytes: len(text)}
	}
	late := n.Dispatch(now, request(1), n.Route(now, request(1)))
	late.Late = true
	early := n.Dispatch(now, request(2), n.Route(now, request(2)))
	if got := n.Economy(now).Flights; got != 2 {
		t.Errorf("%d flights under way", got)
	}
	served := func(req Request, f *Flight) {
		n.Prefilled(now, req, f)
		n.Served(now, req, "n1", Outcome{Known: true, PromptTokens: 1024, Flight: f})
	}
	now = now.Add(10 * time.Second)
	served(request(1), late)
	if got := n.Economy(now).Engine.Samples; got != 0 {
		t.Errorf("%d samples of a late answer", got)
	}
	now = now.Add(time.Second)
	served(request(2), early)
	e := n.Economy(now)
	if took := e.Engine.Base + 1024*e.Engine.PerToken; e.Engine.Samples != 1 || took < 10*time.Second {
		t.Errorf("%d samples, by which a prompt takes %v; it took 11s", e.Engine.Samples, took)
	}
	if e.Flights != 0 || e.Backlog != 0 {
		t.Errorf("in the end %d flights and a backlog of %v", e.Flights, e.Backlog)
	}
}

// An engine that works on several prompts at once may be done with a short one that
// came later first. How long the long one took cannot be told then: by what passed
// since it would seem quick.
func TestOvertakenPrefillTeachesNoSpeed(t *testing.T) {
	n := newPriced("n1", Config{})
	dispatch := func(i, blocks int) (Request, *Flight) {
		text := []byte(fmt.Sprintf("%04d%*s", i, blocks*prefix.BlockBytes-4, ""))
		req := Request{Model: "m", Chain: prefix.NewChain(prefix.Key("").Root(prefix.Scope{Model: "m"}), text), Bytes: len(text)}
		return req, n.Dispatch(at(0), req, n.Route(at(0), req))
	}
	long, first := dispatch(1, 100)
	short, second := dispatch(2, 1)
	n.Prefilled(at(1900), short, second)
	n.Served(at(1900), short, "n1", Outcome{Known: true, PromptTokens: 16, Flight: second})
	n.Prefilled(at(2000), long, first)
	n.Served(at(2000), long, "n1", Outcome{Known: true, PromptTokens: 2000, Flight: first})
	if e := n.Economy(at(2000)); e.Engine.Samples != 1 {
		t.Errorf("%d samples; want that of the short prompt", e.Engine.Samples)
	}
}

// What an engine takes for prompts of one size says nothing of others, and is not told.
func TestSpeedOfOneSizeIsNotTold(t *testing.T) {
	n := newPriced("n1", Config{})
	serve := func(i, tokens int, took time.Duration) {
		now := at(10_000 * i)
		text := []byte(fmt.Sprintf("%04d%60s", i, ""))
		req := Request{Model: "m", Chain: prefix.NewChain(prefix.Key("").Root(prefix.Scope{Model: "m"}), text), Bytes: len(text)}
		f := n.Dispatch(now, req, n.Route(now, req))
		n.Prefilled(now.Add(took), req, f)
		n.Served(now.Add(took), req, "n1", Outcome{Known: true, PromptTokens: tokens, Flight: f})
	}
	for i := range 20 {
		serve(i, 20+i%4, ms(40))
	}
	if l := n.Speak(at(300_000)).Load; l.Base != 0 || l.PerToken != 0 {
		t.Errorf("n1 tells %v and %v a token by prompts of 20 tokens", l.Base, l.PerToken)
	}
	serve(40, 2000, ms(2020))
	if l := n.Speak(at(500_000)).Load; l.PerToken < 900*time.Microsecond || l.PerToken > 1100*time.Microsecond {
		t.Errorf("n1 tells %v a token; want about 1ms", l.PerToken)
	}
}
