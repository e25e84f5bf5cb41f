package builtin

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// shape is what a Llama model's file says of its architecture.
type shape struct {
	dim, hidden, layers, heads, kvHeads, vocab int
	context                                    int // tokens it was trained to
	theta                                      float64
	eps                                        float32
}

func (s shape) headDim() int { return s.dim / s.heads }
func (s shape) kvDim() int   { return s.headDim() * s.kvHeads }

// pageFloats is the size of one KV page: for each layer and key/value head the
// keys of pageTokens positions, position by position, then their values,
// dimension by dimension.
func (s shape) pageFloats() int { return s.layers * s.kvDim() * 2 * pageTokens }

// check refuses a shape that no Llama model has, or that would not fit an int.
func (s shape) check() error {
	const limit = 1 << 24
	for _, f := range []struct {
		name  string
		value int
	}{
		{"width", s.dim},
		{"hidden width", s.hidden},
		{"layer count", s.layers},
		{"head count", s.heads},
		{"key/value head count", s.kvHeads},
		{"vocabulary", s.vocab},
		{"context", s.context},
	} {
		if f.value < 1 || f.value > limit {
			return fmt.Errorf("a %s of %d makes no sense", f.name, f.value)
		}
	}
	switch {
	case s.dim%s.heads != 0 || s.headDim()%2 != 0:
		return fmt.Errorf("%d heads do not share a width of %d in even parts", s.heads, s.dim)
	case s.heads%s.kvHeads != 0:
		return fmt.Errorf("%d key/value heads do not divide %d heads", s.kvHeads, s.heads)
	case !(s.theta > 0) || !(s.eps >= 0) || math.IsInf(s.theta, 0):
		return fmt.Errorf("a RoPE base of %g with a norm epsilon of %g makes no sense", s.theta, s.eps)
	}
	return nil
}

// A model holds weights in the layout its kernels read: a matrix has one row
// per input, so that a batch of rows is multiplied from the left.
type model struct {
	shape
	embedding  []float32 // vocab x dim
	layer      []layer
	norm       []float32
	classifier []float32 // vocab x dim; the embedding itself when the file ties them
	frequency  []float64 // RoPE: radians per position, per pair of a head
}

type layer struct {
	attnNorm, ffnNorm []float32
	qkv               []float32 // dim x (dim + 2 kvDim)
	out               []float32 // dim x dim
	gateUp            []float32 // dim x 2 hidden
	down              []float32 // hidden x dim
}

// tensors gives the rows x cols matrix of a GGUF tensor name, row by row as in
// the file: one row per output. A vector has one row. nil, nil means that the
// file has no such tensor.
type tensors func(name string, rows, cols int) ([]float32, error)

// newModel assembles the weights of a checked shape.
func newModel(s shape, read tensors) (*model, error) {
	m := &model{shape: s}
	var failed error
	need := func(name string, rows, cols int) []float32 {
		if failed != nil {
			return nil
		}
		w, err := read(name, rows, cols)
		if err == nil && w == nil {
			err = fmt.Errorf("tensor %s is missing", name)
		}
		failed = err
		return w
	}
	// side by side: matrices with the same inputs become one, their outputs joined.
	sideBySide := func(cols int, parts ...[]float32) []float32 {
		if failed != nil {
			return nil
		}
		width := 0
		for _, p := range parts {
			width += len(p) / cols
		}
		joined, at := make([]float32, cols*width), 0
		for _, p := range parts {
			transposeInto(joined, p, cols, width, at)
			at += len(p) / cols
		}
		return joined
	}
	m.embedding = need("token_embd.weight", s.vocab, s.dim)
	m.norm = need("output_norm.weight", 1, s.dim)
	for i := 0; i < s.layers && failed == nil; i++ {
		tensor := func(name string, rows, cols int) []float32 {
			return need(fmt.Sprintf("blk.%d.%s.weight", i, name), rows, cols)
		}
		m.layer = append(m.layer, layer{
			attnNorm: tensor("attn_norm", 1, s.dim),
			qkv: sideBySide(s.dim, tensor("attn_q", s.dim, s.dim),
				tensor("attn_k", s.kvDim(), s.dim), tensor("attn_v", s.kvDim(), s.dim)),
			out:     sideBySide(s.dim, tensor("attn_output", s.dim, s.dim)),
			ffnNorm: tensor("ffn_norm", 1, s.dim),
			gateUp:  sideBySide(s.dim, tensor("ffn_gate", s.hidden, s.dim), tensor("ffn_up", s.hidden, s.dim)),
			down:    sideBySide(s.hidden, tensor("ffn_down", s.dim, s.hidden)),
		})
	}
	if failed != nil {
		return nil, failed
	}
	var err error
	if m.classifier, err = read("output.weight", s.vocab, s.dim); err != nil {
		return nil, err
	}
	if m.classifier == nil {
		m.classifier = m.embedding
	}
	for i := 0; i < s.headDim(); i += 2 {
		m.frequency = append(m.frequency, math.Pow(s.theta, -float64(i)/float64(s.headDim())))
	}
	return m, nil
}

// randomModel draws a model of dim x layers with the given vocabulary, the same
// one each time: it answers nonsense at the speed of a trained model. Heads are
// 64 wide where dim allows, four share a key/value head where their number
// does, and the hidden layer is 8/3 as wide as dim.
func randomModel(dim, layers, vocab int) (*model, error) {
	width := 64
	for dim%width != 0 && width > 2 {
		width /= 2
	}
	s := shape{
		dim: dim, layers: layers, heads: dim / width, hidden: roundUp(dim*8/3, 32),
		vocab: vocab, context: 8192, theta: 10000, eps: 1e-5,
	}
	s.kvHeads = s.heads
	for _, share := range []int{4, 2} {
		if s.heads%share == 0 {
			s.kvHeads = s.heads / share
			break
		}
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return newModel(s, func(name string, rows, cols int) ([]float32, error) {
		w := make([]float32, rows*cols)
		if rows == 1 {
			for i := range w {
				w[i] = 1
			}
			return w, nil
		}
		seed := fnv.New64a()
		seed.Write([]byte(name))
		r := rand.New(rand.NewPCG(seed.Sum64(), 0))
		scale := float32(math.Sqrt(3 / float64(cols))) // unit variance in, unit variance out
		for i := range w {
			w[i] = (2*r.Float32() - 1) * scale
		}
		return w, nil
	})
}
