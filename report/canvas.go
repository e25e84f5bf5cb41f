package report

import "math"

const (
	width  = 960.0
	height = 540.0 // grows when what stands around the chart leaves it too little
	margin = 28.0
	font   = 18.0 // read from the last row of a lecture hall at 960 pixels a slide
	line   = 26.0 // from one line of text to the next
)

// colors are those of Okabe and Ito, which the colour-blind tell apart, in an
// order that alternates dark and light for print. Each goes with a shape.
var (
	colors = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#333333"}
	shapes = []string{
		"M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z", // circle
		"M-5.5 -5.5h11v11h-11z",                 // square
		"M0 -7L7 5.5H-7z",                       // triangle
		"M0 -7.5L7.5 0L0 7.5L-7.5 0z",           // diamond
		"M0 7L7 -5.5H-7z",                       // triangle on its tip
	}
)

type rect struct{ x, y, w, h float64 }

// cut takes space off the four sides.
func (r rect) cut(top, right, bottom, left float64) rect {
	return rect{r.x + left, r.y + top, max(r.w-left-right, 1), max(r.h-top-bottom, 1)}
}

func (r rect) right() float64  { return r.x + r.w }
func (r rect) bottom() float64 { return r.y + r.h }

// look is how a series is told from the others.
type look struct {
	name   string
	color  int
	dashed bool
}

func (l look) hue() string   { return colors[l.color%len(colors)] }
func (l look) shape() string { return shapes[l.color%len(shapes)] }

func (l look) dash() string {
	if l.dashed {
		return "9 6"
	}
	return "none"
}

// canvas is a drawing under way.
type canvas struct {
	markup
	title  string
	height float64
}

// frame starts a drawing: title, legend and note. It returns the space between
// them, which is least high or more.
func frame(title, note string, looks []look, bars bool, least float64) (*canvas, rect) {
	k := &canvas{title: title}
	y := 10.0
	for _, s := range wrap(title, 24, width-2*margin) {
		y += 30
		k.add(`<text x="%v" y="%v" font-size="24" font-weight="bold">%v</text>`+"\n", margin, y, s)
	}
	y = k.legend(looks, bars, y+12)
	notes := wrap(note, font, width-2*margin)
	foot := 14 + line*float64(len(notes))
	k.height = max(height, y+least+foot)
	body := rect{margin, y, width - 2*margin, k.height - y - foot}
	for i, s := range notes {
		k.add(`<text x="%v" y="%v" fill="#555">%v</text>`+"\n", margin, body.bottom()+line*float64(i)+20, s)
	}
	return k, body
}

// legend draws the names in rows from y on, and returns where they end.
func (k *canvas) legend(looks []look, bars bool, y float64) float64 {
	const gap = 30.0
	swatch := 44.0
	if bars {
		swatch = 28
	}
	x, rows := margin, 0.0
	for _, l := range looks {
		if l.name == "" {
			continue
		}
		w := swatch + 8 + textWidth(l.name, font)
		if x+w > width-margin && x > margin {
			x, y = margin, y+line
		}
		rows = line
		if bars {
			k.bar(l, rect{x, y + 5, swatch, 16})
		} else {
			k.add(`<path d="M%v %vh%v" stroke="%v" stroke-width="2.5" stroke-dasharray="%v"/>`+"\n", x, y+13, swatch, l.hue(), l.dash())
			k.mark(l, x+swatch/2, y+13)
		}
		k.text(x+swatch+8, y+19, "start", l.name)
		x += w + gap
	}
	return y + rows + 6
}

// text writes one line; anchor is start, middle or end.
func (k *canvas) text(x, y float64, anchor, s string) {
	k.add(`<text x="%v" y="%v" text-anchor="%v">%v</text>`+"\n", x, y, anchor, s)
}

// mark draws the shape of l about a point.
func (k *canvas) mark(l look, x, y float64) {
	k.add(`<path transform="translate(%v %v)" d="%v" fill="%v" stroke="#fff" stroke-width="1.5"/>`+"\n", x, y, l.shape(), l.hue())
}

// bar draws a dashed look hollow.
func (k *canvas) bar(l look, r rect) {
	fill := l.hue()
	if l.dashed {
		fill = "#fff"
	}
	k.add(`<rect x="%v" y="%v" width="%v" height="%v" fill="%v" stroke="%v" stroke-width="2"/>`+"\n", r.x, r.y, r.w, r.h, fill, l.hue())
}

// yAxis names the axis above the space r, draws its grid, and returns the space
// that is left for data, from which the axis counts its pixels.
func (k *canvas) yAxis(a *axis, r rect, label string, above float64) rect {
	if label != "" {
		k.text(r.x, r.y+16, "start", label)
		r = r.cut(line, 0, 0, 0)
	}
	r = r.cut(above+10, 12, 0, 0)
	a.from, a.to = r.bottom(), r.y
	a.tick(int(min(max(r.h/50, 2), 8)))
	left := 0.0
	for _, s := range a.labels {
		left = max(left, textWidth(s, font)+12)
	}
	r = r.cut(0, 0, 0, left)
	for i, v := range a.ticks {
		y := a.at(v)
		k.add(`<path d="M%v %vh%v" stroke="#ddd"/>`+"\n", r.x, y, r.w)
		k.text(r.x-10, y+6, "end", a.labels[i])
	}
	return r
}

// xAxis draws the grid and the ticks under the data, as many as fit.
func (k *canvas) xAxis(a *axis, r rect) {
	a.from, a.to = r.x, r.right()
	for n := int(max(r.w/80, 4)); n >= 1; n-- {
		if a.tick(n); a.fits() {
			break
		}
	}
	for i, v := range a.ticks {
		x, half := a.at(v), textWidth(a.labels[i], font)/2
		k.add(`<path d="M%v %vv%v" stroke="#eee"/>`+"\n", x, r.y, r.h)
		k.text(min(max(x, half), width-half), r.bottom()+24, "middle", a.labels[i])
	}
	k.add(`<path d="M%v %vh%v" stroke="#777" stroke-width="1.5"/>`+"\n", r.x, r.bottom(), r.w)
}

// fits reports whether the labels leave air between each other.
func (a axis) fits() bool {
	end := math.Inf(-1)
	for i, v := range a.ticks {
		half := textWidth(a.labels[i], font) / 2
		if a.at(v)-half < end+14 {
			return false
		}
		end = a.at(v) + half
	}
	return true
}

// svg returns the drawing as a file.
func (k *canvas) svg() []byte {
	var m markup
	m.add(`<svg xmlns="http://www.w3.org/2000/svg" width="%v" height="%v" viewBox="0 0 %v %v" role="img" aria-label="%v" `,
		width, k.height, width, k.height, k.title)
	m.add(`font-family="Helvetica, Arial, sans-serif" font-size="%v" fill="#222" stroke-linejoin="round">`+"\n", font)
	m.add(`<rect width="%v" height="%v" fill="#fff"/>`+"\n%v</svg>\n", width, k.height, k.Bytes())
	return m.Bytes()
}
