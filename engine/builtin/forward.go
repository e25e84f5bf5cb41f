package builtin

import (
	"math"

	"github.com/viterin/vek/vek32"
)

// A run is a stretch of one sequence that a step computes: tokens at positions
// pos and on. pages covers every position up to the run's end; the positions
// before pos are read, the run's own are written.
type run struct {
	tokens []int32
	pos    int
	pages  [][]float32
	logits []float32 // receives the scores after the last token; nil: not wanted
}

// Attention holds the scores of one block at a time: at most blockPages pages
// of positions by tileColumns columns (query rows times heads of a group), 64
// KiB, which stay in a core's second-level cache.
const (
	blockPages  = 8
	tileColumns = 128
)

// scratch is the working memory of forward. It grows to the largest step seen
// and belongs to one goroutine.
type scratch struct {
	x, norm, qkv, att, h, act []float32
	cos, sin                  []float32
	query, scores, out, part  []float32
	softmax                   softmax
}

func grow(b *[]float32, n int) []float32 {
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	*b = (*b)[:n]
	return *b
}

// forward computes all runs of a step. Each row goes through the same sums in
// the same order as it would alone, so neither the other runs nor how a prompt
// is cut into runs can change a bit of what it writes.
func (m *model) forward(s *scratch, runs []run) {
	rows := 0
	for _, r := range runs {
		rows += len(r.tokens)
	}
	width := m.dim + 2*m.kvDim()
	x, norm := grow(&s.x, rows*m.dim), grow(&s.norm, rows*m.dim)
	qkv, att := grow(&s.qkv, rows*width), grow(&s.att, rows*m.dim)
	h, act := grow(&s.h, rows*2*m.hidden), grow(&s.act, roundUp(rows*m.hidden, 8))
	m.embed(s, x, runs)
	for i := range m.layer {
		l := &m.layer[i]
		rmsNorm(norm, x, l.attnNorm, m.eps)
		matmul(qkv, norm, l.qkv, m.dim)
		first := 0
		for _, r := range runs {
			n := len(r.tokens)
			own := qkv[first*width:][:n*width]
			m.store(s, own, r, i, first)
			m.attend(s, att[first*m.dim:][:n*m.dim], own, r, i)
			first += n
		}
		matmul(norm, att, l.out, m.dim)
		vek32.Add_Inplace(x, norm)
		rmsNorm(norm, x, l.ffnNorm, m.eps)
		matmul(h, norm, l.gateUp, m.dim)
		swiGLU(act, h, m.hidden)
		matmul(norm, act[:rows*m.hidden], l.down, m.hidden)
		vek32.Add_Inplace(x, norm)
	}
	first := 0
	for _, r := range runs {
		first += len(r.tokens)
		if r.logits == nil {
			continue
		}
		last := norm[:m.dim]
		rmsNorm(last, x[(first-1)*m.dim:first*m.dim], m.norm, m.eps)
		for t := range r.logits {
			r.logits[t] = vek32.Dot(last, m.classifier[t*m.dim:][:m.dim])
		}
	}
}

// embed looks up the tokens of all runs, and the rotations of their positions.
func (m *model) embed(s *scratch, x []float32, runs []run) {
	half := len(m.frequency)
	rows := len(x) / m.dim
	cos, sin := grow(&s.cos, rows*half), grow(&s.sin, rows*half)
	for _, r := range runs {
		for i, t := range r.tokens {
			copy(x[:m.dim], m.embedding[int(t)*m.dim:])
			for j, f := range m.frequency {
				si, co := math.Sincos(float64(r.pos+i) * f)
				cos[j], sin[j] = float32(co), float32(si)
			}
			x, cos, sin = x[m.dim:], cos[half:], sin[half:]
		}
	}
}

// keys and values give the part of a page that holds one head of one layer:
// pageTokens x headDim keys, and headDim x pageTokens values.
func (m *model) keys(page []float32, layer, kvHead int) []float32 {
	n := m.headDim() * pageTokens
	return page[2*n*(layer*m.kvHeads+kvHead):][:n]
}

func (m *model) values(page []float32, layer, kvHead int) []float32 {
	n := m.headDim() * pageTokens
	return page[2*n*(layer*m.kvHeads+kvHead)+n:][:n]
}

// store rotates a run's queries and keys in qkv, whose first row is the step's
// row first, and writes its keys and values to their pages.
func (m *model) store(s *scratch, qkv []float32, r run, layer, first int) {
	hd, half, kv := m.headDim(), len(m.frequency), m.kvDim()
	for i := range r.tokens {
		row := qkv[i*(m.dim+2*kv):][:m.dim+2*kv]
		at := (first + i) * half
		rotate(row[:m.dim+kv], s.cos[at:at+half], s.sin[at:at+half])
		page, slot := r.pages[(r.pos+i)/pageTokens], (r.pos+i)%pageTokens
		for head := range m.kvHeads {
			copy(m.keys(page, layer, head)[slot*hd:], row[m.dim+head*hd:][:hd])
			values := m.values(page, layer, head)
			for d, v := range row[m.dim+kv+head*hd:][:hd] {
				values[d*pageTokens+slot] = v
			}
		}
	}
}

// attend computes a run's attention in tiles of query rows.
func (m *model) attend(s *scratch, att, qkv []float32, r run, layer int) {
	group := m.heads / m.kvHeads
	tile := max(1, tileColumns/group)
	width := m.dim + 2*m.kvDim()
	for from := 0; from < len(r.tokens); from += tile {
		n := min(tile, len(r.tokens)-from)
		for head := range m.kvHeads {
			m.attendTile(s, att[from*m.dim:][:n*m.dim], qkv[from*width:][:n*width], r.pages, r.pos+from, layer, head)
		}
	}
}

// attendTile computes the attention of the query rows in qkv, which stand at
// positions pos and on, for the heads that share one key/value head. Rows and
// heads are columns here, so that a page is one matrix product. Blocks begin at
// fixed positions, and a column's sums run over positions in order.
func (m *model) attendTile(s *scratch, att, qkv []float32, pages [][]float32, pos, layer, head int) {
	hd, group, width := m.headDim(), m.heads/m.kvHeads, m.dim+2*m.kvDim()
	rows := len(att) / m.dim
	cols := max(2, rows*group) // a product of one column would sum in another order
	pages = pages[:(pos+rows+pageTokens-1)/pageTokens]

	query, scale := grow(&s.query, hd*cols), float32(1/math.Sqrt(float64(hd)))
	clear(query)
	for i := range rows {
		for g := range group {
			for d, v := range qkv[i*width+(head*group+g)*hd:][:hd] {
				query[d*cols+i*group+g] = v * scale
			}
		}
	}
	s.softmax.reset(cols)
	out, part := grow(&s.out, hd*cols), grow(&s.part, hd*cols)
	clear(out)
	size := pageTokens * cols
	for first := 0; first < len(pages); first += blockPages {
		block := pages[first:min(first+blockPages, len(pages))]
		scores := grow(&s.scores, len(block)*size)
		for i, page := range block {
			matmul(scores[i*size:][:size], m.keys(page, layer, head), query, hd)
		}
		if s.softmax.block(scores, pos-first*pageTokens, group, first == 0) {
			for d := range hd {
				vek32.Mul_Inplace(out[d*cols:][:cols], s.softmax.shrink[:cols])
			}
		}
		for i, page := range block {
			matmul(part, m.values(page, layer, head), scores[i*size:][:size], pageTokens)
			vek32.Add_Inplace(out, part)
		}
	}
	for i := range rows {
		for g := range group {
			col := i*group + g
			for d := range hd {
				att[i*m.dim+(head*group+g)*hd+d] = out[d*cols+col] / s.softmax.sum[col]
			}
		}
	}
}
