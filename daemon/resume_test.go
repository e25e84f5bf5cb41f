package daemon

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/builtin"
)

// fragile breaks the answers of an engine off after so many bytes, once it is told to.
type fragile struct {
	http.RoundTripper
	mu    sync.Mutex
	after int // bytes; 0: whole
	broke int
}

func (f *fragile) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.after > 0 && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		f.broke++
		resp.Body = &cutBody{resp.Body, f.after}
		f.after = 0
	}
	return resp, err
}

type cutBody struct {
	io.ReadCloser
	left int
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errors.New("connection reset by peer")
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// fragileCluster is three nodes with the project's own model, of which the streams
// can be broken off.
func fragileCluster(t *testing.T) (*cluster, map[string]*fragile) {
	engines := map[string]*fragile{}
	c := newCluster(t, 3, func(name string) http.RoundTripper {
		e, err := builtin.Open(builtin.Config{Name: "m", KVTokens: 4096})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		engines[name] = &fragile{RoundTripper: engine.Local{Handler: e}}
		return engines[name]
	}, longest, func(c *Config) { c.Continues = true })
	return c, engines
}

var (
	idField      = regexp.MustCompile(`"id":"[^"]*"`)
	createdField = regexp.MustCompile(`"created":\d+`)
	cachedField  = regexp.MustCompile(`"cached_tokens":\d+`)
)

// likeAny takes out of a stream what differs between any two runs: its id, its
// time, and what the cache gave.
func likeAny(t *testing.T, stream []byte) string {
	ids := map[string]bool{}
	for _, id := range idField.FindAllString(string(stream), -1) {
		ids[id] = true
	}
	if len(ids) > 1 {
		t.Errorf("a stream with %d ids", len(ids))
	}
	s := idField.ReplaceAllString(string(stream), `"id":"X"`)
	return cachedField.ReplaceAllString(createdField.ReplaceAllString(s, `"created":0`), `"cached_tokens":0`)
}

// Wherever a greedy stream breaks off, here or over a hop, the client gets the bytes
// that an undisturbed engine gives, and is told.
func TestBrokenStreamIsResumed(t *testing.T) {
	for _, kind := range []struct{ path, body string }{
		{"/v1/completions", `{"model":"m","prompt":%q,"max_tokens":40,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":%q}],"max_tokens":40,"temperature":0,"stream":true,"model":"m"}`},
	} {
		t.Run(kind.path, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c, engines := fragileCluster(t)
				for _, at := range []string{"n1", "n2"} {
					text := prompt("the sea", 20)
					body := fmt.Sprintf(kind.body, text)
					want := c.do(t.Context(), "n2", http.MethodPost, kind.path, body)
					time.Sleep(time.Second)
					whole := likeAny(t, want.body)
					if !strings.HasSuffix(whole, "[DONE]\n\n") || len(whole) < 2000 {
						t.Fatalf("undisturbed: %q", want.body)
					}
					resumed := 0
					for cut := 1; cut < len(want.body); cut += len(want.body)/23 + 1 {
						e := engines["n2"]
						e.mu.Lock()
						e.after = cut
						e.mu.Unlock()
						got := c.do(t.Context(), at, http.MethodPost, kind.path, body)
						if got.header.Get(nodeHeader) != "n2" {
							t.Fatalf("asked at %s, served by %s", at, got.header.Get(nodeHeader))
						}
						switch {
						case got.err != nil: // visibly: where the text cannot be gone on from
							if !strings.HasPrefix(whole, likeAny(t, got.body)) || strings.Contains(string(got.body), "[DONE]") {
								t.Errorf("cut at %d: broken off with %q", cut, got.body)
							}
						case likeAny(t, got.body) != whole:
							t.Errorf("cut at %d:\n%s\nwant\n%s", cut, likeAny(t, got.body), whole)
						default:
							if resumed++; got.trailer.Get(resumedHeader) == "" {
								t.Errorf("cut at %d: the client is not told: %v", cut, got.trailer)
							}
						}
						time.Sleep(time.Minute) // the doubt ends
					}
					t.Logf("asked at %s: %d of 23 resumed", at, resumed)
					if resumed < 15 {
						t.Errorf("asked at %s: only %d of 23 streams were resumed", at, resumed)
					}
				}
			})
		})
	}
}

// Where the rest cannot be exact, the stream is broken off.
func TestStreamIsNotResumedWhereItCannotBeExact(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, engines := fragileCluster(t)
		for _, fields := range []string{
			`"temperature":1`, `"max_tokens":40`, `"temperature":0,"max_tokens":40,"stop":["x"]`,
			`"temperature":0,"max_tokens":40,"logprobs":1`, `"temperature":0,"max_tokens":40,"unheard_of":1`,
		} {
			e := engines["n1"]
			e.mu.Lock()
			e.after = 700
			e.mu.Unlock()
			got := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", `{"model":"m","prompt":"the sea","stream":true,`+fields+`}`)
			if got.status == 200 && got.err == nil && strings.Contains(string(got.body), "[DONE]") && e.broke > 0 {
				t.Errorf("%s: resumed", fields)
			}
			time.Sleep(time.Minute)
		}
		if broke := engines["n1"].broke; broke < 3 {
			t.Errorf("only %d streams broke off", broke)
		}
	})
}
