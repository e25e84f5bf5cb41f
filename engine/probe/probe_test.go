package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
)

var quick = emulate.Profile{Name: "quick", Base: time.Second, MaxBatch: 2, CapacityTokens: 4096}

// A double is an emulated engine that can be started anew behind the same address.
type double struct {
	t      *testing.T
	config emulated.Config
	engine *emulated.Engine
	refuse map[string]bool // pages it does not have
	hang   map[string]bool // pages it never answers
	asked  []string
}

func newDouble(t *testing.T, dialect string, bare bool) *double {
	d := &double{t: t, config: emulated.Config{Profile: quick, TokenBytes: 4, Dialect: dialect, Bare: bare}, refuse: map[string]bool{}, hang: map[string]bool{}}
	d.start()
	t.Cleanup(func() { _ = d.engine.Close() })
	return d
}

func (d *double) start() {
	d.t.Helper()
	var err error
	if d.engine != nil {
		_ = d.engine.Close()
	}
	if d.engine, err = emulated.Open(d.config); err != nil {
		d.t.Fatal(err)
	}
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.asked = append(d.asked, r.URL.Path)
	switch {
	case d.hang[r.URL.Path]:
		<-r.Context().Done()
	case d.refuse[r.URL.Path]:
		http.NotFound(w, r)
	default:
		d.engine.ServeHTTP(w, r)
	}
}

// call asks the double for a page, as a client.
func (d *double) call(method, path, body string) []byte {
	d.t.Helper()
	req, _ := http.NewRequestWithContext(d.t.Context(), method, "http://engine"+path, strings.NewReader(body))
	resp, err := engine.Local{Handler: d.engine}.RoundTrip(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		d.t.Fatalf("%s: %d %s, %v", path, resp.StatusCode, answer, err)
	}
	return answer
}

func (d *double) complete(prompt string) {
	d.call("POST", "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":2}`, prompt))
}

func (d *double) models() []json.RawMessage {
	d.t.Helper()
	var list struct{ Data []json.RawMessage }
	if err := json.Unmarshal(d.call("GET", "/v1/models", ""), &list); err != nil {
		d.t.Fatal(err)
	}
	return list.Data
}

func (d *double) prober(kind Kind) *Prober {
	return New(engine.Local{Handler: d}, kind, func(h http.Header) { h.Set("Authorization", "Bearer k") })
}

func (d *double) ask(p *Prober) (Facts, bool) { return p.Ask(context.Background(), d.models()) }

// Each kind of engine is found out, and what it tells is what is so.
func TestFactsOfEachKind(t *testing.T) {
	for _, tc := range []struct {
		dialect string
		bare    bool
		want    Facts
	}{
		{"vllm", false, Facts{Kind: VLLM, Version: "0.26.0", Context: 4096, KVTokens: 4096, Waiting: 1, KVUse: 512. / 4096}},
		{"vllm", true, Facts{Kind: VLLM, Version: "0.26.0", Context: 4096, KVTokens: 4096, Waiting: 1, KVUse: 512. / 4096}},
		{"sglang", false, Facts{Kind: SGLang, Version: "0.5.9", Context: 4096, KVTokens: 4096, Cached: Reports, Waiting: 1, KVUse: 512. / 4096}},
		{"sglang", true, Facts{Kind: SGLang, Version: "0.5.9", Context: 4096, KVTokens: 4096, Cached: ReportsNo, Waiting: 1, KVUse: 512. / 4096, Work: -1}},
		{"llamacpp", false, Facts{Kind: LlamaCpp, Version: "b11151-emulated", Context: 1024, KVTokens: 4096, Cached: Reports, Waiting: 1, KVUse: -1, Work: -1}},
		{"llamacpp", true, Facts{Kind: LlamaCpp, Version: "b11151-emulated", Context: 1024, KVTokens: 4096, Cached: Reports, Waiting: -1, KVUse: -1, Work: -1}},
		{"ollama", false, Facts{Kind: Ollama, Version: "0.33.0", Context: 4096, KVTokens: 4096, Cached: ReportsNo, Running: -2, Waiting: -1, KVUse: -1, Work: -1, Loaded: []string{"emulated-quick"}}},
		{"", false, Facts{Kind: OpenAI, Context: 4096, Running: -2, Waiting: -1, KVUse: -1, Work: -1}},
	} {
		t.Run(fmt.Sprint(tc.dialect, " ", tc.bare), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t, tc.dialect, tc.bare)
				p := d.prober(Auto)
				d.complete(strings.Repeat("word ", 410)) // 512 tokens
				for _, text := range []string{"a", "b"} {
					go d.complete(text)
				}
				synctest.Wait()
				got, restarted := d.ask(p)
				want := tc.want
				want.Running++      // one prefill runs at a time
				if want.Work == 0 { // told: at least the first prompt
					if want.Work = got.Work; got.Work < 512 {
						t.Errorf("work %v", got.Work)
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) || restarted {
					t.Errorf("got  %+v\nwant %+v, restarted %v", got, want, restarted)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// What the operator says is believed, and not looked for.
func TestKindGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t, "vllm", false)
		if f, _ := d.ask(d.prober(OpenAI)); f.Kind != OpenAI || len(d.asked) != 0 {
			t.Errorf("%+v after asking for %v", f, d.asked)
		}
	})
}

// An engine that lists its models under a name of its operator's is known by its pages.
func TestFoundByItsPages(t *testing.T) {
	for dialect, kind := range map[string]Kind{"vllm": VLLM, "sglang": SGLang, "llamacpp": LlamaCpp, "ollama": Ollama, "": OpenAI} {
		synctest.Test(t, func(t *testing.T) {
			d := newDouble(t, dialect, false)
			p := d.prober(Auto)
			if f, _ := p.Ask(t.Context(), []json.RawMessage{[]byte(`{"id":"m","owned_by":"someone"}`)}); f.Kind != kind {
				t.Errorf("%q is taken for %q", dialect, f.Kind)
			}
		})
	}
}

// An engine that has started anew says so once, whatever it is told by.
func TestRestart(t *testing.T) {
	for _, tc := range []struct {
		dialect string
		bare    bool
		without string // a page
	}{{"vllm", false, ""}, {"sglang", false, ""}, {"sglang", true, ""}, {"sglang", false, "/server_info"}, {"llamacpp", false, "/props"}, {"llamacpp", true, ""}, {"ollama", false, ""}} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t, tc.dialect, tc.bare)
				p := d.prober(Kind(tc.dialect))
				d.refuse[tc.without] = true
				d.refuse["/get_server_info"] = tc.without == "/server_info"
				d.complete("some text")
				_, first := d.ask(p)
				_, second := d.ask(p)
				time.Sleep(time.Hour)
				d.start()
				_, after := d.ask(p)
				_, then := d.ask(p)
				if first || second || !after || then {
					t.Errorf("restarts told: %v %v, then %v, then %v", first, second, after, then)
				}
			})
		})
	}
}

// One kind of engine may follow another at an address where nobody refuses a
// connection in between. Nothing of the first one is believed of the second.
func TestAnotherKindAtTheSameAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := []string{"vllm", "ollama", "llamacpp", "", "sglang"}
		p := New(nil, Auto, func(http.Header) {})
		for i, dialect := range kinds {
			d := newDouble(t, dialect, false)
			p.engine = engine.Local{Handler: d}
			fresh, _ := d.ask(d.prober(Auto))
			time.Sleep(time.Minute)
			got, restarted := d.ask(p)
			if fmt.Sprint(got) != fmt.Sprint(fresh) || restarted != (i > 0) {
				t.Errorf("%q: restarted %v\n%+v, want\n%+v", dialect, restarted, got, fresh)
			}
			if _, restarted := d.ask(p); restarted {
				t.Errorf("%q: restarted again", dialect)
			}
		}
	})
}

// Two engines that answer in turn at one address are no engine that restarts all the time.
func TestSeveralEnginesAtOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newDouble(t, "vllm", false)
		time.Sleep(time.Hour)
		b := newDouble(t, "vllm", false)
		p := a.prober(Auto)
		told := 0
		for i := range 10 {
			p.engine = engine.Local{Handler: []http.Handler{a, b}[i%2]}
			f, restarted := a.ask(p)
			if restarted {
				told++
			}
			if i >= 2 && !f.Shared {
				t.Errorf("%d: not seen", i)
			}
		}
		if told > 1 {
			t.Errorf("%d restarts", told)
		}
	})
}

// It asks for one page a time, and not again soon for those that are not there.
func TestAsksLittle(t *testing.T) {
	for dialect, most := range map[string]int{"vllm": 1, "sglang": 1, "llamacpp": 1, "ollama": 1, "": 0} {
		synctest.Test(t, func(t *testing.T) {
			d := newDouble(t, dialect, dialect == "llamacpp")
			p := d.prober(Auto)
			models := d.models()
			p.Ask(t.Context(), models)
			d.asked = nil
			for range 25 {
				time.Sleep(2 * time.Second)
				p.Ask(t.Context(), models)
			}
			if len(d.asked) > 25*most {
				t.Errorf("%q: 25 times it asked for %v", dialect, d.asked)
			}
			time.Sleep(time.Minute)
			d.asked = nil
			if p.Ask(t.Context(), models); len(d.asked) > 4 {
				t.Errorf("%q: once in a while it asks for %v", dialect, d.asked)
			}
		})
	}
}

// A page that is not answered costs two seconds and what it would have told.
func TestPageThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t, "llamacpp", false)
		p := d.prober(Auto)
		d.ask(p)
		d.hang["/metrics"], d.hang["/slots"] = true, true
		begun := time.Now()
		f, restarted := d.ask(p)
		if took := time.Since(begun); took > 2*pageTimeout {
			t.Errorf("it waited for %v", took)
		}
		if f.Running != -1 || f.KVTokens != 4096 || restarted {
			t.Errorf("%+v, restarted %v", f, restarted)
		}
	})
}

// A number that is none of tokens is not believed, and one that is told in another way
// takes no other with it.
func TestNumbersThatCannotBe(t *testing.T) {
	const huge = "9223372036854775807"
	for _, tc := range []struct {
		kind    Kind
		page    string
		told    string
		tokens  int
		version string
	}{
		{SGLang, "/server_info", `{"version":"1","max_total_num_tokens":` + huge + `,"dp_size":2}`, 0, "1"},
		{SGLang, "/server_info", `{"version":"1","max_total_num_tokens":5000,"dp_size":-3}`, 5000, "1"},
		{SGLang, "/server_info", `{"max_total_num_tokens":5000,"random_seed":"x","version":"1"}`, 5000, "1"},
		{SGLang, "/server_info", `["version"]`, 0, ""},
		{LlamaCpp, "/props", `{"build_info":"b1","total_slots":` + huge + `,"default_generation_settings":{"n_ctx":4096}}`, 0, "b1"},
		{LlamaCpp, "/props", `{"build_info":"b1","total_slots":"4","default_generation_settings":{"n_ctx":4096}}`, 4096, "b1"},
		{VLLM, "/metrics", `vllm:cache_config_info{num_gpu_blocks="` + huge + `",block_size="16"} 1` + "\n", 0, ""},
		{VLLM, "/metrics", `vllm:cache_config_info{kv_cache_size_tokens="` + huge + `"} 1` + "\n", 0, ""},
		{Ollama, "/api/ps", `{"models":[{"model":"a","context_length":` + huge + `},{"model":"b","context_length":4096}]}`, 4096, ""},
	} {
		p := New(engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != tc.page {
				http.NotFound(w, r)
				return
			}
			_, _ = io.WriteString(w, tc.told)
		})}, tc.kind, func(http.Header) {})
		if f, _ := p.Ask(t.Context(), nil); f.KVTokens != tc.tokens || f.Version != tc.version {
			t.Errorf("%s %s: %+v", tc.kind, tc.told, f)
		}
	}
}

// Endless, broken and foreign pages tell nothing.
func TestPagesOfNoUse(t *testing.T) {
	for name, body := range map[string]string{
		"endless": strings.Repeat("vllm:num_requests_running 1\n", pageBytes/20), "empty": "", "another": "<html>{}", "null": "null", "list": "[]",
		"wrong types": `{"max_total_num_tokens":"x","total_slots":[],"version":3,"models":7,"loads":{}}`,
		"half":        `vllm:num_requests_running{a="` + "\n" + `vllm:num_requests_running{a="\"} 1` + "\nvllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting{} \nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1",
	} {
		for _, kind := range Kinds() {
			synctest.Test(t, func(t *testing.T) {
				p := New(engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })}, kind, func(http.Header) {})
				f, restarted := p.Ask(t.Context(), nil)
				if f.KVTokens != 0 || f.Running > 0 || f.KVUse > 0 || restarted {
					t.Errorf("%s %s: %+v", name, kind, f)
				}
			})
		}
	}
}

// A page of vLLM's as it looks where layers differ and two engines share the load:
// blocks do not count tokens there.
func TestMetricsOfVLLM(t *testing.T) {
	page := `# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="8",cache_dtype="auto",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="463459",num_gpu_blocks="320"} 1.0
vllm:cache_config_info{block_size="8",cache_dtype="auto",enable_prefix_caching="False",engine="1",kv_cache_size_tokens="463459",num_gpu_blocks="320"} 1.0
vllm:num_requests_running{engine="0",model_name="a \"model\", {odd}"} 2.0
vllm:num_requests_running{engine="1",model_name="a \"model\", {odd}"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.7
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2e+06
process_start_time_seconds 1.79e+09
`
	p := New(engine.Local{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) })}, VLLM, func(http.Header) {})
	f, _ := p.Ask(t.Context(), nil)
	want := Facts{Kind: VLLM, KVTokens: 2 * 463459, CacheOff: true, Running: 5, KVUse: 0.6, Work: 1.2e6}
	if f.Version = ""; fmt.Sprint(f) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", f, want)
	}
}

// Whatever a page holds, reading it ends, and a label has no more than is there.
func FuzzSamples(f *testing.F) {
	f.Add(`vllm:a{b="c",d="e\"f"} 1 1700000000`, "d")
	f.Add(`vllm:a{b="c} 1`, "b")
	f.Fuzz(func(t *testing.T, page, label string) {
		for s := range samples(page, "vllm:", "") {
			if v := s.labels[label]; len(v) > len(page) || !strings.HasPrefix(strings.TrimSpace(page), s.name) && !slices.ContainsFunc(strings.Split(page, "\n"), func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), s.name) }) {
				t.Errorf("%q of %q", v, page)
			}
			s.number(label)
		}
	})
}
