package builtin

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// encodeNaive joins the best adjacent pair, the leftmost of equals, by looking
// at all of them each time.
func encodeNaive(t *tokenizer, text string) []int32 {
	symbols := strings.Split(text, "") // characters; invalid bytes stand alone
	for {
		best := -1
		var score float32
		for i := 0; i+1 < len(symbols); i++ {
			if id, ok := t.ids[symbols[i]+symbols[i+1]]; ok && (best < 0 || t.scores[id] > score) {
				best, score = i, t.scores[id]
			}
		}
		if best < 0 {
			break
		}
		symbols[best] += symbols[best+1]
		symbols = slices.Delete(symbols, best+1, best+2)
	}
	var ids []int32
	for _, s := range symbols {
		ids = t.appendPiece(ids, s)
	}
	return ids
}

// The heap joins the same pairs in the same order as the naive loop, and text
// comes back as it went in.
func TestEncodeEqualsTheNaiveMerge(t *testing.T) {
	_, tok := tiny(t)
	words := rapid.SampledFrom([]string{" the", " of", "ing", " Government", "Ahab", "  ", "\n", "\n\n", "é", "鯨", "'", "1", "a", "t", "h", "e"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.OneOf(words, rapid.String())).Draw(t, "text"), "")
		got, want := tok.encode(nil, text), encodeNaive(tok, text)
		if !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", text, got, want)
		}
		if back := valid(tok.text(tok.prompt(text))); back != valid(text) {
			t.Fatalf("%q came back as %q", text, back)
		}
	})
}

// What follows a newline does not change the tokens before it.
func TestLinesEncodeApart(t *testing.T) {
	_, tok := tiny(t)
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "before")+"\n", rapid.String().Draw(t, "after")
		if !slices.Equal(tok.encode(nil, a+b), tok.encode(tok.encode(nil, a), b)) {
			t.Fatalf("%q and %q encode otherwise together", a, b)
		}
	})
}

// A stream of tokens never splits a character, never shows part of a stop
// string, and says together what all tokens say at once.
func TestTextStreamIsTheTextInPieces(t *testing.T) {
	_, tok := tiny(t)
	stops := []string{"END", "é\n", "鯨鯨"}
	parts := rapid.SampledFrom([]string{"E", "N", "EN", "ND", " é", "\n", "鯨", "\xe9", "\xaf\xa8", "a b"})
	rapid.Check(t, func(t *rapid.T) {
		whole := strings.Join(rapid.SliceOf(parts).Draw(t, "text"), "")
		stream := textStream{pieces: tok.pieces, stops: stops}
		var got strings.Builder
		stopped := false
		for _, id := range tok.encode(nil, whole) {
			var text string
			if text, stopped = stream.push(id); strings.ContainsRune(text, 0xFFFD) && !strings.Contains(valid(whole), "\uFFFD") {
				t.Fatalf("%q split a character", whole)
			}
			got.WriteString(text)
			if stopped {
				break
			}
		}
		got.WriteString(stream.flush())
		want, end := whole, len(whole)
		for _, s := range stops {
			if i := strings.Index(whole, s); i >= 0 {
				end = min(end, i)
			}
		}
		if want = valid(whole[:end]); got.String() != want || stopped != (end < len(whole)) {
			t.Fatalf("%q gave %q, stopped %v; want %q", whole, got.String(), stopped, want)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	_, tok := tiny(b)
	text := strings.Repeat("It is the policy of this Government to serve the whale.", 15<<10/55)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.prompt(text)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(time.Millisecond)/float64(b.N), "ms/15KiB")
}
