package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var noLength = regexp.MustCompile(`NaN|Inf|\de[+-]`)

// valid fails unless doc is well-formed XML, drawn at plain numbers with no side below zero.
func valid(t interface{ Fatalf(string, ...any) }, doc []byte) {
	d := xml.NewDecoder(bytes.NewReader(doc))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		start, _ := token.(xml.StartElement)
		for _, a := range start.Attr {
			side := a.Name.Local == "width" || a.Name.Local == "height"
			if a.Name.Local != "aria-label" && noLength.MatchString(a.Value) || side && strings.HasPrefix(a.Value, "-") {
				t.Fatalf("%s=%q in\n%s", a.Name.Local, a.Value, doc)
			}
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s changed: look at it, then run go test ./report -update\n%s", file, diff)
	}
}

func breakEven() Chart {
	return Chart{
		Title: "Where routing stops paying", XLabel: "One-way delay (ms)", YLabel: "Mean latency (s)", LogX: true,
		Series: []Series{
			{Name: "routed", X: []float64{2, 20, 200, 1000}, Y: []float64{0.504, 0.52, math.NaN(), 1.9}, Points: true},
			{Name: "no routing", X: []float64{2, 1000}, Y: []float64{0.61, 0.61}, Dashed: true},
		},
		Bands: []Band{{From: 2, To: 50, Label: "gain"}, {From: 50, To: 1000, Label: "loss"}},
		Note:  "Four nodes, 14,042 requests, seed 1.",
	}
}

// The same data give the same bytes, and only a wish changes them.
func TestChartIsAsItWas(t *testing.T) {
	got := breakEven().SVG()
	valid(t, got)
	golden(t, "breakeven.svg", got)
}

var (
	anyFloat = rapid.OneOf(
		rapid.Float64(), rapid.Float64Range(-100, 100),
		rapid.SampledFrom([]float64{0, 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, 1e100, 1e-100}),
	)
	floats = rapid.SliceOfN(anyFloat, 0, 8)
	texts  = rapid.SliceOfN(rapid.String(), 0, 4)
	series = rapid.Custom(func(t *rapid.T) Series {
		return Series{
			Name: rapid.String().Draw(t, "name"), X: floats.Draw(t, "x"), Y: floats.Draw(t, "y"),
			Dashed: rapid.Bool().Draw(t, "dashed"), Points: rapid.Bool().Draw(t, "points"), Color: rapid.IntRange(-1, 9).Draw(t, "color"),
		}
	})
	bands = rapid.Custom(func(t *rapid.T) Band {
		return Band{anyFloat.Draw(t, "from"), anyFloat.Draw(t, "to"), rapid.String().Draw(t, "label")}
	})
	charts = rapid.Custom(func(t *rapid.T) Chart {
		return Chart{
			Title: rapid.String().Draw(t, "title"), XLabel: rapid.String().Draw(t, "xlabel"), YLabel: rapid.String().Draw(t, "ylabel"),
			LogX: rapid.Bool().Draw(t, "logx"), LogY: rapid.Bool().Draw(t, "logy"), YMin: anyFloat.Draw(t, "ymin"), YMax: anyFloat.Draw(t, "ymax"),
			Series: rapid.SliceOfN(series, 0, 4).Draw(t, "series"), Bands: rapid.SliceOfN(bands, 0, 3).Draw(t, "bands"), Note: rapid.String().Draw(t, "note"),
		}
	})
)

// Whatever the data, what is drawn is valid, bounded and placed at numbers.
func TestAnyDataCanBeDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(charts, 0, 3).Draw(t, "charts")
		section := Section{Heading: rapid.String().Draw(t, "heading"), Text: rapid.String().Draw(t, "text")}
		section.Tables = []Table{{"title", texts.Draw(t, "columns"), rapid.SliceOfN(texts, 0, 3).Draw(t, "rows"), "note"}}
		section.Figures = []Figure{
			{Panels{Columns: rapid.IntRange(-1, 3).Draw(t, "per row"), Charts: all}, rapid.String().Draw(t, "caption")},
			{Bars{Groups: texts.Draw(t, "groups"), Series: rapid.SliceOfN(series, 0, 4).Draw(t, "bars")}, ""},
		}
		for _, c := range all {
			section.Figures = append(section.Figures, Figure{Drawing: c})
		}
		for _, f := range section.Figures {
			valid(t, f.Drawing.SVG())
		}
		var page, again bytes.Buffer
		p := Page{Title: "t", Lead: rapid.String().Draw(t, "lead"), Sections: []Section{section}}
		if err := errors.Join(p.WriteHTML(&page), p.WriteHTML(&again)); err != nil {
			t.Fatal(err)
		}
		valid(t, page.Bytes())
		if !bytes.Equal(page.Bytes(), again.Bytes()) {
			t.Fatal("two pages of the same data differ")
		}
		if s := section.Tables[0].String(); strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\n' }) {
			t.Fatalf("control character in %q", s)
		}
	})
}

// Text from a file of prompts cannot become markup, nor steer a terminal.
func TestTextStaysText(t *testing.T) {
	const evil = `<script>alert("&")</script>`
	c := Chart{Title: evil, XLabel: evil, YLabel: evil, Note: evil, Series: []Series{{Name: evil}}, Bands: []Band{{0, 1, evil}}}
	table := Table{Title: evil, Columns: []string{evil}, Rows: [][]string{{evil}}, Note: evil}
	var b bytes.Buffer
	page := Page{evil, evil, []Section{{evil, "- " + evil + "\n\n    " + evil, []Table{table}, []Figure{{c, evil}, {Bars{Groups: []string{evil}}, ""}}}}}
	if err := page.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "<script") {
		t.Error("markup came through")
	}
	valid(t, b.Bytes())
	if s := (Table{Rows: [][]string{{"a\x1b[2J\nb"}}}).String(); strings.Contains(s, "\x1b") || !strings.Contains(s, "a [2J b") {
		t.Errorf("terminal gets %q", s)
	}
}

// A point without a place breaks the line; one between two breaks is a dot.
func TestGaps(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name        string
		log         bool
		x, y        []float64
		lines, dots int
	}{
		{"whole", false, []float64{1, 2, 3}, []float64{1, 2, 3}, 1, 0},
		{"broken", false, []float64{1, 2, 3, 4, 5}, []float64{1, 2, nan, 4, 5}, 2, 0},
		{"infinite", false, []float64{1, 2, 3, 4, 5}, []float64{1, 2, math.Inf(1), 4, 5}, 2, 0},
		{"alone", false, []float64{1, 2, 3}, []float64{1, nan, 3}, 0, 2},
		{"single", false, []float64{3}, []float64{25}, 0, 1},
		{"zero on a log axis", true, []float64{0, 1, 10}, []float64{1, 2, 3}, 1, 0},
		{"ragged", false, []float64{1, 2, 3}, []float64{1, 2}, 1, 0},
		{"flat", false, []float64{1, 2}, []float64{5, 5}, 1, 0},
		{"empty", false, nil, nil, 0, 0},
	} {
		svg := string(Chart{LogX: test.log, Series: []Series{{X: test.x, Y: test.y}}}.SVG())
		_, data, _ := strings.Cut(svg, "<svg x=")
		if dots := strings.Count(data, "translate"); dots != test.dots {
			t.Errorf("%s: %d dots, want %d", test.name, dots, test.dots)
		}
		if line := regexp.MustCompile(`<path d="([^"]*)" fill="none"`).FindStringSubmatch(data); test.lines > 0 && (line == nil || strings.Count(line[1], "M") != test.lines) {
			t.Errorf("%s: path %q, want %d lines", test.name, line, test.lines)
		}
		if strings.Contains(svg, "no data") != (test.x == nil) {
			t.Errorf("%s: says the wrong thing of having data", test.name)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, test := range []struct {
		values    []float64
		log, room bool
		want      string
	}{
		{[]float64{0, 100}, false, true, "0 20 40 60 80 100"},
		{[]float64{0.5, 0.61}, false, true, "0.50 0.52 0.54 0.56 0.58 0.60 0.62 0.64"},
		{[]float64{3, 87}, false, true, "0 20 40 60 80 100"},
		{[]float64{-3, 3}, false, true, "-4 -3 -2 -1 0 1 2 3 4"},
		{[]float64{25, 25}, false, true, "0 10 20 30 40 50"},
		{[]float64{0, 0}, false, false, "-1.0 -0.5 0 0.5 1.0"},
		{[]float64{0, 2.5e6}, false, false, "0 500,000 1.0 M 1.5 M 2.0 M 2.5 M"},
		{[]float64{2, 90}, true, false, "2 5 10 20 50"},
		{[]float64{0.001, 1e9}, true, false, "0.001 0.1 10 1,000 100,000 10 M 1 G"},
		{[]float64{3, 400}, true, true, "2 5 10 20 50 100 200 500"},
		{[]float64{3, 4}, true, false, "3.0 3.2 3.4 3.6 3.8 4.0"},
		{nil, true, true, "1 2 5 10"},
	} {
		a := span(test.values, test.log, test.room)
		a.tick(9)
		if got := strings.Join(a.labels, " "); got != test.want {
			t.Errorf("ticks of %v are %s, want %s", test.values, got, test.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.785: "0.785", 83.14: "83.1", 9.996: "10.0", 14042: "14,042", -1234567: "-1.23 M", 42e9: "42.0 G", 1e15: "1e+15", 3e-9: "3e-09", math.Inf(1): "–",
	} {
		if got := Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
}

// Columns line up, numbers by their right edge.
func ExampleTable_String() {
	fmt.Print(Table{
		Title:   "Table 1: mean latency",
		Columns: []string{"Configuration", "Paper (s)", "Here", "Hot spot"},
		Rows:    [][]string{{"2 ms, routed", "0.504", "504 ms", "65-88 %"}, {"no routing", "0.61", "–"}},
		Note:    "Seed 1.",
	})
	// Output:
	// Table 1: mean latency
	// Configuration  Paper (s)    Here  Hot spot
	// -------------  ---------  ------  --------
	// 2 ms, routed       0.504  504 ms   65-88 %
	// no routing          0.61       –
	// Seed 1.
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriteErrorsComeBack(t *testing.T) {
	if err := (Page{}).WriteHTML(full{}); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
}
