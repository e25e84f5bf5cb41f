package estimate

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within {
		t.Errorf("%s: %g, want %g", what, got, want)
	}
}

// A line is found through noise, and before the first sample it is the prior.
func TestLineFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	l := Line{Base: 5, Slope: 0.2, MinSpread: 10}
	near(t, "the prior at 100", l.At(100), 25, 0)
	for range 40 {
		x := rng.Float64() * 600
		l.Add(x, 149+1.91*x+rng.NormFloat64())
	}
	near(t, "base", l.Base, 149, 3)
	near(t, "slope", l.Slope, 1.91, 0.02)
}

// Neither a stall nor a clock that jumped nor a burst of bad samples throws a line.
func TestLineIsRobust(t *testing.T) {
	l := Line{MinSpread: 10}
	for i := range 32 {
		l.Add(float64(i%16)*40, 100+2*float64(i%16)*40)
	}
	for _, odd := range [][2]float64{{300, 1e9}, {math.NaN(), 1}, {1, math.Inf(1)}, {-5, 3}, {5, -3}, {600, 0}, {0, 1e6}} {
		l.Add(odd[0], odd[1])
		near(t, "base", l.Base, 100, 1)
		near(t, "slope", l.Slope, 2, 0.01)
	}
}

// A machine that has changed is followed within a window.
func TestLineFollows(t *testing.T) {
	l := Line{MinSpread: 10}
	for i := range 64 {
		l.Add(float64(i%16)*40, 100+2*float64(i%16)*40)
	}
	for i := range window {
		l.Add(float64(i)*40, 200+4*float64(i)*40)
	}
	near(t, "base", l.Base, 200, 1)
	near(t, "slope", l.Slope, 4, 0.01)
}

// Where all samples have one x, the fit passes through them and keeps the prior's
// proportions; where there is no prior, all of it is base.
func TestLineWithoutSpread(t *testing.T) {
	for _, y := range []float64{10, 500} {
		l := Line{Base: 20, Slope: 0.2, MinSpread: 10}
		none := Line{}
		for range 20 {
			l.Add(400, y)
			none.Add(400, y)
		}
		near(t, "at 400", l.At(400), y, 1e-9)
		near(t, "base", l.Base, y/5, 1e-9)
		near(t, "base without a prior", none.Base, y, 0)
		if l.Fitted() || none.Fitted() {
			t.Error("samples at one x are said to tell the slope")
		}
	}
}

// What spread samples told of the slope is not forgotten when later ones lie at one
// point: an engine whose prompts have all come to be cached still computes as before.
func TestLineKeepsItsSlope(t *testing.T) {
	l := Line{Base: 0.02, Slope: 0.00025, MinSpread: 32}
	for i := range 10 {
		x := float64(200 * i)
		l.Add(x, 0.02+0.001*x)
	}
	for range 100 {
		l.Add(8, 0.028)
	}
	if !l.Fitted() {
		t.Error("the slope is said to be the prior's")
	}
	near(t, "far from the last samples", l.At(2000), 2.02, 0.01)
	for range 100 {
		l.Add(8, 0.056)
	}
	near(t, "when all takes twice as long", l.At(2000), 4.04, 0.02)
}

// A promise is believed until it is broken, and again once it is kept.
func TestShare(t *testing.T) {
	s := Share{Prior: 100, Span: 8}
	near(t, "at first", s.Value(), 1, 0)
	s.Add(100, 0)
	near(t, "after one lie", s.Value(), 0.5, 1e-9)
	for range 50 {
		s.Add(100, 0)
	}
	near(t, "a liar", s.Value(), 1./9, 0.01)
	for range 50 {
		s.Add(100, 100)
	}
	near(t, "mended", s.Value(), 1, 0.01)
	if v := (&Share{}).Value(); v != 1 {
		t.Errorf("without a prior %g, want 1", v)
	}
}

func TestMean(t *testing.T) {
	m := Mean{Value: 1, Span: 4}
	m.Add(0)
	near(t, "the first", m.Value, 0, 0)
	m.Add(1)
	near(t, "two", m.Value, 0.5, 0)
	for range 100 {
		m.Add(1)
		m.Add(math.NaN())
	}
	near(t, "many", m.Value, 1, 1e-6)
}

// Events fade with time, and a clock that steps back does not bring them back.
func TestRate(t *testing.T) {
	var r Rate
	now := time.Unix(1000, 0)
	near(t, "none", r.Count(now, time.Second), 0, 0)
	for i := range 1000 {
		r.Add(now.Add(time.Duration(i)*100*time.Millisecond), 5*time.Second, 1)
	}
	now = now.Add(100 * time.Second)
	near(t, "ten a second over five", r.Count(now, 5*time.Second), 50, 1)
	near(t, "later", r.Count(now.Add(5*time.Second), 5*time.Second), 50/math.E, 0.5)
	near(t, "a clock set back", r.Count(now.Add(-time.Hour), 5*time.Second), 50, 1)
}

func BenchmarkLineAdd(b *testing.B) {
	l := Line{MinSpread: 10}
	for i := range b.N {
		l.Add(float64(i*7919%600), float64(i%13))
	}
}
