package daemon

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/workload"
)

// found is how many tokens the engine has found cached since it started, by its own
// count.
func (f *foreignEngine) found() int {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, counter := range []string{"vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"} {
		if _, rest, ok := strings.Cut(w.Body.String(), counter); ok {
			_, rest, _ = strings.Cut(rest, "} ")
			n, _, _ := strings.Cut(rest, "\n")
			found, err := strconv.Atoi(n)
			if err != nil {
				f.t.Fatalf("found %q: %v", n, err)
			}
			return found
		}
	}
	f.t.Fatal("the engine does not count what it finds")
	return 0
}

// The paper's prompts, and conversations, over HTTP, to four nodes beside engines that
// count tokens as cl100k_base does, in pages of 16, and whose caches evict: promises are
// within 3 points of the prompt's tokens though half or twice of what the caches hold
// was told. With -v all cases are run, and the errors printed beside that of nodes to
// whom nothing is reported.
func TestPromisesOverHTTP(t *testing.T) {
	for _, w := range paperWorkloads(t) {
		for _, tc := range []struct {
			told int // by a flag; 0: by the engine
			deaf bool
		}{{2 * w.holds, false}, {w.holds / 2, false}, {0, false}, {w.holds / 2, true}, {2 * w.holds, true}, {0, true}} {
			if !testing.Verbose() && tc.told != 2*w.holds {
				break
			}
			inBubble(t, func(t *testing.T) {
				var engines []*foreignEngine
				c := newCluster(t, 4, func(string) http.RoundTripper {
					f := newForeign(t, "vllm", func(c *emulated.Config) {
						c.Profile, _ = emulate.ByName("paper")
						c.Profile.CapacityTokens, c.TokenBytes, c.Bare = w.holds, 0, tc.deaf
					})
					engines = append(engines, f)
					return engine.Local{Handler: f}
				}, pushback, func(c *Config) {
					c.EngineKind, c.Node.CapacityTokens, c.Node.LearnCapacity = probe.Auto, tc.told, true
				})
				time.Sleep(3 * time.Second)
				off, near := w.promises(t, c, 0, engines)
				t.Logf("%s, told %d of %d tokens, nothing reported %v: off by %.2f points, %.1f %% within a page", w.name, tc.told, w.holds, tc.deaf, off, near)
				if off > 3 && !tc.deaf {
					t.Errorf("%s, told %d of %d tokens: promises are off by %.2f points", w.name, tc.told, w.holds, off)
				}
			})
		}
	}
}

// A promised workload is one of the paper's, of requests to an API, and how many tokens
// each engine's cache holds: less than all of it.
type promisedWorkload struct {
	name, path      string
	requests, holds int
	body            func(i int) map[string]any
}

func paperWorkloads(t *testing.T) []promisedWorkload {
	const folder = "../../shared/data/"
	if _, err := os.Stat(folder); err != nil || testing.Short() {
		t.Skip("no ../shared/data beside the repository, or no time for thousands of requests")
	}
	questions, err := workload.New(workload.Config{Name: "mmlu", Data: folder + "mmlu", Requests: 2000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	turns := conversations(t, folder+"bfcl/raw", 500)
	return []promisedWorkload{
		{"MMLU", "/v1/completions", 2000, 13_000, func(i int) map[string]any { return map[string]any{"prompt": questions.Request(i).Prompt} }},
		{"BFCL", "/v1/chat/completions", len(turns), 26_000, func(i int) map[string]any { return map[string]any{"messages": turns[i]} }},
	}
}

// promises sends the requests to four nodes in turn, with a pause after each, and
// compares what is promised with what the engines found, by their own count: the mean
// error in points of the prompt's tokens, and the share of requests within a page of
// them, in percent.
func (w promisedWorkload) promises(t *testing.T, c *cluster, pause time.Duration, engines []*foreignEngine) (off, near float64) {
	t.Helper()
	before := 0
	for i := range w.requests {
		body := w.body(i)
		body["max_tokens"] = 1
		encoded, _ := json.Marshal(body)
		r := c.do(t.Context(), fmt.Sprintf("n%d", i%4+1), http.MethodPost, w.path, string(encoded))
		var answer struct {
			Usage struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		if err := json.Unmarshal(r.body, &answer); err != nil || r.status != 200 {
			t.Fatalf("%d %s, %v", r.status, r.body, err)
		}
		time.Sleep(pause)
		after := 0
		for _, f := range engines {
			after += f.found()
		}
		promised, _ := strconv.Atoi(r.header.Get(expectedHeader))
		apart := math.Abs(float64(promised - (after - before)))
		before = after
		off += 100 * apart / float64(answer.Usage.Prompt) / float64(w.requests)
		if apart <= 16 {
			near += 100 / float64(w.requests)
		}
	}
	return off, near
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

// A promise is read as this version and the one before write it; what cannot be one is
// none.
func TestReadPromise(t *testing.T) {
	for said, want := range map[string]time.Duration{
		"within=1500": 1500 * time.Microsecond, "tokens=70 within=1500": 1500 * time.Microsecond,
		"": 0, "within=x": 0, "within=-1": 0, "1500": 0,
	} {
		if got := readPromise(http.Header{promiseHeader: {said}}); got.Within != want {
			t.Errorf("%q is %v, want %v", said, got.Within, want)
		}
	}
	h := http.Header{}
	writePromise(h, node.Promise{Within: time.Second})
	if got := readPromise(h).Within; got != time.Second {
		t.Errorf("%v becomes %v", h, got)
	}
}
