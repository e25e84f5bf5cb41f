package builtin

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Each kernel, with and without vector instructions, computes what its
// definition says.
func TestKernels(t *testing.T) {
	t.Run("accelerated", testKernels)
	t.Run("plain", func(t *testing.T) {
		withoutAcceleration(t)
		testKernels(t)
	})
}

func near(got float32, want float64) bool {
	return math.Abs(float64(got)-want) <= 1e-5*(math.Abs(want)+1)
}

func testKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = r.Float32()*2 - 1
		}
		return x
	}
	for _, c := range [][3]int{{1, 1, 2}, {3, 5, 7}, {7, 16, 33}, {5, 130, 300}, {64, 64, 64}} {
		m, n, p := c[0], c[1], c[2]
		x, y, dst := draw(m*n), draw(n*p), draw(m*p)
		matmul(dst, x, y, n)
		for i := range m {
			for j := range p {
				want := 0.0
				for k := range n {
					want += float64(x[i*n+k]) * float64(y[k*p+j])
				}
				if !near(dst[i*p+j], want) {
					t.Fatalf("%dx%dx%d: row %d, column %d is %g, want %g", m, n, p, i, j, dst[i*p+j], want)
				}
			}
		}
	}
	for v := -130.0; v < 130; v += 0.05 {
		x := []float32{float32(v), 0, 0, 0, 0, 0, 0, 0}
		exp(x)
		want := math.Exp(max(float64(float32(v)), -87))
		if got := float64(x[0]); math.Abs(got-want) > 2e-5*want && !(v > 88 && got >= 1e38) {
			t.Fatalf("exp(%g) is %g, want %g", v, got, want)
		}
	}
	one := make([]float32, 8)
	if exp(one); one[0] != 1 {
		t.Errorf("exp(0) is %g, and a peak that is not raised would change its column", one[0])
	}
	const hidden = 7
	h := draw(3 * 2 * hidden)
	h[0], h[1] = 300, -300
	gates := append([]float32(nil), h...)
	act := make([]float32, roundUp(3*hidden, 8))
	swiGLU(act, h, hidden)
	for i := range 3 * hidden {
		gate, up := float64(gates[i/hidden*2*hidden+i%hidden]), float64(gates[(i/hidden*2+1)*hidden+i%hidden])
		if want := gate / (1 + math.Exp(-gate)) * up; !near(act[i], want) {
			t.Fatalf("swiGLU of %g, %g is %g, want %g", gate, up, act[i], want)
		}
	}
}

// A column's softmax hides what stands after its row, however far its scores
// lie and in whatever blocks they come.
func TestSoftmax(t *testing.T) {
	const rows, cols, block, from, step = 48, 6, 16, 30, 2 // three query rows at positions 30 to 32, two heads
	s := make([]float32, rows*cols)
	for i := range s {
		s[i] = float32(i*i%37)*9 - 150
	}
	scores := append([]float32(nil), s...)
	var x softmax
	x.reset(cols)
	for at := 0; at < rows; at += block {
		if x.block(s[at*cols:][:block*cols], from-at, step, at == 0) {
			for i := range at * cols {
				s[i] *= x.shrink[i%cols]
			}
		}
	}
	for col := range cols {
		last := from + col/step
		top, total, peak := math.Inf(-1), 0.0, float64(x.peak[col])
		for row := range last + 1 {
			top = max(top, float64(scores[row*cols+col]))
		}
		for row := range rows {
			want := math.Exp(float64(scores[row*cols+col]) - peak)
			if row > last {
				want = 0
			}
			total += want
			if got := s[row*cols+col]; !near(got, want) || row > last && got != 0 {
				t.Errorf("row %d, column %d is %g, want %g", row, col, got, want)
			}
		}
		if !near(x.sum[col], total) || peak > top || peak < top-peakSlack {
			t.Errorf("column %d: sum %g, want %g; peak %g, highest score %g", col, x.sum[col], total, peak, top)
		}
	}
}
