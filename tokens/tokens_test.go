package tokens

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Count and Cut agree to the token, a token has about its size, and texts share
// tokens as far as they agree.
func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Float64Range(1, 64).Draw(t, "size")
		text := rapid.StringN(0, 300, 2000).Draw(t, "text")
		all := Cut(text, size)
		if len(all) != Count(len(text), size) {
			t.Fatalf("%d bytes in tokens of %g: cut into %d, counted %d", len(text), size, len(all), Count(len(text), size))
		}
		if low, high := float64(len(all)-1)*size-0.5, float64(len(all))*size+0.5; float64(len(text)) <= low || float64(len(text)) > high {
			t.Fatalf("%d bytes are %d tokens of %g", len(text), len(all), size)
		}
		at := rapid.IntRange(0, len(text)).Draw(t, "at")
		other := Cut(text[:at]+"\x00"+text[at:], size)
		if whole := Count(at, size) - 1; whole > 0 && !slices.Equal(other[:whole], all[:whole]) {
			t.Fatalf("texts that agree for %d bytes differ within their first %d tokens of %g", at, whole, size)
		}
	})
}

// The pieces are cl100k_base's.
func TestCL100K(t *testing.T) {
	want := []uint32{39, 7596, 352, 649, 387, 5076, 922, 433, 13}
	if got := CL100K("Hearsay can be wrong about it."); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := CL100K(""); len(got) != 0 {
		t.Errorf("no text gives %v", got)
	}
}
