package builtin

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// A sampler picks tokens for one request. Its chance comes from the request's
// seed alone and is drawn once a token, so the text does not depend on what
// else the engine runs, nor on a preemption.
type sampler struct {
	temperature, topP float64
	chance            *rand.Rand
	candidates        []candidate
}

type candidate struct {
	token  int32
	weight float64
}

func newSampler(temperature, topP float64, seed uint64) *sampler {
	return &sampler{temperature: temperature, topP: topP, chance: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

// next picks the best token at temperature 0, the lowest of equals; else one
// drawn from the smallest set of best tokens that holds a share topP.
func (s *sampler) next(logits []float32) int32 {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	if s.temperature == 0 {
		return int32(best)
	}
	s.candidates = s.candidates[:0]
	total := 0.0
	for i, l := range logits {
		w := math.Exp(float64(l-logits[best]) / s.temperature)
		s.candidates = append(s.candidates, candidate{int32(i), w})
		total += w
	}
	if s.topP < 1 {
		slices.SortFunc(s.candidates, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.token, b.token))
		})
		kept := 0.0
		for i, c := range s.candidates {
			if kept += c.weight; kept >= s.topP*total {
				s.candidates, total = s.candidates[:i+1], kept
				break
			}
		}
	}
	at := s.chance.Float64() * total
	for _, c := range s.candidates {
		if at -= c.weight; at < 0 {
			return c.token
		}
	}
	return int32(best) // rounding left a crumb
}
