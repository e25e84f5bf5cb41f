package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/mesh/memnet"
	"github.com/hearsay-project/hearsay/route"
	"github.com/hearsay-project/hearsay/workload"
)

// publishing is an emulated engine that publishes in memory, and can be started anew.
type publishing struct {
	*foreignEngine
	network   *memnet.Network
	publisher *kvevents.Publisher
}

// newPublishing starts one. Beside it goes a node with what follow makes of its Config.
func newPublishing(t *testing.T, dialect string, change ...func(*emulated.Config)) *publishing {
	p := &publishing{network: memnet.New()}
	p.publish(t)
	t.Cleanup(func() { p.publisher.Close() })
	p.foreignEngine = newForeign(t, dialect, append(change, func(c *emulated.Config) { c.Publisher = p.publisher })...)
	return p
}

func (p *publishing) follow(c *Config) {
	c.KVEvents = kvevents.Config{
		Endpoint: "tcp://engine:5557", Replay: "tcp://engine:5558",
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return p.network.Dial(ctx, addr) },
	}
}

// onlyEvents starts a node beside an engine of which it is told nothing but events: it
// believes that the engine holds far more than it does.
func onlyEvents(t *testing.T) (*publishing, *cluster) {
	p := newPublishing(t, "", func(c *emulated.Config) { c.Profile.CapacityTokens, c.TokenBytes = 2048, 0 })
	c := newCluster(t, 1, func(string) http.RoundTripper { return engine.Local{Handler: p} }, p.follow)
	time.Sleep(5 * time.Second)
	return p, c
}

func (p *publishing) publish(t *testing.T) {
	t.Helper()
	p.publisher = kvevents.NewPublisher(kvevents.PublisherConfig{})
	for addr, serve := range map[string]func(net.Listener){"engine:5557": p.publisher.Serve, "engine:5558": p.publisher.ServeReplay} {
		l, err := p.network.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		serve(l)
	}
}

// promised is what the node promised for a prompt, and what was found.
func promised(t *testing.T, c *cluster, text string) (expected, found, tokens int) {
	t.Helper()
	r := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, text))
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	expected, _ = strconv.Atoi(r.header.Get(expectedHeader))
	for name, into := range map[string]*int{"cached_tokens": &found, "prompt_tokens": &tokens} {
		_, rest, _ := strings.Cut(string(r.body), `"`+name+`":`)
		_, _ = fmt.Sscan(rest, into)
	}
	time.Sleep(100 * time.Millisecond) // for its tokens
	return expected, found, tokens
}

// topicQuestion is one of a topic, with which all of its questions begin. Otherwise no
// two texts have anything in common.
func topicQuestion(topic, i int) string {
	words := func(seed string, n int) string {
		var b strings.Builder
		for k := range n {
			fmt.Fprintf(&b, "%x ", xxh3.HashString(fmt.Sprint(seed, k))>>44)
		}
		return b.String()
	}
	return words(fmt.Sprint("topic", topic), 60) + words(fmt.Sprint("question", i), 20)
}

// What the engine evicts is no longer promised, though the node was told that it holds
// far more, and what it holds is promised to the block of tokens: by its events alone.
func TestEventsKeepPromisesTrue(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, c := onlyEvents(t)
		var off, points, warm, evicted int
		const topics, rounds = 8, 20
		for i := range topics * rounds {
			topic := (i*i + i/7) % topics
			expected, found, tokens := promised(t, c, topicQuestion(topic, i))
			if tokens == 0 {
				t.Fatal("the engine does not tell what it found")
			}
			// The first time that a topic comes again it is known only roughly where it ends.
			if i >= 3*topics {
				points += 10000 * max(expected-found, found-expected) / tokens
				if warm++; max(expected-found, found-expected) > 16 {
					off++
				}
				if found == 0 {
					evicted++
				}
			}
		}
		s := c.nodes["n1"].Status().KVEvents
		t.Logf("promises differ by %.2f points, %d of %d by more than a block of tokens; %d were cold; %+v", float64(points)/100/float64(warm), off, warm, evicted, *s)
		if off > warm/50 || points/warm > 50 || evicted < 10 || s.Clears > 0 || s.Unlinked > 0 {
			t.Error("promises are not what the engine finds")
		}
	})
}

// An engine that has started anew has nothing: its publisher's next life says so
// before any request finds out.
func TestEventsTellOfARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, c := onlyEvents(t)
		for i := range 4 {
			promised(t, c, topicQuestion(1, i))
		}
		if expected, found, _ := promised(t, c, topicQuestion(1, 4)); expected != found || found == 0 {
			t.Fatalf("%d promised, %d found", expected, found)
		}
		p.publisher.Close()
		p.publish(t)
		p.config.Publisher = p.publisher
		p.start()
		time.Sleep(10 * time.Second)
		for i, want := range []bool{false, true, true} {
			expected, found, _ := promised(t, c, topicQuestion(1, 5+i))
			if (found > 0) != want || max(expected-found, found-expected) > 16 {
				t.Errorf("request %d after the restart: %d promised, %d found", i+1, expected, found)
			}
		}
	})
}

// The paper's prompts, and conversations, to four nodes whose engines report nothing of
// what they find, and whose caches evict: by events alone promises are within a point of
// the prompt's tokens. With -v all prompts are sent.
func TestPromisesByEvents(t *testing.T) {
	const folder = "../../shared/data/"
	share := 5
	if testing.Verbose() {
		share = 1
	}
	if _, err := os.Stat(folder); err != nil || testing.Short() {
		t.Skip("no ../shared/data beside the repository, or no time for thousands of requests")
	}
	questions := mmlu(t, folder+"mmlu", 2000)
	turns := conversations(t, folder+"bfcl/raw", 500)
	for _, tc := range []struct {
		name, path      string
		requests, holds int
		body            func(i int) map[string]any
	}{
		{"MMLU", "/v1/completions", 2000 / share, 13_000, func(i int) map[string]any { return map[string]any{"prompt": questions.Request(i).Prompt} }},
		{"BFCL", "/v1/chat/completions", len(turns) / share, 26_000, func(i int) map[string]any { return map[string]any{"messages": turns[i]} }},
	} {
		inBubble(t, func(t *testing.T) {
			var engines []*publishing
			c := newCluster(t, 4, func(string) http.RoundTripper {
				p := newPublishing(t, "vllm", func(c *emulated.Config) {
					c.Profile, _ = emulate.ByName("paper")
					c.Profile.CapacityTokens, c.TokenBytes, c.Bare = tc.holds, 0, true
				})
				engines = append(engines, p)
				return engine.Local{Handler: p}
			}, func(c *Config) {
				c.EngineKind, c.Node.CapacityTokens = probe.VLLM, 0
				c.Node.Policy = route.LongestPushback{} // which warms nothing: what is found is the client's
				engines[len(engines)-1].follow(c)
			})
			time.Sleep(5 * time.Second)
			off, near, hits, tokens, before := 0.0, 0, 0, 0, 0
			for i := range tc.requests {
				body := tc.body(i)
				body["max_tokens"] = 1
				encoded, _ := json.Marshal(body)
				r := c.do(t.Context(), fmt.Sprintf("n%d", i%4+1), http.MethodPost, tc.path, string(encoded))
				var answer struct {
					Usage struct {
						Prompt int `json:"prompt_tokens"`
					}
				}
				if err := json.Unmarshal(r.body, &answer); err != nil || r.status != 200 {
					t.Fatalf("%d %s, %v", r.status, r.body, err)
				}
				time.Sleep(100 * time.Millisecond)
				after := 0
				for _, p := range engines {
					after += p.found()
				}
				expected, _ := strconv.Atoi(r.header.Get(expectedHeader))
				apart := expected - (after - before)
				hits, tokens, before = hits+after-before, tokens+answer.Usage.Prompt, after
				off += 100 * math.Abs(float64(apart)) / float64(answer.Usage.Prompt) / float64(tc.requests)
				if max(apart, -apart) <= 16 {
					near++
				}
			}
			t.Logf("%d prompts of %s, caches of %d tokens: %.0f %% cached, promises off by %.2f points, %.1f %% within a page",
				tc.requests, tc.name, tc.holds, 100*float64(hits)/float64(tokens), off, 100*float64(near)/float64(tc.requests))
			if off > 1 {
				t.Errorf("%s: promises are off by %.2f points", tc.name, off)
			}
		})
	}
}

func mmlu(t *testing.T, folder string, questions int) *workload.Workload {
	t.Helper()
	w, err := workload.New(workload.Config{Name: "mmlu", Data: folder, Requests: questions, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// conversations are turns of BFCL's: the tools of its classes, what was asked so far, and
// the calls that were right. Eight go on at a time.
func conversations(t *testing.T, folder string, turns int) (requests [][]map[string]string) {
	t.Helper()
	lines := func(name string) []string {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	answers := lines("possible_answer_BFCL_v4_multi_turn_base.json")
	var open [8][][]map[string]string // requests to come
	tasks := lines("BFCL_v4_multi_turn_base.json")
	for i := 0; len(requests) < turns && len(tasks) > 0; i = (i + 1) % len(open) {
		if len(open[i]) == 0 {
			var task struct {
				Question [][]map[string]string
				Classes  []string   `json:"involved_classes"`
				Calls    [][]string `json:"ground_truth"`
			}
			for _, line := range []string{tasks[0], answers[0]} {
				if err := json.Unmarshal([]byte(line), &task); err != nil {
					t.Fatal(err)
				}
			}
			tasks, answers = tasks[1:], answers[1:]
			system := lines("system_prompt.txt")[0]
			for _, class := range task.Classes {
				system += "\n" + strings.Join(lines(toolFiles[class]), "\n")
			}
			said := []map[string]string{{"role": "system", "content": system}}
			for turn, asked := range task.Question {
				said = append(said, asked...)
				open[i] = append(open[i], slices.Clone(said))
				said = append(said, map[string]string{"role": "assistant", "content": strings.Join(task.Calls[turn], "; ")})
			}
		}
		requests, open[i] = append(requests, open[i][0]), open[i][1:]
	}
	return requests
}

// toolFiles has the tools of each class of BFCL's.
var toolFiles = map[string]string{
	"GorillaFileSystem": "gorilla_file_system.json", "MathAPI": "math_api.json", "MessageAPI": "message_api.json",
	"TwitterAPI": "posting_api.json", "TicketAPI": "ticket_api.json", "TradingBot": "trading_bot.json",
	"TravelAPI": "travel_booking.json", "VehicleControlAPI": "vehicle_control.json",
}
