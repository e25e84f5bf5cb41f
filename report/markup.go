package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// markup collects XML. What add is given is escaped there, once, so that no
// caller can forget to.
type markup struct{ bytes.Buffer }

// add writes format with its arguments: text is escaped, lengths are rounded to
// a tenth of a pixel, []byte is markup already.
func (m *markup) add(format string, args ...any) {
	safe := make([]any, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case string:
			var b strings.Builder
			_ = xml.EscapeText(&b, []byte(a)) // a Builder never fails
			safe[i] = b.String()
		case float64:
			safe[i] = pixels(a)
		case []byte:
			safe[i] = string(a)
		default:
			safe[i] = a
		}
	}
	fmt.Fprintf(m, format, safe...)
}

// pixels keeps a length short and within what every viewer can draw, however
// far outside the chart a value lies.
func pixels(v float64) string {
	v = math.Round(min(max(v, -1e5), 1e5)*10) / 10
	return strconv.FormatFloat(v+0, 'f', -1, 64)
}

// textWidth estimates how wide s is set: the fonts of the viewer are unknown
// here, so it takes a wide one.
func textWidth(s string, size float64) float64 {
	return 0.57 * size * float64(utf8.RuneCountInString(s))
}

// wrap breaks s between words into lines of at most width.
func wrap(s string, size, width float64) []string {
	var lines []string
	for _, word := range strings.Fields(s) {
		if n := len(lines); n > 0 && textWidth(lines[n-1]+" "+word, size) <= width {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// Number writes v for people: three digits that matter, thousands set apart,
// M and G for millions and billions, a dash for what is not a number.
func Number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	// Rounding first finds the digits of 9.996 to be those of 10.
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 2, 64), 64)
	return format(v, math.Abs(rounded)/100)
}

// format writes v to the decimals that tell it from v+step; beyond a million
// millions and below a millionth, as a power of ten.
func format(v, step float64) string {
	size := math.Abs(v)
	switch {
	case size == 0:
		return "0"
	case size >= 1e12 || step < 1e-6:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case size >= 1e9:
		return format(v/1e9, step/1e9) + " G"
	case size >= 1e6:
		return format(v/1e6, step/1e6) + " M"
	}
	decimals := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	whole, fraction, _ := strings.Cut(s, ".")
	digits := strings.TrimPrefix(whole, "-")
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if strings.HasPrefix(whole, "-") {
		digits = "-" + digits
	}
	if fraction != "" {
		digits += "." + fraction
	}
	return digits
}
