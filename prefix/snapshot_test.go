package prefix

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawTree(t *rapid.T) *Tree {
	tree := NewTree(1<<20, rapid.IntRange(0, 200).Draw(t, "max blocks"))
	for _, s := range rapid.SliceOf(rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 20, -1)).Draw(t, "texts") {
		tree.Insert(chainOf(s), 10*len(s))
	}
	return tree
}

// A decoded snapshot matches as the tree did when it was taken, whatever the tree
// has done since, and encodes to the same bytes.
func TestSnapshotKeepsItsMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := drawTree(t)
		c := chainOf(rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 20, -1).Draw(t, "text"))
		taken, match, size := tree.Snapshot(), tree.Match(c), tree.Len()
		tree.Insert(c, 100)
		tree.SetMaxTokens(10)
		data := taken.AppendBinary([]byte("head"))
		decoded, err := DecodeSnapshot(data[4:])
		if err != nil {
			t.Fatal(err)
		}
		clear(data)
		for _, s := range []*Snapshot{taken, decoded} {
			if s.Match(c) != match || s.Len() != size {
				t.Fatalf("matches %d of %d, want %d of %d", s.Match(c), s.Len(), match, size)
			}
		}
		if !bytes.Equal(taken.AppendBinary(nil), decoded.AppendBinary(nil)) || len(taken.AppendBinary(nil)) > MaxSnapshotBytes {
			t.Fatal("decoding changed the encoding")
		}
	})
}

// The same calls give the same bytes.
func TestEncodingIsDeterministic(t *testing.T) {
	a, _ := bigTree(5000)
	b, _ := bigTree(5000)
	if !bytes.Equal(a.Snapshot().AppendBinary(nil), b.Snapshot().AppendBinary(nil)) {
		t.Error("two trees of one history differ")
	}
}

func TestEmptySnapshots(t *testing.T) {
	decoded, err := DecodeSnapshot((*Snapshot)(nil).AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Snapshot{nil, {}, decoded, NewTree(10, 10).Snapshot()} {
		if s.Len() != 0 || s.Has(0) || s.Has(1) || s.Match(chainOf("ab")) != 0 || !bytes.Equal(s.AppendBinary(nil), []byte{0}) || slices.Collect(s.All()) != nil {
			t.Errorf("%+v is not empty", s)
		}
	}
}

func TestDecodeSnapshotRefuses(t *testing.T) {
	hashes := func(hs ...uint64) (b []byte) {
		for _, h := range hs {
			b = binary.LittleEndian.AppendUint64(b, h)
		}
		return b
	}
	for _, test := range []struct{ name, data, want string }{
		{"nothing", "", "snapshot: no block count"},
		{"half a count", "\xff", "snapshot: no block count"},
		{"none in two bytes", "\x80\x00", "snapshot: no block count"},
		{"a level in two bytes", "\x01\x80\x00" + string(hashes(1)), "snapshot: block 0 has no parent"},
		{"more than may be", "\xff\xff\xff\xff\x0f", "snapshot: 4294967295 blocks, more than 1048576"},
		{"more than there is room for", "\x80\x80\x10" + string(hashes(1, 2)), "snapshot: 262144 blocks in 16 bytes"},
		{"above the root", "\x01\x01" + string(hashes(1)), "snapshot: block 0 has no parent"},
		{"higher than its depth", "\x02\x00\x02" + string(hashes(1, 2)), "snapshot: block 1 has no parent"},
		{"a hash short", "\x02\x00\x80\x80" + string(hashes(1, 2)), "snapshot: block 1 has no parent"},
		{"a byte over", "\x01\x00" + string(hashes(1)) + "!", "snapshot: 9 bytes of hashes for 1 blocks"},
		{"bytes after none", "\x00!", "snapshot: 1 bytes of hashes for 0 blocks"},
		{"a name twice", "\x02\x00\x00" + string(hashes(1, 1)), "snapshot: a block is named twice, or zero"},
		{"no name", "\x01\x00" + string(hashes(0)), "snapshot: a block is named twice, or zero"},
	} {
		if _, err := DecodeSnapshot([]byte(test.data)); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
}

// Hashes made to be alike do not make the table slow.
func TestProbesStayShort(t *testing.T) {
	for _, shift := range []int{0, 20, 44} {
		n := 1 << 16
		data := binary.AppendUvarint(nil, uint64(n))
		data = append(data, make([]byte, n)...)
		for i := range n {
			data = binary.LittleEndian.AppendUint64(data, uint64(i+1)<<shift)
		}
		s, err := DecodeSnapshot(data)
		if err != nil {
			t.Fatal(err)
		}
		longest, run := 0, 0
		for _, h := range s.slots {
			if run++; h == 0 {
				run = 0
			}
			longest = max(longest, run)
		}
		if longest > 100 {
			t.Errorf("hashes << %d: a run of %d slots", shift, longest)
		}
	}
}

// Whatever the bytes, decoding does not panic, and what decodes is prefix-closed
// and encodes to the same bytes.
func FuzzDecodeSnapshot(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add([]byte{0x80, 0}) // once decoded as empty, and encoded as one byte
	tree := NewTree(100, 100)
	for _, s := range []string{"abc", "abde", "abd", "x"} {
		tree.Insert(chainOf(s), 4)
	}
	f.Add(tree.Snapshot().AppendBinary(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := DecodeSnapshot(data)
		if err != nil {
			return
		}
		if !bytes.Equal(s.AppendBinary(nil), data) {
			t.Error("encoding it again gives other bytes")
		}
		count := 0
		for h := range s.All() {
			if count++; !s.Has(h) {
				t.Errorf("%x is listed and not held", h)
			}
		}
		if count != s.Len() || 9*count > len(data) {
			t.Errorf("%d blocks listed, %d counted, from %d bytes", count, s.Len(), len(data))
		}
	})
}

func BenchmarkSnapshot100k(b *testing.B) {
	tree, _ := bigTree(100_000)
	for b.Loop() {
		tree.snapshot = nil
		tree.Snapshot()
	}
	b.ReportMetric(float64(len(tree.Snapshot().AppendBinary(nil)))/float64(tree.Len()), "B/block")
}

func BenchmarkSnapshotEncode100k(b *testing.B) {
	tree, _ := bigTree(100_000)
	var data []byte
	for b.Loop() {
		data = tree.Snapshot().AppendBinary(data[:0])
	}
}

func BenchmarkSnapshotDecode100k(b *testing.B) {
	tree, _ := bigTree(100_000)
	data := tree.Snapshot().AppendBinary(nil)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := DecodeSnapshot(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSnapshotMatch100(b *testing.B) {
	tree, chains := bigTree(100_000)
	s := tree.Snapshot()
	for i := 0; b.Loop(); i++ {
		s.Match(chains[i%len(chains)])
	}
}
