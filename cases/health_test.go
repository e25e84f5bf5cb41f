package cases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// state is what a node believes of a peer, in a word.
func (c *cluster) state(of, at string) string {
	for _, p := range c.members[at].daemon.Status().Peers {
		if p.Name == of {
			return p.State
		}
	}
	return "unknown"
}

// G43: what clients do wrong is told them in the engine's words and held against
// nobody.
func TestG43ClientFaults(t *testing.T) {
	fault := JSON(400, `{"error":{"message":"maximum context length is 4096 tokens","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`)
	eachWay(t, always(fault), func(t *testing.T, c *cluster) {
		for range 50 {
			c.wantWhole(c.post(chat), fault)
		}
		c.gossip()
		if state := c.state("B", "A"); state != "alive" || c.get("B", "/readyz").status != 200 {
			t.Errorf("B is %s", state)
		}
		c.served().set(always(JSON(200, answer)))
		c.wantWhole(c.post(chat), JSON(200, answer))
	})
}

// G44: a probe that takes too long is one of so many that an engine is allowed. A
// stream goes on whatever probes say.
func TestG44MissedProbes(t *testing.T) {
	stream := Drip(time.Second, strings.Split(strings.Repeat(event("x")+"|", 120)+done, "|")...)
	eachWay(t, always(stream), func(t *testing.T, c *cluster) {
		ended := make(chan reply)
		go func() { ended <- c.post(chatStream) }()
		ready := func(when string, want int) {
			t.Helper()
			if r := c.get("B", "/readyz"); r.status != want {
				t.Errorf("%s: %d %s", when, r.status, r.body)
			}
			if state, alive := c.state("B", "A"), want == 200; (state == "alive") != alive {
				t.Errorf("%s: A believes that B is %s", when, state)
			}
		}
		time.Sleep(time.Second)
		for missed := range 3 {
			c.served().slow(missed, time.Minute)
			time.Sleep(20 * time.Second)
			ready(fmt.Sprintf("after %d missed probes", missed), 200)
		}
		c.served().slow(4, time.Minute)
		time.Sleep(18 * time.Second)
		ready("after three in a row", 503)
		time.Sleep(12 * time.Second)
		ready("after it answers again", 200)
		c.wantWhole(<-ended, stream)
	}, func(c *daemon.Config) { c.HealthFailures = 3 })
}

// G45: an engine that answers probes and generates nothing is found out after a few
// requests. Its node takes itself out, and tries by itself whether it is back.
func TestG45AliveButStuck(t *testing.T) {
	eachWay(t, always(Script{End: Stuck}), func(t *testing.T, c *cluster) {
		c.anyone = true
		c.members["A"].engine.set(always(JSON(200, answer)))
		for range 3 {
			begun := time.Now()
			wantError(t, c.post(chat), 504, "timeout")
			if took := time.Since(begun).Round(10 * time.Millisecond); took != 10*time.Second {
				t.Errorf("given up after %v, want 10s", took)
			}
			time.Sleep(time.Minute) // A asks B again after some time
		}
		if state, r := c.state("B", "A"), c.get("B", "/readyz"); state != "down" || r.status != 503 || !strings.Contains(string(r.body), "stuck") {
			t.Errorf("A believes that B is %s; B says %s", state, r.body)
		}
		for _, at := range []string{"A", "B"} {
			if r := c.askAt(t.Context(), at, http.MethodPost, chatPath, chat); r.status != 200 || r.node() != "A" {
				t.Errorf("asked at %s: %d from %q", at, r.status, r.node())
			}
		}
		time.Sleep(10 * time.Minute)
		if n := len(c.served().asked()); n != 3 {
			t.Errorf("%d requests of clients went to it, want 3", n)
		}
		if n := c.served().trials; n < 5 || n > 20 {
			t.Errorf("%d trials in ten minutes", n)
		}
		c.served().set(always(JSON(200, answer)))
		time.Sleep(2 * time.Minute)
		if state := c.state("B", "A"); state != "alive" || c.get("B", "/readyz").status != 200 {
			t.Errorf("after it is back B is %s", state)
		}
	}, func(c *daemon.Config) { c.FirstByteTimeout = 10 * time.Second })
}

// G46: a node may start before its engine. It says that it lives and is not ready,
// sends on what it is asked, and is ready when the engine is.
func TestG46StartsBeforeItsEngine(t *testing.T) {
	virtual(t, 1, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		e := newScripted(always(JSON(200, answer)))
		e.Serve(c.wires.listen(t, engineHostOf("B"), enginePort))
		e.Close() // its port is closed
		c.start("B", hostOf("B"), e)
		time.Sleep(time.Minute)
		if c.get("B", "/healthz").status != 200 || c.get("B", "/readyz").status != 503 || c.state("B", "A") != "down" {
			t.Errorf("healthy %d, ready %d, A believes that it is %s", c.get("B", "/healthz").status, c.get("B", "/readyz").status, c.state("B", "A"))
		}
		if r := c.askAt(t.Context(), "B", http.MethodPost, chatPath, chat); r.status != 200 || r.node() != "A" {
			t.Errorf("%d from %q: %s", r.status, r.node(), r.body)
		}
		e.Serve(c.wires.listen(t, engineHostOf("B"), enginePort))
		time.Sleep(5 * time.Second)
		if c.get("B", "/readyz").status != 200 || c.state("B", "A") != "alive" {
			t.Errorf("ready %d, A believes that it is %s", c.get("B", "/readyz").status, c.state("B", "A"))
		}
		if r := c.askAt(t.Context(), "B", http.MethodPost, chatPath, chat); r.status != 200 || r.node() != "B" {
			t.Errorf("%d from %q: %s", r.status, r.node(), r.body)
		}
	})
}
