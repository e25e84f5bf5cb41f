package node

import (
	"slices"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/route"
	"pgregory.net/rapid"
)

// specialist is a cluster where n2 holds all of topic "law", n3 nearly all and n1
// none of it, and everyone knows.
func specialist(t *testing.T, policy route.Policy) *cluster {
	c := newCluster(t, 3, Config{Policy: route.Local{}, QueueThreshold: 4, PauseFor: 4 * poll})
	c.ask("n2", "lawbook")
	c.ask("n3", "lawboat")
	c.pass(2 * poll)
	for _, m := range c.members {
		m.cfg.Policy = policy
	}
	return c
}

// 3.2: "if a node P_k accumulates a popular prefix in its radix cache, every request
// matching that prefix will be forwarded to P_k, regardless of P_k's current load."
func TestPaper32AffinityAloneIgnoresLoad(t *testing.T) {
	c := specialist(t, route.Longest{})
	c.node("n2").Queued(c.now, 1000)
	c.pass(2 * poll)
	for range 20 {
		if a := c.ask("n1", "lawbook"); a.by != "n2" {
			t.Fatalf("served by %s", a.by)
		}
	}
}

// 3.2: "when P_k's queue depth exceeds a threshold, it advertises this in the next
// anti-entropy broadcast alongside its trie." "Push-back does not require any new
// coordination - it piggybacks on the existing broadcast channel".
func TestPaper32QueueIsAdvertised(t *testing.T) {
	c := specialist(t, route.LongestPushback{})
	n2 := c.node("n2")
	n2.Queued(c.now, 4)
	if r := n2.Speak(c.now); r.Queue != 4 || r.Pause != 0 {
		t.Errorf("at the threshold: queue %d, pause %v", r.Queue, r.Pause)
	}
	n2.Queued(c.now, 5)
	if r := n2.Speak(c.now); r.Queue != 5 || r.Pause != 4*poll || r.Tree.Len() != 7 {
		t.Errorf("above it: queue %d, pause %v, %d blocks", r.Queue, r.Pause, r.Tree.Len())
	}
	// The pause lasts while the queue does, and ends at its time when it does not.
	if r := n2.Speak(c.now.Add(poll)); r.Pause != 4*poll {
		t.Errorf("a queue that stays: pause %v", r.Pause)
	}
	n2.Queued(c.now.Add(2*poll), 0)
	if r := n2.Speak(c.now.Add(2 * poll)); r.Queue != 0 || r.Pause != 3*poll {
		t.Errorf("a queue that has gone: queue %d, pause %v", r.Queue, r.Pause)
	}
}

// 3.2: "Originating nodes incorporate the back-pressure signal into their routing
// decisions, pausing routing requests to P_k until a specified time period".
func TestPaper32RoutingPauses(t *testing.T) {
	c := specialist(t, route.LongestPushback{})
	n2 := c.node("n2")
	n2.Queued(c.now, 5)
	c.pass(poll + 10*time.Millisecond)
	n2.Queued(c.now, 0)
	told := c.now // n2 spoke within the last poll, and will not ask for longer
	for c.now.Before(told.Add(3 * poll)) {
		if d := c.node("n1").Route(c.now, request("lawbook")); d.Node == "n2" {
			t.Fatalf("%v into its pause n2 is sent a request", c.now.Sub(told))
		}
		c.pass(poll / 4)
	}
	c.pass(2*poll + poll) // the pause's rest, and its spread by a quarter
	if d := c.node("n1").Route(c.now, request("lawbook")); d.Node != "n2" {
		t.Errorf("after its pause n2 is passed over: %+v", d)
	}
}

// 3.2: "a request that would otherwise go to an overloaded specialist is simply
// executed locally or sent to a slightly inferior at a partial-cache cost".
func TestPaper32NextBestOrHere(t *testing.T) {
	c := specialist(t, route.LongestPushback{})
	pause := func(name string) {
		c.node(name).Queued(c.now, 5)
		c.pass(poll + 10*time.Millisecond)
	}
	if a := c.ask("n1", "lawbook"); a.by != "n2" || a.cached != 7 {
		t.Errorf("nobody pauses: %+v", a)
	}
	pause("n2")
	if a := c.ask("n1", "lawbook"); a.by != "n3" || a.cached != 5 {
		t.Errorf("n2 pauses: %+v", a)
	}
	if a := c.ask("n2", "lawbooks"); a.by != "n3" {
		t.Errorf("n2 pauses and is itself asked: %+v", a)
	}
	pause("n3")
	if a := c.ask("n1", "lawbook"); a.by != "n1" || a.cached != 0 {
		t.Errorf("n2 and n3 pause: %+v", a)
	}
	pause("n1")
	if a := c.ask("n1", "lawbook"); a.by != "n1" {
		t.Errorf("all pause: %+v", a)
	}
}

// 3.2: push-back "does not change the safety properties of routing": every request
// has its answer, whoever pauses, and nothing goes to a peer that does. ask checks both.
func TestPaper32SafetyIsUntouched(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		newCluster(t, 4, Config{Policy: route.LongestPushback{}, QueueThreshold: 1}).chaos(t)
	})
}

// 3.3: "the broadcast that ships P_i's trie also serves as a heartbeat from P_i, so
// the absence of broadcasts from P_k within a multiple of the broadcast interval
// marks P_k as suspected-failed."
func TestPaper33SilenceMarksSuspected(t *testing.T) {
	c := specialist(t, route.Longest{})
	c.node("n2").up = false
	c.pass(2 * poll)
	if c.node("n1").Suspected(c.now, "n2") {
		t.Error("suspected after two polls")
	}
	c.pass(2 * poll)
	if !c.node("n1").Suspected(c.now, "n2") || c.node("n1").Suspected(c.now, "n3") {
		t.Error("after four polls n2, and only n2, is to be suspected")
	}
	if a := c.ask("n1", "lawbook"); a.by != "n3" || len(a.route) != 1 {
		t.Errorf("a suspected peer is still tried: %+v", a.route)
	}
}

// 3.3: "On a sendRequest timeout, the originating node falls back to the next-best
// routing target - which could be itself - and runs the request on that node."
func TestPaper33FallsBackToNextBest(t *testing.T) {
	c := specialist(t, route.Longest{})
	tries := func(a answer) (names []string) {
		for _, d := range a.route {
			names = append(names, d.Node)
		}
		return names
	}
	c.node("n2").up = false
	if got := tries(c.ask("n1", "lawbook")); !slices.Equal(got, []string{"n2", "n3"}) {
		t.Errorf("tried %v", got)
	}
	c.node("n3").up = false
	if got := tries(c.ask("n1", "lawbook")); !slices.Equal(got, []string{"n3", "n1"}) {
		t.Errorf("tried %v", got) // n2 is doubted and not asked again
	}
}

// 3.3: "safety holds under arbitrary asynchrony because the originating node always
// retains the option of local execution."
func TestPaper33HereIsAlwaysAnOption(t *testing.T) {
	for _, policy := range []route.Policy{route.Local{}, route.Longest{}, route.LongestPushback{}} {
		c := specialist(t, policy)
		n1 := c.node("n1")
		n1.Queued(c.now, 1000)
		if d := n1.Route(c.now, request("lawbook"), "n3", "n1", "n2", "n9"); !d.Self || d.Node != "n1" {
			t.Errorf("%s: with all tried %+v", policy.Name(), d)
		}
	}
}

// 3.4: "A dropped or delayed broadcast simply leaves peers' estimates stale for an
// additional interval. [...] no log replay or message reordering is required to
// recover: convergence resumes at the next successfully delivered round."
func TestPaper34LossLastsOneRound(t *testing.T) {
	c := newCluster(t, 3, longest)
	c.pass(poll)
	c.loss = 1
	c.ask("n2", "law")
	c.ask("n3", "art")
	c.pass(10 * poll)
	if c.knows("n1", "n2") || c.knows("n1", "n3") {
		t.Fatal("rumors arrive though all are lost")
	}
	c.loss = 0
	c.pass(poll + 2*time.Millisecond)
	c.mustConverge()

	// "Because every broadcast carries a complete snapshot of the sender's local
	// trie - not an incremental delta", who has heard nothing needs no more either.
	c.restart(0)
	c.pass(poll + 2*time.Millisecond)
	c.mustConverge()
}

// 3.4: "it also has the capability to tolerate duplicated and missed trie broadcast
// messages." Here all come twice and up to five polls late, in any order.
func TestPaper34DoubledAndOutOfOrder(t *testing.T) {
	c := newCluster(t, 3, longest)
	c.double = 1
	c.delay = func() time.Duration { return time.Duration(c.rng.Int64N(int64(5 * poll))) }
	for i := range 50 {
		c.ask("n2", string([]rune{rune('A' + i), 'x'}))
		before := c.node("n1").Status(c.now)
		c.pass(poll / 3)
		for _, p := range before.Peers {
			after := c.node("n1").Status(c.now).Peers
			i := slices.IndexFunc(after, func(a PeerStatus) bool { return a.Name == p.Name })
			if i < 0 || after[i].Version < p.Version {
				t.Fatalf("the rumors of %s went back", p.Name)
			}
		}
	}
	c.pass(6 * poll)
	c.mustConverge()
}

// 3.4: "even under a permanent partition, the partitioned subsets continue to make
// correct local routing decisions on stale information, with the only consequence
// being increased cache misses."
func TestPaper34Partition(t *testing.T) {
	c := newCluster(t, 4, longest)
	c.ask("n2", "law")
	c.ask("n4", "art")
	c.pass(2 * poll)
	left := []string{"n1", "n2"}
	c.cut = func(from, to string) bool { return slices.Contains(left, from) != slices.Contains(left, to) }
	if a := c.ask("n1", "art"); a.by != "n1" || a.cached != 0 || a.route[0].Node != "n4" {
		t.Errorf("across the cut: %+v", a)
	}
	c.pass(10 * poll)
	if a := c.ask("n1", "law"); a.by != "n2" || a.cached != 3 {
		t.Errorf("on one side of the cut: %+v", a)
	}
	if a := c.ask("n3", "art"); a.by != "n4" || a.cached != 3 {
		t.Errorf("on the other side: %+v", a)
	}
	c.cut = func(string, string) bool { return false }
	c.pass(2 * poll)
	c.mustConverge()
	if a := c.ask("n3", "law"); a.by != "n2" || a.cached != 3 {
		t.Errorf("when the cut has healed: %+v", a)
	}
}

// 3.5: "a peer's estimate at any moment lags P_k's actual trie T_k by up to one
// broadcast interval. If P_i routes to P_k based on an entry that P_k has since
// evicted, P_k must recompute the prefix [...] and the next anti-entropy round
// restores convergence. The staleness budget is bounded above by the poll interval".
func TestPaper35StaleEstimates(t *testing.T) {
	cfg := longest
	cfg.CapacityTokens = 6 * blockTokens
	c := newCluster(t, 2, cfg)
	c.ask("n2", "law")
	c.pass(2 * poll)
	c.ask("n2", "ART123") // displaces it
	if a := c.ask("n1", "law"); a.by != "n2" || a.route[0].Match != 3 || a.cached != 0 {
		t.Errorf("on a stale entry: %+v", a)
	}
	c.ask("n2", "ART123")
	c.pass(poll + 2*time.Millisecond) // one interval, and the way
	c.mustConverge()
	if d := c.node("n1").Route(c.now, request("law")); !d.Self || d.Match != 0 {
		t.Errorf("one round later: %+v", d)
	}
}
