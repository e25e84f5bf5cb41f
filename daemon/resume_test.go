package daemon

import (
	"encoding/json"
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
	if err == nil && f.after > 0 && resp.ContentLength < 0 {
		resp.Body = &cutBody{resp.Body, f, f.after}
		f.after = 0
	}
	return resp, err
}

type cutBody struct {
	io.ReadCloser
	of   *fragile
	left int
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.broke++
		return 0, errors.New("connection reset by peer")
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// fragileCluster is three nodes with built-in engines, of which the streams can be
// broken off; modelOf gives each node's model.
func fragileCluster(t *testing.T, modelOf func(node string) string) (*cluster, map[string]*fragile) {
	engines := map[string]*fragile{}
	c := newCluster(t, 3, func(name string) http.RoundTripper {
		e, err := builtin.Open(builtin.Config{Name: "m", Model: modelOf(name), KVTokens: 4096})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		engines[name] = &fragile{RoundTripper: engine.Local{Handler: e}}
		return engines[name]
	}, longest)
	return c, engines
}

// breakAfter says where the next stream is to break off, and returns how many have.
func (f *fragile) breakAfter(bytes int) (broke int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = bytes
	return f.broke
}

// twins is a model of random weights, which chooses freely among tokens that have one
// text: a text of its does not say what tokens it is made of.
const twins = "random:16x1"

// perRun is what differs between any two runs: ids, times, and what the cache gave.
var (
	perRun = regexp.MustCompile(`("(?:id|item_id|created|created_at|total_duration|cached_tokens|cache_read_input_tokens|input_tokens|cache_n|prompt_n)":)(?:\d+|"[^"]*")`)
	anyID  = regexp.MustCompile(`"(?:id|item_id)":"(resp_|msg_|)([^"]*)"`)
)

// likeAny takes out of a stream what differs between any two runs, having seen that
// each thing in it has one id.
func likeAny(t *testing.T, stream []byte) string {
	t.Helper()
	ids := map[string]string{}
	for _, m := range anyID.FindAllStringSubmatch(string(stream), -1) {
		if other, twice := ids[m[1]]; twice && other != m[2] {
			t.Errorf("a stream with the ids %s and %s:\n%s", other, m[2], stream)
		}
		ids[m[1]] = m[2]
	}
	return perRun.ReplaceAllString(string(stream), "${1}X")
}

// greedy are streams of each API, without their prompt.
var greedy = []struct{ path, body string }{
	{"/v1/completions", `{"model":"m","prompt":%q,"max_tokens":40,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":%q}],"max_tokens":40,"temperature":0,"stream":true,"model":"m","stop":["zzz"],"seed":1}`},
	{"/v1/messages", `{"messages":[{"role":"user","content":%q}],"max_tokens":40,"temperature":0.0,"stream":true,"model":"m"}`},
	{"/v1/responses", `{"input":%q,"max_output_tokens":40,"temperature":0,"stream":true,"model":"m"}`},
	{"/completion", `{"prompt":%q,"n_predict":40,"temperature":0,"stream":true}`},
	{"/generate", `{"text":%q,"sampling_params":{"max_new_tokens":40,"temperature":0},"stream":true}`},
	{"/api/chat", `{"messages":[{"role":"user","content":%q}],"options":{"num_predict":40,"temperature":0}}`},
	{"/api/generate", `{"prompt":%q,"options":{"num_predict":40,"temperature":0}}`},
}

// Wherever a greedy stream breaks off, here or over a hop, the client gets the bytes
// that an undisturbed engine gives, and is told.
func TestBrokenStreamIsResumed(t *testing.T) {
	cuts := 11
	if testing.Short() { // each of them is a whole answer, twice
		cuts = 2
	}
	for _, kind := range greedy {
		t.Run(kind.path, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c, engines := fragileCluster(t, func(string) string { return twins })
				plain := fmt.Sprintf(kind.body, prompt("the sea", 20))
				for _, at := range []string{"n1", "n2"} {
					want := c.do(t.Context(), "n2", http.MethodPost, kind.path, plain)
					time.Sleep(time.Second)
					whole := likeAny(t, want.body)
					if want.status != 200 || len(whole) < 2000 {
						t.Fatalf("undisturbed: %q", want.body)
					}
					for i := range cuts + 3 {
						cut := 1 + i*len(want.body)/(cuts+1)
						if i > cuts { // in the very last bytes, when there is nothing left to say
							cut = len(want.body) - (i-cuts)*6
						}
						// Under another salt: who has resumed one holds its prompt.
						body := fmt.Sprintf(`{"cache_salt":"%s %d",%s`, at, i, plain[1:])
						c.do(t.Context(), "n2", http.MethodPost, kind.path, body)
						time.Sleep(time.Second)
						before := engines["n2"].breakAfter(cut)
						got := c.do(t.Context(), at, http.MethodPost, kind.path, body)
						if got.header.Get(nodeHeader) != "n2" {
							t.Fatalf("asked at %s, served by %s", at, got.header.Get(nodeHeader))
						}
						switch {
						case got.err != nil || likeAny(t, got.body) != whole:
							t.Fatalf("cut at %d of %d: %v\n%s\nwant\n%s", cut, len(want.body), got.err, likeAny(t, got.body), whole)
						case (got.trailer.Get(resumedHeader) == "") != (engines["n2"].breakAfter(0) == before): // an id may be shorter
							t.Errorf("cut at %d: the client is not told: %v", cut, got.trailer)
						}
						time.Sleep(31 * time.Second) // the doubt ends
					}
				}
				if broke := engines["n2"].breakAfter(0); broke < 2*cuts {
					t.Errorf("only %d streams broke off", broke)
				}
			})
		})
	}
}

// What the model of the test above says is not to be told by its text: a text that was
// gone on from would be read as other tokens.
func TestTextsOfTwinsAreAmbiguous(t *testing.T) {
	e, err := builtin.Open(builtin.Config{Name: "m", Model: twins})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ask := func(path, body string, v any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := engine.Local{Handler: e}.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	text := prompt("the sea", 20)
	var said struct {
		Choices []struct{ Text string }
		Usage   struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
	}
	ask("/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":40,"temperature":0}`, text), &said)
	var counted struct{ Count int }
	ask("/tokenize", fmt.Sprintf(`{"prompt":%q}`, text+said.Choices[0].Text), &counted)
	if counted.Count == said.Usage.Prompt+said.Usage.Completion {
		t.Errorf("%d tokens that are read as they were said: %q", counted.Count, said.Choices[0].Text)
	}
}

// A model of real text is resumed too, and what other engines say than the one that
// broke off is not: the stream is broken off, with what the client has a part of the
// first answer.
func TestStreamIsResumedByItsLike(t *testing.T) {
	kinds := greedy[:4]
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		for _, other := range []string{"", twins} {
			t.Run(kind.path+" with "+other, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					c, engines := fragileCluster(t, func(node string) string {
						if node == "n2" {
							return ""
						}
						return other
					})
					body := fmt.Sprintf(kind.body, prompt("the sea", 20))
					want := c.do(t.Context(), "n2", http.MethodPost, kind.path, body)
					for _, cut := range []int{len(want.body) / 3, len(want.body) * 2 / 3} {
						engines["n2"].breakAfter(cut)
						got := c.do(t.Context(), "n2", http.MethodPost, kind.path, body)
						switch {
						case other == "" && (got.err != nil || likeAny(t, got.body) != likeAny(t, want.body)):
							t.Errorf("cut at %d: %v %q", cut, got.err, got.body)
						case other != "" && (got.err == nil || !strings.HasPrefix(likeAny(t, want.body), likeAny(t, got.body))):
							t.Errorf("cut at %d: %v %q", cut, got.err, got.body)
						}
						time.Sleep(time.Minute)
					}
				})
			})
		}
	}
}

// Who had but a comment from its own engine, and the answer from a peer, has nothing of
// the prompt cached.
func TestCommentIsNoFirstToken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := stubs{}
		c := newCluster(t, 2, s.engineOf, longest)
		s["n1"].set(func(b *behaviour) {
			b.fail = func(w http.ResponseWriter) bool {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, ": wait\n\n")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		})
		got := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", strings.Replace(completionBody(prompt("a", 20), 4), "{", `{"stream":true,`, 1))
		if got.err != nil || got.trailer.Get(resumedHeader) != "n2" {
			t.Fatalf("%v %v: %q", got.err, got.trailer, got.body)
		}
		if blocks := c.nodes["n1"].Status().TreeBlocks; blocks != 0 {
			t.Errorf("%d blocks are thought to be cached at n1", blocks)
		}
	})
}

// What is not greedy, or may have an effect twice, is broken off.
func TestStreamThatIsNotResumed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c, engines := fragileCluster(t, func(string) string { return twins })
		for _, fields := range []string{`"temperature":1,"seed":1`, `"max_tokens":40,"seed":1`, `"temperature":0,"store":true`, `"temperature":0,"tools":[{"type":"web_search"}]`} {
			engines["n1"].breakAfter(700)
			got := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", `{"model":"m","prompt":"the sea","stream":true,`+fields+`}`)
			if got.status != 200 || got.err == nil || strings.Contains(string(got.body), "[DONE]") {
				t.Errorf("%s: %d %v %q", fields, got.status, got.err, got.body)
			}
			time.Sleep(time.Minute)
		}
	})
}

// What went on at another node is learnt from what that one said, of its own run: of
// the tree there, of what it found cached, and of no flight that is still under way.
func TestResumedIsLearntFrom(t *testing.T) {
	for _, kind := range []int{0, 2} { // one tells its usage last, the other first, when the client has that already
		t.Run(greedy[kind].path, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c, engines := fragileCluster(t, func(string) string { return twins })
				body := fmt.Sprintf(greedy[kind].body, prompt("the sea", 20))
				want := c.do(t.Context(), "n2", http.MethodPost, greedy[kind].path, body)
				time.Sleep(time.Second)
				for _, at := range []string{"n1", "n2"} { // to n1 itself, then to it over a hop
					engines["n2"].breakAfter(len(want.body) / 2)
					before := c.nodes[at].Status()
					got := c.do(t.Context(), at, http.MethodPost, greedy[kind].path, body)
					time.Sleep(time.Second)
					after, sum := c.nodes[at].Status(), before.Here
					if at == "n2" {
						sum = before.There
					}
					if got.err != nil || got.trailer.Get(resumedHeader) != "n1" {
						t.Fatalf("%v %v: %q", got.err, got.trailer, got.body)
					}
					now := after.Here
					if at == "n2" {
						now = after.There
					}
					if now.Requests != sum.Requests+1 || now.Reported != sum.Reported+1 || now.PromptTokens <= sum.PromptTokens {
						t.Errorf("asked at %s: %+v, then %+v", at, sum, now)
					}
					cached := now.CachedTokens - sum.CachedTokens
					if cold := at == "n1"; cold != (cached == 0) {
						t.Errorf("asked at %s: %d cached tokens", at, cached)
					}
					if tree := c.nodes["n1"].Status().TreeBlocks; tree < 8 {
						t.Errorf("the tree of who served holds %d blocks", tree)
					}
					if after.Economy.Flights != 0 {
						t.Errorf("%d flights are left", after.Economy.Flights)
					}
					time.Sleep(time.Minute)
				}
			})
		})
	}
}
