// Package estimate learns numbers from samples that lie: a node's speed from
// requests that may have stalled, a link's delay from trips that jitter, a rate from
// events that bunch.
//
// What can be thrown by one odd sample is a median of the last ones, so that a stall,
// a clock that jumped or a single outlier changes nothing; what counts events is an
// average that fades with time. Every estimator is ready as its zero value, or with
// a prior that says what to believe before the first sample, and is bounded in
// memory. None is safe for concurrent use.
package estimate

import (
	"math"
	"slices"
	"time"
)

// window is how many samples a median is taken of: enough to outvote a burst of
// fifteen bad ones, few enough to follow a machine that has changed.
const window = 32

// A Line fits y = base + slope*x, both at least zero, through the last samples: the
// slope is the median of those between pairs of samples that lie far enough apart in
// x to tell (Theil and Sen), the base the median of what is left.
type Line struct {
	Base, Slope float64 // the prior, then the fit
	MinSpread   float64 // in x, below which a pair of samples tells nothing of the slope

	xs, ys [window]float64
	n      int // samples ever taken
	prior  *[2]float64
	fitted bool
}

// Add takes a sample. One that is not finite or negative is no sample. It costs some
// microseconds.
func (l *Line) Add(x, y float64) {
	if !(x >= 0 && y >= 0) || math.IsInf(x, 0) || math.IsInf(y, 0) {
		return
	}
	if l.prior == nil {
		l.prior = &[2]float64{l.Base, l.Slope}
	}
	l.xs[l.n%window], l.ys[l.n%window] = x, y
	l.n++
	l.fit()
}

// Samples returns how many samples were taken.
func (l *Line) Samples() int { return l.n }

// Fitted reports whether the samples have ever told the slope: until then it is the
// prior's, scaled.
func (l *Line) Fitted() bool { return l.fitted }

// At returns the fit at x.
func (l *Line) At(x float64) float64 { return l.Base + l.Slope*max(x, 0) }

func (l *Line) fit() {
	n := min(l.n, window)
	var slopes [window * (window - 1) / 2]float64
	pairs := 0
	for i := range n {
		for j := range i {
			if d := l.xs[i] - l.xs[j]; math.Abs(d) >= max(l.MinSpread, 1e-9) {
				slopes[pairs] = (l.ys[i] - l.ys[j]) / d
				pairs++
			}
		}
	}
	if pairs < n-1 || n < 3 { // one odd sample is in n-1 pairs, which must be outvoted
		l.scale(n)
		return
	}
	slope := max(0, median(slopes[:pairs]))
	var rest [window]float64
	for i := range n {
		rest[i] = l.ys[i] - slope*l.xs[i]
	}
	l.Base, l.Slope = max(0, median(rest[:n])), slope
	*l.prior, l.fitted = [2]float64{l.Base, l.Slope}, true
}

// scale makes the prior, or the last fit, as much steeper as the samples lie above it:
// without spread in x they tell no more than that.
func (l *Line) scale(n int) {
	var ratios [window]float64
	base, slope := l.prior[0], l.prior[1]
	for i := range n {
		ratios[i] = l.ys[i]
		if at := base + slope*l.xs[i]; at > 0 {
			ratios[i] /= at
		}
	}
	m := median(ratios[:n])
	if base == 0 && slope == 0 {
		l.Base = m
		return
	}
	l.Base, l.Slope = m*base, m*slope
}

func median(v []float64) float64 {
	slices.Sort(v)
	if len(v)%2 == 1 {
		return v[len(v)/2]
	}
	return (v[len(v)/2-1] + v[len(v)/2]) / 2
}

// A Mean is an average of shares or sizes in which each new sample counts for one in
// Span, and the first ones for more until there are so many.
type Mean struct {
	Value float64 // the prior, then the average
	Span  float64 // at least 1

	n float64
}

// Add takes a sample.
func (m *Mean) Add(v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	m.n = min(m.n+1, max(m.Span, 1))
	m.Value += (v - m.Value) / m.n
}

// Samples returns how many samples the average rests on, at most Span.
func (m *Mean) Samples() int { return int(m.n) }

// A Rate counts events and forgets them: one that is Span old counts for 1/e.
type Rate struct {
	count float64
	at    time.Time
}

// Add counts an event of a weight.
func (r *Rate) Add(now time.Time, span time.Duration, weight float64) {
	r.count = r.Count(now, span) + weight
	if now.After(r.at) {
		r.at = now
	}
}

// Count returns the events of about the last span.
func (r *Rate) Count(now time.Time, span time.Duration) float64 {
	if r.count == 0 || span <= 0 {
		return 0
	}
	return r.count * math.Exp(-max(0, now.Sub(r.at).Seconds())/span.Seconds())
}

// A Share is how much of what was promised came true, 1 before the first sample. The
// last Span samples count for most.
type Share struct {
	Prior float64 // how much of a promise the belief in it weighs before the first sample
	Span  float64 // samples; at least 1

	promised, came float64
}

// Add takes a promise and what came of it.
func (s *Share) Add(promised, came float64) {
	keep := 1 - 1/max(s.Span, 1)
	s.promised = s.promised*keep + max(promised, 0)
	s.came = s.came*keep + max(came, 0)
}

// Value returns the share, from 0 to 1.
func (s *Share) Value() float64 {
	if s.promised+s.Prior <= 0 {
		return 1
	}
	return min(1, (s.came+s.Prior)/(s.promised+s.Prior))
}
