package report

import "strings"

// Bars draws groups of bars, one of each series in each group, with their values
// where there is room.
type Bars struct {
	Title          string
	XLabel, YLabel string // with the unit
	Groups         []string
	Series         []Series // Y holds a value for each group; X is not read
	Note           string
}

// SVG draws the bars for a slide, from zero up (or down).
func (b Bars) SVG() []byte {
	k, r := frame(b.Title, b.Note, looks(b.Series), true, 240)
	groups := max(len(b.Groups), 1)
	values, widest := []float64{0}, 0.0
	for _, s := range b.Series {
		for _, v := range s.Y[:min(len(s.Y), groups)] {
			if drawable(v, false) {
				values = append(values, v)
				widest = max(widest, textWidth(Number(v), font))
			}
		}
	}
	if b.XLabel != "" {
		k.text(r.x+r.w/2, r.bottom()-6, "middle", b.XLabel)
		r = r.cut(0, 0, line, 0)
	}
	names, rows := make([][]string, groups), 1
	for i, g := range b.Groups {
		room := r.w * 0.9 / float64(groups)
		if textWidth(g, font) > room {
			g = strings.ReplaceAll(g, "+", "+ ") // policies are named a+b
		}
		names[i] = wrap(g, font, room)
		rows = max(rows, len(names[i]))
	}
	y := span(values, false, true)
	r = k.yAxis(&y, r.cut(0, 0, 8+line*float64(rows), 0), b.YLabel, 0)
	group := r.w / float64(groups)
	bar := min(group*0.8/float64(max(len(b.Series), 1)), 110)
	for i := range groups {
		middle := r.x + group*(float64(i)+0.5)
		for row, s := range names[i] {
			k.text(middle, r.bottom()+24+line*float64(row), "middle", s)
		}
		x := middle - bar*float64(len(b.Series))/2
		for j, l := range looks(b.Series) {
			if s := b.Series[j]; i < len(s.Y) && drawable(s.Y[i], false) {
				top, foot := y.at(max(s.Y[i], 0)), y.at(min(s.Y[i], 0))
				k.bar(l, rect{x + bar*0.06, top, bar * 0.88, foot - top})
				if widest <= bar {
					k.text(x+bar/2, top-7, "middle", Number(s.Y[i]))
				}
			}
			x += bar
		}
	}
	k.add(`<path d="M%v %vh%v" stroke="#777" stroke-width="1.5"/>`+"\n", r.x, y.at(0), r.w)
	return k.svg()
}
