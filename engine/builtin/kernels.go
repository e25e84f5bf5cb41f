package builtin

import (
	"math"

	"github.com/viterin/vek"
	"github.com/viterin/vek/vek32"
)

// Every kernel here gives one row, or one column, the same bits whatever other
// rows and columns are computed with it: an element of a product is one chain
// of multiply-adds over the inner dimension, first to last. That, and that no
// kernel looks beyond its own sequence, is what makes the engine's numerics
// independent of the batch.

// accelerated says whether vek runs its AVX2 kernels on this machine. Where it
// does not, its matrix product is a plain triple loop and matmulGo is faster.
var accelerated = vek.Info().Acceleration

// vekSerial is the number of multiply-adds from which vek spreads a product of
// four rows or more over goroutines. Staying below keeps the engine on the one
// core of its scheduler.
const vekSerial = 100_000

// matmul sets dst (m x p) to x (m x n) times y (n x p), all row by row. p must
// be 2 or more: for a single column vek sums in another order.
func matmul(dst, x, y []float32, n int) {
	p := len(y) / n
	rows := max(3, (vekSerial-1)/(n*p))
	for len(x) > 0 {
		m := min(rows, len(x)/n)
		if accelerated {
			vek32.MatMul_Into(dst[:m*p], x[:m*n], y, n)
		} else {
			matmulGo(dst[:m*p], x[:m*n], y, n)
		}
		dst, x = dst[m*p:], x[m*n:]
	}
}

// matmulGo is matmul in plain Go. It takes four steps of the inner dimension in
// one pass over the row, in order.
func matmulGo(dst, x, y []float32, n int) {
	p := len(y) / n
	clear(dst)
	for ; len(x) > 0; dst, x = dst[p:], x[n:] {
		row := dst[:p]
		k := 0
		for ; k+4 <= n; k += 4 {
			x0, x1, x2, x3 := x[k], x[k+1], x[k+2], x[k+3]
			y0, y1, y2, y3 := y[k*p:][:p], y[(k+1)*p:][:p], y[(k+2)*p:][:p], y[(k+3)*p:][:p]
			for j, s := range row {
				s += x0 * y0[j]
				s += x1 * y1[j]
				s += x2 * y2[j]
				s += x3 * y3[j]
				row[j] = s
			}
		}
		for ; k < n; k++ {
			for j, w := range y[k*p:][:p] {
				row[j] += x[k] * w
			}
		}
	}
}

// transposeInto writes the rows x cols matrix src into dst, whose rows are
// stride long, as columns from column at.
func transposeInto(dst, src []float32, cols, stride, at int) {
	rows := len(src) / cols
	for r := range rows {
		for c, v := range src[r*cols:][:cols] {
			dst[c*stride+at+r] = v
		}
	}
}

// rmsNorm sets each row of dst to the row of x over its root mean square, times w.
func rmsNorm(dst, x, w []float32, eps float32) {
	n := len(w)
	for ; len(x) > 0; dst, x = dst[n:], x[n:] {
		mean := vek32.Dot(x[:n], x[:n]) / float32(n)
		scale := float32(1 / math.Sqrt(float64(mean+eps)))
		vek32.MulNumber_Into(dst[:n], x[:n], scale)
		vek32.Mul_Inplace(dst[:n], w)
	}
}

// exp replaces every x by e^x, with e^-87 for anything less: vek's answer
// between -103 and -88, whose value has no normal float32, is wild. It computes
// a tail of fewer than eight in another way, so the length must be a multiple
// of eight; see roundUp.
func exp(x []float32) {
	if len(x)%8 != 0 {
		panic("builtin: exp of a length that is not a multiple of eight")
	}
	if vek32.Min(x) < -87 { // finding out is much cheaper than clamping
		vek32.MaximumNumber_Inplace(x, -87)
	}
	vek32.Exp_Inplace(x)
}

// swiGLU sets act (rows x hidden) to silu(gate) * up, where a row of h holds
// gate and then up. It overwrites the gates. act has room for a multiple of eight.
func swiGLU(act, h []float32, hidden int) {
	rows := len(h) / (2 * hidden)
	for r := range rows {
		vek32.Neg_Into(act[r*hidden:][:hidden], h[2*r*hidden:][:hidden])
	}
	exp(act[:roundUp(rows*hidden, 8)])
	vek32.AddNumber_Inplace(act[:rows*hidden], 1)
	for r := range rows {
		gate, up := h[2*r*hidden:][:hidden], h[(2*r+1)*hidden:][:hidden]
		vek32.Div_Inplace(gate, act[r*hidden:][:hidden])
		vek32.Mul_Into(act[r*hidden:][:hidden], gate, up)
	}
}

// rotate applies a position's rotation to each head of x, pair by adjacent pair.
func rotate(x, cos, sin []float32) {
	for ; len(x) > 0; x = x[2*len(cos):] {
		for i, c := range cos {
			a, b, s := x[2*i], x[2*i+1], sin[i]
			x[2*i], x[2*i+1] = a*c-b*s, a*s+b*c
		}
	}
}

// A softmax runs over the columns of a matrix that comes in blocks of rows. A
// weight is e^(score - peak), where a column's peak is at most peakSlack below
// its highest score so far. When a block raises a peak, what was summed before
// it shrinks.
type softmax struct{ peak, sum, shrink, top []float32 }

// peakSlack spares most blocks the search for each column's highest score. With
// it a sum over any context stays far below the largest float32.
const peakSlack = 20

func (x *softmax) reset(cols int) {
	clear(grow(&x.peak, cols))
	clear(grow(&x.sum, cols))
	grow(&x.top, cols)
	clear(grow(&x.shrink, roundUp(cols, 8)))
}

// block turns scores into weights; first says that no block came before. Row t
// hides the first (t-from)*step columns, whose weights become zero. True means
// that what the caller summed of each column has to be multiplied by shrink.
// What happens to a column depends on that column alone, and one that is hidden
// throughout keeps all it has, to the bit.
func (x *softmax) block(s []float32, from, step int, first bool) (raised bool) {
	cols := len(x.sum)
	rows := len(s) / cols
	hidden := func(t int) int { return min(max(t-from, 0)*step, cols) }
	for t := range rows {
		row := s[t*cols:][:cols]
		vek32.Sub_Inplace(row, x.peak)
		for j := range hidden(t) {
			row[j] = -math.MaxFloat32
		}
	}
	if first || vek32.Max(s) > peakSlack {
		x.raise(s, first)
		raised = !first
	}
	exp(s)
	for t := range rows {
		clear(s[t*cols:][:hidden(t)])
		vek32.Add_Inplace(x.sum, s[t*cols:][:cols])
	}
	return raised
}

// raise lifts the peaks that need it to the highest score of the block.
func (x *softmax) raise(s []float32, first bool) {
	cols := len(x.sum)
	copy(x.top, s[:cols])
	for row := s; len(row) > 0; row = row[cols:] {
		vek32.Maximum_Inplace(x.top, row[:cols])
	}
	for j, top := range x.top {
		if !first && top <= peakSlack {
			x.top[j] = 0
		}
		x.shrink[j] = -x.top[j]
	}
	for row := s; len(row) > 0; row = row[cols:] {
		vek32.Sub_Inplace(row[:cols], x.top)
	}
	vek32.Add_Inplace(x.peak, x.top)
	if !first {
		exp(x.shrink)
		vek32.Mul_Inplace(x.sum, x.shrink[:cols])
	}
}

// roundUp gives the least multiple of to that is not below n.
func roundUp(n, to int) int { return (n + to - 1) / to * to }
