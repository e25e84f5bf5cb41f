// Package report draws results for people: charts as SVG for a slide, tables
// for the terminal, and one HTML page that holds both.
//
// A Chart, Panels or Bars is plain data with an SVG method; a Page is plain data
// that writes itself, with its drawings and its style inside, no script, and
// nothing to load, so it can be mailed, printed and opened from a disk. The same
// data give the same bytes, so that two runs can be compared by their reports.
// Any data can be drawn: what has no place on an axis leaves a gap, and all text
// is escaped.
//
// It knows nothing of what it draws.
package report

import (
	"io"
	"strings"
)

// A Page is a report: sections of text, tables and figures.
//
// Texts are paragraphs with empty lines between them. A paragraph whose lines
// begin with "- " is a list, one indented by four spaces is set as it stands, as
// commands are.
type Page struct {
	Title    string
	Lead     string
	Sections []Section
}

// A Section of a page: its heading and text, then its tables, then its figures.
type Section struct {
	Heading, Text string
	Tables        []Table
	Figures       []Figure
}

// A Figure is a drawing and what to see in it.
type Figure struct {
	Drawing interface{ SVG() []byte } // a Chart, Panels or Bars
	Caption string
}

const style = `
:root { color-scheme: light dark; --line: #ccc; --quiet: #555; --code: #f4f4f4 }
@media (prefers-color-scheme: dark) { :root { --line: #444; --quiet: #aaa; --code: #222 } body { background: #141414; color: #e4e4e4 } }
body { font: 17px/1.5 system-ui, Helvetica, Arial, sans-serif; max-width: 76rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 2rem; line-height: 1.2 } h2 { font-size: 1.4rem; margin-top: 3rem }
p, ul { max-width: 44rem } pre { background: var(--code); padding: .75rem 1rem; overflow-x: auto }
.lead { font-size: 1.15rem } .note, figcaption { color: var(--quiet); font-size: .9rem }
table { border-collapse: collapse; margin: 1.5rem 0 .5rem; font-variant-numeric: tabular-nums }
caption { text-align: left; font-weight: bold; padding-bottom: .4rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line) }
th { vertical-align: bottom } .number { text-align: right } td:first-child { min-width: 12rem }
section { overflow-x: auto }
figure { margin: 2rem 0 } figure svg { max-width: 100%; height: auto; display: block }
@media print { body { font-size: 11pt; margin: 0; max-width: none } section { overflow: visible } table { font-size: 8pt } h2 { break-after: avoid } figure, table, pre { break-inside: avoid } }
`

// WriteHTML writes the page as one file.
func (p Page) WriteHTML(w io.Writer) error {
	var m markup
	m.add("<!DOCTYPE html>\n" + `<html lang="en"><head><meta charset="utf-8"/>` + "\n")
	m.add(`<meta name="viewport" content="width=device-width, initial-scale=1"/>`+"\n<title>%v</title>\n<style>%v</style></head>\n<body>\n", p.Title, []byte(style))
	m.add("<h1>%v</h1>\n<div class=\"lead\">\n", p.Title)
	m.prose(p.Lead)
	m.add("</div>\n")
	for _, s := range p.Sections {
		m.add("<section>\n<h2>%v</h2>\n", s.Heading)
		m.prose(s.Text)
		for _, t := range s.Tables {
			t.html(&m)
		}
		for _, f := range s.Figures {
			m.add("<figure>\n%v<figcaption>%v</figcaption>\n</figure>\n", f.Drawing.SVG(), f.Caption)
		}
		m.add("</section>\n")
	}
	m.add("</body></html>\n")
	_, err := w.Write(m.Bytes())
	return err
}

// prose writes a text as Page describes it.
func (m *markup) prose(text string) {
	const indent = "    "
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		switch paragraph = strings.Trim(paragraph, "\n"); {
		case strings.TrimSpace(paragraph) == "":
		case strings.HasPrefix(paragraph, "- "):
			m.add("<ul>\n")
			for item := range strings.SplitSeq(paragraph[2:], "\n- ") {
				m.add("<li>%v</li>\n", item)
			}
			m.add("</ul>\n")
		case strings.HasPrefix(paragraph, indent):
			m.add("<pre>%v</pre>\n", strings.ReplaceAll(paragraph[len(indent):], "\n"+indent, "\n"))
		default:
			m.add("<p>%v</p>\n", paragraph)
		}
	}
}
