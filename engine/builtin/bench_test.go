package builtin

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// benchPrompt is n tokens of the tiny model's own tokenizer's text.
func benchPrompt(b *testing.B, e *Engine, n int) []int32 {
	raw, err := os.ReadFile("tiny/SOURCE.txt")
	if err != nil {
		b.Fatal(err)
	}
	return e.Encode(strings.Repeat(string(raw), 1+n/1000))[:n]
}

// firstToken answers one request for one token and checks how much was cached.
func firstToken(b *testing.B, e *Engine, prompt []int32, leastCached int) {
	s, err := e.Generate(context.Background(), Request{Prompt: prompt, MaxTokens: 1})
	if err != nil {
		b.Fatal(err)
	}
	for ok := true; ok; _, ok = s.Next() {
	}
	if got := s.CachedTokens(); got < leastCached || leastCached == 0 && got > 0 {
		b.Fatalf("%d tokens were cached, want %d", got, leastCached)
	}
}

func open(b *testing.B, c Config) *Engine {
	e, err := Open(c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Close() })
	return e
}

func reportMS(b *testing.B, name string, n int) {
	b.ReportMetric(float64(b.Elapsed())/float64(time.Millisecond)/float64(n), name)
	b.ReportMetric(0, "ns/op")
}

// Time to the first token of a 500-token prompt that nothing is cached of. Run
// with GOMAXPROCS=1 for one core.
func BenchmarkTTFTCold(b *testing.B) {
	e := open(b, Config{KVTokens: 1024})
	prompt := benchPrompt(b, e, 500)
	for i := 0; b.Loop(); i++ {
		prompt[1] = int32(259 + i%600) // another prefix each time
		prompt[2] = int32(259 + i/600)
		firstToken(b, e, prompt, 0)
	}
	reportMS(b, "ms/TTFT", b.N)
}

// The same prompt again: all but its last tokens are cached.
func BenchmarkTTFTWarm(b *testing.B) {
	e := open(b, Config{KVTokens: 1024})
	prompt := benchPrompt(b, e, 500)
	firstToken(b, e, prompt, 0)
	for b.Loop() {
		firstToken(b, e, prompt, 480)
	}
	reportMS(b, "ms/TTFT", b.N)
}

// The paper's longest prompts are of this size.
func BenchmarkTTFTColdLong(b *testing.B) {
	e := open(b, Config{KVTokens: 8192})
	prompt := benchPrompt(b, e, 5000)
	for i := 0; b.Loop(); i++ {
		prompt[1] = int32(259 + i)
		firstToken(b, e, prompt, 0)
	}
	reportMS(b, "ms/TTFT", b.N)
}

// Time per token after a 500-token prompt, alone and eight at a time.
func BenchmarkDecode(b *testing.B) {
	for name, batch := range map[string]int{"batch=1": 1, "batch=8": 8} {
		b.Run(name, func(b *testing.B) {
			const tokens = 100
			e := open(b, Config{})
			prompt := benchPrompt(b, e, 500)
			firstToken(b, e, prompt, 0)
			for b.Loop() {
				streams := make([]*Stream, batch)
				for i := range streams {
					var err error
					streams[i], err = e.Generate(context.Background(), Request{Prompt: prompt, MaxTokens: tokens, Temperature: 1, Seed: uint64(i)})
					if err != nil {
						b.Fatal(err)
					}
				}
				for _, s := range streams {
					for ok := true; ok; _, ok = s.Next() {
					}
				}
			}
			reportMS(b, "ms/token", b.N*batch*tokens)
		})
	}
}
