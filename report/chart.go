package report

import "slices"

// A Series is one line of a chart, or one colour of its bars.
//
// A point that is not a number, is infinite, or is not positive on a
// logarithmic axis is left out and leaves a gap. Points that only one of X and
// Y has are ignored.
type Series struct {
	Name   string
	X, Y   []float64
	Dashed bool // drawn dashed, or as a hollow bar: a baseline, a model, a published value
	Points bool // every point is marked, not just enough of them to know the line without its colour
	Color  int  // the palette's n-th, from 1; 0 takes the series' place among the others
}

// A Band is a shaded stretch of the x axis.
type Band struct {
	From, To float64
	Label    string // above the plot
}

// A Chart draws lines over a common x axis. Its zero value draws an empty plot.
type Chart struct {
	Title          string
	XLabel, YLabel string // with the unit: "Delay (ms)"
	LogX, LogY     bool
	YMin, YMax     float64 // the y axis; unless YMin < YMax it is fitted to the data
	Series         []Series
	Bands          []Band
	Note           string // below the plot: what was measured, and how
}

// SVG draws the chart for a slide, 960 by 540 pixels, higher if its texts need it.
func (c Chart) SVG() []byte {
	k, body := frame(c.Title, c.Note, looks(c.Series), false, 240)
	c.plot(k, body)
	return k.svg()
}

// looks gives every series its colour and shape.
func looks(series []Series) []look {
	all := make([]look, len(series))
	for i, s := range series {
		all[i] = look{s.Name, i, s.Dashed}
		if s.Color > 0 {
			all[i].color = s.Color - 1
		}
	}
	return all
}

// plot draws all but title, legend and note into r.
func (c Chart) plot(k *canvas, r rect) {
	var xs, ys []float64
	for _, s := range c.Series {
		for i := range min(len(s.X), len(s.Y)) {
			if c.holds(s, i) {
				xs, ys = append(xs, s.X[i]), append(ys, s.Y[i])
			}
		}
	}
	below, above := 32.0, 0.0
	if c.XLabel != "" {
		k.text(r.x+r.w/2, r.bottom()-6, "middle", c.XLabel)
		below += line
	}
	if slices.ContainsFunc(c.Bands, func(b Band) bool { return b.Label != "" }) {
		above = line
	}
	x, y := span(xs, c.LogX, false), span(ys, c.LogY, true)
	if fixed := (axis{lo: c.YMin, hi: c.YMax, log: c.LogY}); drawable(c.YMin, c.LogY) && drawable(c.YMax, c.LogY) && !fixed.narrow() {
		y = fixed
	}
	r = k.yAxis(&y, r.cut(0, 0, below, 0), c.YLabel, above)
	k.xAxis(&x, r)
	c.drawBands(k, x, r)
	if len(xs) == 0 {
		k.text(r.x+r.w/2, r.y+r.h/2, "middle", "no data")
	}
	// A nested drawing clips its content, and needs no name that would have to be unique in a page.
	const over = 8
	k.add(`<svg x="%v" y="%v" width="%v" height="%v" viewBox="%v %v %v %v">`+"\n",
		r.x-over, r.y-over, r.w+2*over, r.h+2*over, r.x-over, r.y-over, r.w+2*over, r.h+2*over)
	for i, l := range looks(c.Series) {
		c.drawSeries(k, i, l, x, y)
	}
	k.add("</svg>\n")
}

// holds reports whether point i of s has a place in the chart.
func (c Chart) holds(s Series, i int) bool {
	return drawable(s.X[i], c.LogX) && drawable(s.Y[i], c.LogY)
}

// drawSeries draws the line, then its marks: all of them, or one every so often,
// each series' elsewhere, so that lines on top of each other show.
func (c Chart) drawSeries(k *canvas, at int, l look, x, y axis) {
	const every = 160.0
	s := c.Series[at]
	n := min(len(s.X), len(s.Y))
	here := func(i int) bool { return i >= 0 && i < n && c.holds(s, i) }
	next := x.from + every*(float64(at)+0.5)/float64(len(c.Series))
	var path markup
	var marks canvas
	for i := range n {
		if !here(i) {
			continue
		}
		px, py := x.at(s.X[i]), y.at(s.Y[i])
		alone := !here(i-1) && !here(i+1)
		switch {
		case here(i - 1):
			path.add("L%v %v", px, py)
		case !alone:
			path.add("M%v %v", px, py)
		}
		due := len(c.Series) > 1 && px >= next
		if due {
			next = px + every
		}
		if s.Points || alone || due {
			marks.mark(l, px, py)
		}
	}
	if path.Len() > 0 {
		k.add(`<path d="%v" fill="none" stroke="%v" stroke-width="2.5" stroke-dasharray="%v"/>`+"\n", path.Bytes(), l.hue(), l.dash())
	}
	k.add("%v", marks.Bytes())
}

// drawBands shades every other band a little more, and names them above the
// plot where there is room for that.
func (c Chart) drawBands(k *canvas, x axis, r rect) {
	end := r.x
	for i, b := range c.Bands {
		if !drawable(b.From, c.LogX) || !drawable(b.To, c.LogX) {
			continue
		}
		from, to := max(x.at(b.From), r.x), min(x.at(b.To), r.right())
		if from >= to {
			continue
		}
		k.add(`<rect x="%v" y="%v" width="%v" height="%v" fill-opacity="%v"/>`+"\n", from, r.y, to-from, r.h, []string{".04", ".1"}[i%2])
		half := textWidth(b.Label, font) / 2
		if at := max((from+to)/2, end+half); b.Label != "" && at+half <= r.right()+margin {
			k.text(at, r.y-9, "middle", b.Label)
			end = at + half + 8
		}
	}
}
