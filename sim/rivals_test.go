package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
)

// Each rival takes the node that its formula gives, worked out by hand: the node asked
// is the first.
func TestRivals(t *testing.T) {
	type u = emulate.Usage
	ten := prompt{blocks: 10, tokens: 100, blockTokens: 10, capacity: 1000, perToken: time.Millisecond}
	long := prompt{blocks: 1000, tokens: 10_000, blockTokens: 10, capacity: 1000, perToken: time.Millisecond}
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		f    formula
		p    prompt
		seen []sighting
		want int
	}{
		{"65 more requests, and more than half as many again: the idlest", smg, ten, []sighting{{}, {match: 10, Usage: u{Running: 60, Waiting: 5}}}, 0},
		{"64 more are not too many", smg, ten, []sighting{{}, {match: 10, Usage: u{Running: 64}}}, 1},
		{"195 are not more than 1.5 times 130", smg, ten, []sighting{{Usage: u{Running: 130}}, {match: 10, Usage: u{Running: 195}}}, 1},
		{"196 are", smg, ten, []sighting{{Usage: u{Running: 130}}, {match: 10, Usage: u{Running: 196}}}, 0},
		{"three tenths are not enough: the idlest", smg, ten, []sighting{{Usage: u{Running: 2}}, {match: 3, Usage: u{Running: 1}}, {}}, 2},
		{"four are", smg, ten, []sighting{{Usage: u{Running: 2}}, {match: 4, Usage: u{Running: 1}}, {}}, 1},
		{"of equal matches the idlest", smg, ten, []sighting{{match: 9, Usage: u{Running: 2}}, {match: 9, Usage: u{Running: 1}}}, 1},

		{"4+10-0 and 10+10 against 0+10-8 and 20+10", dynamo, ten, []sighting{{Usage: u{Prefill: 40, Held: 100}}, {match: 8, Usage: u{Held: 200}}}, 1},
		{"34 against 2 and 22+10: here", dynamo, ten, []sighting{{Usage: u{Prefill: 40, Held: 100}}, {match: 8, Usage: u{Held: 220}}}, 0},
		{"35 against 34", dynamo, ten, []sighting{{Usage: u{Prefill: 50, Held: 100}}, {match: 8, Usage: u{Held: 220}}}, 1},

		{"0+2+2 against 3+0+1: here", llmd, ten, []sighting{{}, {match: 10, Usage: u{Waiting: 4, Held: 500}}}, 0},
		{"4 against 3+0+1.2", llmd, ten, []sighting{{}, {match: 10, Usage: u{Waiting: 4, Held: 400}}}, 1},
		{"equal queues are all short: 0+2+2 against 1.5+2+0.6", llmd, ten, []sighting{{Usage: u{Waiting: 4}}, {match: 5, Usage: u{Waiting: 4, Held: 700}}}, 1},
		{"a queue between: 0+2+2 against 3+1+0.2 and 3+0+0.8", llmd, ten, []sighting{{}, {match: 10, Usage: u{Waiting: 2, Held: 900}}, {match: 10, Usage: u{Waiting: 4, Held: 600}}}, 1},

		{"nine more requests: the idlest", aibrix, ten, []sighting{{}, {match: 10, Usage: u{Running: 9}}}, 0},
		{"eight are within 4+4", aibrix, ten, []sighting{{}, {match: 10, Usage: u{Running: 8}}}, 1},
		{"eight are not within 2.67+3.77: the next", aibrix, ten, []sighting{{}, {match: 10, Usage: u{Running: 8}}, {match: 2}}, 2},
		{"nor is any other that matches: the idlest", aibrix, ten, []sighting{{Usage: u{Running: 1}}, {match: 10, Usage: u{Running: 8}}, {}}, 2},
		{"1 percent is as good as 1.4: the idlest of these", aibrix, long, []sighting{{Usage: u{Running: 5}}, {match: 14, Usage: u{Running: 3}}, {match: 10, Usage: u{Running: 2}}}, 2},

		{"50+20+10 against 60+20: here", gotoni, ten, []sighting{{match: 5, Usage: u{RunningTokens: 40, WaitingTokens: 10}}, {match: 8, trip: 60 * ms}}, 0},
		{"80 against 59+20, whatever its load", gotoni, ten, []sighting{{match: 5, Usage: u{RunningTokens: 40, WaitingTokens: 10}}, {match: 8, trip: 59 * ms, Usage: u{Waiting: 99, WaitingTokens: 9999}}}, 1},
		{"a cold prompt where a peer is nearer than the queue", gotoni, ten, []sighting{{Usage: u{WaitingTokens: 5}}, {trip: 4 * ms}}, 1},
	} {
		for i := range c.seen {
			c.seen[i].node, c.seen[i].self = i, i == 0
		}
		if got := c.f(c.seen, c.p, rand.New(rand.NewPCG(1, 1))); got != c.want {
			t.Errorf("%s: takes %d, want %d", c.name, got, c.want)
		}
	}
}

// Among peers that tie chance decides, each being as likely.
func TestRivalsTie(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	seen := []sighting{{self: true, Usage: emulate.Usage{Waiting: 1}}, {node: 1}, {node: 2}, {node: 3}}
	taken := make([]int, len(seen))
	for range 3000 {
		taken[least(seen, rng, func(s sighting) float64 { return float64(s.Waiting) })]++
	}
	if taken[0] != 0 || min(taken[1], taken[2], taken[3]) < 900 {
		t.Errorf("taken %v times", taken)
	}
}

// What a node has sent to a peer counts at once, before the peer's next rumor: its
// blocks, and that it is at work.
func TestRivalsCreditWhatTheySend(t *testing.T) {
	ask := func(topic, tokens int) Request {
		return Request{Chain: numbered(topic, 0, tokens/16), Tokens: tokens, At: 10 * time.Second}
	}
	records, _ := record(t, Config{Nodes: 3, Policy: "smg", Profile: paper(t), Entry: First},
		ask(1, 9600), // 18 s here
		ask(2, 160),  // so this goes to an idle peer,
		ask(2, 160),  // this to the same one, for its blocks,
		ask(3, 160),  // and this to the other
	)
	peer := records[1].Node
	if records[0].Node != 0 || peer == 0 || records[2].Node != peer || records[3].Node == peer || records[3].Node == 0 {
		t.Errorf("served by n%d, n%d, n%d, n%d", records[0].Node+1, records[1].Node+1, records[2].Node+1, records[3].Node+1)
	}
}

// A rival knows of a peer what the peer's last rumor said, and sends nothing to one
// that has been silent for three polls.
func TestRivalsSeeByRumors(t *testing.T) {
	c := numbered(1, 0, 20)
	for _, cut := range []time.Duration{8 * time.Second, 10 * time.Second} {
		records, _ := record(t, Config{
			Nodes: 2, Policy: "llm-d", Profile: paper(t), entry: func(i int) int { return []int{1, 0}[i] },
			Faults: []Fault{{At: cut, Kind: Partition, Nodes: []int{1}}, {At: 11 * time.Second, Kind: Heal}},
		}, Request{Chain: c, Tokens: 320}, Request{Chain: c, Tokens: 320, At: 10900 * time.Millisecond})
		silent := cut == 8*time.Second
		if got := records[1]; got.Forwarded == silent || !silent && got.Cached != 319 {
			t.Errorf("cut off at %v: %+v", cut, got)
		}
	}
}
