package cases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// G40: embeddings and the like are served, leave nothing in a tree, and draw no
// conversation to where they were.
func TestG40NoGeneration(t *testing.T) {
	text := quote(strings.Repeat("You are careful. ", 80))
	s := JSON(200, `{"object":"list","data":[]}`)
	for path, body := range map[string]string{
		"/v1/embeddings": `{"model":"m-embed","input":[` + text + `]}`,
		"/tokenize":      `{"model":"m-test","prompt":` + text + `}`,
		"/detokenize":    `{"model":"m-test","tokens":[1,2,3]}`,
		"/v1/rerank":     `{"model":"m-test","query":` + text + `,"documents":[` + text + `]}`,
	} {
		t.Run(path, func(t *testing.T) {
			byPrefix(t, func(t *testing.T, c *cluster) {
				c.served().set(always(s))
				for range 2 {
					if r := c.askAt(t.Context(), "B", http.MethodPost, path, body); r.status != 200 || string(r.body) != s.Body() || r.node() != "B" {
						t.Errorf("%d %s", r.status, r.body)
					}
				}
				for _, asked := range c.served().asked() {
					if string(asked.Body) != body || asked.Path() != path {
						t.Errorf("the engine got %s %s", asked.Line, excerpt(string(asked.Body)))
					}
				}
				c.gossip()
				if n := c.members["B"].daemon.Status().TreeBlocks; n != 0 {
					t.Errorf("%d blocks in the tree", n)
				}
				c.wantPredicted("a chat", chatPath, `{"model":"m-test","messages":[{"role":"system","content":`+text+`}]}`, 0, 0)
			})
		})
	}
}

// G40: what only a peer's engine can do is done there.
func TestG40ModelElsewhere(t *testing.T) {
	s := JSON(200, `{"object":"list","data":[]}`)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.members["A"].engine.serve("m-test")
		c.gossip()
		c.gossip()
		c.wantWhole(c.ask(t.Context(), http.MethodPost, "/v1/embeddings", `{"model":"m-embed","input":"x"}`), s)
	})
}

// G41: a path under /v1/ that a node knows nothing of goes to the engine beside it as
// it came, whatever its method, query and body. Elsewhere there is a clear 404, and
// nothing of the node's own stands in an engine's way.
func TestG41UnknownPaths(t *testing.T) {
	const upload = "--XBOUND\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--XBOUND\r\n" +
		"Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\x00\x01\xff\xfe\r\n--XBOUND--\r\n"
	for name, r := range map[string]struct{ method, path, kind, body string }{
		"upload":         {"POST", "/v1/audio/transcriptions?x=1&x=%2F", "multipart/form-data; boundary=XBOUND", upload},
		"delete":         {"DELETE", "/v1/files/file-1", "", ""},
		"responses read": {"GET", "/v1/responses/resp_1?include[]=a", "", ""},
		"patch":          {"PATCH", "/v1/anything/at/all", "text/plain", "not JSON"},
		"version":        {"GET", "/version", "", ""},
		"options":        {"OPTIONS", "/v1/chat/completions", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := Script{Status: 202, Header: []string{"Content-Type: x/y", "X-Own: 1"}, Framing: Length, Steps: steps(0, []string{"\x00binary\xff"})}
			virtual(t, 2, always(s), func(t *testing.T, c *cluster) {
				got := c.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\nAuthorization: Bearer sk-1\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", r.method, r.path, r.kind, len(r.body), r.body))
				if !strings.HasPrefix(got, "HTTP/1.1 202 ") || !strings.HasSuffix(got, "\r\n\r\n"+s.Body()) || !strings.Contains(got, "\r\nX-Own: 1\r\n") {
					t.Errorf("answered %q", got)
				}
				asked := c.members["A"].engine.asked()
				if len(asked) != 1 {
					t.Fatalf("asked %d times", len(asked))
				}
				if a := asked[0]; a.Line != r.method+" "+r.path+" HTTP/1.1" || a.Header.Get("Authorization") != "Bearer sk-1" || a.Header.Get("Content-Type") != r.kind || string(a.Body) != r.body {
					t.Errorf("the engine got %s%q", a.Head, a.Body)
				}
			})
		})
	}
	virtual(t, 1, always(JSON(200, "{}")), func(t *testing.T, c *cluster) {
		for _, path := range []string{"/flush_cache", "/v2/x", "/v1", "/hearsay/v1/join", "/debug/pprof/", "/v1/load_lora_adapter", "/v1/../flush_cache"} {
			wantError(t, c.ask(t.Context(), http.MethodPost, path, "{}"), 404, "not_found")
		}
		r := c.ask(t.Context(), http.MethodPost, "/api/pull", "{}") // an error as Ollama writes it
		if r.status != 404 || r.header.Get("Hearsay-Reason") != "not_found" || !strings.HasPrefix(string(r.body), `{"error":"there is nothing`) {
			t.Errorf("Ollama's: %d %v %s", r.status, r.header, r.body)
		}
		if n := len(c.members["A"].engine.asked()); n > 0 {
			t.Errorf("the engine was asked %d times", n)
		}
	})
}

// G42: Anthropic's protocol passes as it is, keys of its own included, and its
// prompts are named by tools and system blocks.
func TestG42Messages(t *testing.T) {
	const path = "/v1/messages"
	named := func(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }
	s := Stream(
		named("message_start", `{"type":"message_start","message":{"id":"msg_1","role":"assistant","content":[],"usage":{"input_tokens":9,"cache_read_input_tokens":0,"output_tokens":0}}}`),
		named("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
		named("ping", `{"type":"ping"}`),
		named("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}`),
		named("content_block_stop", `{"type":"content_block_stop","index":0}`),
		named("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}`),
		named("message_stop", `{"type":"message_stop"}`))
	ask := func(tool, user string) string {
		return `{"model":"m-test","max_tokens":16,"stream":true,"system":[{"type":"text","text":` + quote(strings.Repeat("You are careful. ", 80)) + `,"cache_control":{"type":"ephemeral"}}],` +
			`"tools":[{"name":"` + tool + `","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":[{"type":"text","text":"` + user + `"}]}]}`
	}
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		r := c.ask(t.Context(), http.MethodPost, path, ask("find", "one"), "X-Api-Key: sk-ant", "Anthropic-Version: 2023-06-01")
		c.wantWhole(r, s)
		c.wantAsked(ask("find", "one"))
		if asked := c.served().asked()[0].Header; asked.Get("X-Api-Key") != "sk-ant" || asked.Get("Anthropic-Version") != "2023-06-01" {
			t.Errorf("the engine got %v", asked)
		}
		if n := c.requests(c.at, "ok"); n != 1 {
			t.Errorf("%d requests counted as ok", n)
		}
	})
	virtual(t, 2, always(s), func(t *testing.T, c *cluster) {
		c.warm(path, ask("find", "one"))
		c.wantPredicted("another question", path, ask("find", "two"), 21, 23)
		c.wantPredicted("another tool", path, ask("seek", "one"), 0, 0)
	}, policy(t, "longest"))
}
