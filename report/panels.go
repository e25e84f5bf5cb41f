package report

// Panels draws small charts in rows under one title, with one legend, so
// a series has the same place, or Color, in all of them. Axis names that all
// share are drawn once.
type Panels struct {
	Title   string
	Columns int // charts a row; 0 is 2
	Charts  []Chart
	Note    string
}

// SVG draws the panels for a slide, higher from the third row on.
func (p Panels) SVG() []byte {
	const gap, row = 28.0, 180.0
	columns := p.Columns
	if columns <= 0 {
		columns = 2
	}
	rows := max((len(p.Charts)+columns-1)/columns, 1)
	xLabel, yLabel := p.common()
	k, body := frame(p.Title, p.Note, p.looks(), false, row*float64(rows)+2*line)
	if yLabel != "" {
		k.text(body.x, body.y+16, "start", yLabel)
		body = body.cut(line, 0, 0, 0)
	}
	if xLabel != "" {
		k.text(body.x+body.w/2, body.bottom()-6, "middle", xLabel)
		body = body.cut(0, 0, line, 0)
	}
	w, h := (body.w+gap)/float64(columns), body.h/float64(rows)
	for i, c := range p.Charts {
		r := rect{body.x + w*float64(i%columns), body.y + h*float64(i/columns), w - gap, h}
		for _, s := range wrap(c.Title, font, r.w) {
			k.add(`<text x="%v" y="%v" font-weight="bold">%v</text>`+"\n", r.x, r.y+20, s)
			r = r.cut(line, 0, 0, 0)
		}
		if xLabel != "" {
			c.XLabel = ""
		}
		if yLabel != "" {
			c.YLabel = ""
		}
		c.plot(k, r)
	}
	return k.svg()
}

// common returns the axis names that all charts share.
func (p Panels) common() (x, y string) {
	for i, c := range p.Charts {
		if i == 0 {
			x, y = c.XLabel, c.YLabel
		}
		if c.XLabel != x {
			x = ""
		}
		if c.YLabel != y {
			y = ""
		}
	}
	return x, y
}

// looks returns those of all charts, each once.
func (p Panels) looks() []look {
	var all []look
	seen := map[look]bool{}
	for _, c := range p.Charts {
		for _, l := range looks(c.Series) {
			if !seen[l] {
				seen[l] = true
				all = append(all, l)
			}
		}
	}
	return all
}
