package cases

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// watched is a network that keeps which addresses nodes dialled.
type watched struct {
	inMemory

	mu     sync.Mutex
	dialed map[string]bool
}

func (n *watched) dialFrom(host string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		if host != clients {
			n.mu.Lock()
			n.dialed[addr] = true
			n.mu.Unlock()
		}
		return n.DialFrom(host)(ctx, addr)
	}
}

// wantAtHome sees that nodes called nothing but their engines and each other.
func (n *watched) wantAtHome(t *testing.T, c *cluster) {
	t.Helper()
	home := map[string]bool{}
	for _, m := range c.members {
		home[m.peer], home[m.engine.addr()] = true, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr := range n.dialed {
		if !home[addr] {
			t.Errorf("a node dialled %s", addr)
		}
	}
}

// G80: nothing that a client sends has a node call an address of the client's choice,
// or take it for a peer.
func TestG80NoStrangersAreCalled(t *testing.T) {
	inBubble(t, "everything tried", func(t *testing.T) {
		wire := &watched{inMemory: inMemory{memnet.New()}, dialed: map[string]bool{}}
		c := newCluster(t, wire, 2, always(JSON(200, answer)), sendTo("B"))
		const evil = "169.254.169.254"
		post := func(line, fields string) string {
			return fmt.Sprintf("%s HTTP/1.1\r\n%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", line, fields, len(chat), chat)
		}
		for _, sent := range []string{
			post("POST "+chatPath, "Host: "+evil),
			post("POST http://"+evil+chatPath, "Host: node"),
			post("POST "+chatPath, "Host: node\r\nX-Forwarded-Host: "+evil+"\r\nForwarded: host="+evil+"\r\nHearsay-Node: "+evil+"\r\nHearsay-Addr: "+evil+":80"),
			"CONNECT " + evil + ":80 HTTP/1.1\r\nHost: " + evil + ":80\r\n\r\n",
			post("POST /hearsay/v1/rumors", "Host: node\r\nHearsay-From: X\r\nHearsay-Addr: "+evil+":80"),
			post("POST /hearsay/v1/join?addr="+evil+":80", "Host: node"),
			"GET /hearsay/v1/rumors HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: hearsay-rumor/1\r\nHearsay-From: X\r\nHearsay-To: A\r\nHearsay-Addr: " + evil + ":80\r\n\r\n",
		} {
			conn := c.dial()
			_, _ = conn.Write([]byte(sent))
			time.Sleep(time.Second)
			conn.Close()
		}
		for _, body := range []string{
			strings.Replace(chat, "{", `{"base_url":"http://`+evil+`/","api_base":"http://`+evil+`/",`, 1),
			strings.Replace(chat, "m-test", "http://"+evil+"/m-test", 1),
		} {
			c.post(body)
		}
		time.Sleep(time.Minute)
		wire.wantAtHome(t, c)
		if n := len(c.members["A"].daemon.Status().Peers); n != 1 {
			t.Errorf("A knows %d peers", n)
		}
		c.finish()
	})
}

// G80: what only peers may say of a request is not taken from a client.
func TestG80PeersHeadersFromClients(t *testing.T) {
	s := JSON(200, answer)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.wantWhole(c.post(chat, "Hearsay-Hop: A", "Hearsay-Deadline: 1", "Hearsay-Refused: queue_full", "Hearsay-Anything: x"), s)
		for name := range c.served().asked()[0].Header {
			if strings.HasPrefix(name, "Hearsay-Any") || strings.HasPrefix(name, "Hearsay-Refused") {
				t.Errorf("the engine got %s", name)
			}
		}
	})
}

// G81: whatever clients make up - models, paths, methods, keys, ids - the metrics stay
// as many as they are.
func TestG81Labels(t *testing.T) {
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.post(chat)
		before := len(c.metrics("A"))
		for i := range 200 {
			c.post(strings.Replace(chat, "m-test", fmt.Sprint("no-such-model-", i), 1), fmt.Sprint("X-Request-Id: ", i))
			c.ask(t.Context(), http.MethodPost, fmt.Sprint("/junk/", i), chat)
			c.ask(t.Context(), http.MethodGet, fmt.Sprint("/v1/junk/", i), "")
			c.ask(t.Context(), fmt.Sprint("M", i), chatPath, "")
		}
		if after := len(c.metrics("A")); after >= before+20 {
			t.Errorf("%d series became %d", before, after)
		}
	})
}

// G82: the metrics pass Prometheus's own checker, under the type that it wants.
func TestG82Metrics(t *testing.T) {
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.post(chat)
		c.post(strings.Replace(chat, "m-test", "nope", 1))
		r := c.get("A", "/metrics")
		if kind := r.header.Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
			t.Errorf("content type %q", kind)
		}
		problems, err := promlint.New(strings.NewReader(string(r.body))).Lint()
		if err != nil {
			t.Error(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "hearsay_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
		for _, line := range []string{"# HELP hearsay_requests_total ", "# TYPE hearsay_requests_total "} {
			if n := strings.Count(string(r.body), line); n != 1 {
				t.Errorf("%d times %q", n, line)
			}
		}
	})
}

// G83: nothing of a prompt, of an answer or of a key is in logs at any level, in
// metrics, in status pages or in errors of the node's own, however a request ends.
func TestG83Canaries(t *testing.T) {
	const key = "CANARY-KEY-e1"
	body := `{"model":"m-test","stream":true,"messages":[{"role":"system","content":"CANARY-SYS instructions"},{"role":"user","content":"CANARY-USR secret"}],"user":"CANARY-UID"}`
	for name, c := range map[string]struct {
		script Script
		body   string
		change func(*daemon.Config)
	}{
		"success":   {script: Stream(event("CANARY-ANSWER"), finish, usage, done)},
		"rejected":  {script: JSON(400, `{"error":{"message":"bad CANARY-USR"}}`)},
		"failed":    {script: JSON(500, `{"error":{"message":"bad CANARY-USR"}}`)},
		"broken":    {script: Script{Header: Stream().Header, Steps: steps(time.Second, []string{event("CANARY-ANSWER"), "data: CANARY"}), End: Broken}},
		"timeout":   {script: Script{End: Stuck}, change: func(c *daemon.Config) { c.FirstByteTimeout = time.Second }},
		"no engine": {script: Script{End: Broken}},
		"not JSON":  {script: JSON(400, `{}`), body: `{"model":"m-test","messages":[{"role":"user","content":"CANARY` + "\n"},
		"no JSON":   {script: JSON(400, `{}`), body: `CANARY`},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change == nil {
				c.change = func(*daemon.Config) {}
			}
			if c.body == "" {
				c.body = body
			}
			eachWay(t, always(c.script), func(t *testing.T, cl *cluster) {
				cl.anyone = true
				r := cl.post(c.body, "Authorization: Bearer "+key, "X-Api-Key: "+key)
				if r.header.Get("Content-Type") == "application/json" && r.status != c.script.Status && strings.Contains(string(r.body), "CANARY") {
					t.Errorf("the node's own error has it: %s", r.body)
				}
				cl.gossip()
				for at, m := range cl.members {
					if log := m.log.String(); strings.Contains(log, "CANARY") {
						t.Errorf("%s logs it: %s", at, log)
					}
					for _, path := range []string{"/metrics", "/hearsay/v1/status", "/readyz"} {
						if page := cl.get(at, path); strings.Contains(string(page.body), "CANARY") {
							t.Errorf("%s shows it at %s: %s", at, path, page.body)
						}
					}
				}
			}, c.change)
		})
	}
}
