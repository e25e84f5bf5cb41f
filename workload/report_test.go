package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A percentile is the least measured value that p percent do not exceed.
func TestPercentileIsTheNearestRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, 50), 1, 300).Draw(t, "values")
		p := rapid.IntRange(1, 100).Draw(t, "p")
		var d []time.Duration
		for _, v := range values {
			d = append(d, time.Duration(v))
		}
		naive := time.Duration(-1)
		for _, candidate := range d {
			covered := 0
			for _, v := range d {
				if v <= candidate {
					covered++
				}
			}
			if 100*covered >= p*len(d) && (naive < 0 || candidate < naive) {
				naive = candidate
			}
		}
		summary(d) // sorts
		if got := percentile(d, p); got != naive {
			t.Fatalf("percentile %d of %v is %d, want %d", p, d, got, naive)
		}
	})
}

// Whatever nodes answer, shares are shares: of one node to another they sum to
// 1, hits lie in 0..1, the mean lies among the values, and nothing is lost.
func TestReportIsConsistent(t *testing.T) {
	w := mustNew(t, Config{Name: uniform, Requests: 1})
	one := rapid.Custom(func(t *rapid.T) sample {
		ttft := rapid.Int64Range(0, 1e10).Draw(t, "ttft")
		return sample{
			ttft: time.Duration(ttft), latency: time.Duration(ttft + rapid.Int64Range(0, 1e10).Draw(t, "rest")),
			node:     rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "node"),
			hops:     rapid.IntRange(-1, 2).Draw(t, "hops"),
			expected: rapid.IntRange(-1, 1000).Draw(t, "expected"),
			prompt:   rapid.IntRange(-1, 500).Draw(t, "prompt"),
			cached:   rapid.IntRange(-1, 1000).Draw(t, "cached"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOf(one).Draw(t, "samples")
		failures := rapid.SliceOf(rapid.SampledFrom([]string{timedOut, truncated, "status 500"})).Draw(t, "failures")
		var r results
		r.start(time.Time{})
		for _, s := range samples {
			r.book(s, nil, time.Time{})
		}
		for _, kind := range failures {
			r.book(sample{}, &failure{kind, errors.New("because")}, time.Time{})
		}
		row := report(Options{Workload: w, Targets: []string{"http://a"}}, status{}, &r, time.Second).Row

		byKind, sum, fullest := 0, 0., 0.
		for _, n := range row.ErrorsByKind {
			byKind += n
		}
		if row.Requests != len(samples)+len(failures) || row.Errors != len(failures) || byKind != len(failures) {
			t.Fatalf("%d answers and %d failures became %+v", len(samples), len(failures), row)
		}
		for _, share := range row.ShareByNode {
			sum += share
			fullest = max(fullest, share)
		}
		if row.ShareByNode != nil && (sum < 1-1e-9 || sum > 1+1e-9 || *row.FullestShare != fullest) {
			t.Fatalf("shares %v sum to %v, fullest %v", row.ShareByNode, sum, row.FullestShare)
		}
		for _, share := range []*float64{row.ExpectedHit, row.ActualHit, row.FullestShare, row.ForwardedShare} {
			if share != nil && !(*share >= 0 && *share <= 1) {
				t.Fatalf("share %v of %+v", *share, row)
			}
		}
		if len(samples) > 0 && (*row.TTFTMean > *row.Mean || *row.P50 > *row.P99 || *row.TTFTP99 > *row.P99) {
			t.Fatalf("times are out of order: %+v", row)
		}
		if _, err := json.Marshal(row); err != nil {
			t.Fatal(err)
		}
	})
}

func sampleReport(t *testing.T) *Report {
	w := mustNew(t, Config{Name: skewed, Requests: 6, Seed: 7})
	var r results
	r.total = 6
	r.start(time.Time{})
	for i, node := range []string{"n1", "n2", "n1", "n1"} {
		ms := time.Duration(i+1) * time.Millisecond
		r.book(sample{latency: 2 * ms, ttft: ms, node: node, hops: i % 2, expected: 60, prompt: 100, cached: 50}, nil, time.Time{})
	}
	r.book(sample{}, &failure{"status 429", errors.New("queue\nfull")}, time.Time{})
	half, delay := 500., 2.
	o := Options{Workload: w, Targets: []string{"http://a", "http://b"}}.withDefaults()
	return report(o, status{"longest", &half, &delay}, &r, 2*time.Second)
}

// Scripts find the keys of every experiment, in one order.
func TestJSONRow(t *testing.T) {
	var b strings.Builder
	if err := sampleReport(t).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	want := `{"rows":[{"policy":"longest","workload":"mmlu-skewed","nodes":2,"delay_ms":2,"poll_ms":500,"requests":5,"errors":1,` +
		`"mean_s":0.005,"p50_s":0.004,"p99_s":0.008,"ttft_mean_s":0.0025,"ttft_p50_s":0.002,"ttft_p99_s":0.004,` +
		`"expected_hit":0.6,"actual_hit":0.5,"fullest_share":0.75,"share_by_node":{"n1":0.75,"n2":0.25},"forwarded_share":0.5,` +
		`"data":"synthetic","seed":7,"repeats":false,"errors_by_kind":{"status 429":1}}]}` + "\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// A run in which nothing was answered has no times and no shares to tell.
func TestRowWithoutAnswers(t *testing.T) {
	var r results
	r.start(time.Time{})
	rep := report(Options{Workload: mustNew(t, Config{Name: uniform, Requests: 1}), Targets: []string{"http://a"}}, status{}, &r, 0)
	var row, table strings.Builder
	if err := errors.Join(rep.WriteJSON(&row), rep.WriteTable(&table)); err != nil {
		t.Fatal(err)
	}
	want := `{"rows":[{"workload":"mmlu","nodes":1,"requests":0,"errors":0,"data":"synthetic","seed":0,"repeats":false}]}` + "\n"
	if diff := cmp.Diff(want, row.String()); diff != "" {
		t.Error(diff)
	}
	if rep.String() != "0 requests, none answered" {
		t.Error(rep)
	}
}

// The table fits a screen and says what it takes to run it again.
func TestTable(t *testing.T) {
	rep := sampleReport(t)
	var b strings.Builder
	if err := rep.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	want := `workload  mmlu-skewed, seed 7, without repeats
data      synthetic in the shape of MMLU (57 subjects, 14042 questions)
driven    2 targets, entry round-robin, closed loop of 1, max tokens 1, warm-up 0
policy    longest, poll 500 ms, link delay 2 ms

         mean    p50     p99
latency  5.0 ms  4.0 ms  8.0 ms
TTFT     2.5 ms  2.0 ms  4.0 ms

400 prompt tokens: expected hit 60.0 %, actual hit 50.0 %; 50.0 % of requests forwarded

served by
  n1  75.0 %  ##############################
  n2  25.0 %  ##########

5 of 6 requests done in 2s (2.5/s), errors: 1
  status 429: 1, the first: queue full
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}

	rep.ShareByNode = map[string]float64{}
	for i := range 64 {
		rep.ShareByNode[fmt.Sprintf("%02d.rack.example:8080", i)] = 1. / 64
	}
	b.Reset()
	if err := rep.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(b.String(), "\n"); lines > 40 || !strings.Contains(b.String(), "and 48 more") {
		t.Errorf("64 nodes take %d lines:\n%s", lines, &b)
	}
}

// What a long run holds grows by the times of its requests alone, not by what
// else their answers told.
func TestResultsAreSmall(t *testing.T) {
	var r results
	r.start(time.Time{})
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	const n = 50_000
	for i := range n {
		header := fmt.Sprintf("Hearsay-Node: n%d, %0500d", i%4, i)
		r.book(sample{node: header[14:16], prompt: 100}, nil, time.Time{})
	}
	if grown := held() - before; grown > 60*n { // 16 bytes each, and what append leaves free
		t.Errorf("%d requests hold %d bytes", n, grown)
	}
	runtime.KeepAlive(&r)
}
