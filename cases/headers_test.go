package cases

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// keyed is an engine that wants a key.
func keyed(key string, next func(*Request) Script) func(*Request) Script {
	return func(r *Request) Script {
		if r.Header.Get("Authorization") != "Bearer "+key {
			return JSON(401, `{"error":{"message":"wrong key","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`).With("WWW-Authenticate: Bearer")
		}
		return next(r)
	}
}

// G15: what a client says of itself reaches the engine, once and unchanged. An
// engine that refuses it is not a bad engine.
func TestG15CredentialsReachTheEngine(t *testing.T) {
	said := []string{
		"Authorization: Bearer sk-test-0000", "X-Api-Key: sk-test-0001", "Openai-Organization: org-1",
		"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Custom: a", "X-Custom: b",
	}
	s := JSON(200, answer)
	eachWay(t, keyed("sk-test-0000", always(s)), func(t *testing.T, c *cluster) {
		c.anyone = true // who may refuse is not what this is about
		c.wantWhole(c.post(chat, said...), s)
		want := http.Header{}
		for _, line := range said {
			name, value, _ := strings.Cut(line, ": ")
			want[name] = append(want[name], value)
		}
		for name, values := range want {
			if got := c.served().asked()[0].Header[name]; !slices.Equal(got, values) {
				t.Errorf("%s reached the engine as %q, want %q", name, got, values)
			}
		}
		if r := c.post(chat); r.status != 401 || !strings.Contains(string(r.body), "wrong key") || r.header.Get("Www-Authenticate") != "Bearer" {
			t.Errorf("the engine's refusal came as %d %v %s", r.status, r.header, r.body)
		}
		c.gossip()
		if c.alive("A") != 1 {
			t.Error("A does not use B any more")
		}
		c.wantWhole(c.post(chat, said...), s)
	})
}

// tapped is a network that keeps what hosts send to one of them.
type tapped struct {
	inMemory
	to string // address

	mu   sync.Mutex
	sent bytes.Buffer
}

type tap struct {
	net.Conn
	t *tapped
}

func (n *tapped) dialFrom(host string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := n.DialFrom(host)(ctx, addr)
		if err != nil || !strings.HasPrefix(addr, n.to+":") {
			return conn, err
		}
		return tap{conn, n}, nil
	}
}

func (c tap) Write(p []byte) (int, error) {
	c.t.mu.Lock()
	c.t.sent.Write(p)
	c.t.mu.Unlock()
	return c.Conn.Write(p)
}

func (n *tapped) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent.String()
}

// G16: a client's key is known only where its request goes: not to other nodes, not
// in logs, metrics or status. The cluster's own secret reaches no engine and no client.
func TestG16CredentialsReachNobodyElse(t *testing.T) {
	// HTTP/2 writes a header as it is where its Huffman code is no shorter.
	const secret = "#$@~^|{}<>#$@~^|{}<>"
	for to, told := range map[string]bool{"B": true, "C": false} {
		inBubble(t, "sent to "+to, func(t *testing.T) {
			wire := &tapped{inMemory: inMemory{memnet.New()}, to: hostOf(to)}
			c := newCluster(t, wire, 3, always(JSON(200, answer)), sendTo("B"))
			r := c.post(chat, "Authorization: Bearer "+secret)
			c.gossip()
			if r.node() != "B" || strings.Contains(wire.String(), secret) != told {
				t.Errorf("served by %s, sent to %s is %v, want %v", r.node(), to, !told, told)
			}
			if n := len(c.members["C"].engine.asked()); n > 0 {
				t.Errorf("C's engine was asked %d times", n)
			}
			for name, m := range c.members {
				for _, path := range []string{"/metrics", "/hearsay/v1/status", "/"} {
					if strings.Contains(string(c.get(name, path).body), secret) {
						t.Errorf("%s shows it at %s", name, path)
					}
				}
				if strings.Contains(m.log.String(), secret) {
					t.Errorf("%s logs it", name)
				}
			}
			if asked := c.members["B"].engine.asked()[0]; bytes.Contains(asked.Head, []byte(clusterSecret)) || strings.Contains(fmt.Sprint(r.header), clusterSecret) {
				t.Error("the cluster's secret left the cluster")
			}
			c.finish()
		})
	}
}

// G17: headers about a connection stay on it, all others go through, repeated ones
// as often as they were sent.
func TestG17HopByHop(t *testing.T) {
	s := JSON(200, `{"ok":true}`).With("Access-Control-Allow-Origin: *", "Access-Control-Allow-Credentials: true",
		"X-RateLimit-Remaining: 7", "Set-Cookie: a=1", "Set-Cookie: b=2", "Keep-Alive: timeout=5", "Connection: X-Own", "X-Own: 1")
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		got := c.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"+
			"Connection: close, X-Drop-Me\r\nX-Drop-Me: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: trailers, deflate\r\n"+
			"X-Keep-Me: first\r\nX-Keep-Me: second\r\n\r\n%s", chatPath, len(chat), chat))
		asked := c.served().asked()[0].Header
		for _, name := range []string{"X-Drop-Me", "Keep-Alive", "Proxy-Connection", "Te"} {
			if asked[name] != nil {
				t.Errorf("the engine got %s: %q", name, asked[name])
			}
		}
		if !slices.Equal(asked["X-Keep-Me"], []string{"first", "second"}) {
			t.Errorf("the engine got X-Keep-Me: %q", asked["X-Keep-Me"])
		}
		head, _, _ := strings.Cut(strings.ToLower(got), "\r\n\r\n")
		for line, want := range map[string]int{
			"\r\naccess-control-allow-origin: *": 1, "\r\naccess-control-allow-credentials: true": 1, "\r\nx-ratelimit-remaining: 7": 1,
			"\r\nset-cookie: a=1": 1, "\r\nset-cookie: b=2": 1, "\r\nkeep-alive:": 0, "\r\nx-own:": 0,
		} {
			if n := strings.Count(head, line); n != want {
				t.Errorf("%d lines begin with %q, want %d in %q", n, line, want, head)
			}
		}
	})
}
