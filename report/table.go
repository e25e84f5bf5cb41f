package report

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Table is rows of cells, already formatted. Columns of numbers, with or
// without a unit, are set to the right.
type Table struct {
	Title   string
	Columns []string
	Rows    [][]string
	Note    string
}

// String sets the table for a terminal, a line a row.
func (t Table) String() string {
	rows := append([][]string{t.Columns}, t.Rows...)
	widths := make([]int, t.width())
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(clean(cell)))
		}
	}
	numeric := t.numeric()
	rule := make([]string, len(widths))
	for i, w := range widths {
		rule[i] = strings.Repeat("-", w)
	}
	var b strings.Builder
	put := func(s string) {
		if s = strings.TrimRight(s, " "); s != "" {
			b.WriteString(s + "\n")
		}
	}
	put(clean(t.Title))
	for i, row := range rows {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = clean(cell)
			pad := strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cells[j]))
			if numeric[j] {
				cells[j] = pad + cells[j]
			} else {
				cells[j] += pad
			}
		}
		put(strings.Join(cells, "  "))
		if i == 0 {
			put(strings.Join(rule, "  "))
		}
	}
	put(clean(t.Note))
	return b.String()
}

// clean keeps a cell on its line, and control sequences from the terminal.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// width returns how many columns the longest row has.
func (t Table) width() int {
	n := len(t.Columns)
	for _, row := range t.Rows {
		n = max(n, len(row))
	}
	return n
}

// numeric tells which columns hold numbers: each cell a number and one word at
// most (83.1, 42 MB, 65-88 %), or a dash or nothing where there is none.
func (t Table) numeric() []bool {
	numbers, texts := make([]int, t.width()), make([]int, t.width())
	for _, row := range t.Rows {
		for i, cell := range row {
			cell = strings.TrimLeft(clean(cell), "+-−–—±<>≈~ ")
			words := 0
			for _, f := range strings.Fields(cell) {
				if strings.ContainsFunc(f, unicode.IsLetter) {
					words++
				}
			}
			switch {
			case cell == "":
			case cell[0] >= '0' && cell[0] <= '9' && words <= 1:
				numbers[i]++
			default:
				texts[i]++
			}
		}
	}
	columns := make([]bool, len(numbers))
	for i := range columns {
		columns[i] = numbers[i] > 0 && texts[i] == 0
	}
	return columns
}

// html writes the table into a page.
func (t Table) html(m *markup) {
	numeric := t.numeric()
	put := func(element string, cells []string) {
		m.add("<tr>")
		for i, number := range numeric {
			cell, class := "", "text"
			if i < len(cells) {
				cell = cells[i]
			}
			if number {
				class = "number"
			}
			m.add(`<%v class="%v">%v</%v>`, element, class, cell, element)
		}
		m.add("</tr>\n")
	}
	m.add("<table>\n")
	if t.Title != "" {
		m.add("<caption>%v</caption>\n", t.Title)
	}
	m.add("<thead>\n")
	put("th", t.Columns)
	m.add("</thead>\n<tbody>\n")
	for _, row := range t.Rows {
		put("td", row)
	}
	m.add("</tbody>\n</table>\n")
	if t.Note != "" {
		m.add(`<p class="note">%v</p>`+"\n", t.Note)
	}
}
