package workload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// A Row is a run in numbers, with the keys that every experiment of hearsay
// shares. A key that does not apply, or that the nodes did not tell, is absent.
// Times are seconds at the client and speak of answered requests alone.
type Row struct {
	Policy         string             `json:"policy,omitempty"`
	Workload       string             `json:"workload"`
	Nodes          int                `json:"nodes"` // driven or seen to serve, whichever are more
	DelayMS        *float64           `json:"delay_ms,omitempty"`
	PollMS         *float64           `json:"poll_ms,omitempty"`
	Requests       int                `json:"requests"` // answered or failed
	Errors         int                `json:"errors"`
	Mean           *float64           `json:"mean_s,omitempty"`
	P50            *float64           `json:"p50_s,omitempty"`
	P99            *float64           `json:"p99_s,omitempty"`
	TTFTMean       *float64           `json:"ttft_mean_s,omitempty"`
	TTFTP50        *float64           `json:"ttft_p50_s,omitempty"`
	TTFTP99        *float64           `json:"ttft_p99_s,omitempty"`
	ExpectedHit    *float64           `json:"expected_hit,omitempty"` // share of prompt tokens, 0 to 1
	ActualHit      *float64           `json:"actual_hit,omitempty"`   // the same, as served
	FullestShare   *float64           `json:"fullest_share,omitempty"`
	ShareByNode    map[string]float64 `json:"share_by_node,omitempty"`
	ForwardedShare *float64           `json:"forwarded_share,omitempty"`

	// What it takes to run it again, and what went wrong.
	Data         string         `json:"data"` // folder or file of the prompts, or "synthetic"
	Seed         uint64         `json:"seed"`
	Repeats      bool           `json:"repeats"`
	ErrorsByKind map[string]int `json:"errors_by_kind,omitempty"`
}

// A Report is what a run measured.
type Report struct {
	Row
	Asked int           // requests that the run was to measure; more than Row.Requests if it was broken off
	Took  time.Duration // whole run, warm-up included

	options Options
	prompt  int               // prompt tokens served
	causes  map[string]string // of errors, one a kind
}

// results gathers what a run yields: two times of each answer and sums of the rest,
// so that a long run costs 16 bytes a request. Safe for concurrent use.
type results struct {
	mu       sync.Mutex
	total    int
	began    time.Time
	bar      bar
	latency  []time.Duration
	ttft     []time.Duration
	ttftSum  time.Duration
	failures map[string]int
	causes   map[string]string // first of each kind
	failed   int

	prompt               int            // tokens of answers that tell
	expected, expectedOf int            // of their prompt tokens, by answers that tell
	cached, cachedOf     int            // likewise
	served               map[string]int // answers by node
	named                int            // answers that name theirs
	hopped, hops         int            // answers that were forwarded, of those that tell
}

func (r *results) start(now time.Time) {
	r.began = now
	r.failures, r.causes, r.served = map[string]int{}, map[string]string{}, map[string]int{}
}

// book counts one request, answered or failed.
func (r *results) book(s sample, failed *failure, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed == nil {
		r.answered(s)
	} else {
		if r.failures[failed.kind]++; r.failures[failed.kind] == 1 {
			r.causes[failed.kind] = failed.cause.Error()
		}
		r.failed++
	}
	r.bar.draw(now, func() string {
		n := len(r.latency)
		return progressLine(n+r.failed, r.total, now.Sub(r.began), r.ttftSum/time.Duration(max(n, 1)))
	})
}

// answered adds up an answer. Hits weigh requests by their tokens. An estimate above
// the whole prompt counts as the whole prompt: it is counted in bytes, and tokens vary.
func (r *results) answered(s sample) {
	r.latency, r.ttft = append(r.latency, s.latency), append(r.ttft, s.ttft)
	r.ttftSum += s.ttft
	if s.prompt > 0 {
		r.prompt += s.prompt
		if s.expected >= 0 {
			r.expected, r.expectedOf = r.expected+min(s.expected, s.prompt), r.expectedOf+s.prompt
		}
		if s.cached >= 0 {
			r.cached, r.cachedOf = r.cached+min(s.cached, s.prompt), r.cachedOf+s.prompt
		}
	}
	if s.node != "" {
		r.served[s.node]++
		r.named++
	}
	if s.hops >= 0 {
		r.hops++
		r.hopped += min(s.hops, 1)
	}
}

func report(o Options, about status, r *results, took time.Duration) *Report {
	rep := &Report{
		Row: Row{
			Policy: about.policy, DelayMS: about.linkDelayMS, PollMS: about.pollMS,
			Workload: o.Workload.Name, Data: o.Workload.data(), Seed: o.Workload.Seed, Repeats: o.Workload.Repeats,
			Nodes: len(o.Targets), Requests: len(r.latency) + r.failed, Errors: r.failed, ErrorsByKind: r.failures,
		},
		Asked: r.total, Took: took, options: o, causes: r.causes,
	}
	rep.prompt = r.prompt
	rep.ExpectedHit, rep.ActualHit = share(r.expected, r.expectedOf), share(r.cached, r.cachedOf)
	rep.ForwardedShare = share(r.hopped, r.hops)
	if len(r.latency) > 0 {
		rep.Mean, rep.P50, rep.P99 = summary(r.latency)
		rep.TTFTMean, rep.TTFTP50, rep.TTFTP99 = summary(r.ttft)
	}
	rep.shares(r.served, r.named)
	return rep
}

// shares says who served, of the answers that tell.
func (rep *Report) shares(served map[string]int, named int) {
	rep.Nodes = max(rep.Nodes, len(served))
	for node, n := range served {
		if rep.ShareByNode == nil {
			rep.ShareByNode = map[string]float64{}
		}
		rep.ShareByNode[node] = *share(n, named)
		if fullest := share(n, named); rep.FullestShare == nil || *fullest > *rep.FullestShare {
			rep.FullestShare = fullest
		}
	}
}

// share is part/whole, or nothing of nothing.
func share(part, whole int) *float64 {
	if whole == 0 {
		return nil
	}
	s := float64(part) / float64(whole)
	return &s
}

// summary gives mean, median and 99th percentile in seconds. It sorts d.
func summary(d []time.Duration) (mean, p50, p99 *float64) {
	slices.Sort(d)
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	m, half, tail := sum.Seconds()/float64(len(d)), percentile(d, 50).Seconds(), percentile(d, 99).Seconds()
	return &m, &half, &tail
}

// percentile is the nearest rank: the least of the sorted values that at least
// p percent of them do not exceed. It is always a value that was measured.
func percentile(sorted []time.Duration, p int) time.Duration {
	rank := (p*len(sorted) + 99) / 100
	return sorted[max(rank, 1)-1]
}

// WriteJSON writes one object with the one row, its keys always in one order.
func (rep *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(struct {
		Rows []Row `json:"rows"`
	}{[]Row{rep.Row}})
}

// tableNodes is how many nodes a table lists, the fullest first.
const tableNodes = 16

// WriteTable writes the report for people, on one screen.
func (rep *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	rep.writeSetting(t)
	if rep.Mean != nil {
		fmt.Fprint(t, "\n\tmean\tp50\tp99\n")
		fmt.Fprintf(t, "latency\t%s\t%s\t%s\n", seconds(*rep.Mean), seconds(*rep.P50), seconds(*rep.P99))
		fmt.Fprintf(t, "TTFT\t%s\t%s\t%s\n", seconds(*rep.TTFTMean), seconds(*rep.TTFTP50), seconds(*rep.TTFTP99))
	}
	t.Flush()
	fmt.Fprintf(&b, "\n%d prompt tokens: expected hit %s, actual hit %s; %s of requests forwarded\n",
		rep.prompt, percent(rep.ExpectedHit), percent(rep.ActualHit), percent(rep.ForwardedShare))
	rep.writeNodes(&b)
	fmt.Fprintf(&b, "\n%d of %d requests done in %s (%.1f/s), errors: %d\n",
		rep.Requests, rep.Asked, rep.Took.Round(time.Millisecond), float64(rep.Requests)/max(rep.Took.Seconds(), 1e-9), rep.Errors)
	for _, kind := range slices.Sorted(maps.Keys(rep.ErrorsByKind)) {
		cause := strings.Join(strings.Fields(rep.causes[kind]), " ")
		fmt.Fprintf(&b, "  %s: %d, the first: %.200s\n", kind, rep.ErrorsByKind[kind], cause)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is the report in one sentence.
func (rep *Report) String() string {
	if rep.Mean == nil {
		return fmt.Sprintf("%d requests, none answered", rep.Requests)
	}
	return fmt.Sprintf("%d requests, %d errors: mean TTFT %s, expected hit %s, actual hit %s, %s forwarded",
		rep.Requests, rep.Errors, seconds(*rep.TTFTMean), percent(rep.ExpectedHit), percent(rep.ActualHit), percent(rep.ForwardedShare))
}

func (rep *Report) writeSetting(t io.Writer) {
	o := rep.options
	repeats := "without repeats"
	if rep.Repeats {
		repeats = "with repeats"
	}
	loop := fmt.Sprintf("closed loop of %d", o.Concurrency)
	switch {
	case o.Rate > 0:
		loop = fmt.Sprintf("open loop at %g/s", o.Rate)
	case o.Speed > 0:
		loop = fmt.Sprintf("open loop at %g times the speed of the trace", o.Speed)
	}
	output := strconv.Itoa(max(o.MaxTokens, 1))
	if o.MaxTokens == 0 && o.Workload.stream != nil {
		output = "the trace's"
	}
	fmt.Fprintf(t, "workload\t%s, seed %d, %s\n", rep.Workload, rep.Seed, repeats)
	fmt.Fprintf(t, "data\t%s\n", o.Workload.Source)
	fmt.Fprintf(t, "driven\t%d targets, entry %s, %s, max tokens %s, warm-up %d\n", len(o.Targets), o.Entry, loop, output, o.Warmup)
	if rep.Policy == "" {
		return
	}
	fmt.Fprintf(t, "policy\t%s", rep.Policy)
	if rep.PollMS != nil {
		fmt.Fprintf(t, ", poll %g ms", *rep.PollMS)
	}
	if rep.DelayMS != nil {
		fmt.Fprintf(t, ", link delay %g ms", *rep.DelayMS)
	}
	fmt.Fprintln(t)
}

func (rep *Report) writeNodes(b *strings.Builder) {
	nodes := slices.SortedFunc(maps.Keys(rep.ShareByNode), func(x, y string) int {
		return cmp.Or(cmp.Compare(rep.ShareByNode[y], rep.ShareByNode[x]), cmp.Compare(x, y))
	})
	if len(nodes) == 0 {
		return
	}
	b.WriteString("\nserved by\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, node := range nodes[:min(len(nodes), tableNodes)] {
		s := rep.ShareByNode[node]
		fmt.Fprintf(t, "  %s\t%s\t%s\n", node, percent(&s), strings.Repeat("#", int(math.Round(40*s))))
	}
	t.Flush()
	if more := len(nodes) - tableNodes; more > 0 {
		fmt.Fprintf(b, "  and %d more\n", more)
	}
}

func percent(share *float64) string {
	if share == nil {
		return "not told"
	}
	return fmt.Sprintf("%.1f %%", 100**share)
}

func seconds(s float64) string { return milliseconds(time.Duration(s * float64(time.Second))) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
