package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"
)

// A reader reads msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md)
// from memory. It allocates for texts alone, and never more than there is: a value
// that announces more than is left is an error at once.
type reader struct {
	raw []byte
	at  int
}

var errShort = errors.New("msgpack: it is cut off")

func wrong(code byte, want string) error {
	return fmt.Errorf("msgpack: a value of type %#x, where %s is due", code, want)
}

// The codes that are single. Those of fixed values, strings, arrays and maps hold a
// number in their low bits.
const (
	codeNil                          = 0xc0
	codeBin8, codeBin32              = 0xc4, 0xc6
	codeExt8, codeExt32              = 0xc7, 0xc9
	codeFloat32, codeFloat64         = 0xca, 0xcb
	codeUint8, codeUint64            = 0xcc, 0xcf
	codeInt8, codeInt64              = 0xd0, 0xd3
	codeFixExt1, codeFixExt16        = 0xd4, 0xd8
	codeStr8, codeStr32              = 0xd9, 0xdb
	codeArray16, codeArray32         = 0xdc, 0xdd
	codeMap16, codeMap32             = 0xde, 0xdf
	fixMap, fixArray, fixStr         = 0x80, 0x90, 0xa0
	fixMapEnd, fixArrayEnd           = 0x8f, 0x9f
	fixStrEnd                        = 0xbf
	positiveFixEnd, negativeFix      = 0x7f, 0xe0
	maxNesting                       = 16
	codeFalse, codeTrue         byte = 0xc2, 0xc3
)

func isMap(c byte) bool {
	return c >= fixMap && c <= fixMapEnd || c == codeMap16 || c == codeMap32
}

func isArray(c byte) bool {
	return c >= fixArray && c <= fixArrayEnd || c == codeArray16 || c == codeArray32
}

func isText(c byte) bool {
	return c >= fixStr && c <= fixStrEnd || c >= codeStr8 && c <= codeStr32
}

func isBytes(c byte) bool { return c >= codeBin8 && c <= codeBin32 }

// peek returns the code of the next value, 0xc1, which is none, at the end.
func (r *reader) peek() byte {
	if r.at >= len(r.raw) {
		return 0xc1
	}
	return r.raw[r.at]
}

func (r *reader) null() bool { return r.peek() == codeNil }

// take returns the next n bytes.
func (r *reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.raw)-r.at) {
		return nil, errShort
	}
	b := r.raw[r.at : r.at+int(n)]
	r.at += int(n)
	return b, nil
}

// number reads a big-endian one of so many bytes.
func (r *reader) number(size int) (uint64, error) {
	b, err := r.take(uint64(size))
	if err != nil {
		return 0, err
	}
	var whole [8]byte
	copy(whole[8-size:], b)
	return binary.BigEndian.Uint64(whole[:]), nil
}

// integer reads one as 64 bits, of which negative says how they count.
func (r *reader) integer() (bits uint64, negative bool, err error) {
	c := r.peek()
	switch {
	case c <= positiveFixEnd:
		r.at++
		return uint64(c), false, nil
	case c >= negativeFix:
		r.at++
		return uint64(int64(int8(c))), true, nil
	case c >= codeUint8 && c <= codeUint64:
		r.at++
		bits, err = r.number(1 << (c - codeUint8))
		return bits, false, err
	case c >= codeInt8 && c <= codeInt64:
		r.at++
		size := 1 << (c - codeInt8)
		bits, err = r.number(size)
		shift := 64 - 8*size
		signed := int64(bits<<shift) >> shift
		return uint64(signed), signed < 0, err
	}
	return 0, false, wrong(c, "an integer")
}

// count reads an integer from 0 to a limit.
func (r *reader) count(limit uint64) (uint64, error) {
	n, negative, err := r.integer()
	if err == nil && (negative || n > limit) {
		err = errBounds
	}
	return n, err
}

// text reads a string; null is the empty one.
func (r *reader) text() (string, error) {
	c := r.peek()
	if c == codeNil {
		r.at++
		return "", nil
	}
	if !isText(c) {
		return "", wrong(c, "a text")
	}
	b, err := r.blob()
	return string(b), err
}

// blob reads a string's bytes, or bytes.
func (r *reader) blob() ([]byte, error) {
	c := r.peek()
	r.at++
	var n uint64
	var err error
	switch {
	case c >= fixStr && c <= fixStrEnd:
		n = uint64(c - fixStr)
	case c >= codeStr8 && c <= codeStr32:
		n, err = r.number(1 << (c - codeStr8))
	default:
		n, err = r.number(1 << (c - codeBin8))
	}
	if err != nil {
		return nil, err
	}
	return r.take(n)
}

// array reads the header of an array; null is an empty one.
func (r *reader) array() (n uint64, err error) {
	c := r.peek()
	if c != codeNil && !isArray(c) {
		return 0, wrong(c, "an array")
	}
	r.at++
	switch {
	case c == codeNil:
	case c <= fixArrayEnd:
		n = uint64(c - fixArray)
	default:
		n, err = r.number(2 << (c - codeArray16))
	}
	return n, err
}

// mapping reads the header of a map.
func (r *reader) mapping() (n uint64, err error) {
	c := r.peek()
	if !isMap(c) {
		return 0, wrong(c, "a map")
	}
	r.at++
	if c <= fixMapEnd {
		return uint64(c - fixMap), nil
	}
	return r.number(2 << (c - codeMap16))
}

// list calls each for the elements of an array, of which it has to read one at a
// time.
func (r *reader) list(each func() error) error {
	n, err := r.array()
	for ; err == nil && n > 0; n-- {
		err = each()
	}
	return err
}

// members calls each for the members of a map, of which it has to read the value.
// Those whose name is no text are skipped.
func (r *reader) members(each func(name string) error) error {
	n, err := r.mapping()
	for ; err == nil && n > 0; n-- {
		if !isText(r.peek()) {
			if err = r.skip(0); err == nil {
				err = r.skip(0)
			}
			continue
		}
		var name []byte
		if name, err = r.blob(); err == nil {
			err = each(string(name))
		}
	}
	return err
}

// skip passes over a value, which is not nested deeper than any that engines write.
func (r *reader) skip(depth int) (err error) {
	c := r.peek()
	var n uint64
	switch {
	case isArray(c):
		n, err = r.array()
	case isMap(c):
		n, err = r.mapping()
		n *= 2
	case isText(c), isBytes(c):
		_, err = r.blob()
		return err
	default:
		return r.skipScalar(c)
	}
	if err == nil && depth == maxNesting {
		err = errBounds
	}
	for ; err == nil && n > 0; n-- {
		err = r.skip(depth + 1)
	}
	return err
}

func (r *reader) skipScalar(c byte) (err error) {
	if r.at == len(r.raw) {
		return errShort
	}
	r.at++
	size := uint64(0)
	switch {
	case c <= positiveFixEnd, c >= negativeFix, c == codeNil, c == codeFalse, c == codeTrue:
	case c == codeFloat32, c == codeFloat64:
		size = 4 << (c - codeFloat32)
	case c >= codeUint8 && c <= codeUint64:
		size = 1 << (c - codeUint8)
	case c >= codeInt8 && c <= codeInt64:
		size = 1 << (c - codeInt8)
	case c >= codeFixExt1 && c <= codeFixExt16:
		size = 1 + 1<<(c-codeFixExt1)
	case c >= codeExt8 && c <= codeExt32:
		size, err = r.number(1 << (c - codeExt8))
		size++
	default:
		return wrong(c, "one of msgpack's types")
	}
	if err == nil {
		_, err = r.take(size)
	}
	return err
}

// hash reads the engine's name of a block. An integer's sign makes no difference: the
// same 64 bits are written with one by some and without by others.
func (r *reader) hash() (uint64, error) {
	if c := r.peek(); isBytes(c) || isText(c) {
		b, err := r.blob()
		return xxh3.Hash(b), err
	}
	bits, _, err := r.integer()
	return bits, err
}

// token reads the id of a token, or a pair of them, of which the first is meant.
func (r *reader) token() (uint32, error) {
	pair := isArray(r.peek())
	if pair {
		n, err := r.array()
		if err == nil && n != 2 {
			err = fmt.Errorf("a token that is an array of %d", n)
		}
		if err != nil {
			return 0, err
		}
	}
	id, err := r.count(math.MaxUint32)
	if err == nil && pair {
		_, err = r.count(math.MaxUint32)
	}
	return uint32(id), err
}

// texts reads a string or the strings of an array, and whether there was nothing
// else.
func (r *reader) texts() (texts []string, only bool, err error) {
	only = true
	element := func() error {
		if !isText(r.peek()) {
			only = false
			return r.skip(1)
		}
		s, err := r.text()
		texts = append(texts, s)
		return err
	}
	if c := r.peek(); c == codeNil || isArray(c) {
		err = r.list(element)
	} else {
		err = element()
	}
	return texts, only, err
}
