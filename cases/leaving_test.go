package cases

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// endless is a stream that nobody waits out.
func endless() Script {
	var pieces []string
	for i := range 600 {
		pieces = append(pieces, event(fmt.Sprintf("w%d ", i)))
	}
	return Drip(100*time.Millisecond, pieces...)
}

// leave sends a request on a connection of its own, and closes that after a time,
// gently or by a reset.
func (c *cluster) leave(body string, after time.Duration, how func(net.Conn)) {
	c.t.Helper()
	conn := c.dial()
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	time.Sleep(after)
	how(conn)
	time.Sleep(2 * time.Second)
}

var goodbyes = map[string]func(net.Conn){"closed": func(c net.Conn) { c.Close() }, "reset": reset}

// wantCancelled sees that the engine learnt of a client that left after a time, and
// that it is held against nobody.
func (c *cluster) wantCancelled(after time.Duration) {
	c.t.Helper()
	asked := c.served().asked()
	if len(asked) != 1 {
		c.t.Fatalf("the engine was asked %d times", len(asked))
	}
	if left := asked[0].Left(); left.IsZero() {
		c.t.Error("the engine works on for a client that left")
	} else if late := time.Since(left); late < time.Second {
		c.t.Errorf("the engine learnt of it only %v after", 2*time.Second-late)
	}
	if n := c.requests(c.at, "cancelled"); n != 1 {
		c.t.Errorf("%d requests counted as cancelled", n)
	}
	for _, at := range []string{"A", "B"} {
		if n := c.failures(at); n > 0 {
			c.t.Errorf("%s counts %d failures", at, n)
		}
	}
	for _, p := range c.members["A"].daemon.Status().Peers {
		if p.Failures > 0 {
			c.t.Errorf("A holds %d failures against B", p.Failures)
		}
	}
}

// G10: a client that leaves during a stream is noticed by the engine within a second.
func TestG10LeavesDuringTheStream(t *testing.T) {
	for name, how := range goodbyes {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(endless()), func(t *testing.T, c *cluster) {
				c.leave(chatStream, time.Second, how)
				c.wantCancelled(time.Second)
			})
		})
	}
}

// G11: so is one that leaves before there is any header.
func TestG11LeavesBeforeTheHeader(t *testing.T) {
	s := Stream(event("late"), finish, done)
	s.Silence = 20 * time.Second
	for name, how := range goodbyes {
		for kind, body := range map[string]string{"stream": chatStream, "whole": chat} {
			t.Run(name+", "+kind, func(t *testing.T) {
				eachWay(t, always(s), func(t *testing.T, c *cluster) {
					c.leave(body, 2*time.Second, how)
					c.wantCancelled(2 * time.Second)
				})
			})
		}
	}
}

// G12: however requests are abandoned, nothing stays in flight for any node in any
// other's eyes, and routing is as on a fresh cluster.
func TestG12CountersAfterAborts(t *testing.T) {
	s := endless()
	s.Silence = 500 * time.Millisecond
	virtual(t, 3, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.askAt(t.Context(), "B", http.MethodPost, chatPath, long("law", 50, ""))
		c.gossip()
		for _, m := range c.members {
			m.engine.set(always(s))
		}
		rng := rand.New(rand.NewPCG(12, 0))
		ended := make(chan bool)
		const aborts = 500
		for i := range aborts {
			at := string(rune('A' + i%3))
			after := time.Duration(rng.IntN(1500)-100) * time.Millisecond
			go func() {
				defer func() { ended <- true }()
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				if r := c.askAt(ctx, at, http.MethodPost, chatPath, long("law", 50, "")); r.err == nil {
					t.Errorf("an endless answer ended: %d %s", r.status, excerpt(string(r.body)))
				}
			}()
			time.Sleep(5 * time.Millisecond)
		}
		for range aborts {
			<-ended
		}
		time.Sleep(30 * time.Second) // longer than any pause
		for name, m := range c.members {
			m.engine.set(always(JSON(200, answer)))
			status := m.daemon.Status()
			if status.Queue != 0 {
				t.Errorf("%s counts %d requests", name, status.Queue)
			}
			for _, p := range status.Peers {
				if p.Queue != 0 || p.Failures != 0 || p.State != "alive" {
					t.Errorf("%s believes of %s: %+v", name, p.Name, p)
				}
			}
		}
		for i := range 200 { // what B holds goes to B, and what nobody holds stays
			at, topic, want := string(rune('A'+i%3)), "law", "B"
			if i/3%2 == 1 {
				topic, want = fmt.Sprint("of its own ", i), at
			}
			if r := c.askAt(t.Context(), at, http.MethodPost, chatPath, long(topic, 50, "")); r.status != 200 || r.node() != want {
				t.Errorf("%s, asked at %s: %d from %q", topic, at, r.status, r.node())
			}
		}
	}, policy(t, "longest+pushback"), func(c *daemon.Config) { c.Node.QueueThreshold = 500 })
}

// long is a request with a system prompt of about so many blocks on a topic.
func long(topic string, blocks int, user string) string {
	var system strings.Builder
	for i := 0; system.Len() < blocks*64; i++ {
		fmt.Fprintf(&system, "%s, article %d; ", topic, i)
	}
	return fmt.Sprintf(`{"model":"m-test","messages":[{"role":"system","content":%s},{"role":"user","content":%s}]}`, quote(system.String()), quote(user))
}

// G10: a client that stays and takes nothing is cut off after a minute, for all the
// engine still has to say.
func TestG10TakesNothing(t *testing.T) {
	s := Stream(strings.Split(strings.Repeat(event(strings.Repeat("x", 32<<10))+"|", 500)+done, "|")...) // more than any buffer on the way
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		conn := c.dial()
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(chatStream), chatStream)
		begun := time.Now()
		time.Sleep(2 * time.Minute)
		if left := c.served().asked()[0].Left(); left.IsZero() || left.Sub(begun) > 62*time.Second {
			t.Errorf("the engine was told after %v", left.Sub(begun))
		}
		if n := c.requests(c.at, "cancelled"); n != 1 {
			t.Errorf("%d requests counted as cancelled", n)
		}
	})
}
