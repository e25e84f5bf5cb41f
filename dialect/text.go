package dialect

import (
	"bytes"
	"encoding/hex"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// A lone surrogate is written as UTF-8 would write it if it were a character,
// three bytes that no UTF-8 has, so that it stays apart from any other text.
const surrogateLead = 0xED

// appendUnescaped appends the text of a checked JSON string, given without its
// quotes. With keep, what must be escaped in JSON stays so, in one way of several.
func appendUnescaped(dst, raw []byte, keep bool) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := rune(raw[i+1])
		raw = raw[i+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			c, raw = hex4(raw), raw[4:]
		}
		if keep && (c < ' ' || c == '"' || c == '\\') {
			dst = appendEscaped(dst, byte(c))
		} else {
			dst = appendRune(dst, c)
		}
	}
}

// appendEscaped appends a quote, a backslash or a control character as it stands
// in a JSON string.
func appendEscaped(dst []byte, c byte) []byte {
	if c >= ' ' {
		return append(dst, '\\', c)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
}

const hexDigits = "0123456789abcdef"

// appendRune appends a character, a lone surrogate, or the second half of the
// surrogate pair of which dst ends with the first.
func appendRune(dst []byte, c rune) []byte {
	if c < 0xD800 || c > 0xDFFF {
		return utf8.AppendRune(dst, c)
	}
	if n := len(dst) - 3; n >= 0 && c >= 0xDC00 && dst[n] == surrogateLead && dst[n+1]&0xF0 == 0xA0 {
		high := rune(surrogateLead&0xF)<<12 | rune(dst[n+1]&0x3F)<<6 | rune(dst[n+2]&0x3F)
		return utf8.AppendRune(dst[:n], (high-0xD800)<<10+(c-0xDC00)+0x10000)
	}
	return append(dst, surrogateLead, 0x80|byte(c>>6)&0x3F, 0x80|byte(c)&0x3F)
}

// appendQuoted appends text as a JSON string.
func appendQuoted(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c < ' ' || c == '"' || c == '\\':
			dst = appendEscaped(dst, c)
		case c == surrogateLead && i+2 < len(text) && text[i+1] >= 0xA0:
			dst = append(dst, '\\', 'u', 'd', hexDigits[text[i+1]>>2&0xF], hexDigits[text[i+1]&3<<2|text[i+2]>>4&3], hexDigits[text[i+2]&0xF])
			i += 2
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// foldKey returns the form in which Go's encoding/json, which Ollama reads its
// requests with, finds two keys equal.
func foldKey(key []byte) []byte {
	folded := make([]byte, 0, len(key))
	for _, c := range string(key) {
		least := c // of the characters that differ from c in case alone, such as k, K and the Kelvin sign
		for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		if 'A' <= least && least <= 'Z' {
			least += 'a' - 'A'
		}
		folded = utf8.AppendRune(folded, least)
	}
	return folded
}

const (
	// sortMax is how many members are put in order at a time, those of all
	// objects around included. A larger object is named as it was written.
	sortMax = 1 << 14

	// mediaMin is the length from which media are named by a hash of their
	// content, which has 32 digits.
	mediaMin = 64
)

type member struct {
	key []byte // as it stands between the quotes of canonical JSON
	val value
}

// A frame is a list or an object that is being written.
type frame struct {
	object bool
	begun  bool
	rest   value // of a list: the next value
	lo, hi int   // of an object: where its members begin, and the next one
}

// appendCanonical appends v the same way however it was spelled: keys in order,
// the last of equal ones alone, no white space, escapes only where they must be,
// numbers digit for digit. Media, the strings under "data" and the data: URLs,
// are named by a hash of their content, and cache_control, which says nothing to
// the model, is left out. It does not recurse and takes time linear in the value,
// but for sorting.
func (d *doc) appendCanonical(dst []byte, v value) []byte {
	d.stack, d.ordered = d.stack[:0], d.ordered[:0]
	for media, more := false, true; more; {
		dst = d.enter(dst, v, media)
		dst, v, media, more = d.advance(dst)
	}
	return dst
}

// enter writes v, or what opens it.
func (d *doc) enter(dst []byte, v value, media bool) []byte {
	switch d.b[v.at] {
	case '{':
		lo := len(d.ordered)
		if d.collect(v); len(d.ordered) > sortMax {
			d.ordered = d.ordered[:lo]
			return append(dst, d.raw(v)...)
		}
		d.ordered = d.ordered[:lo+len(order(d.ordered[lo:]))]
		d.stack = append(d.stack, frame{object: true, lo: lo, hi: lo})
		return append(dst, '{')
	case '[':
		d.stack = append(d.stack, frame{rest: d.first(v)})
		return append(dst, '[')
	case '"':
		return d.appendCanonicalString(dst, v, media)
	}
	return append(dst, d.raw(v)...)
}

// advance closes what ends here and returns the value that comes next, if there
// is one, and whether its key says that it is an image or a recording.
func (d *doc) advance(dst []byte) (_ []byte, next value, media, more bool) {
	for len(d.stack) > 0 {
		f := &d.stack[len(d.stack)-1]
		switch {
		case f.object && f.hi == len(d.ordered):
			d.ordered = d.ordered[:f.lo]
			d.stack = d.stack[:len(d.stack)-1]
			dst = append(dst, '}')
			continue
		case !f.object && !f.rest.given():
			d.stack = d.stack[:len(d.stack)-1]
			dst = append(dst, ']')
			continue
		case f.begun:
			dst = append(dst, ',')
		}
		if f.begun = true; !f.object {
			next, f.rest = f.rest, d.after(f.rest)
			return dst, next, false, true
		}
		m := d.ordered[f.hi]
		f.hi++
		dst = append(append(append(dst, '"'), m.key...), '"', ':')
		return dst, m.val, string(m.key) == "data", true
	}
	return dst, value{}, false, false
}

// collect puts the members of the object v into d.ordered, until there are more
// than sortMax.
func (d *doc) collect(v value) {
	for key := d.first(v); key.given() && len(d.ordered) <= sortMax; {
		name, m := d.inner(key), d.held(key)
		if bytes.IndexByte(name, '\\') >= 0 {
			name = appendUnescaped(nil, name, true)
		}
		if string(name) != "cache_control" {
			d.ordered = append(d.ordered, member{name, m})
		}
		key = d.after(m)
	}
}

// order sorts members by key and keeps the last of equal ones.
func order(all []member) []member {
	slices.SortStableFunc(all, func(a, b member) int { return bytes.Compare(a.key, b.key) })
	kept := all[:0]
	for i, m := range all {
		if i+1 == len(all) || !bytes.Equal(m.key, all[i+1].key) {
			kept = append(kept, m)
		}
	}
	return kept
}

func (d *doc) appendCanonicalString(dst []byte, v value, media bool) []byte {
	raw := d.inner(v)
	dst = append(dst, '"')
	if media || len(raw) > 0 && (raw[0] == 'd' || raw[0] == '\\') {
		dst = d.appendMedia(dst, raw, media)
	} else {
		dst = appendUnescaped(dst, raw, true)
	}
	return append(dst, '"')
}

// appendMedia appends the text of a checked JSON string as it stands in canonical
// JSON, or its name if it is long and an image or a recording: it is known to be
// such, or is a data: URL. It then sets d.named.
func (d *doc) appendMedia(dst, raw []byte, known bool) []byte {
	text := raw
	if bytes.IndexByte(raw, '\\') >= 0 {
		text = appendUnescaped(nil, raw, true)
	}
	if len(text) < mediaMin || !known && !bytes.HasPrefix(text, []byte("data:")) {
		return append(dst, text...)
	}
	d.named = true
	return appendName(dst, text)
}

// appendName appends the hash that stands for a content, as 32 digits. It is not
// a cryptographic one: who makes two pictures share a name has them computed
// where neither is cached.
func appendName(dst, content []byte) []byte {
	sum := xxh3.Hash128(content).Bytes()
	return hex.AppendEncode(dst, sum[:])
}
