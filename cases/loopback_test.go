package cases

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// overTCP is the machine's own loopback, for what a network in memory may have wrong.
type overTCP struct{}

func (overTCP) listen(t *testing.T, _, _ string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dialFrom leaves dialling to nodes themselves.
func (overTCP) dialFrom(host string) func(context.Context, string) (net.Conn, error) {
	if host != clients {
		return nil
	}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
}

// conns counts the sockets of this process, where that can be told.
func (overTCP) conns() (n int) {
	all, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range all {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// TestOnLoopback runs over TCP, in real time, what a network in memory could have
// wrong: how connections end and are used again. Afterwards neither goroutine nor
// socket is left.
func TestOnLoopback(t *testing.T) {
	sockets := overTCP{}.conns()
	before := goleak.IgnoreCurrent()
	c := newCluster(t, overTCP{}, 2, always(Script{}), sendTo("B"))
	for way, at := range map[string]string{"here": "B", "over a hop": "A"} {
		t.Run(way, func(t *testing.T) {
			c.t, c.at = t, at
			c.breaksOff()
			c.leavesEarly()
			c.takesLargeBodies()
			c.reusesConnections()
		})
	}
	c.t = t
	c.stop()
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
	if n := (overTCP{}).conns(); n > sockets {
		t.Errorf("%d sockets were open before and %d are now", sockets, n)
	}
}

// breaksOff: what an engine broke off stays broken off (G06).
func (c *cluster) breaksOff() {
	for _, end := range []End{Dropped, Broken} {
		s := Drip(20*time.Millisecond, event("one "), event("two "), `data: {"id":"chatcmpl-ca`)
		s.End = end
		c.served().set(always(s))
		r := c.post(chatStream)
		if r.err == nil || !strings.HasPrefix(s.Body(), string(r.body)) || !strings.HasPrefix(string(r.body), event("one ")) {
			c.t.Errorf("end %d: %d %v %q", end, r.status, r.err, r.body)
		}
		c.settle() // A may leave B alone for a moment
	}
}

// leavesEarly: an engine learns that its client has left, however it did (G10).
func (c *cluster) leavesEarly() {
	c.served().set(always(endless()))
	before, counted := len(c.served().asked()), c.requests(c.at, "cancelled")
	for _, how := range goodbyes {
		conn := c.dial()
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(chatStream), chatStream)
		_, _ = conn.Read(make([]byte, 1))
		how(conn)
	}
	c.within("the engine to be told", func() bool {
		asked := c.served().asked()[before:]
		return len(asked) == 2 && !asked[0].Left().IsZero() && !asked[1].Left().IsZero()
	})
	c.within("the clients to be counted", func() bool { return c.requests(c.at, "cancelled") == counted+2 })
}

// takesLargeBodies: they arrive whole (G20).
func (c *cluster) takesLargeBodies() {
	s := JSON(200, answer)
	c.served().set(always(s))
	body := picture(8 << 20)
	c.wantWhole(c.post(body), s)
	asked := c.served().asked()
	if got := asked[len(asked)-1].Body; sha256.Sum256(got) != sha256.Sum256([]byte(body)) {
		c.t.Errorf("the engine got %d bytes that are not the %d sent", len(got), len(body))
	}
}

// reusesConnections: they are kept as long as they are not closed (G68), and one that
// the engine closes about when it is used again costs no request (G64).
func (c *cluster) reusesConnections() {
	s := JSON(200, answer)
	before := c.served().Opened()
	for range 200 {
		c.wantWhole(c.post(chat), s)
	}
	if n := c.served().Opened() - before; n > 10 {
		c.t.Errorf("%d connections for 200 requests, one by one", n)
	}
	c.served().closeIdle(2 * time.Millisecond)
	for range 200 {
		c.wantWhole(c.post(chat), s)
		time.Sleep(2 * time.Millisecond)
	}
	c.served().closeIdle(0)
}

// within waits until something is so, for a machine's time at most.
func (c *cluster) within(what string, is func() bool) {
	c.t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Errorf("in vain: %s", what)
			return
		}
	}
}
