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
