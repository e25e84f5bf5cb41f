package cases

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// G65: an engine may compute a long prompt for minutes and say nothing. Its node goes
// on speaking and being probed meanwhile.
func TestG65LongPrefill(t *testing.T) {
	for name, body := range map[string]string{"stream": chatStream, "whole": chat} {
		s := Stream(event("at last"), finish, done)
		if name == "whole" {
			s = JSON(200, answer)
		}
		s.Silence = 130 * time.Second
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				said := c.members["B"].daemon.Status().Version
				go func() {
					time.Sleep(125 * time.Second)
					if state := c.state("B", "A"); state != "alive" || c.get("B", "/readyz").status != 200 {
						t.Errorf("meanwhile B is %s", state)
					}
				}()
				c.wantWhole(c.post(body), s)
				if spoken := c.members["B"].daemon.Status().Version - said; spoken < 200 {
					t.Errorf("B spoke %d times in 130 s", spoken)
				}
			})
		})
	}
}

// G66: a stream goes on for as long as something comes.
func TestG66LongStream(t *testing.T) {
	var pieces []string
	for i := range 1200 {
		pieces = append(pieces, event(fmt.Sprint(i, " ")))
	}
	s := Drip(time.Second, append(pieces, done)...)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		r := c.post(chatStream)
		c.wantWhole(r, s)
		c.wantPrompt(r)
	})
}

// G66: and no longer. An engine that falls silent in mid-stream is given up, so that
// the client can tell.
func TestG66SilentStream(t *testing.T) {
	s := Stream(event("one"))
	s.End = Stuck
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		begun := time.Now()
		r := c.post(chatStream)
		if took := time.Since(begun); r.err == nil || string(r.body) != s.Body() || took < 20*time.Second || took > 21*time.Second {
			t.Errorf("%v after %v: %q", r.err, took, r.body)
		}
		time.Sleep(time.Second)
		if left := c.served().asked()[0].Left(); left.IsZero() {
			t.Error("the engine was not told")
		}
	}, func(c *daemon.Config) { c.IdleTimeout = 20 * time.Second })
}

// G67: requests that hang at one node slow down nobody else's. They end at the limit.
func TestG67OneStuckEngine(t *testing.T) {
	toB := func(c *daemon.Config) { // who is asked at A or C is served there
		c.FirstByteTimeout, c.InFlightMax = time.Minute, 400
	}
	virtual(t, 3, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.served().set(always(Script{End: Stuck}))
		answers := make(chan reply)
		begun := time.Now()
		for range 200 {
			go func() { answers <- c.askAt(t.Context(), "B", http.MethodPost, chatPath, chat) }()
		}
		time.Sleep(time.Second)
		for i := range 200 {
			at := []string{"A", "C"}[i%2]
			if r := c.askAt(t.Context(), at, http.MethodPost, chatPath, chat); r.status != 200 || r.node() != at {
				t.Errorf("%d from %q", r.status, r.node())
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the others took until %v", took)
		}
		for range 200 {
			wantError(t, <-answers, 504, "timeout")
		}
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("given up after %v", took)
		}
	}, policy(t, "local"), toB)
}

// G92: a node that gives up tells the one that it asked, which tells its engine,
// before its client gets an answer from another or an error.
func TestG92Deadline(t *testing.T) {
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.served().set(always(Script{End: Stuck}))
		begun := time.Now()
		r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat)
		if took := time.Since(begun); took < 9990*time.Millisecond || took > 11*time.Second {
			t.Errorf("given up after %v", took)
		}
		if r.status != 200 {
			wantError(t, r, 504, "timeout")
		}
		time.Sleep(time.Second)
		if left := c.served().asked()[0].Left(); left.IsZero() || left.Sub(begun) > 11*time.Second {
			t.Errorf("the engine was told %v after the request", left.Sub(begun))
		}
	}, sendTo("B"), func(c *daemon.Config) {
		c.FirstByteTimeout = map[string]time.Duration{"A": 10 * time.Second, "B": 10 * time.Minute}[c.Node.Name]
	})
}

// G68: requests share the connections to an engine, and to a peer.
func TestG68Connections(t *testing.T) {
	s := JSON(200, answer)
	s.Silence = 10 * time.Millisecond
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		const clients, rounds = 200, 10
		ended := make(chan bool)
		for range clients {
			go func() {
				defer func() { ended <- true }()
				for range rounds {
					c.wantWhole(c.post(chat), s)
				}
			}()
		}
		for range clients {
			<-ended
		}
		if n := c.served().Opened(); n > clients+clients/10 {
			t.Errorf("%d connections to the engine for %d requests of %d clients", n, clients*rounds, clients)
		}
		if n := c.wires.conns() / 2; n > 2*clients+30 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// G69: of five thousand streams that were abandoned nothing is left, however their
// engine was.
func TestG69ManyAborts(t *testing.T) {
	for name, s := range map[string]Script{"stalled": {Header: Stream().Header, Steps: steps(0, []string{event("x")}), End: Stuck}, "broken": {Header: Stream().Header, Steps: []Step{{Data: event("x")}, {time.Second, event("y")}}, End: Broken}} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				streams := 2500
				if c.at == "B" { // all of this happens at B over a hop too
					streams = 250
				}
				rng := rand.New(rand.NewPCG(69, 0))
				ended := make(chan bool)
				for i := range streams {
					after := time.Duration(rng.Int64N(int64(2 * time.Second)))
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), after)
						defer cancel()
						if r := c.ask(ctx, http.MethodPost, chatPath, strings.Replace(chatStream, "hello", fmt.Sprint(i), 1)); r.err == nil {
							t.Errorf("ended well: %d %s", r.status, r.body)
						}
						ended <- true
					}()
				}
				for range streams {
					<-ended
				}
				c.client.CloseIdleConnections()
				time.Sleep(time.Second)
				for _, m := range c.members {
					if q := m.daemon.Status().Queue; q != 0 {
						t.Errorf("%s counts %d requests", m.name, q)
					}
				}
				if name == "broken" {
					return
				}
				for _, asked := range c.served().asked() {
					if asked.Left().IsZero() {
						t.Fatal("the engine works on")
					}
				}
			}, func(c *daemon.Config) { c.InFlightMax = 5000 })
		})
	}
}
