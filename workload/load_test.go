package workload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// shortTopics is a workload of n prompts of a few short topics.
func shortTopics(t *testing.T, n int) *Workload {
	t.Helper()
	return mustNew(t, Config{Name: uniform, Requests: n, Seed: 1, Repeats: true, Data: folder(t, map[string]string{
		"dev/law_dev.csv":   fiveAnswered,
		"test/law_test.csv": "Is it so?,yes,no,perhaps,never,A\nIs that so?,yes,no,perhaps,never,B\n",
		"dev/art_dev.csv":   fiveAnswered,
		"test/art_test.csv": "Who was it?,he,she,they,none,C\n",
	})})
}

func drive(t *testing.T, o Options) *Report {
	t.Helper()
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func doubles(n int) (nodes []*double, handlers []http.Handler) {
	for i := range n {
		nodes = append(nodes, newDouble(fmt.Sprint("node-", i)))
		handlers = append(handlers, nodes[i])
	}
	return nodes, handlers
}

// One client, four nodes, round robin: each request enters at the next node,
// after the last was answered, and the report tells what the nodes did.
func TestClosedLoopMeasuresWhatNodesDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, lan := shortTopics(t, 40), network{}
		nodes, handlers := doubles(4)
		rep := drive(t, Options{Workload: w, Targets: lan.serve(t, handlers...), Dial: lan.dial})

		var tokens, cached int
		var busy time.Duration
		for i, d := range nodes {
			if len(d.asked) != 10 || d.most != 1 {
				t.Errorf("node %d got %d requests, %d at once; want 10, 1", i, len(d.asked), d.most)
			}
			for k, q := range d.asked {
				if q.path != "/v1/completions" || q.body["prompt"] != w.Request(4*k+i).Prompt {
					t.Errorf("node %d, request %d: %s %q", i, k, q.path, q.body["prompt"])
				}
				if q.body["model"] != "tiny" || q.body["max_tokens"] != 1. || q.body["temperature"] != 0. || q.body["stream"] != true ||
					q.body["stream_options"].(map[string]any)["include_usage"] != true {
					t.Errorf("asked for %v", q.body)
				}
				tokens, cached = tokens+q.tokens, cached+q.cached
				busy += time.Duration(q.tokens-q.cached) * time.Millisecond
			}
		}
		if rep.Requests != 40 || rep.Errors != 0 || rep.Nodes != 4 || rep.Asked != 40 {
			t.Errorf("report: %+v", rep.Row)
		}
		if want := (busy / 40).Seconds(); *rep.TTFTMean != want || *rep.Mean != want+.001 {
			t.Errorf("TTFT %v, latency %v; want %v and a millisecond more", *rep.TTFTMean, *rep.Mean, want)
		}
		if got, want := *rep.ActualHit, float64(cached)/float64(tokens); got != want || want < .5 || want > .99 {
			t.Errorf("actual hit %v, nodes had %v", got, want)
		}
		if *rep.ExpectedHit != 1 {
			t.Errorf("expected hit %v of estimates above all tokens, want 1", *rep.ExpectedHit)
		}
		if want := map[string]float64{"node-0": .25, "node-1": .25, "node-2": .25, "node-3": .25}; !maps.Equal(rep.ShareByNode, want) || *rep.FullestShare != .25 || *rep.ForwardedShare != 0 {
			t.Errorf("shares %v, fullest %v, forwarded %v", rep.ShareByNode, *rep.FullestShare, *rep.ForwardedShare)
		}
		if rep.Policy != "longest" || *rep.PollMS != 500 || rep.DelayMS != nil {
			t.Errorf("policy %q, poll %v, delay %v; the delay told is no number", rep.Policy, rep.PollMS, rep.DelayMS)
		}
	})
}

// C clients keep C requests under way, never more.
func TestConcurrencyIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := network{}
		nodes, handlers := doubles(1)
		rep := drive(t, Options{Workload: shortTopics(t, 50), Targets: lan.serve(t, handlers...), Dial: lan.dial, Concurrency: 7})
		if nodes[0].most != 7 || len(nodes[0].asked) != 50 || rep.Requests != 50 {
			t.Errorf("%d at once of %d", nodes[0].most, len(nodes[0].asked))
		}
	})
}

// Requests of an open loop go out in order, at Poisson times, whether or not
// others were answered; a latency counts from when its request was due.
func TestOpenLoopDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, rate = 2000, 50
		w, lan := shortTopics(t, n), network{}
		nodes, handlers := doubles(1)
		slow := nodes[0]
		slow.misbehave = func(_ int, w http.ResponseWriter, r *http.Request) bool {
			time.Sleep(10 * time.Second)
			event(w, `{"choices":[{"text":"x"}]}`)
			event(w, "[DONE]")
			return true
		}
		start := time.Now()
		rep := drive(t, Options{Workload: w, Targets: lan.serve(t, handlers...), Dial: lan.dial, Rate: rate})
		for i, q := range slow.asked {
			if q.body["prompt"] != w.Request(i).Prompt {
				t.Fatalf("request %d went out of order", i)
			}
		}
		if slow.most < 300 || slow.most > maxInFlight {
			t.Errorf("%d under way at once, want some 500", slow.most)
		}
		if *rep.P50 != 10 || *rep.P99 != 10 {
			t.Errorf("latencies %v to %v, want 10", *rep.P50, *rep.P99)
		}
		span := slow.asked[n-1].at.Sub(start).Seconds()
		if mean := span / n; math.Abs(mean-1./rate) > .05/rate {
			t.Errorf("mean interval %v s, want %v", mean, 1./rate)
		}
		if rep.ActualHit != nil || rep.ShareByNode != nil || rep.ForwardedShare != nil {
			t.Errorf("told of hits and shares by a server that says nothing: %+v", rep.Row)
		}
	})
}

// A flood beyond the limit waits its turn, and its latency says so.
func TestOpenLoopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := network{}
		nodes, handlers := doubles(1)
		nodes[0].misbehave = func(_ int, w http.ResponseWriter, r *http.Request) bool {
			time.Sleep(time.Second)
			event(w, `{"choices":[{"text":"x"}]}`)
			event(w, "[DONE]")
			return true
		}
		rep := drive(t, Options{Workload: shortTopics(t, maxInFlight+500), Targets: lan.serve(t, handlers...), Dial: lan.dial, Rate: maxRate})
		if nodes[0].most != maxInFlight || *rep.P50 < .99 || *rep.P99 < 1.99 || rep.Errors != 0 {
			t.Errorf("%d at once, p50 %v, p99 %v, errors %v", nodes[0].most, *rep.P50, *rep.P99, rep.ErrorsByKind)
		}
	})
}

// However a request fails, it is counted, under its kind, and no other is hurt.
func TestFailuresAreCountedByKind(t *testing.T) {
	ways := []struct {
		kind string
		do   func(http.ResponseWriter, *http.Request)
	}{
		{"status 503", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(503)
			io.WriteString(w, `{"error":{"message":"queue full"}}`)
		}},
		{truncated, func(w http.ResponseWriter, r *http.Request) { event(w, `{"choices":[{"text":"x"}]}`) }},
		{truncated, func(w http.ResponseWriter, r *http.Request) {
			event(w, `{"choices":[{"text":"x"}]}`)
			panic(http.ErrAbortHandler)
		}},
		{broken, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }},
		{malformed, func(w http.ResponseWriter, r *http.Request) { event(w, `{"choices":[`); event(w, "[DONE]") }},
		{malformed, func(w http.ResponseWriter, r *http.Request) { event(w, "[DONE]") }},
		{malformed, func(w http.ResponseWriter, r *http.Request) { event(w, strings.Repeat("x", maxEvent)) }},
		{inBandError, func(w http.ResponseWriter, r *http.Request) { event(w, `{"error":{"message":"out of memory"}}`) }},
		{timedOut, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{timedOut, func(w http.ResponseWriter, r *http.Request) {
			event(w, `{"choices":[{"text":"x"}]}`)
			<-r.Context().Done()
		}},
	}
	synctest.Test(t, func(t *testing.T) {
		lan := network{}
		nodes, handlers := doubles(1)
		nodes[0].misbehave = func(n int, w http.ResponseWriter, r *http.Request) bool {
			if n%2 == 0 {
				return false
			}
			ways[n/2].do(w, r)
			return true
		}
		rep := drive(t, Options{Workload: shortTopics(t, 2*len(ways)), Targets: lan.serve(t, handlers...), Dial: lan.dial, Timeout: 2 * time.Second})
		want := map[string]int{}
		for _, way := range ways {
			want[way.kind]++
		}
		if !maps.Equal(rep.ErrorsByKind, want) || rep.Errors != len(ways) || rep.Requests != 2*len(ways) {
			t.Errorf("errors %v, want %v; %d of %d", rep.ErrorsByKind, want, rep.Errors, rep.Requests)
		}
		if *rep.P99 > 1 {
			t.Errorf("p99 %v s counts failures", *rep.P99)
		}
		var table strings.Builder
		if err := rep.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"status 503: 1, the first: queue full", "errors: 10", "error in stream: 1, the first: out of memory"} {
			if !strings.Contains(table.String(), want) {
				t.Errorf("the table does not say %q:\n%s", want, &table)
			}
		}
	})
}

// A node that dies in the middle of a run costs its own requests, no others.
func TestDeadNodeIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := network{}
		nodes, handlers := doubles(2)
		targets := lan.serve(t, handlers...)
		nodes[0].misbehave = func(n int, _ http.ResponseWriter, _ *http.Request) bool {
			if n == 4 {
				delete(lan, "n1:80") // only this request is under way
				lan["n1:80"] = listener{closed: closedChannel()}
			}
			return false
		}
		drop := nodes[1]
		drop.misbehave = func(n int, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Connection", "close") // so that each request dials
			return false
		}
		rep := drive(t, Options{Workload: shortTopics(t, 20), Targets: targets, Dial: lan.dial})
		if want := map[string]int{refused: 6}; !maps.Equal(rep.ErrorsByKind, want) || rep.Requests != 20 {
			t.Errorf("errors %v of %d, want %v", rep.ErrorsByKind, rep.Requests, want)
		}
	})
}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// When its context ends, a run breaks off and reports what was answered;
// what was under way is neither an answer nor an error.
func TestCancelledRunReports(t *testing.T) {
	for name, rate := range map[string]float64{"closed": 0, "open": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := network{}
				nodes, handlers := doubles(1)
				ctx, cancel := context.WithCancel(t.Context())
				nodes[0].misbehave = func(n int, w http.ResponseWriter, r *http.Request) bool {
					if n == 10 {
						cancel()
						<-r.Context().Done() // the node sees its client go
					}
					return n >= 10
				}
				rep, err := Run(ctx, Options{Workload: shortTopics(t, 100), Targets: lan.serve(t, handlers...), Dial: lan.dial, Rate: rate})
				if err != nil || rep.Requests != 10 || rep.Errors != 0 || rep.Asked != 100 {
					t.Errorf("report %+v, error %v; want 10 answered of 100", rep, err)
				}
			})
		})
	}
}

// The role that opens a chat is not its first token.
func TestChatIsTimedByItsFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := network{}
		nodes, handlers := doubles(1)
		dir := folder(t, map[string]string{"chats": `{"messages":[{"role":"user","content":"Is <b> bold, and what is it that makes it so?"}],"seed":7}`})
		w := mustNew(t, Config{Name: "chat:" + filepath.Join(dir, "chats"), Requests: 1})
		rep := drive(t, Options{Workload: w, Targets: lan.serve(t, handlers...), Dial: lan.dial, Model: "other", MaxTokens: 5})
		q := nodes[0].asked[0]
		if q.path != "/v1/chat/completions" || q.body["seed"] != 7. || q.body["model"] != "other" || q.body["max_tokens"] != 5. || q.body["prompt"] != nil {
			t.Errorf("asked %s for %v", q.path, q.body)
		}
		if want := (time.Duration(q.tokens) * time.Millisecond).Seconds(); *rep.TTFTMean != want {
			t.Errorf("TTFT %v, want %v: the prefill", *rep.TTFTMean, want)
		}
	})
}

// Warm-up requests reach the nodes and not the report.
func TestWarmupIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := network{}
		nodes, handlers := doubles(2)
		rep := drive(t, Options{Workload: shortTopics(t, 30), Targets: lan.serve(t, handlers...), Dial: lan.dial, Warmup: 10, Entry: first})
		if rep.Requests != 20 || rep.Asked != 20 || len(nodes[0].asked) != 30 || len(nodes[1].asked) != 0 || rep.ShareByNode["node-0"] != 1 {
			t.Errorf("%d counted, %d and %d sent", rep.Requests, len(nodes[0].asked), len(nodes[1].asked))
		}
	})
}

// Random entries are a matter of the seed, and even.
func TestRandomEntryIsSeeded(t *testing.T) {
	entries := func(seed uint64) []int32 {
		w := mustNew(t, Config{Name: uniform, Requests: 4000, Seed: seed})
		g := &generator{Options: Options{Workload: w, Entry: randomEntry, Targets: make([]string, 4)}}
		g.enter()
		return g.entries
	}
	one := entries(1)
	if !slices.Equal(one, entries(1)) || slices.Equal(one, entries(2)) {
		t.Error("entries are not a matter of the seed")
	}
	for i := range 4 {
		n := 0
		for _, e := range one {
			if int(e) == i {
				n++
			}
		}
		if n < 900 || n > 1100 {
			t.Errorf("%d of 4000 enter at node %d", n, i)
		}
	}
}

// What stands in the way of a run is said before it, with the remedy.
func TestRunSaysWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := func(code int, text string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); io.WriteString(w, text) })
		}
		lan := network{}
		up := lan.serve(t, newDouble("n"), answer(200, `{"data":[]}`), answer(401, ""), answer(200, "<html>"))
		w := shortTopics(t, 1)
		for want, o := range map[string]Options{
			"cannot reach http://nowhere: dial tcp: connection refused; start a node there": {Targets: []string{up[0], "http://nowhere"}},
			"http://n1 lists no models; name one with --model":                              {Targets: up[1:2]},
			"http://n2 lists no models: 401 Unauthorized; name one with --model":            {Targets: up[2:3]},
			"http://n3 lists no models;":                                                    {Targets: up[3:]},
			"no node to drive":                                                              {},
		} {
			o.Workload, o.Dial = w, lan.dial
			if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v does not say %q", err, want)
			}
		}
	})
}

// A setting that cannot be driven is refused in one sentence that names its flag
// and says what to choose, however large, small or odd it is.
func TestOptionsProblems(t *testing.T) {
	w := shortTopics(t, 1)
	node := []string{"http://a:1"}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "name one with --target http://HOST:PORT"},
		{Options{Targets: []string{""}}, `--target "" is no URL of a node; write http://HOST:PORT`},
		{Options{Targets: []string{"localhost:8080"}}, "--target"},
		{Options{Targets: []string{"http://"}}, "--target"},
		{Options{Targets: []string{"http://a:99999"}}, "--target"},
		{Options{Targets: []string{"http://a:0"}}, "--target"},
		{Options{Targets: []string{"http://a:1/v1/"}}, "--target"},
		{Options{Targets: []string{"http://a:1/?x=y"}}, "--target"},
		{Options{Targets: []string{"ftp://a:1"}}, "--target"},
		{Options{Targets: []string{"http://a b"}}, "--target"},
		{Options{Targets: node, Entry: "all"}, `--entry: there is no "all"; choose round-robin, random or first`},
		{Options{Targets: node, Concurrency: -1}, "--concurrency: -1 requests at once; choose 1 to 10000"},
		{Options{Targets: node, Concurrency: 10_001}, "--concurrency"},
		{Options{Targets: node, Rate: math.NaN()}, "--rate: NaN arrivals a second; choose 0.001 to 1000000"},
		{Options{Targets: node, Rate: math.Inf(1)}, "--rate"},
		{Options{Targets: node, Rate: math.Inf(-1)}, "--rate"},
		{Options{Targets: node, Rate: 1e-300}, "--rate"},
		{Options{Targets: node, Rate: -1}, "--rate"},
		{Options{Targets: node, Speed: math.NaN()}, "--speed"},
		{Options{Targets: node, Speed: 1e-9}, "--speed"},
		{Options{Targets: node, Rate: 1, Speed: 1}, "--rate and --speed are two open loops; give one of them"},
		{Options{Targets: node, Workload: w, Speed: 1}, "--speed: the workload mmlu has no times; give --rate or --concurrency"},
		{Options{Targets: node, MaxTokens: -1}, "--max-tokens"},
		{Options{Targets: node, MaxTokens: math.MaxInt}, "--max-tokens: 9223372036854775807 of an answer; choose 1 to 1000000"},
		{Options{Targets: node, Timeout: -1}, "--timeout: -1ns for a request; choose more than 0"},
		{Options{Targets: node, Warmup: -1}, "--warmup"},
		{Options{Targets: node, Workload: w, Warmup: 1}, "--warmup: 1 leave nothing of 1 requests; give more --requests"},
	} {
		if err := c.o.Validate(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: error %v does not say %q alone", c.o, err, c.want)
		}
	}
	for _, target := range []string{"http://a", "https://a:1/", "http://[::1]:8080", "http://a/llm/", "http://u:p@a:1"} {
		if err := (Options{Targets: []string{target}}).Validate(); err != nil {
			t.Error(err)
		}
	}
}

// The slowest and the fastest arrivals that may be asked for are times that go on.
func TestExtremeArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rate := range []float64{minRate, maxRate} {
			w, lan := shortTopics(t, 50), network{}
			nodes, handlers := doubles(1)
			start := time.Now()
			rep := drive(t, Options{Workload: w, Targets: lan.serve(t, handlers...), Dial: lan.dial, Rate: rate, Timeout: time.Hour})
			last := start
			for _, q := range nodes[0].asked {
				if q.at.Before(last) {
					t.Errorf("rate %g: a request came %v before the one before it", rate, last.Sub(q.at))
				}
				last = q.at
			}
			if took := last.Sub(start).Seconds(); took < 25/rate || rep.Errors > 0 || rate == minRate && took > 100/rate {
				t.Errorf("rate %g: 50 requests within %g s, %d errors", rate, took, rep.Errors)
			}
		}
	})
}

// A terminal shows progress at most ten times a second, and is left clean.
func TestProgressLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var terminal bytes.Buffer
		lan := network{}
		_, handlers := doubles(1)
		rep := drive(t, Options{Workload: shortTopics(t, 60), Targets: lan.serve(t, handlers...), Dial: lan.dial, Progress: &terminal})
		lines := strings.Split(terminal.String(), "\r")
		if !strings.HasSuffix(terminal.String(), "\r\x1b[K") || len(lines) < 3 || len(lines) > 3+int(rep.Took/redraw) {
			t.Errorf("%d lines in %v, the last %q", len(lines), rep.Took, lines[len(lines)-1])
		}
	})
	for _, c := range []struct {
		done, total   int
		elapsed, ttft time.Duration
		want          string
	}{
		{0, 400, 0, 0, "[....................] 0/400"},
		{100, 400, 20 * time.Second, 31250 * time.Microsecond, "[#####...............] 100/400  5.0/s  1m0s left  TTFT 31.2 ms"},
		{1000000, 1000000, 100 * time.Hour, time.Minute, "[####################] 1000000/1000000  2.8/s  0s left  TTFT 60000.0 ms"},
	} {
		if got := progressLine(c.done, c.total, c.elapsed, c.ttft); got != c.want || len(got) > 79 {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// The prompts of a demo are short, and most find their prefix again.
func TestDemoReuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := network{}
		_, handlers := doubles(1)
		rep := drive(t, Options{Workload: demoWorkload(24), Targets: lan.serve(t, handlers...), Dial: lan.dial})
		if *rep.ActualHit < .6 || rep.prompt > 24*400 {
			t.Errorf("hit %v of %d tokens", *rep.ActualHit, rep.prompt)
		}
		if got, want := rep.String(), "24 requests, 0 errors: mean TTFT "; !strings.HasPrefix(got, want) {
			t.Errorf("report %q does not begin with %q", got, want)
		}
	})
}
