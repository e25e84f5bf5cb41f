package probe

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A sample is one line of a page of metrics in Prometheus' text format
// (prometheus.io/docs/instrumenting/exposition_formats).
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

// samples reads those lines of page whose names begin with one of prefixes; what is
// malformed it passes over.
func samples(page string, prefixes ...string) iter.Seq[sample] {
	return func(yield func(sample) bool) {
		for line := range strings.Lines(page) {
			if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) }) {
				continue
			}
			if s, ok := readSample(strings.TrimSpace(line)); ok && !yield(s) {
				return
			}
		}
	}
}

func readSample(line string) (s sample, ok bool) {
	end := strings.IndexAny(line, "{ \t")
	if end < 0 {
		return s, false
	}
	s.name = line[:end]
	rest := line[end:]
	if rest[0] == '{' {
		if s.labels, rest, ok = readLabels(rest); !ok {
			return s, false
		}
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return s, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	s.value = value
	return s, err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
}

// readLabels reads those that s begins with, in braces, and returns what follows them.
// A value stays as it is written.
func readLabels(s string) (labels map[string]string, rest string, ok bool) {
	labels = map[string]string{}
	for s = s[1:]; ; {
		s = strings.TrimLeft(s, ", ")
		if rest, ok = strings.CutPrefix(s, "}"); ok {
			return labels, rest, true
		}
		name, value, ok := strings.Cut(s, `="`)
		end := 0
		for end < len(value) && value[end] != '"' {
			if value[end] == '\\' {
				end++
			}
			end++
		}
		if !ok || end >= len(value) {
			return nil, "", false
		}
		labels[strings.TrimSpace(name)], s = value[:end], value[end+1:]
	}
}

// number is the value of a label, 0 where it is none.
func (s sample) number(label string) int {
	n, err := strconv.Atoi(s.labels[label])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// A tally adds up samples by name, over all their labels.
type tally map[string]total

type total struct {
	sum float64
	n   int // samples
}

// tallied asks for /metrics and adds up the samples with these prefixes; each is
// shown to all samples to see.
func (p *Prober) tallied(ctx context.Context, see func(sample), prefixes ...string) (t tally, ok bool) {
	page, header, err := p.get(ctx, "/metrics")
	if err != nil {
		return nil, false
	}
	// Of llama.cpp, and of what uses Prometheus' own libraries.
	p.mark("process start", header.Get("Process-Start-Time-Unix"))
	t = tally{}
	for s := range samples(string(page), prefixes...) {
		t[s.name] = total{t[s.name].sum + s.value, t[s.name].n + 1}
		see(s)
	}
	return t, true
}

// first is the total of the first name that there is, or of nothing.
func (t tally) first(names ...string) total {
	for _, name := range names {
		if t[name].n > 0 {
			return t[name]
		}
	}
	return total{}
}

// count is the sum of the first name that there is, or -1.
func (t tally) count(names ...string) int {
	all := t.first(names...)
	if all.n == 0 || all.sum < 0 {
		return -1
	}
	return int(min(all.sum, 1<<30))
}

// share is the mean of the first name that there is, within 0 and 1, or -1.
func (t tally) share(names ...string) float64 {
	all := t.first(names...)
	if all.n == 0 {
		return -1
	}
	return max(0, min(all.sum/float64(all.n), 1))
}

// counted notes counters, and work what changes as the engine works.
func (p *Prober) counted(t tally, counters ...string) {
	for _, name := range counters {
		if t[name].n > 0 {
			p.count(name, t[name].sum)
		}
	}
}

func (p *Prober) work(t tally, names ...string) {
	for _, name := range names {
		if t[name].n > 0 {
			p.facts.Work = max(p.facts.Work, 0) + t[name].sum
		}
	}
}
