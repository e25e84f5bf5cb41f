package report

import "math"

// axis maps values to pixels, and carries the ticks that a reader finds them by.
type axis struct {
	lo, hi   float64 // values
	from, to float64 // pixels
	log      bool
	ticks    []float64
	labels   []string
}

// at returns the pixel of v.
func (a axis) at(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.log {
		lo, hi, v = math.Log10(lo), math.Log10(hi), math.Log10(v)
	}
	return a.from + (v-lo)/(hi-lo)*(a.to-a.from)
}

// tick sets about n ticks at round values.
func (a *axis) tick(n int) {
	a.ticks, a.labels = nil, nil
	if a.log {
		if a.tickLog(n); len(a.ticks) >= 2 {
			return
		}
		a.ticks, a.labels = nil, nil // less than a decade is as good as linear
	}
	step := roundStep((a.hi - a.lo) / float64(n))
	for i := math.Ceil(a.lo/step - 1e-6); i <= math.Floor(a.hi/step+1e-6); i++ {
		if a.log && i <= 0 {
			continue
		}
		a.ticks = append(a.ticks, i*step)
		a.labels = append(a.labels, format(i*step, step))
	}
}

// tickLog sets ticks at 1, 2 and 5 of each decade, or at every decade, or at
// every few: the most that n allows.
func (a *axis) tickLog(n int) {
	first, last := int(math.Floor(math.Log10(a.lo))), int(math.Ceil(math.Log10(a.hi)))
	digits, stride := []float64{1, 2, 5}, 1
	if decades := last - first; 3*decades > n {
		digits, stride = digits[:1], 1+decades/n
	}
	for e := first; e <= last; e += stride {
		for _, d := range digits {
			if v := d * math.Pow10(e); v >= a.lo*(1-1e-9) && v <= a.hi*(1+1e-9) {
				a.ticks = append(a.ticks, v)
				a.labels = append(a.labels, format(v, v))
			}
		}
	}
}

// roundStep returns the least of 1, 2 and 5 times a power of ten that is not below step.
func roundStep(step float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(step)))
	for _, d := range []float64{1, 2, 5} {
		if d*p >= step*(1-1e-9) {
			return d * p
		}
	}
	return 10 * p
}

// Arithmetic on values beyond these leaves the range of a float64.
const tiny, huge = 1e-100, 1e100

// drawable reports whether v has a place on an axis.
func drawable(v float64, log bool) bool {
	return math.Abs(v) <= huge && (!log || v >= tiny)
}

// span returns an axis that holds values; with room, it reaches to round values
// about them, and to zero where that costs less than half of its height.
func span(values []float64, log, room bool) axis {
	a := axis{lo: math.Inf(1), hi: math.Inf(-1), log: log}
	for _, v := range values {
		a.lo, a.hi = min(a.lo, v), max(a.hi, v)
	}
	switch {
	case len(values) == 0 && log:
		a.lo, a.hi = 1, 10
	case len(values) == 0:
		a.lo, a.hi = 0, 1
	case a.narrow() && log:
		a.lo, a.hi = a.lo/10, a.hi*10
	case a.narrow():
		side := max(math.Abs(a.lo), math.Abs(a.hi))
		if side < tiny {
			side = 1
		}
		a.lo, a.hi = a.lo-side, a.hi+side
	}
	switch {
	case room && log:
		a.lo, a.hi = 1/roundStep(1/a.lo), roundStep(a.hi)
	case room:
		if a.lo > 0 && a.lo < a.hi/2 {
			a.lo = 0
		}
		step := roundStep((a.hi - a.lo) / 5)
		a.lo, a.hi = math.Floor(a.lo/step+1e-6)*step, math.Ceil(a.hi/step-1e-6)*step
	}
	return a
}

// narrow reports whether the axis is too short for arithmetic to tell its ends apart.
func (a axis) narrow() bool {
	return a.hi-a.lo <= max(tiny, 1e-9*max(math.Abs(a.lo), math.Abs(a.hi)))
}
