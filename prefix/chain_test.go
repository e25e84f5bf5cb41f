package prefix

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// All nodes of a cluster, whatever their version, must give a text the same
// name. The roots here were computed by another implementation of HMAC.
func TestNamesAreFixed(t *testing.T) {
	root := Key("secret").Root(Scope{Model: "m"})
	for _, test := range []struct {
		what      string
		got, want Hash
	}{
		{"root", root, 0xc1c80ea40fef4276},
		{"root of nothing", Key(nil).Root(Scope{}), 0x1262ddf97b1de20e},
		{"block 2", NewChain(root, bytes.Repeat([]byte("hearsay "), 16))[1], 0xcc19259ffc55bc68},
	} {
		if test.got != test.want {
			t.Errorf("%s is named %#x, want %#x", test.what, uint64(test.got), uint64(test.want))
		}
	}
}

// Equal text is a different cache entry under another model, adapter, salt or
// key, and fields do not run together.
func TestScopesAreApart(t *testing.T) {
	seen := map[Hash]string{}
	for _, key := range []Key{nil, Key("k")} {
		for _, s := range []Scope{{}, {Model: "ab"}, {Model: "a", Adapter: "b"}, {Adapter: "ab"}, {Model: "a", Salt: "b"}, {Salt: "ab"}} {
			what := fmt.Sprintf("%q %+v", key, s)
			if other, ok := seen[key.Root(s)]; ok {
				t.Errorf("%s and %s have one root", what, other)
			}
			seen[key.Root(s)] = what
		}
	}
}

// Keys are told apart without being told, and no key from any.
func TestFingerprints(t *testing.T) {
	if got := Key("secret").Fingerprint(); got != "749584cb69867847" {
		t.Errorf("the fingerprint is %s", got)
	}
	if Key("secret").Fingerprint() == Key("Secret").Fingerprint() || Key(nil).Fingerprint() != "" {
		t.Error("fingerprints do not tell keys apart")
	}
}

// A chain that is extended is that of the whole text, however it is cut, and who
// shares its beginning keeps it.
func TestExtendedChainsAreWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root := Hash(rapid.Uint64().Draw(t, "root"))
		text := rapid.SliceOfN(rapid.Byte(), 0, 8*BlockBytes).Draw(t, "text")
		whole := NewChain(root, text)
		cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
		head := whole[:cut]
		if got := head.Extend(root, text[cut*BlockBytes:]); !slices.Equal(got, whole) {
			t.Fatalf("cut at %d it is %x, whole %x", cut, got, whole)
		}
		head.Extend(root, make([]byte, 8*BlockBytes))
		if again := NewChain(root, text); !slices.Equal(whole, again) {
			t.Fatal("extending a chain has changed what lies behind it")
		}
	})
}

// Who sees the names of a rumor and not the root cannot test what text stands between
// two of them: no name is the hash of its block under the name before it.
func TestNamesDoNotTellTheirText(t *testing.T) {
	text := bytes.Repeat([]byte("known to everyone "), 64)
	root := Key("secret").Root(Scope{Model: "m"})
	c := NewChain(root, text)
	for i, before := range append(Chain{0}, c[:len(c)-1]...) {
		block := text[i*BlockBytes : (i+1)*BlockBytes]
		if Hash(xxh3.HashSeed(block, uint64(before))) == c[i] || NewChain(before, block)[0] == c[i] {
			t.Errorf("block %d can be told from the names alone", i)
		}
	}
}

// Two chains agree exactly as far as the whole blocks of their texts do.
func TestChainsAgreeAsFarAsTheirTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfN(rapid.SampledFrom([]byte("ab")), 0, 6*BlockBytes)
		head := letters.Draw(t, "head")
		a := append(bytes.Clone(head), letters.Draw(t, "a")...)
		b := append(bytes.Clone(head), letters.Draw(t, "b")...)
		common := 0
		for common < min(len(a), len(b)) && a[common] == b[common] {
			common++
		}
		ca, cb := NewChain(7, a), NewChain(7, b)
		if len(ca) != len(a)/BlockBytes {
			t.Fatalf("%d bytes have %d blocks", len(a), len(ca))
		}
		for i := range min(len(ca), len(cb)) {
			if same := ca[i] == cb[i]; same != ((i+1)*BlockBytes <= common) {
				t.Fatalf("texts agree for %d bytes, chains agree at block %d: %v", common, i, same)
			}
		}
	})
}

func BenchmarkNewChain(b *testing.B) {
	for _, size := range []int{2 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			text := bytes.Repeat([]byte("0123456789abcdef"), size/16)
			b.SetBytes(int64(size))
			for b.Loop() {
				NewChain(1, text)
			}
		})
	}
}
