package e2e

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/report"
)

// The metrics that a soak watches, and what is counted in them.
var watched = []struct {
	metric, name, unit string
	scale              float64 // to the unit
}{
	{"process_resident_memory_bytes", "Resident memory", "MiB", 1 << 20},
	{"go_memstats_heap_inuse_bytes", "Heap in use", "MiB", 1 << 20},
	{"go_goroutines", "Goroutines", "", 1},
	{"process_open_fds", "Open descriptors", "", 1},
}

// A sample is the watched metrics of each node at one time; nil of one that is down.
type sample struct {
	at    time.Duration
	nodes [soakNodes]map[string]float64
}

func (s *soak) sampleEvery(ctx context.Context, every time.Duration) (samples []sample) {
	for {
		select {
		case <-ctx.Done():
			return samples
		case <-time.After(every):
			samples = append(samples, s.sample())
		}
	}
}

func (s *soak) sample() sample {
	out := sample{at: s.since()}
	for i, n := range s.nodes {
		out.nodes[i], _ = fetchMetrics(n.URL())
	}
	return out
}

// fetchMetrics reads all metrics that have no labels.
func fetchMetrics(url string) (map[string]float64, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil && !strings.Contains(name, "{") {
			values[name] = v
		}
	}
	return values, nil
}

// checkSettled waits until no node has a request left, nor more goroutines and
// descriptors than before the load but those of connections that are kept for the next.
func (s *soak) checkSettled(idle sample) {
	s.t.Helper()
	kept := float64(2 * *soakClients) // connections: to the engine and to peers
	var left string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		left = ""
		for i, now := range s.sample().nodes {
			before := idle.nodes[i]
			switch {
			case now == nil:
				left += fmt.Sprintf("n%d does not answer\n", i+1)
			case now["hearsay_panics_total"] > 0:
				s.t.Errorf("n%d had %v panics", i+1, now["hearsay_panics_total"])
				return
			case now["hearsay_queue_depth"] > 0:
				left += fmt.Sprintf("n%d: %v requests at the engine\n", i+1, now["hearsay_queue_depth"])
			case now["process_open_fds"] > before["process_open_fds"]+kept:
				left += fmt.Sprintf("n%d: %v descriptors, before the load %v\n", i+1, now["process_open_fds"], before["process_open_fds"])
			case now["go_goroutines"] > before["go_goroutines"]+3*kept:
				left += fmt.Sprintf("n%d: %v goroutines, before the load %v\n", i+1, now["go_goroutines"], before["go_goroutines"])
			}
		}
		if left == "" {
			return
		}
	}
	s.t.Errorf("after the load:\n%s", left)
}

// flatMin is how many samples tell growth from warming up.
const flatMin = 120

// checkFlat compares the second quarter of a long soak with its last: by then caches
// and pools are full, and what still grows would go on.
func checkFlat(t *testing.T, samples []sample) {
	if len(samples) < flatMin {
		return
	}
	for _, w := range watched {
		for i := range soakNodes {
			quarter := func(n int) float64 {
				var values []float64
				for _, s := range samples[n*len(samples)/4 : (n+1)*len(samples)/4] {
					if v, ok := s.nodes[i][w.metric]; ok {
						values = append(values, v)
					}
				}
				slices.Sort(values)
				return values[len(values)/2] / w.scale
			}
			second, last := quarter(1), quarter(3)
			t.Logf("n%d: %s %.1f %s at the median of the second quarter, %.1f in the last", i+1, w.name, second, w.unit, last)
			if last > 1.25*second+8 {
				t.Errorf("n%d: %s grows from %.1f to %.1f", i+1, w.name, second, last)
			}
		}
	}
}

func samplesCSV(samples []sample) []byte {
	out := []byte("seconds,node")
	for _, w := range watched {
		out = fmt.Appendf(out, ",%s", w.metric)
	}
	out = append(out, '\n')
	for _, s := range samples {
		for i, values := range s.nodes {
			if values == nil {
				continue
			}
			out = fmt.Appendf(out, "%.1f,n%d", s.at.Seconds(), i+1)
			for _, w := range watched {
				out = fmt.Appendf(out, ",%.0f", values[w.metric])
			}
			out = append(out, '\n')
		}
	}
	return out
}

func samplesSVG(samples []sample, outages []outage) []byte {
	panels := report.Panels{
		Title: "Three nodes under mixed load, an engine and a node killed and restarted by turns",
		Note: fmt.Sprintf("%d clients for %v, one in ten leaves early; n2's engine and n3 itself are killed -9 every 20 s, back after 3 s (%d outages). experiments/soak.sh",
			*soakClients, *soakFor, len(outages)),
	}
	for _, w := range watched {
		chart := report.Chart{Title: w.name, XLabel: "Time (s)", YLabel: w.unit}
		for i := range soakNodes {
			series := report.Series{Name: []string{"n1", "n2: its engine is killed", "n3: killed"}[i]}
			for _, s := range samples {
				v, up := s.nodes[i][w.metric]
				if !up {
					v = math.NaN() // a gap
				}
				series.X, series.Y = append(series.X, s.at.Seconds()), append(series.Y, v/w.scale)
			}
			chart.Series = append(chart.Series, series)
		}
		panels.Charts = append(panels.Charts, chart)
	}
	return panels.SVG()
}
