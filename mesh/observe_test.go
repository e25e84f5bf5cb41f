package mesh

import (
	"testing"
	"time"
)

// A link that has healed is known for what it is within some polls; one long round trip
// makes no link slow.
func TestObserve(t *testing.T) {
	m, p := new(Mesh), new(peer)
	for range 20 {
		m.observe(p, 400*time.Millisecond)
	}
	for range 5 {
		m.observe(p, 4*time.Millisecond)
	}
	if p.RTT > 20*time.Millisecond {
		t.Errorf("%v after five round trips of 4ms; want no more than 20ms", p.RTT)
	}
	before := p.RTT
	m.observe(p, 400*time.Millisecond)
	if p.RTT > before+50*time.Millisecond {
		t.Errorf("%v after one of 400ms; want an eighth of it more than %v", p.RTT, before)
	}
}
