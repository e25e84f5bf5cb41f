package node

import (
	"math"
	"testing"
	"time"
)

// A node whose clock has gone back over a restart is heard again once it knows the
// life that its peers remember.
func TestClockThatWentBack(t *testing.T) {
	now := time.Unix(1e9, 0)
	listener, before, after := newNode("n1"), newNode("n2"), newNode("n2")
	before.cfg.Life, after.cfg.Life = 500, 300
	if !listener.Hear(now, before.Speak(now)) {
		t.Fatal("the first life was not heard")
	}
	if listener.Hear(now, after.Speak(now)) {
		t.Fatal("an earlier life was taken for a later one")
	}
	for life, want := range map[uint64]bool{299: false, 300: false, math.MaxUint64: false} {
		if after.Outlive(life) != want {
			t.Errorf("life 300 outlived %d", life)
		}
	}
	if !after.Outlive(500) || !listener.Hear(now, after.Speak(now)) {
		t.Error("the second life was not heard")
	}
}
