package cases

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// G79: a node that is told to stop says so at once to balancers and peers, sends what
// still comes elsewhere, finishes what streams, and ends well.
func TestG79Drain(t *testing.T) {
	s := Drip(time.Second, strings.Split(strings.Repeat(event("x")+"|", 25)+done, "|")...)
	virtual(t, 3, always(s), func(t *testing.T, c *cluster) {
		answers := make(chan reply)
		for i := range 20 {
			at := []string{"A", "B"}[i%2]
			go func() { answers <- c.askAt(t.Context(), at, http.MethodPost, chatPath, chatStream) }()
		}
		time.Sleep(2 * time.Second)
		stopped := make(chan error)
		go func() { stopped <- c.members["B"].end() }()
		time.Sleep(time.Second)
		if c.state("B", "A") != "down" || c.get("B", "/readyz").status != 503 || c.get("B", "/healthz").status != 200 {
			t.Errorf("B is %s for A; ready %d, healthy %d", c.state("B", "A"), c.get("B", "/readyz").status, c.get("B", "/healthz").status)
		}
		for _, m := range c.members {
			m.engine.set(always(JSON(200, answer)))
		}
		for _, at := range []string{"A", "B", "C"} {
			if r := c.askAt(t.Context(), at, http.MethodPost, chatPath, chat); r.status != 200 || r.node() == "B" {
				t.Errorf("asked at %s: %d from %q", at, r.status, r.node())
			}
		}
		for range 20 {
			if r := <-answers; r.err != nil || string(r.body) != s.Body() || r.node() != "B" {
				t.Errorf("from %q: %v %q", r.node(), r.err, excerpt(string(r.body)))
			}
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}, sendTo("B"))
}
