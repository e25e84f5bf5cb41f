package builtin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Two models whose attention takes the different paths there are: several heads
// to a key/value head, and one head alone.
func invarianceModels(t *testing.T) map[string]*model {
	grouped, _ := tiny(t)
	single, err := randomModel(64, 2, 300) // one head of 64
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*model{"grouped": grouped, "single": single}
}

func someTokens(n, vocab int, seed int32) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = (seed*7919 + int32(i)*104729) % int32(vocab)
	}
	return tokens
}

func blankPages(m *model, tokens int) [][]float32 {
	pages := make([][]float32, tokens/pageTokens+1)
	for i := range pages {
		pages[i] = make([]float32, m.pageFloats())
	}
	return pages
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// However a prompt is cut into runs, its scores and its pages have the same bits.
func TestChunksDoNotChangeABit(t *testing.T) {
	check := func(t *testing.T, m *model) {
		tokens := someTokens(75, m.vocab, 1)
		var s scratch
		var want []float32
		var wantPages [][]float32
		for chunk := len(tokens); chunk > 0; chunk-- {
			pages, logits := blankPages(m, len(tokens)), make([]float32, m.vocab)
			for pos := 0; pos < len(tokens); pos += chunk {
				m.forward(&s, []run{{tokens: tokens[pos:min(pos+chunk, len(tokens))], pos: pos, pages: pages, logits: logits}})
			}
			if want == nil {
				want, wantPages = logits, pages
				continue
			}
			if !sameBits(logits, want) {
				t.Errorf("chunks of %d give other scores", chunk)
			}
			if !slices.EqualFunc(pages, wantPages, sameBits) {
				t.Errorf("chunks of %d give other pages", chunk)
			}
		}
	}
	for name, m := range invarianceModels(t) {
		t.Run(name, func(t *testing.T) { check(t, m) })
	}
	t.Run("without acceleration", func(t *testing.T) {
		withoutAcceleration(t)
		check(t, invarianceModels(t)["single"])
	})
}

// A stepper drives a scheduler by hand, and compares every row of scores with
// those of the same tokens computed alone, at once and with an empty cache.
type stepper struct {
	*scheduler
	e        *Engine
	alone    map[string][]float32
	computed int
}

func newStepper(m *model, tok *tokenizer, kvTokens, maxBatch int) *stepper {
	e := &Engine{
		model: m, tok: tok, name: "test", context: 8192, kvTokens: kvTokens, maxBatch: maxBatch, queueMax: 64,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	return &stepper{scheduler: newScheduler(e), e: e, alone: map[string][]float32{}}
}

func (s *stepper) step(t interface{ Fatalf(string, ...any) }) {
	s.collect()
	before := map[*sequence][]int32{}
	for _, q := range slices.Concat(s.running, s.waiting) {
		before[q] = slices.Clone(q.tokens)
	}
	s.scheduler.step()
	for i, q := range s.planned {
		s.computed += q.planned
		if tokens := before[q]; q.answered > len(tokens)-q.usage.PromptTokens {
			want := s.scoresAlone(tokens)
			if got := s.logits[i*s.e.model.vocab:][:s.e.model.vocab]; !sameBits(got, want) {
				t.Fatalf("after %d tokens the scores differ from those computed alone", len(tokens))
			}
		}
	}
}

func (s *stepper) scoresAlone(tokens []int32) []float32 {
	name := fmt.Sprint(tokens)
	if s.alone[name] == nil {
		logits := make([]float32, s.e.model.vocab)
		s.e.model.forward(&scratch{}, []run{{tokens: tokens, pages: blankPages(s.e.model, len(tokens)), logits: logits}})
		s.alone[name] = logits
	}
	return s.alone[name]
}

// Whatever else is in the batch, whatever was cached, evicted, preempted or
// cancelled, every score has the bits it has alone and cold; and every request
// ends, at the very limit of the cache too.
func TestBatchAndCacheDoNotChangeABit(t *testing.T) {
	_, tok := tiny(t)
	m, err := randomModel(64, 1, len(tok.pieces))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		kvTokens := pageTokens * rapid.IntRange(4, 20).Draw(t, "pages")
		s := newStepper(m, tok, kvTokens, rapid.IntRange(1, 5).Draw(t, "batch"))
		var streams []*Stream
		var cancels []context.CancelFunc
		submit := func() {
			n := rapid.IntRange(1, kvTokens-1).Draw(t, "prompt")
			shared := rapid.IntRange(0, n).Draw(t, "shared")
			prompt := append(someTokens(shared, m.vocab, 0), someTokens(n-shared, m.vocab, int32(rapid.IntRange(1, 3).Draw(t, "tail")))...)
			ctx, cancel := context.WithCancel(context.Background())
			cancels = append(cancels, cancel)
			stream, err := s.e.Generate(ctx, Request{
				Prompt: prompt, MaxTokens: rapid.IntRange(1, min(kvTokens-n, 40)).Draw(t, "answer"), Temperature: 1, Seed: uint64(len(streams)),
			})
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, stream)
		}
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			submit()
			for range rapid.IntRange(0, 6).Draw(t, "steps") {
				s.step(t)
			}
			if rapid.IntRange(0, 7).Draw(t, "cancel") == 0 {
				cancels[rapid.IntRange(0, len(cancels)-1).Draw(t, "which")]()
			}
		}
		for steps := 0; ; steps++ {
			if s.collect(); len(s.running)+len(s.waiting) == 0 {
				break
			}
			if steps > 5000 {
				t.Fatal("the requests do not end")
			}
			s.step(t)
		}
		for _, stream := range streams {
			for ok := true; ok; _, ok = stream.Next() {
			}
			if reason, err := stream.Finish(); reason == "" && err != context.Canceled {
				t.Fatalf("ended with %q, %v", reason, err)
			}
		}
		if s.cache.available() != s.cache.limit {
			t.Fatalf("%d of %d pages came back", s.cache.available(), s.cache.limit)
		}
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// A repeated prompt is cached but for its last token's page; the answer is too.
func TestPromptAndAnswerAreCached(t *testing.T) {
	m, tok := tiny(t)
	s := newStepper(m, tok, 1024, 4)
	ask := func(prompt []int32) (*Stream, []int32) {
		stream, err := s.e.Generate(t.Context(), Request{Prompt: prompt, MaxTokens: 50})
		if err != nil {
			t.Fatal(err)
		}
		for stream.seq.finish == "" {
			s.step(t)
		}
		return stream, stream.seq.tokens
	}
	prompt := someTokens(96, 900, 3)
	stream, tokens := ask(prompt)
	if stream.CachedTokens() != 0 {
		t.Errorf("a new prompt found %d tokens", stream.CachedTokens())
	}
	if stream, _ = ask(prompt); stream.CachedTokens() != 80 {
		t.Errorf("a repeated prompt of 96 tokens found %d, want 80: one page is left to compute", stream.CachedTokens())
	}
	if stream, _ = ask(append(tokens, 300)); stream.CachedTokens() != len(tokens)/pageTokens*pageTokens {
		t.Errorf("prompt and answer, %d tokens, found %d", len(tokens), stream.CachedTokens())
	}
}

// Requests with one cold prefix that arrive together compute it once.
func TestSharedColdPrefixIsComputedOnce(t *testing.T) {
	m, tok := tiny(t)
	s := newStepper(m, tok, 4096, 8)
	prefix := someTokens(350, 900, 5)
	for i := range int32(8) {
		if _, err := s.e.Generate(t.Context(), Request{Prompt: append(slices.Clone(prefix), 300+i), MaxTokens: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for s.collect(); len(s.running)+len(s.waiting) > 0; s.collect() {
		s.step(t)
	}
	if want := 351 + 7*(351-336); s.computed != want {
		t.Errorf("computed %d tokens, want %d: the prefix once, and seven tails", s.computed, want)
	}
}

// A cancelled request is gone after the next step, whether it waits, is in its
// prefill or answers, and leaves no page referenced.
func TestCancelledLeavesWithinAStep(t *testing.T) {
	m, tok := tiny(t)
	for _, at := range []struct {
		name  string
		batch int // 0: it waits behind another
		steps int
	}{{"waiting", 1, 1}, {"prefill", 2, 1}, {"answer", 2, 9}} {
		t.Run(at.name, func(t *testing.T) {
			s := newStepper(m, tok, 1024, at.batch)
			if _, err := s.e.Generate(t.Context(), Request{Prompt: someTokens(20, 900, 1), MaxTokens: 100}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := s.e.Generate(ctx, Request{Prompt: someTokens(300, 900, 2), MaxTokens: 100})
			if err != nil {
				t.Fatal(err)
			}
			for range at.steps {
				s.step(t)
			}
			cancel()
			s.step(t)
			s.collect()
			for ok := true; ok; _, ok = stream.Next() {
			}
			if _, err := stream.Finish(); err != context.Canceled {
				t.Errorf("ended with %v", err)
			}
			if l := s.e.Load(); l.Running != 1 || l.Waiting != 0 {
				t.Errorf("load is %+v, want one running", l)
			}
			if held, free := s.running[0].held(), s.cache.limit-s.cache.available(); held != free {
				t.Errorf("%d pages are referenced, %d of them by the one that runs", free, held)
			}
		})
	}
}
