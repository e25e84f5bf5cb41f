package cases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// G16: an engine that has its own key gets that and not the client's.
func TestG16EngineKey(t *testing.T) {
	s := JSON(200, answer)
	eachWay(t, keyed("engine-key", always(s)), func(t *testing.T, c *cluster) {
		r := c.post(chat, "Authorization: Bearer client-key")
		c.wantWhole(r, s)
		if head := string(c.served().asked()[0].Head); strings.Contains(head, "client-key") {
			t.Errorf("the engine got the client's key: %s", head)
		}
		if strings.Contains(fmt.Sprint(r.header), "engine-key") {
			t.Errorf("the client got the engine's key: %v", r.header)
		}
	}, func(c *daemon.Config) { c.EngineKey = "engine-key" })
}

// G16: a key that the node itself asks for is known to neither peers nor engines,
// unless they are to know it.
func TestG16NodeKey(t *testing.T) {
	s := JSON(200, answer)
	for name, forward := range map[string]bool{"kept": false, "sent on": true} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				for _, header := range []string{"Authorization: Bearer node-key", "X-Api-Key: node-key", "Api-Key: node-key"} {
					c.wantWhole(c.post(chat, header), s)
				}
				for _, asked := range c.served().asked() {
					if got := strings.Contains(string(asked.Head), "node-key"); got != forward {
						t.Errorf("the engine got the key: %v, want %v", got, forward)
					}
				}
				for _, header := range []string{"X-None: 1", "Authorization: Bearer node-ke", "Authorization: node-key2", "X-Api-Key: "} {
					wantError(t, c.post(chat, header), 401, "invalid_api_key")
				}
				wantError(t, c.get(c.at, "/v1/models"), 401, "invalid_api_key")
			}, func(c *daemon.Config) { c.APIKeys, c.ForwardKeys = []string{"other", "node-key"}, forward })
		})
	}
}

// G18: one id names a request in the logs of both nodes, at the engine and for the
// client, who may choose it. So does one trace.
func TestG18RequestID(t *testing.T) {
	s := JSON(200, answer).With("X-Request-Id: the engine's own")
	for name, said := range map[string][]string{"said": {"X-Request-Id: case-18", "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "not said": nil} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				r := c.post(chat, said...)
				c.wantWhole(r, s)
				id, asked := r.header.Get("X-Request-Id"), c.served().asked()[0].Header
				if len(id) < 7 || said != nil && id != "case-18" || len(r.header["X-Request-Id"]) != 1 {
					t.Errorf("the client is told %q", r.header["X-Request-Id"])
				}
				if asked.Get("X-Request-Id") != id {
					t.Errorf("the engine is told %q, the client %q", asked.Get("X-Request-Id"), id)
				}
				trace := strings.Split(asked.Get("Traceparent"), "-")
				if len(trace) != 4 || said != nil && trace[1] != "0af7651916cd43dd8448eb211c80319c" {
					t.Fatalf("the engine is told the trace %q", trace)
				}
				c.gossip() // a forward is logged by B when it has ended there
				for _, name := range []string{c.at, "B"} {
					log := c.members[name].log.String()
					if !strings.Contains(log, "request_id="+id) || !strings.Contains(log, "trace_id="+trace[1]) {
						t.Errorf("%s does not log the request by its id and trace:\n%s", name, log)
					}
				}
			})
		})
	}
}

// G19: an engine that wants a key for everything is probed with it. Without it the
// node says in one sentence what is missing, and does not call the engine dead.
func TestG19EngineWantsAKey(t *testing.T) {
	keyedEngine := func(c *cluster) {
		for _, m := range c.members {
			m.engine.key("engine-key")
		}
	}
	t.Run("with it", func(t *testing.T) {
		eachWay(t, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
			keyedEngine(c)
			time.Sleep(time.Minute)
			if r := c.get("B", "/readyz"); r.status != 200 {
				t.Errorf("not ready: %s", r.body)
			}
			c.wantWhole(c.post(chat), JSON(200, answer))
		}, func(c *daemon.Config) { c.EngineKey = "engine-key" })
	})
	t.Run("without", func(t *testing.T) {
		virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
			keyedEngine(c)
			time.Sleep(time.Minute)
			r := c.get("B", "/readyz")
			if r.status != 200 {
				t.Errorf("%d %s", r.status, r.body)
			}
			log := c.members["B"].log.String()
			if strings.Count(log, "state=credentials") != 1 || !strings.Contains(log, "status 401") || !strings.Contains(log, "--engine-key") {
				t.Errorf("the log says in a minute:\n%s", log)
			}
			if s := c.members["B"].daemon.Status(); s.EngineState != "credentials" {
				t.Errorf("the engine is %s", s.EngineState)
			}
			// What a client's own key opens is open, which is why the node is ready.
			if r := c.askAt(t.Context(), "B", http.MethodPost, chatPath, chat, "Authorization: Bearer engine-key"); r.status != 200 {
				t.Errorf("with the client's key: %d %s", r.status, r.body)
			}
		})
	})
	t.Run("with a wrong one", func(t *testing.T) {
		virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
			keyedEngine(c)
			time.Sleep(time.Minute)
			r := c.get("B", "/readyz")
			if why := string(r.body); r.status != 503 || !strings.Contains(why, "credentials") || !strings.Contains(why, "401") || !strings.Contains(why, "--engine-key") {
				t.Errorf("%d %s", r.status, why)
			}
		}, func(c *daemon.Config) { c.EngineKey = "an old key" })
	})
}

// G22: where a model's other name is written into a request, its framing is that of
// what is sent, and nothing else of it is another.
func TestG22Alias(t *testing.T) {
	aliases := map[string]string{"m": "m-test", "a-model-with-a-longer-name": "m-test", `quo"ted`: "m-test"}
	s := JSON(200, answer)
	for alias := range aliases {
		// A byte order mark and NaN are JSON to Python's json, and so to engines.
		body := "\ufeff" + `  {"seed":9007199254740993, "model" : ` + quote(alias) + ` ,"messages":[{"role":"user","content":"\u00e9 \ud83d"}],"x":{"model":"m","z":1.0,"y":[NaN,-Infinity]} }` + "  \n"
		eachWay(t, always(s), func(t *testing.T, c *cluster) {
			c.wantWhole(c.post(body), s)
			c.wantAsked(strings.Replace(body, quote(alias), `"m-test"`, 1))
			if asked := c.served().asked()[0]; asked.Header.Get("Content-Length") != fmt.Sprint(len(asked.Body)) || asked.Chunked {
				t.Errorf("framed as %v, %d bytes", asked.Header, len(asked.Body))
			}
		}, func(c *daemon.Config) { c.Aliases = aliases })
	}
}
