package cases

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/mesh/memnet"
	"github.com/hearsay-project/hearsay/route"
)

// TestMain runs every case behind a proxy that leads nowhere, of which nobody may
// take notice (G86), and sees that the cases on real sockets leave no goroutine.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
		os.Setenv(name, "http://192.0.2.1:1")
	}
	os.Unsetenv("NO_PROXY")
	os.Unsetenv("no_proxy")
	// memberlist's last probe ends some seconds after its Shutdown.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// trap is chance, and a policy, that panics when it is told to.
type trap struct {
	route.Policy
	armed *atomic.Bool
}

func (p trap) spring() {
	if p.armed.Load() {
		panic("this is a test of what a panic costs")
	}
}

func (p trap) Choose(cands []route.Candidate, rng *rand.Rand) (int, string) {
	p.spring()
	return p.Policy.Choose(cands, rng)
}

func (p trap) Uint64() uint64 { p.spring(); return 4 }

// G85: a fault of the program where it chooses a node costs the request, and one
// where it hears a rumor costs the rumor. The node lives and counts it.
func TestG85Panics(t *testing.T) {
	var armed atomic.Bool
	t.Run("choosing", func(t *testing.T) {
		eachWay(t, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
			c.panics = true
			armed.Store(true)
			message := wantError(t, c.post(chat), 500, "internal_error")
			armed.Store(false)
			if strings.Contains(message, "test") {
				t.Errorf("the client is told %q", message)
			}
			c.wantWhole(c.post(chat), JSON(200, answer))
			if n := c.metrics(c.at)["hearsay_panics_total"]; n != 1 {
				t.Errorf("%v panics counted", n)
			}
		}, func(c *daemon.Config) { c.Node.Policy = trap{toward("B"), &armed} })
	})
	t.Run("hearing", func(t *testing.T) {
		virtual(t, 2, always(Script{Silence: 10 * time.Second}), func(t *testing.T, c *cluster) {
			c.panics = true
			armed.Store(true)
			for range 20 { // so many that B asks for a pause, of which each hearer draws the length
				go c.askAt(t.Context(), "B", http.MethodPost, chatPath, chat)
			}
			time.Sleep(2 * time.Second)
			armed.Store(false)
			if n := c.metrics("A")["hearsay_panics_total"]; n < 1 {
				t.Error("nothing was counted")
			}
			time.Sleep(20 * time.Second)
			c.settle()
			if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat); r.status != 200 {
				t.Errorf("%d %s", r.status, r.body)
			}
		}, policy(t, "local"), func(c *daemon.Config) {
			if c.Node.Name == "A" {
				c.Node.Rand = rand.New(trap{armed: &armed})
			}
		})
	})
	t.Run("a broken answer is none", func(t *testing.T) {
		broken := Drip(time.Second, event("x"), event("y"))
		broken.End = Broken
		eachWay(t, always(broken), func(t *testing.T, c *cluster) {
			c.post(chatStream) // finish sees that no log speaks of a panic
			if n := c.metrics(c.at)["hearsay_panics_total"]; n != 0 {
				t.Errorf("%v panics counted", n)
			}
		})
	})
}

// G86: proxies that the environment names are for neither engines nor peers.
func TestG86EnvironmentProxies(t *testing.T) {
	if req, _ := http.NewRequest(http.MethodGet, "http://10.0.0.1/", nil); true {
		if proxy, err := http.ProxyFromEnvironment(req); proxy == nil || err != nil {
			t.Fatalf("there is no proxy: %v", err)
		}
	}
	inBubble(t, "dialled", func(t *testing.T) {
		wire := &watched{inMemory: inMemory{memnet.New()}, dialed: map[string]bool{}}
		c := newCluster(t, wire, 2, always(JSON(200, answer)), sendTo("B"))
		c.wantWhole(c.post(chat), JSON(200, answer))
		wire.wantAtHome(t, c)
		c.finish()
	})
}

// G87: an engine that reports no load is worth as much as its node's own count says,
// and is not asked again and again for what it does not have.
func TestG87NoLoadReport(t *testing.T) {
	virtual(t, 4, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
		for name, n := range c.spread(200, false, func(i int) string { return long(fmt.Sprint("unique ", i), 4, "") }) {
			if n < 20 || n > 80 {
				t.Errorf("%s served %d of 200", name, n)
			}
		}
		time.Sleep(10 * time.Minute)
		for name, m := range c.members {
			missing := 0
			for _, r := range m.engine.Requests() {
				if strings.HasPrefix(r.Line, "GET ") && r.Path() != "/v1/models" && r.Path() != "/health" {
					missing++
				}
			}
			if missing > 20 {
				t.Errorf("%s asked %d times for what there is not", name, missing)
			}
		}
	}, policy(t, "longest+pushback"))
}

// G89: paths and queries reach the engine as they were written, encoded or not.
func TestG89EncodedPaths(t *testing.T) {
	for _, target := range []string{
		"/v1/files/org%2Fm-test?x=1&x=2", "/v1/files/a%20b%C3%A9", "/v1/files/a+b;c=d,e:f@g!$&'()*", "/v1/files/%61%2e%2E", "/v1/files/x?", "/v1/files/x?y=%zz&&=;",
	} {
		t.Run(target, func(t *testing.T) {
			virtual(t, 1, always(JSON(200, "{}")), func(t *testing.T, c *cluster) {
				c.raw("GET " + target + " HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
				asked := c.members["A"].engine.asked()
				if len(asked) != 1 {
					t.Fatalf("asked %d times", len(asked))
				}
				if line := asked[0].Line; line != "GET "+target+" HTTP/1.1" {
					t.Errorf("asked for %q", line)
				}
			})
		})
	}
	s := JSON(200, answer)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.wantWhole(c.ask(t.Context(), http.MethodPost, chatPath+"?a=%2F&x=2&x=1", chat), s)
		if line := c.served().asked()[0].Line; line != "POST "+chatPath+"?a=%2F&x=2&x=1 HTTP/1.1" {
			t.Errorf("asked for %q", line)
		}
	})
	virtual(t, 2, always(s), func(t *testing.T, c *cluster) {
		c.served().serve("m-test", "org/m-test")
		time.Sleep(5 * time.Second)
		for _, path := range []string{"/v1/models/org%2Fm-test", "/v1/models/org/m-test"} {
			if r := c.get("A", path); r.status != 200 || !strings.Contains(string(r.body), `"id":"org/m-test"`) {
				t.Errorf("%s: %d %s", path, r.status, r.body)
			}
		}
	})
}

// G90: a node whose engine accepts everything and answers nothing is tried again now
// and then, by one request at a time, ever less often, and not let back in meanwhile.
func TestG90DeadHostStaysOut(t *testing.T) {
	for name, probes := range map[string]time.Duration{"probes answered": 0, "probes time out": time.Hour} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
				c.served().closeIdle(time.Millisecond) // or net/http tries once more by itself
				time.Sleep(5 * time.Second)
				c.served().slow(1<<30, probes)
				c.served().set(always(Script{End: Broken}))
				for range 600 {
					if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat); r.status != 200 {
						t.Errorf("%d %s", r.status, r.body)
					}
					time.Sleep(time.Second)
				}
				if n := len(c.served().asked()); n > 10 {
					t.Errorf("%d requests of clients went to it in ten minutes", n)
				}
				if state := c.state("B", "A"); state == "alive" {
					t.Errorf("B is %s", state)
				}
				c.served().slow(0, 0)
				c.served().set(always(JSON(200, answer)))
				time.Sleep(3 * time.Minute)
				c.wantWhole(c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat), JSON(200, answer))
			}, sendTo("B"))
		})
	}
}
