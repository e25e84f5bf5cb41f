package probe

import (
	"bytes"
	"context"
	"iter"
	"math"
	"strconv"
	"strings"
)

// A sample is one line of a page of metrics in Prometheus' text format
// (prometheus.io/docs/instrumenting/exposition_formats).
type sample struct {
	name   string
	labels string // as written, between the braces
	value  float64
}

// samples reads those lines of page whose names begin with one of prefixes; what is
// malformed it passes over.
func samples(page []byte, prefixes ...string) iter.Seq[sample] {
	return func(yield func(sample) bool) {
		for line := range bytes.Lines(page) {
			if !hasAnyPrefix(line, prefixes) {
				continue
			}
			s, ok := readSample(strings.TrimSpace(string(line)))
			if ok && !yield(s) {
				return
			}
		}
	}
}

func hasAnyPrefix(line []byte, prefixes []string) bool {
	for _, p := range prefixes {
		if len(line) > len(p) && string(line[:len(p)]) == p {
			return true
		}
	}
	return false
}

func readSample(line string) (s sample, ok bool) {
	end := strings.IndexAny(line, "{ \t")
	if end < 0 {
		return s, false
	}
	s.name = line[:end]
	rest := line[end:]
	if rest[0] == '{' {
		end := labelsEnd(rest)
		if end < 0 {
			return s, false
		}
		s.labels, rest = rest[1:end], rest[end+1:]
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return s, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	s.value = value
	return s, err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
}

// labelsEnd is where the braces end that s begins with: not in a quoted value.
func labelsEnd(s string) int {
	quoted := false
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '}' && !quoted:
			return i
		}
	}
	return -1
}

// label returns the value of a label, as it is written.
func (s sample) label(name string) string {
	rest := s.labels
	for rest != "" {
		key, after, ok := strings.Cut(rest, `="`)
		if !ok {
			return ""
		}
		end := 0
		for end < len(after) && after[end] != '"' {
			if after[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(after) {
			return ""
		}
		if strings.Trim(key, ", ") == name {
			return after[:end]
		}
		rest = after[end+1:]
	}
	return ""
}

// number is the value of a label, 0 where it is none.
func (s sample) number(label string) int {
	n, err := strconv.Atoi(s.label(label))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// A tally adds up samples by name, over all their labels.
type tally struct {
	sum map[string]float64
	n   map[string]int
}

// tallied asks for /metrics and adds up the samples with these prefixes; each is
// shown to all samples to see.
func (p *Prober) tallied(ctx context.Context, see func(sample), prefixes ...string) (t tally, ok bool) {
	page, header, err := p.get(ctx, "/metrics")
	if err != nil {
		return t, false
	}
	// Of llama.cpp, and of what uses Prometheus' own libraries.
	p.mark("process start", header.Get("Process-Start-Time-Unix"))
	t = tally{map[string]float64{}, map[string]int{}}
	for s := range samples(page, prefixes...) {
		t.sum[s.name] += s.value
		t.n[s.name]++
		see(s)
	}
	return t, true
}

// first is the sum of the first name that there is, or none.
func (t tally) first(names ...string) (sum float64, known bool) {
	for _, name := range names {
		if t.n[name] > 0 {
			return t.sum[name], true
		}
	}
	return 0, false
}

func (t tally) count(names ...string) int {
	sum, known := t.first(names...)
	if !known || sum < 0 {
		return -1
	}
	return int(min(sum, 1<<30))
}

// share is the mean of the first name that there is, within 0 and 1, or -1.
func (t tally) share(names ...string) float64 {
	for _, name := range names {
		if t.n[name] > 0 {
			return max(0, min(t.sum[name]/float64(t.n[name]), 1))
		}
	}
	return -1
}

// counted notes counters, and work what changes as the engine works.
func (p *Prober) counted(t tally, counters ...string) {
	for _, name := range counters {
		if sum, known := t.first(name); known {
			p.count(name, sum)
		}
	}
}

func (p *Prober) work(t tally, names ...string) {
	for _, name := range names {
		if sum, known := t.first(name); known {
			p.facts.Work = max(p.facts.Work, 0) + sum
		}
	}
}
