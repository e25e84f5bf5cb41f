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
// that announces more than is left is an error.
type reader struct {
	raw []byte
	at  int
}

// A class is a kind of value, as far as it matters how one is read.
type class uint8

const (
	classNone class = iota
	classNull
	classScalar // nothing that is read here: booleans, floats, extensions
	classUnsigned
	classSigned
	classBytes
	classText
	classArray
	classMap
)

// A head says how many bytes follow a code: of the value itself or, where it is counted,
// of the number of its bytes, elements or members.
type head struct {
	class   class
	size    int
	counted bool
}

// heads are those of the codes from c0 to df.
var heads = func() (all [32]head) {
	for _, run := range []struct {
		first   byte
		class   class
		sizes   []int
		counted bool
	}{
		{0xc0, classNull, []int{0}, false},
		{0xc2, classScalar, []int{0, 0}, false}, // false, true
		{0xc4, classBytes, []int{1, 2, 4}, true},
		{0xc7, classScalar, []int{1, 2, 4}, true}, // extensions, whose type is one more byte
		{0xca, classScalar, []int{4, 8}, false},   // floats
		{0xcc, classUnsigned, []int{1, 2, 4, 8}, false},
		{0xd0, classSigned, []int{1, 2, 4, 8}, false},
		{0xd4, classScalar, []int{2, 3, 5, 9, 17}, false}, // extensions of a fixed size
		{0xd9, classText, []int{1, 2, 4}, true},
		{0xdc, classArray, []int{2, 4}, true},
		{0xde, classMap, []int{2, 4}, true},
	} {
		for i, size := range run.sizes {
			all[int(run.first-codeNil)+i] = head{run.class, size, run.counted}
		}
	}
	return all
}()

// The other codes are values, or a class with a number in their low bits. Those with a
// name here are written too.
const (
	positiveFixEnd           = 0x7f
	fixMap, fixArray, fixStr = 0x80, 0x90, 0xa0
	codeNil, negativeFix     = 0xc0, 0xe0
	codeFloat64              = 0xcb
	codeUint32, codeUint64   = 0xce, 0xcf
	codeStr32, codeArray32   = 0xdb, 0xdd
)

const maxNesting = 16

var errShort = errors.New("msgpack: it is cut off")

func classOf(code byte) class {
	switch {
	case code <= positiveFixEnd:
		return classUnsigned
	case code < fixArray:
		return classMap
	case code < fixStr:
		return classArray
	case code < codeNil:
		return classText
	case code >= negativeFix:
		return classSigned
	}
	return heads[code-codeNil].class
}

// next is the class of the next value.
func (r *reader) next() class {
	if r.at >= len(r.raw) {
		return classNone
	}
	return classOf(r.raw[r.at])
}

// header reads the code of the next value and, where it is counted, how many bytes,
// elements or members it has: else n is how many bytes of it follow.
func (r *reader) header() (code byte, n uint64, err error) {
	if r.at >= len(r.raw) {
		return 0, 0, errShort
	}
	code = r.raw[r.at]
	r.at++
	switch {
	case code <= positiveFixEnd, code >= negativeFix:
		return code, 0, nil
	case code < fixStr:
		return code, uint64(code & 0x0f), nil
	case code < codeNil:
		return code, uint64(code & 0x1f), nil
	}
	h := heads[code-codeNil]
	if h.class == classNone {
		return code, 0, wrong(code, "one of msgpack's types")
	}
	if !h.counted {
		return code, uint64(h.size), nil
	}
	n, err = r.number(h.size)
	if h.class == classScalar {
		n++
	}
	return code, n, err
}

func wrong(code byte, want string) error {
	return fmt.Errorf("msgpack: a value of type %#x, where %s is due", code, want)
}

// begin reads the header of a value of this class; null is an empty one.
func (r *reader) begin(due class, what string) (n uint64, err error) {
	code, n, err := r.header()
	if got := classOf(code); err == nil && got != due && got != classNull {
		err = wrong(code, what)
	}
	return n, err
}

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
	var whole [8]byte
	copy(whole[8-len(b):], b)
	return binary.BigEndian.Uint64(whole[:]), err
}

// integer reads one as 64 bits, of which negative says how they count.
func (r *reader) integer() (bits uint64, negative bool, err error) {
	code, n, err := r.header()
	kind := classOf(code)
	switch {
	case err != nil:
		return 0, false, err
	case kind != classUnsigned && kind != classSigned:
		return 0, false, wrong(code, "an integer")
	case n == 0:
		return uint64(int64(int8(code))), kind == classSigned, nil
	}
	bits, err = r.number(int(n))
	if kind == classUnsigned {
		return bits, false, err
	}
	shift := 64 - 8*n
	wide := int64(bits<<shift) >> shift
	return uint64(wide), wide < 0, err
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
	n, err := r.begin(classText, "a text")
	if err != nil {
		return "", err
	}
	b, err := r.take(n)
	return string(b), err
}

// list calls each for the elements of an array, of which it has to read one at a
// time.
func (r *reader) list(each func() error) error {
	n, err := r.begin(classArray, "an array")
	for ; err == nil && n > 0; n-- {
		err = each()
	}
	return err
}

// members calls each for the members of a map, of which it has to read the value.
// Those whose name is no text are skipped.
func (r *reader) members(each func(name string) error) error {
	n, err := r.begin(classMap, "a map")
	for ; err == nil && n > 0; n-- {
		if r.next() != classText {
			if err = r.skip(0); err == nil {
				err = r.skip(0)
			}
			continue
		}
		var name string
		if name, err = r.text(); err == nil {
			err = each(name)
		}
	}
	return err
}

// skip passes over a value, which is not nested deeper than any that engines write.
func (r *reader) skip(depth int) error {
	code, n, err := r.header()
	if err != nil {
		return err
	}
	switch classOf(code) {
	case classMap:
		n *= 2
	case classArray:
	default:
		_, err = r.take(n)
		return err
	}
	if depth == maxNesting {
		return errBounds
	}
	for ; err == nil && n > 0; n-- {
		err = r.skip(depth + 1)
	}
	return err
}

// hash reads the engine's name of a block. An integer's sign makes no difference: the
// same 64 bits are written with one by some and without by others.
func (r *reader) hash() (uint64, error) {
	if kind := r.next(); kind != classText && kind != classBytes {
		bits, _, err := r.integer()
		return bits, err
	}
	_, n, err := r.header()
	if err != nil {
		return 0, err
	}
	b, err := r.take(n)
	return xxh3.Hash(b), err
}

// token reads the id of a token, or a pair of them, of which the first is meant.
func (r *reader) token() (id uint32, err error) {
	if r.next() != classArray {
		n, err := r.count(math.MaxUint32)
		return uint32(n), err
	}
	read := 0
	err = r.list(func() error {
		n, err := r.count(math.MaxUint32)
		if read++; read == 1 {
			id = uint32(n)
		}
		return err
	})
	if err == nil && read != 2 {
		err = fmt.Errorf("a token that is an array of %d", read)
	}
	return id, err
}

// texts reads a string or the strings of an array, and whether there was nothing
// else.
func (r *reader) texts() (texts []string, only bool, err error) {
	only = true
	element := func() error {
		if r.next() != classText {
			only = false
			return r.skip(1)
		}
		s, err := r.text()
		texts = append(texts, s)
		return err
	}
	if kind := r.next(); kind == classNull || kind == classArray {
		err = r.list(element)
	} else {
		err = element()
	}
	return texts, only, err
}
