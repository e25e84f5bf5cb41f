package builtin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

// Nothing outlives Close.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openTest(t *testing.T, c Config) *Engine {
	t.Helper()
	e, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// answerOf runs one request to its end.
func answerOf(t *testing.T, e *Engine, r Request) (string, Usage) {
	t.Helper()
	s, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for text, ok := s.Next(); ok; text, ok = s.Next() {
		b.WriteString(text)
	}
	if _, err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	return b.String(), s.Usage()
}

// Many requests at once, on a cache that cannot hold two of them, answer as
// each does alone, greedy and sampled.
func TestConcurrentAnswersEqualLoneOnes(t *testing.T) {
	var requests []Request
	e := openTest(t, Config{Context: 256, KVTokens: 16384})
	for i, g := range goldens(t) {
		for seed := range 4 {
			requests = append(requests, Request{Prompt: g.promptTokens, MaxTokens: 60 + 20*i, Temperature: float64(seed) / 3, TopP: 0.9, Seed: uint64(seed)})
		}
	}
	want := make([]string, len(requests))
	for i, r := range requests {
		want[i], _ = answerOf(t, e, r)
		if r.Temperature == 0 && !strings.HasPrefix(want[i], goldens(t)[i/4].text) {
			t.Errorf("greedy: %q", want[i])
		}
	}
	tight := openTest(t, Config{Context: 160, KVTokens: 176, MaxBatch: 6})
	var all sync.WaitGroup
	for i, r := range requests {
		all.Go(func() {
			if got, _ := answerOf(t, tight, r); got != want[i] {
				t.Errorf("%+v\n answered %q\n alone    %q", r, got, want[i])
			}
		})
	}
	all.Wait()
	if want[1] == want[2] || want[2] == want[3] {
		t.Error("different seeds and temperatures draw the same text")
	}
}

// A full queue refuses at once; what is refused or ends makes room again.
func TestQueueIsBounded(t *testing.T) {
	m, tok := tiny(t)
	s := newStepper(m, tok, 1024, 2)
	s.e.queueMax = 3
	for range 5 {
		if _, err := s.e.Generate(t.Context(), Request{Prompt: []int32{1}, MaxTokens: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.e.Generate(t.Context(), Request{Prompt: []int32{1}, MaxTokens: 1}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("the sixth request got %v", err)
	}
	if l := s.e.Load(); l.Waiting != 5 || l.PrefillTokens != 5 {
		t.Errorf("load %+v, want five waiting", l)
	}
	s.step(t)
	s.collect()
	if _, err := s.e.Generate(t.Context(), Request{Prompt: []int32{1}, MaxTokens: 1}); err != nil {
		t.Errorf("after two have ended: %v", err)
	}
}

// A request that can never fit is refused, and one that says nothing gets what fits.
func TestContextIsBounded(t *testing.T) {
	e := openTest(t, Config{Context: 100, KVTokens: 90})
	if got := e.Context(); got != 80 {
		t.Errorf("context %d, want the whole pages of the cache", got)
	}
	for _, r := range []Request{{Prompt: make([]int32, 80)}, {Prompt: make([]int32, 50), MaxTokens: 31}} {
		var long *ContextError
		if _, err := e.Generate(t.Context(), r); !errors.As(err, &long) || long.Limit != 80 {
			t.Errorf("%d tokens and %d: %v", len(r.Prompt), r.MaxTokens, err)
		}
	}
	if _, usage := answerOf(t, e, Request{Prompt: e.Encode("The whale")}); usage.CompletionTokens != 77 || usage.PromptTokens != 3 {
		t.Errorf("%+v, want an answer that fills the context", usage)
	}
	for _, bad := range [][]int32{nil, {-1}, {1024}} {
		if _, err := e.Generate(t.Context(), Request{Prompt: bad}); err == nil {
			t.Errorf("prompt %v was accepted", bad)
		}
	}
}

// Close ends what runs and what waits, and refuses what comes.
func TestCloseEndsEverything(t *testing.T) {
	e := openTest(t, Config{MaxBatch: 1})
	var streams []*Stream
	for range 3 {
		s, err := e.Generate(t.Context(), Request{Prompt: e.Encode("The whale"), MaxTokens: 4000})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	streams[0].Next()
	e.Close()
	for i, s := range streams {
		for ok := true; ok; _, ok = s.Next() {
		}
		if _, err := s.Finish(); !errors.Is(err, ErrClosed) {
			t.Errorf("request %d ended with %v", i, err)
		}
	}
	if _, err := e.Generate(t.Context(), Request{Prompt: []int32{1}}); !errors.Is(err, ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
	e.Close()
}

// The engine runs where time is not real.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := Open(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		g := goldens(t)[0]
		if text, _ := answerOf(t, e, Request{Prompt: g.promptTokens, MaxTokens: 60}); text != g.text {
			t.Errorf("%q", text)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s, err := e.Generate(ctx, Request{Prompt: g.promptTokens, MaxTokens: 8000})
		if err != nil {
			t.Fatal(err)
		}
		s.Next()
		cancel()
		synctest.Wait()
		if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.KVTokensUsed == 0 {
			t.Errorf("after a cancellation: %+v", l)
		}
	})
}

// An idle engine holds its weights and no KV memory.
func TestPagesAreMadeOnFirstUse(t *testing.T) {
	e := openTest(t, Config{KVTokens: 1 << 30})
	if l := e.Load(); l.KVTokensUsed != 0 || l.KVTokens != 1<<30 {
		t.Errorf("%+v", l)
	}
}

// Sampling follows its definition: the seed decides, top_p cuts the tail.
func TestSampler(t *testing.T) {
	logits := []float32{1, 3, 2, 3, -5}
	if got := newSampler(0, 1, 0).next(logits); got != 1 {
		t.Errorf("greedy took %d, want the first of the best", got)
	}
	draw := func(topP float64, seed uint64) (counts [5]int) {
		s := newSampler(1, topP, seed)
		for range 20000 {
			counts[s.next(logits)]++
		}
		return counts
	}
	a := draw(1, 1)
	if a != draw(1, 1) || a == draw(1, 2) {
		t.Error("the seed does not decide")
	}
	for id, share := range []float64{0.0541, 0.3994, 0.1469, 0.3994, 0.0001} { // e^l over their sum
		if got := float64(a[id]) / 20000; got < share-0.015 || got > share+0.015 {
			t.Errorf("token %d drawn %.3f of the time, want %.3f", id, got, share)
		}
	}
	if b := draw(0.75, 1); b[1]+b[3] != 20000 {
		t.Errorf("top_p 0.75 drew %v, want the two best alone", b)
	}
	if c := draw(1e-9, 1); !slices.Equal(c[:], []int{0, 20000, 0, 0, 0}) {
		t.Errorf("the least top_p drew %v", c)
	}
}
