//go:build linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/report"
)

// A netnsResult is how one request ended, "" before that, and what its answer says of
// the cache.
type netnsResult struct {
	verdict
	took           time.Duration
	prompt, cached int    // tokens; 0 without a whole answer
	refusal        string // its status and body
}

// offer begins requests at a constant rate, however the last ones fare.
func (r *netnsRun) offer(ctx context.Context) {
	random := rand.New(rand.NewPCG(*soakSeed, 1))
	shared := &http.Transport{MaxIdleConnsPerHost: netnsRate}
	defer shared.CloseIdleConnections()
	next := time.Now()
	for ctx.Err() == nil {
		time.Sleep(time.Until(next))
		if next = next.Add(time.Second / netnsRate); time.Since(next) > time.Second {
			next = time.Now() // the machine stood still; that much at once is no load of a client's
		}
		a, node := drawNetns(random), r.nodes[random.IntN(netnsNodes)]
		res := netnsResult{verdict: verdict{at: r.since(), asked: fmt.Sprintf("at %s, stream %t", node.Name, a.stream)}}
		r.mu.Lock()
		number := len(r.results)
		r.results = append(r.results, res)
		r.mu.Unlock()
		r.running.Go(func() {
			heard := &tap{base: shared}
			c := &soakClient{soak: r.soak, http: &http.Client{Transport: heard}}
			ctx, cancel := context.WithTimeout(context.Background(), soakRequestTimeout)
			defer cancel()
			said := c.hear(ctx, node.URL()+a.path(), a)
			res.took = r.since() - res.at
			if res.how, res.wrong = c.judge(a, node.Name, res.at, said, false); res.wrong != "" {
				res.how = failed
			}
			if res.how == refused {
				res.refusal = fmt.Sprint(said.status, " ", said.body)
			}
			if res.how == answered {
				res.prompt, res.cached = heard.usage()
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.results[number] = res
		})
	}
}

// drawNetns makes up a request about one of 64 topics, each some thousand tokens that 16
// questions share: four times what a node can hold, half of what all can.
func drawNetns(random *rand.Rand) ask {
	topic, question := random.Uint64N(64), random.Uint64N(16)
	return ask{chat: true, stream: question%2 == 0, fields: map[string]any{
		"model": netnsModel, "temperature": 0, "max_tokens": 2 + question%4,
		"messages": []any{
			map[string]any{"role": "system", "content": prose(rand.New(rand.NewPCG(*soakSeed, topic)), 750)},
			map[string]any{"role": "user", "content": prose(rand.New(rand.NewPCG(*soakSeed, 100+question)), 20)},
		},
	}}
}

// A tap keeps the answer to the one request that goes through it.
type tap struct {
	base http.RoundTripper
	said bytes.Buffer
}

func (t *tap) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(req)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(resp.Body, &t.said), resp.Body}
	}
	return resp, err
}

var promptTokens, cachedTokens = regexp.MustCompile(`"prompt_tokens":(\d+)`), regexp.MustCompile(`"cached_tokens":(\d+)`)

// usage is what the answer says of its prompt.
func (t *tap) usage() (prompt, cached int) {
	number := func(of *regexp.Regexp) (n int) {
		if found := of.FindSubmatch(t.said.Bytes()); found != nil {
			n, _ = strconv.Atoi(string(found[1]))
		}
		return n
	}
	return number(promptTokens), number(cachedTokens)
}

// within is the results of what was asked in a time.
func (r *netnsRun) within(from, to time.Duration) (in []netnsResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, res := range r.results {
		if from <= res.at && res.at < to {
			in = append(in, res)
		}
	}
	return in
}

func (r *netnsRun) hitRate(from, to time.Duration) float64 { return hits(r.within(from, to)) }

// hits is how much of their prompts was found cached.
func hits(of []netnsResult) float64 {
	prompt, cached := 0, 0
	for _, res := range of {
		prompt, cached = prompt+res.prompt, cached+res.cached
	}
	return float64(cached) / float64(max(prompt, 1))
}

func count(of []netnsResult, how string) (n int) {
	for _, res := range of {
		if res.how == how {
			n++
		}
	}
	return n
}

// quantile is that of how long whole answers took.
func quantile(of []netnsResult, q float64) time.Duration {
	var took []time.Duration
	for _, res := range of {
		if res.how == answered {
			took = append(took, res.took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}

// backAfter is how long after it healed the requests of one second, all ended, first hit
// as much as they have to; negative if by now none have.
func (r *netnsRun) backAfter(healed, now time.Duration) time.Duration {
	const step = 100 * time.Millisecond
	for from := healed; from+time.Second <= now; from += step {
		if in := r.within(from, from+time.Second); count(in, "") == 0 && hits(in) >= r.least {
			return from - healed + time.Second
		}
	}
	return -1
}

// write writes netns.csv and netns.svg into dir: what happened, second by second.
func (r *netnsRun) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	table := []byte("second,span,requests,right,refused,lost,hit_rate,p50_ms,p99_ms\n")
	var x, hit, p50, p99, refusals, lost []float64
	for second := time.Duration(0); second < r.spans[len(r.spans)-1].to; second += time.Second {
		in := r.within(second, second+time.Second)
		at := slices.IndexFunc(r.spans, func(s span) bool { return second < s.to })
		if len(in) == 0 || at < 0 {
			continue
		}
		gone := count(in, unreachable) + count(in, brokenOff)
		ms := func(q float64) float64 { return float64(quantile(in, q)) / float64(time.Millisecond) }
		x, hit = append(x, second.Seconds()), append(hit, hits(in))
		p50, p99 = append(p50, ms(0.5)), append(p99, ms(0.99))
		refusals, lost = append(refusals, float64(count(in, refused))), append(lost, float64(gone))
		table = fmt.Appendf(table, "%.0f,%s,%d,%d,%d,%d,%.4f,%.1f,%.1f\n", second.Seconds(), r.spans[at].name, len(in),
			count(in, answered), count(in, refused), gone, hits(in), ms(0.5), ms(0.99))
	}
	if err := os.WriteFile(filepath.Join(dir, "netns.csv"), table, 0o644); err != nil {
		return err
	}
	var bands []report.Band
	var names []string
	for _, s := range r.spans {
		if s.fault {
			bands = append(bands, report.Band{From: s.from.Seconds(), To: s.to.Seconds()})
			names = append(names, s.name)
		}
	}
	chart := func(title, unit string, series ...report.Series) report.Chart {
		for i := range series {
			series[i].X = x
		}
		return report.Chart{Title: title, XLabel: "Time (s)", YLabel: unit, Series: series, Bands: bands}
	}
	panels := report.Panels{
		Title:   "Eight nodes in network namespaces under 200 requests/s, disturbed",
		Columns: 1,
		Charts: []report.Chart{
			chart("Prompt tokens found cached", "share", report.Series{Name: "hit rate", Y: hit, Color: 5}),
			chart("Time to the end of an answer", "ms", report.Series{Name: "p50", Y: p50, Color: 1}, report.Series{Name: "p99", Y: p99, Color: 2}),
			chart("Not answered", "requests/s", report.Series{Name: "refused", Y: refusals, Color: 3}, report.Series{Name: "lost with the node asked", Y: lost, Color: 4}),
		},
		Note: fmt.Sprintf("Shaded: %s; %v each, seed %d. experiments/netns.sh", strings.Join(names, ", "), r.phase, *soakSeed),
	}
	panels.Charts[1].LogY, panels.Charts[1].YMin, panels.Charts[1].YMax = true, 1, 100_000
	return os.WriteFile(filepath.Join(dir, "netns.svg"), panels.SVG(), 0o644)
}
