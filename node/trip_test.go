package node

import (
	"testing"
	"time"
)

// A link that was slow while it was tried is believed to be fast again when messages
// are, though nothing is forwarded over it: else nothing would ever be.
func TestHealedLinkIsTriedAgain(t *testing.T) {
	n := newPriced("n1", Config{})
	a := n.account("b")
	for range 40 {
		a.trip.Add(4096, 0.4)
	}
	a.idle = 0
	trip := func() time.Duration { return seconds(a.trip.At(4096)) }
	for range idleRumors {
		n.SetTrip("b", ms(4))
	}
	if trip() != ms(400) {
		t.Errorf("%v at once; want what forwards have told", trip())
	}
	n.SetTrip("b", ms(300))
	if trip() != ms(400) {
		t.Errorf("%v when messages take as long; want what forwards have told", trip())
	}
	n.SetTrip("b", ms(4))
	if trip() != ms(4) {
		t.Errorf("%v after that; want what messages take", trip())
	}
	n.SetTrip("b", ms(2))
	if trip() != ms(2) {
		t.Errorf("%v; want the newest", trip())
	}
	req := requestOf(1, 0, 0, 10)
	f := n.Dispatch(start, req, Decision{Node: "b"})
	n.Served(at(6), req, "b", Outcome{Flight: f, Report: Report{Known: true}})
	n.SetTrip("b", ms(1))
	if trip() != ms(6) {
		t.Errorf("%v; want what the first forward has told", trip())
	}
}

// A forward takes longer than a rumor on any link, by a little: that is no reason to
// forget it between two forwards.
func TestTripOfAFastLinkIsKept(t *testing.T) {
	n := newPriced("n1", Config{})
	a := n.account("b")
	a.trip.Add(4096, 0.0012)
	for range 10 * idleRumors {
		n.SetTrip("b", 170*time.Microsecond)
	}
	if got := n.Economy(start); seconds(a.trip.Base) != 1200*time.Microsecond {
		t.Errorf("%v after a while: %+v", seconds(a.trip.Base), got.Accounts)
	}
}
