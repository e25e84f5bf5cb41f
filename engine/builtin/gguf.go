package builtin

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// The GGUF format is described in ggml's docs/gguf.md: a header, typed metadata,
// tensor descriptions, and aligned tensor data, all little endian. Versions 2
// and 3 differ only in that 3 also exists in big endian, which is refused here.

// Types of metadata values.
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// Types of tensors that can be read.
const (
	tensorF32  = 0
	tensorF16  = 1
	tensorQ8_0 = 8 // blocks of 32: a float16 scale, then 32 signed bytes
)

// tensorNames serves error messages; the numbers are ggml's enum ggml_type.
var tensorNames = map[uint32]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
	10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 30: "BF16",
}

// errTruncated is what a length that reaches beyond the file comes to.
var errTruncated = errors.New("the file is cut short or corrupt")

type ggufTensor struct {
	dims   []int // innermost first
	kind   uint32
	offset int64 // from the start of the file
	used   bool
}

type ggufFile struct {
	r       io.ReaderAt
	meta    map[string]any // uint64, int64, float64, bool, string, []string, []float32 or []int32
	tensors map[string]*ggufTensor
}

// ggufReader reads the header. left bounds every length before it is allocated.
type ggufReader struct {
	r    *bufio.Reader
	left int64
	err  error
}

func (g *ggufReader) bytes(n uint64) []byte {
	if g.err == nil && n > uint64(g.left) {
		g.err = errTruncated
	}
	if g.err != nil {
		return nil
	}
	b := make([]byte, n)
	_, g.err = io.ReadFull(g.r, b)
	g.left -= int64(n)
	return b
}

// number reads size little-endian bytes.
func (g *ggufReader) number(size int) uint64 {
	var b [8]byte
	copy(b[:], g.bytes(uint64(size)))
	return binary.LittleEndian.Uint64(b[:])
}

func (g *ggufReader) u32() uint32    { return uint32(g.number(4)) }
func (g *ggufReader) u64() uint64    { return g.number(8) }
func (g *ggufReader) string() string { return string(g.bytes(g.u64())) }

// value reads one metadata value. Integers come as uint64 or int64, floats as
// float64; arrays of other element types than the tokenizer's are skipped.
func (g *ggufReader) value(kind uint32) any {
	switch kind {
	case ggufUint8:
		return g.number(1)
	case ggufUint16:
		return g.number(2)
	case ggufUint32:
		return g.number(4)
	case ggufUint64:
		return g.number(8)
	case ggufInt8:
		return int64(int8(g.number(1)))
	case ggufInt16:
		return int64(int16(g.number(2)))
	case ggufInt32:
		return int64(int32(g.number(4)))
	case ggufInt64:
		return int64(g.number(8))
	case ggufFloat32:
		return float64(math.Float32frombits(g.u32()))
	case ggufFloat64:
		return math.Float64frombits(g.u64())
	case ggufBool:
		return g.number(1) != 0
	case ggufString:
		return g.string()
	case ggufArray:
		return g.array()
	}
	g.fail("metadata of unknown type %d", kind)
	return nil
}

func (g *ggufReader) array() any {
	kind, n := g.u32(), g.u64()
	size := map[uint32]uint64{
		ggufUint8: 1, ggufInt8: 1, ggufBool: 1, ggufUint16: 2, ggufInt16: 2,
		ggufUint32: 4, ggufInt32: 4, ggufFloat32: 4, ggufUint64: 8, ggufInt64: 8, ggufFloat64: 8,
		ggufString: 8, // its length alone
	}[kind]
	switch {
	case g.err != nil:
		return nil
	case size == 0:
		g.fail("an array of type %d", kind)
		return nil
	case n > uint64(g.left)/size:
		g.err = errTruncated
		return nil
	case kind == ggufString:
		a := make([]string, n)
		for i := range a {
			a[i] = g.string()
		}
		return a
	}
	raw := g.bytes(n * size)
	switch kind {
	case ggufFloat32:
		return float32s(raw)
	case ggufInt32, ggufUint32:
		a := make([]int32, len(raw)/4)
		for i := range a {
			a[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		return a
	}
	return nil
}

func (g *ggufReader) fail(format string, args ...any) {
	if g.err == nil {
		g.err = fmt.Errorf(format, args...)
	}
}

// parseGGUF reads everything but the tensors' data, which it proves to lie
// inside the file.
func parseGGUF(r io.ReaderAt, size int64) (*ggufFile, error) {
	g := &ggufReader{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<16), left: size}
	if string(g.bytes(4)) != "GGUF" {
		return nil, errors.New("not a GGUF file")
	}
	if v := g.u32(); g.err == nil && v != 2 && v != 3 {
		return nil, fmt.Errorf("GGUF version %d; versions 2 and 3 in little endian are supported", v)
	}
	f := &ggufFile{r: r, meta: map[string]any{}, tensors: map[string]*ggufTensor{}}
	tensors, values := g.u64(), g.u64()
	for ; values > 0 && g.err == nil; values-- {
		key := g.string()
		f.meta[key] = g.value(g.u32())
	}
	for ; tensors > 0 && g.err == nil; tensors-- {
		name, t := g.string(), &ggufTensor{}
		dims := g.u32()
		if dims < 1 || dims > 4 {
			g.fail("tensor %q has %d dimensions", name, dims)
		}
		for ; dims > 0 && g.err == nil; dims-- {
			d := g.u64()
			if d == 0 || d > math.MaxInt32 {
				g.fail("tensor %q has a dimension of %d", name, d)
			}
			t.dims = append(t.dims, int(d))
		}
		t.kind = g.u32()
		t.offset = int64(min(g.u64(), math.MaxInt64))
		if f.tensors[name] != nil {
			g.fail("tensor %q is there twice", name)
		}
		f.tensors[name] = t
	}
	if g.err != nil {
		return nil, g.err
	}
	return f, f.place(size-g.left, size)
}

// place turns offsets within the data section into offsets within the file.
func (f *ggufFile) place(headerEnd, size int64) error {
	align := f.integer("general.alignment", 32)
	if align < 1 || align > 1<<20 {
		return fmt.Errorf("an alignment of %d makes no sense", align)
	}
	start := (headerEnd + int64(align) - 1) / int64(align) * int64(align)
	for _, name := range slices.Sorted(maps.Keys(f.tensors)) {
		t := f.tensors[name]
		n, err := t.bytes(name)
		if err != nil {
			return err
		}
		if t.offset > size-start || n > size-start-t.offset {
			return fmt.Errorf("tensor %s reaches beyond the end: %w", name, errTruncated)
		}
		t.offset += start
	}
	return nil
}

// bytes is the length of the tensor's data.
func (t *ggufTensor) bytes(name string) (int64, error) {
	n := int64(1)
	for _, d := range t.dims {
		if n > math.MaxInt64/8/int64(d) {
			return 0, fmt.Errorf("tensor %s reaches beyond the end: %w", name, errTruncated)
		}
		n *= int64(d)
	}
	switch t.kind {
	case tensorF32:
		return 4 * n, nil
	case tensorF16:
		return 2 * n, nil
	case tensorQ8_0:
		if t.dims[0]%32 == 0 {
			return n / 32 * 34, nil
		}
		return 0, fmt.Errorf("tensor %s is Q8_0 with rows of %d, not a multiple of 32", name, t.dims[0])
	}
	kind := tensorNames[t.kind]
	if kind == "" {
		kind = fmt.Sprintf("of type %d", t.kind)
	}
	return 0, fmt.Errorf("tensor %s is %s; F32, F16 and Q8_0 are supported", name, kind)
}

// tensor reads one tensor as newModel asks for it.
func (f *ggufFile) tensor(name string, rows, cols int) ([]float32, error) {
	t := f.tensors[name]
	if t == nil {
		return nil, nil
	}
	want := []int{cols, rows}
	if rows == 1 {
		want = want[:1]
	}
	if !slices.Equal(t.dims, want) {
		return nil, fmt.Errorf("tensor %s has the shape %v where the metadata calls for %v", name, t.dims, want)
	}
	t.used = true
	n, err := t.bytes(name)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, n)
	if _, err := f.r.ReadAt(raw, t.offset); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read tensor %s: %w", name, err)
	}
	switch t.kind {
	case tensorF16:
		return float16s(raw), nil
	case tensorQ8_0:
		return q8s(raw), nil
	}
	return float32s(raw), nil
}

func float32s(raw []byte) []float32 {
	w := make([]float32, len(raw)/4)
	for i := range w {
		w[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return w
}

func float16s(raw []byte) []float32 {
	w := make([]float32, len(raw)/2)
	for i := range w {
		w[i] = float16(binary.LittleEndian.Uint16(raw[2*i:]))
	}
	return w
}

func q8s(raw []byte) []float32 {
	w := make([]float32, 0, len(raw)/34*32)
	for ; len(raw) > 0; raw = raw[34:] {
		scale := float16(binary.LittleEndian.Uint16(raw))
		for _, q := range raw[2:34] {
			w = append(w, scale*float32(int8(q)))
		}
	}
	return w
}

// float16 widens an IEEE 754 half.
func float16(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exponent {
	case 0:
		f := float32(fraction) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 255<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// integer gives a metadata integer, def when it is absent, or -1 when it is no
// number that an int32 can hold.
func (f *ggufFile) integer(key string, def int) int {
	switch v := f.meta[key].(type) {
	case nil:
		return def
	case uint64:
		if v <= math.MaxInt32 {
			return int(v)
		}
	case int64:
		if v >= 0 && v <= math.MaxInt32 {
			return int(v)
		}
	}
	return -1
}

func metaOr[T any](f *ggufFile, key string, def T) T {
	if v, ok := f.meta[key].(T); ok {
		return v
	}
	return def
}

// loadGGUF reads a Llama model and its tokenizer.
func loadGGUF(r io.ReaderAt, size int64) (*model, *tokenizer, error) {
	f, err := parseGGUF(r, size)
	if err != nil {
		return nil, nil, err
	}
	if a := metaOr(f, "general.architecture", ""); a != "llama" {
		return nil, nil, fmt.Errorf("architecture %q; llama is supported", a)
	}
	if kind := metaOr(f, "llama.rope.scaling.type", "none"); kind != "none" {
		return nil, nil, fmt.Errorf("RoPE scaling %q; models without it are supported", kind)
	}
	tok, err := f.tokenizer()
	if err != nil {
		return nil, nil, err
	}
	s := shape{
		dim:     f.integer("llama.embedding_length", 0),
		hidden:  f.integer("llama.feed_forward_length", 0),
		layers:  f.integer("llama.block_count", 0),
		heads:   f.integer("llama.attention.head_count", 0),
		vocab:   len(tok.pieces),
		context: f.integer("llama.context_length", 0),
		theta:   metaOr(f, "llama.rope.freq_base", 10000.0),
		eps:     float32(metaOr(f, "llama.attention.layer_norm_rms_epsilon", 1e-5)),
	}
	s.kvHeads = f.integer("llama.attention.head_count_kv", s.heads)
	if err := s.check(); err != nil {
		return nil, nil, err
	}
	for _, key := range []string{"llama.rope.dimension_count", "llama.attention.key_length", "llama.attention.value_length"} {
		if n := f.integer(key, s.headDim()); n != s.headDim() {
			return nil, nil, fmt.Errorf("%s is %d; only the width of a head, %d, is supported", key, n, s.headDim())
		}
	}
	m, err := newModel(s, f.tensor)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(f.tensors)) {
		if !f.tensors[name].used {
			return nil, nil, fmt.Errorf("tensor %s has no place in a plain Llama model", name)
		}
	}
	return m, tok, nil
}

// tokenizer reads the tokenizer.ggml keys.
func (f *ggufFile) tokenizer() (*tokenizer, error) {
	if kind := metaOr(f, "tokenizer.ggml.model", ""); kind != "llama" {
		return nil, fmt.Errorf("tokenizer %q; llama (SentencePiece) is supported", kind)
	}
	pieces := metaOr[[]string](f, "tokenizer.ggml.tokens", nil)
	for i, p := range pieces {
		pieces[i] = strings.ReplaceAll(p, "\u2581", " ")
	}
	t, err := newTokenizer(pieces,
		metaOr[[]float32](f, "tokenizer.ggml.scores", nil), metaOr[[]int32](f, "tokenizer.ggml.token_type", nil),
		f.integer("tokenizer.ggml.unknown_token_id", 0), f.integer("tokenizer.ggml.bos_token_id", 1), f.integer("tokenizer.ggml.eos_token_id", 2))
	if err != nil {
		return nil, err
	}
	t.addBOS = metaOr(f, "tokenizer.ggml.add_bos_token", true)
	t.addSpace = metaOr(f, "tokenizer.ggml.add_space_prefix", true)
	return t, nil
}
