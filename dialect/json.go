package dialect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// DepthMax is how many lists and objects within one another are read. No
// request that an engine takes comes near it.
const DepthMax = 512

// boxesMax is how many lists and objects a text may hold, which bounds the index
// to 8 MiB. A conversation has a few for each message.
const boxesMax = 1 << 20

// ErrDepth is the error of a body that is nested deeper than DepthMax.
var ErrDepth = errors.New("JSON nested too deep")

var errBoxes = errors.New("JSON of too many lists and objects")

// A doc is a JSON text that was checked once, from front to back, and can be
// walked without further errors. The check leaves behind where each list and
// object ends, so that a walk steps over what it does not want; nothing else is
// built, and walking copies nothing.
type doc struct {
	b     []byte
	boxes []box // lists and objects in the order in which they open, from 1 on
	fold  bool  // keys count without regard to case

	stack   []frame  // scratch of appendCanonical
	ordered []member // likewise
	named   bool     // appendCanonical has named media by their content
}

type box struct {
	end  uint32 // offset behind the closing bracket
	next uint32 // the first box that opens after it
}

// A value is one in a doc: its bytes, and the boxes that are in it. The zero
// value is none.
type value struct {
	at, end   int // b[at:end]
	box, next int // boxes[box:next]
}

func (v value) given() bool { return v.box > 0 }

func (v value) span() Span { return Span{v.at, v.end} }

// parse checks that b is one JSON value as RFC 8259 has it, up to DepthMax. Bytes
// that are not UTF-8 pass, and what Python's json, which vLLM and SGLang read
// requests with, takes besides: NaN, Infinity and -Infinity for numbers, and a byte
// order mark before it all, as llama.cpp does too. It takes time linear in len(b),
// and eight bytes for each list and object.
func (d *doc) parse(b []byte) error {
	d.b, d.boxes = b, append(d.boxes[:0], box{})
	if len(b) > math.MaxUint32 {
		return errors.New("JSON of more than 4 GiB")
	}
	var open [DepthMax]uint32 // boxes that are not closed yet
	var kind [DepthMax]byte
	depth, i := 0, d.begin()
	for {
		// A value begins at i.
		switch c := d.peek(i); c {
		case '{', '[':
			if depth == DepthMax {
				return ErrDepth
			}
			if len(d.boxes) > boxesMax {
				return errBoxes
			}
			open[depth], kind[depth] = uint32(len(d.boxes)), c
			depth++
			d.boxes = append(d.boxes, box{})
			if i = d.space(i + 1); d.peek(i) == c+2 { // an ASCII bracket and its partner are two apart
				break
			}
			if c == '{' {
				if i = d.checkKey(i); i < 0 {
					return d.bad(-i)
				}
			}
			continue
		default:
			if i = d.checkScalar(i); i < 0 {
				return d.bad(-i)
			}
		}
		// A value or an opening bracket lies behind: close what ends here.
		for i = d.space(i); ; i = d.space(i) {
			if depth == 0 {
				if i < len(b) {
					return d.bad(i + 1)
				}
				return nil
			}
			if d.peek(i) != kind[depth-1]+2 {
				break
			}
			depth--
			i++
			d.boxes[open[depth]] = box{end: uint32(i), next: uint32(len(d.boxes))}
		}
		if d.peek(i) != ',' {
			return d.bad(i + 1)
		}
		if i = d.space(i + 1); kind[depth-1] == '{' {
			if i = d.checkKey(i); i < 0 {
				return d.bad(-i)
			}
		}
	}
}

// bad is the error of a text that goes wrong at its n-th byte, counted from one.
func (d *doc) bad(n int) error { return fmt.Errorf("not JSON from byte %d on", n) }

// peek returns the byte at i, and 0, which no JSON has outside of strings, behind
// the end.
func (d *doc) peek(i int) byte {
	if i < len(d.b) {
		return d.b[i]
	}
	return 0
}

// bom is UTF-8's byte order mark.
const bom = "\ufeff"

// begin returns the offset of the root.
func (d *doc) begin() int {
	if bytes.HasPrefix(d.b, []byte(bom)) {
		return d.space(len(bom))
	}
	return d.space(0)
}

func (d *doc) space(i int) int {
	for i < len(d.b) && (d.b[i] == ' ' || d.b[i] == '\n' || d.b[i] == '\t' || d.b[i] == '\r') {
		i++
	}
	return i
}

// The checks return the offset behind what they checked, or, negative, the
// number of the byte at which it goes wrong.

func (d *doc) checkKey(i int) int {
	if d.peek(i) != '"' {
		return -(i + 1)
	}
	if i = d.checkString(i); i < 0 {
		return i
	}
	if i = d.space(i); d.peek(i) != ':' {
		return -(i + 1)
	}
	return d.space(i + 1)
}

func (d *doc) checkScalar(i int) int {
	word := ""
	switch d.peek(i) {
	case '"':
		return d.checkString(i)
	case 't':
		word = "true"
	case 'f':
		word = "false"
	case 'n':
		word = "null"
	case 'N':
		word = "NaN"
	case 'I':
		word = "Infinity"
	default:
		return d.checkNumber(i)
	}
	return d.checkWord(i, word)
}

func (d *doc) checkWord(i int, word string) int {
	if len(d.b)-i < len(word) || string(d.b[i:i+len(word)]) != word {
		return -(i + 1)
	}
	return i + len(word)
}

func (d *doc) checkNumber(i int) int {
	digits := func() bool {
		from := i
		for '0' <= d.peek(i) && d.peek(i) <= '9' {
			i++
		}
		return i > from
	}
	if d.peek(i) == '-' {
		if i++; d.peek(i) == 'I' {
			return d.checkWord(i, "Infinity")
		}
	}
	if d.peek(i) == '0' {
		i++
	} else if !digits() {
		return -(i + 1)
	}
	if d.peek(i) == '.' {
		if i++; !digits() {
			return -(i + 1)
		}
	}
	if c := d.peek(i); c == 'e' || c == 'E' {
		if i++; d.peek(i) == '+' || d.peek(i) == '-' {
			i++
		}
		if !digits() {
			return -(i + 1)
		}
	}
	return i
}

func (d *doc) checkString(i int) int {
	for i++; ; {
		i = plain(d.b, i)
		switch d.peek(i) {
		case '"':
			return i + 1
		case '\\':
			switch d.peek(i + 1) {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i += 2
			case 'u':
				if i+6 > len(d.b) || hex4(d.b[i+2:i+6]) < 0 {
					return -(i + 1)
				}
				i += 6
			default:
				return -(i + 1)
			}
		default: // a control character, or the end
			return -(i + 1)
		}
	}
}

// plain returns the offset of the first byte of b from i on that means something
// in a JSON string: a quote, a backslash, a control character; or len(b). It
// looks at eight bytes at a time.
func plain(b []byte, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The lowest top bit is right; a borrow may set wrong ones above it.
		if m := ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w) & tops; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		i++
	}
	return i
}

// hex4 returns the value of four hexadecimal digits, or -1.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// root is the whole text's value.
func (d *doc) root() value { return d.value(d.begin(), 1) }

// value returns the value that begins at an offset, where box is the first box
// that opens there or later. A list or object is stepped over at once.
func (d *doc) value(at, box int) value {
	i := at
	switch d.b[at] {
	case '{', '[':
		return value{at, int(d.boxes[box].end), box, int(d.boxes[box].next)}
	case '"':
		for i = plain(d.b, i+1); d.b[i] == '\\'; {
			i = plain(d.b, i+2)
		}
		return value{at, i + 1, box, box}
	}
	for i < len(d.b) && d.b[i] > ' ' && d.b[i] != ',' && d.b[i] != ']' && d.b[i] != '}' {
		i++
	}
	return value{at, i, box, box}
}

// first returns the first value in a list, or the first key in an object.
func (d *doc) first(v value) value {
	if i := d.space(v.at + 1); d.b[i] != d.b[v.at]+2 {
		return d.value(i, v.box+1)
	}
	return value{}
}

// after returns what a comma separates from v: the next value, or the next key.
func (d *doc) after(v value) value {
	if i := d.space(v.end); d.b[i] == ',' {
		return d.value(d.space(i+1), v.next)
	}
	return value{}
}

// held returns the value behind a key.
func (d *doc) held(key value) value {
	return d.value(d.space(d.space(key.end)+1), key.next)
}

// kind returns the first byte of v, one of { [ " t f n - N I or a digit, and n for
// none: what is not there is null.
func (d *doc) kind(v value) byte {
	if !v.given() {
		return 'n'
	}
	return d.b[v.at]
}

// raw returns v as it was written.
func (d *doc) raw(v value) []byte { return d.b[v.at:v.end] }

// inner returns the string v as it was written, without its quotes.
func (d *doc) inner(v value) []byte { return d.b[v.at+1 : v.end-1] }

// members yields the keys and values of v, if it is an object, in the order in
// which they were written.
func (d *doc) members(v value) iter.Seq2[[]byte, value] {
	return func(yield func([]byte, value) bool) {
		if d.kind(v) != '{' {
			return
		}
		for key := d.first(v); key.given(); {
			m := d.held(key)
			if !yield(d.key(key), m) {
				return
			}
			key = d.after(m)
		}
	}
}

// member returns what v, if it is an object, holds under this key.
func (d *doc) member(v value, name string) (last value) {
	for key, m := range d.members(v) {
		if string(key) == name {
			last = m
		}
	}
	return last
}

// elements yields the values of v, if it is a list.
func (d *doc) elements(v value) iter.Seq[value] {
	return func(yield func(value) bool) {
		if d.kind(v) != '[' {
			return
		}
		for e := d.first(v); e.given(); e = d.after(e) {
			if !yield(e) {
				return
			}
		}
	}
}

// key returns a key as it counts.
func (d *doc) key(v value) []byte {
	key := d.str(v)
	if d.fold && bytes.ContainsFunc(key, func(c rune) bool { return c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' }) {
		key = foldKey(key)
	}
	return key
}

// appendString appends the text of v, if it is a string.
func (d *doc) appendString(dst []byte, v value) []byte {
	if d.kind(v) != '"' {
		return dst
	}
	return appendUnescaped(dst, d.inner(v), false)
}

// str returns the text of v, nil if it is no string. It may be a part of d.b.
func (d *doc) str(v value) []byte {
	if d.kind(v) != '"' {
		return nil
	}
	if text := d.inner(v); bytes.IndexByte(text, '\\') < 0 {
		return text
	}
	return d.appendString(nil, v)
}

// null says whether v is null or none.
func (d *doc) null(v value) bool { return d.kind(v) == 'n' }

// empty says whether v says nothing: none, null, false, "", [] or {}.
func (d *doc) empty(v value) bool {
	switch d.kind(v) {
	case 'n', 'f':
		return true
	case '"':
		return v.end == v.at+2
	case '[', '{':
		return !d.first(v).given()
	}
	return false
}

// number says whether v is a number.
func (d *doc) number(v value) bool {
	c := d.kind(v)
	return c == '-' || '0' <= c && c <= '9' || c == 'N' || c == 'I'
}

// integer returns v, if it is a number of tokens: not negative and of digits alone.
func (d *doc) integer(v value) (int, bool) {
	if !d.number(v) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(d.raw(v)), 10, 31)
	if err != nil { // of one that is too large n is the largest
		return 0, false
	}
	return int(n), true
}
