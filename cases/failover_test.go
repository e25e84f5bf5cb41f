package cases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// G62: a peer that cannot be reached costs its asker little, and once.
func TestG62PeerUnreachable(t *testing.T) {
	body := strings.Replace(long("law", 1<<14, ""), "{", `{"stream":true,`, 1) // 1 MiB
	s := Stream(event("hi"), finish, done)
	for name, c := range map[string]struct {
		cut  func(c *cluster)
		most time.Duration
	}{
		"refuses":          {func(c *cluster) { c.kill("B") }, 0},
		"does not respond": {func(c *cluster) { c.network().Cut(hostOf("B")) }, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 3, always(s), func(t *testing.T, cl *cluster) {
				c.cut(cl)
				for i := range 3 {
					begun := time.Now()
					r := cl.askAt(t.Context(), "A", http.MethodPost, chatPath, body)
					if took := time.Since(begun); r.status != 200 || r.err != nil || string(r.body) != s.Body() || took > c.most || i > 0 && took > 0 {
						t.Errorf("%d, %v after %v: %s", r.status, r.err, took, r.body)
					}
					asked := cl.members[r.node()].engine.asked()
					if got := string(asked[len(asked)-1].Body); got != body {
						t.Errorf("the second engine got %d bytes of %d", len(got), len(body))
					}
				}
				cl.network().Heal()
			}, sendTo("B"))
		})
	}
}

// G63: what an engine may have worked on is repeated once at most, as a replay in the
// log, and not at all where that could have an effect twice or is switched off.
func TestG63Replay(t *testing.T) {
	silence := Script{Silence: time.Hour}
	for name, c := range map[string]struct {
		path, body string
		noReplay   bool
		replayed   bool
	}{
		"completion":           {"/v1/completions", `{"model":"m-test","prompt":"x"}`, false, true},
		"switched off":         {"/v1/completions", `{"model":"m-test","prompt":"x"}`, true, false},
		"stored":               {"/v1/responses", `{"model":"m-test","input":"x","store":true}`, false, false},
		"in the background":    {"/v1/responses", `{"model":"m-test","input":"x","background":true}`, false, false},
		"tools of the server":  {"/v1/responses", `{"model":"m-test","input":"x","tools":[{"type":"web_search"}]}`, false, false},
		"tools of the client":  {chatPath, `{"model":"m-test","messages":[],"tools":[{"type":"function","function":{"name":"f"}}]}`, false, true},
		"without any messages": {chatPath, `{"model":"m-test","messages":[]}`, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 3, always(silence), func(t *testing.T, cl *cluster) {
				for _, m := range cl.members {
					m.engine.closeIdle(time.Millisecond) // net/http repeats what breaks on a kept connection
				}
				cl.members["A"].engine.set(always(Script{End: Broken}))
				cl.members["C"].engine.set(always(Script{End: Broken}))
				time.Sleep(5 * time.Second)
				time.AfterFunc(time.Second, func() { cl.kill("B") })
				r := cl.askAt(t.Context(), "A", http.MethodPost, c.path, c.body)
				wantError(t, r, 502, "engine_unavailable")
				asked := 0
				for _, m := range cl.members {
					asked += len(m.engine.asked())
				}
				if want := map[bool]int{true: 2, false: 1}[c.replayed]; asked != want {
					t.Errorf("engines were asked %d times, want %d", asked, want)
				}
				if log := cl.members["A"].log.String(); !strings.Contains(log, "replay=true") {
					t.Errorf("the log does not tell: %s", log)
				}
				if r.header.Get("Retry-After") != "" || r.header.Get("X-Should-Retry") == "true" {
					t.Errorf("the client is told to try again: %v", r.header)
				}
			}, sendTo("B"), func(cfg *daemon.Config) { cfg.NoReplay = c.noReplay })
		})
	}
}

// G63: one that is repeated is answered once.
func TestG63OneAnswer(t *testing.T) {
	virtual(t, 3, always(Script{Silence: time.Hour}), func(t *testing.T, c *cluster) {
		c.members["A"].engine.set(always(JSON(200, answer)))
		time.AfterFunc(time.Second, func() { c.kill("B") })
		begun := time.Now()
		r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat)
		if r.status != 200 || r.node() != "A" || string(r.body) != answer || time.Since(begun) > 2*time.Second {
			t.Errorf("%d from %q after %v: %s", r.status, r.node(), time.Since(begun), r.body)
		}
	}, sendTo("B"))
}

// G64: an engine that closes an idle connection at the moment at which it is used
// again costs no request, nor does a peer that is restarted between two of them.
func TestG64ReusedConnection(t *testing.T) {
	s := JSON(200, `{"id":"x","object":"chat.completion","choices":[]}`)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.served().closeIdle(time.Second)
		for i := range 201 {
			c.wantWhole(c.post(chat), s)
			time.Sleep(time.Second + time.Duration(i-100)*50*time.Microsecond)
		}
		for _, asked := range c.served().asked() {
			if string(asked.Body) != chat {
				t.Errorf("the engine got %q", asked.Body)
			}
		}
	})
	t.Run("restarts", func(t *testing.T) {
		virtual(t, 2, always(s), func(t *testing.T, c *cluster) {
			for range 20 {
				c.wantWhole(c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat), s)
				c.kill("B")
				c.start("B", hostOf("B"), c.served(), sendTo("B"))
				if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat); r.status != 200 {
					t.Errorf("%d %v %s", r.status, r.err, r.body)
				}
				c.settle()
			}
		}, sendTo("B"))
	})
}

// G91: what an engine tells a client library of trying again is passed on as it is,
// and the node's own refusals say when to.
func TestG91WhatTheClientIsTold(t *testing.T) {
	for status, header := range map[int][]string{
		429: {"Retry-After-Ms: 1500", "X-Should-Retry: false"},
		529: {"Retry-After: 3"},
		503: {"X-Should-Retry: true", "Retry-After: 2"},
		500: {"X-Should-Retry: false"},
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := JSON(status, fmt.Sprintf(`{"error":{"message":"case %d"}}`, status)).With(header...)
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				c.anyone = true // any engine says the same
				r := c.post(chat)
				if r.status != status || string(r.body) != s.Body() {
					t.Errorf("%d %s", r.status, r.body)
				}
				for _, line := range header {
					if name, value, _ := strings.Cut(line, ": "); strings.Join(r.header[http.CanonicalHeaderKey(name)], "|") != value {
						t.Errorf("%s: %q, want %q", name, r.header[http.CanonicalHeaderKey(name)], value)
					}
				}
				if asked := len(c.members["A"].engine.asked()); asked > 0 && strings.Contains(strings.Join(header, ""), "false") {
					t.Error("what is not to be tried again was tried again")
				}
			})
		})
	}
	virtual(t, 1, always(Script{End: Broken}), func(t *testing.T, c *cluster) {
		c.members["A"].engine.Close()
		time.Sleep(5 * time.Second)
		if r := c.post(chat); r.status < 500 || r.header.Get("Retry-After") == "" {
			t.Errorf("%d %v", r.status, r.header)
		}
	})
}
