package daemon

import (
	"testing"
	"time"
)

// A prefill that is worth waiting for is told at once, not with the next rumor; and
// when its client leaves it is no longer told.
func TestPrefillIsToldAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf, economic, func(c *Config) { c.Node.Poll = time.Minute })
		time.Sleep(2*time.Minute + time.Second)
		s["n1"].set(func(b *behaviour) { b.prefill = 5 * time.Second })
		credits := func() int { return c.nodes["n2"].Status().Peers[0].Credits }
		if n := credits(); n != 0 {
			t.Errorf("n2 counts on %d blocks before any is computed", n)
		}
		done := make(chan struct{})
		go func() { defer close(done); c.complete("n1", prompt("law", 700)) }()
		time.Sleep(100 * time.Millisecond)
		if n := credits(); n < 60 {
			t.Errorf("n2 counts on %d blocks while n1 computes them", n)
		}
		<-done
		time.Sleep(2 * time.Minute)
		if p := c.nodes["n2"].Status().Peers[0]; p.Credits != 0 || p.TreeBlocks < 60 {
			t.Errorf("n2 believes of n1 %d blocks, and %d credited", p.TreeBlocks, p.Credits)
		}
	})
}
