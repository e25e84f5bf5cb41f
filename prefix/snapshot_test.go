package prefix

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
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

// Any two snapshots of a tree, at whatever moments, tell what one holds and the
// other does not, each block with its parent; and none changes when the tree does.
func TestSnapshotsTellWhatChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := NewTree(1<<20, rapid.IntRange(0, 200).Draw(t, "max blocks"))
		text := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 20, -1)
		parents := map[Hash]Hash{}
		taken, held := []*Snapshot{nil}, []map[Hash]Hash{{}}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				c := chainOf(text.Draw(t, "text"))
				for i, h := range c {
					parents[h] = append(Chain{0}, c...)[i]
				}
				tree.Insert(c, 10*len(c))
			},
			"prune": func(t *rapid.T) {
				tree.Prune(chainOf(text.Draw(t, "text")), rapid.IntRange(0, 20).Draw(t, "keep"))
			},
			"take": func(t *rapid.T) {
				now := map[Hash]Hash{}
				for i := tree.blocks[0].older; i != 0; i = tree.blocks[i].older {
					now[tree.blocks[i].hash] = parents[tree.blocks[i].hash]
				}
				taken, held = append(taken, tree.Snapshot()), append(held, now)
			},
			"": func(t *rapid.T) {
				a, b := rapid.IntRange(0, len(taken)-1).Draw(t, "a"), rapid.IntRange(0, len(taken)-1).Draw(t, "b")
				want := maps.Clone(held[a])
				maps.DeleteFunc(want, func(h, _ Hash) bool { _, ok := held[b][h]; return ok })
				if got := maps.Collect(taken[a].Since(taken[b])); !maps.Equal(got, want) {
					t.Fatalf("snapshot %d has %x beyond snapshot %d, want %x", a, got, b, want)
				}
				if got := maps.Collect(taken[a].All()); !maps.Equal(got, held[a]) || taken[a].Len() != len(got) {
					t.Fatalf("snapshot %d now holds %x, want %x", a, got, held[a])
				}
			},
		})
	})
}

// A snapshot may be read while its tree changes on.
func TestSnapshotIsReadWhileItsTreeChanges(t *testing.T) {
	tree, chains := bigTree(1000)
	want := tree.Snapshot().AppendBinary(nil)
	for range 10 {
		s, read := tree.Snapshot(), make(chan []byte)
		go func() { read <- s.AppendBinary(nil) }()
		tree.Prune(chains[0], 0)
		if got := <-read; !bytes.Equal(got, want) {
			t.Fatal("a snapshot changed")
		}
		for _, c := range chains {
			tree.Insert(c, 1600)
		}
	}
}

// A set has one encoding, whatever became of the tree before.
func TestASetHasOneEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOf(rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 0, 20, -1)).Draw(t, "texts")
		there, back := NewTree(1<<20, MaxBlocks), NewTree(1<<20, MaxBlocks)
		for i := range 100 {
			back.Insert(Chain{Hash(i + 1)}, 1)
		}
		for i := range texts {
			there.Insert(chainOf(texts[i]), 10)
			back.Insert(chainOf(texts[len(texts)-1-i]), 10)
			back.Snapshot()
		}
		for i := range 100 {
			back.Prune(Chain{Hash(i + 1)}, 0)
		}
		if !bytes.Equal(there.Snapshot().AppendBinary(nil), back.Snapshot().AppendBinary(nil)) {
			t.Fatal("two trees of one set differ")
		}
	})
}

func TestEmptySnapshots(t *testing.T) {
	decoded, err := DecodeSnapshot((*Snapshot)(nil).AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Snapshot{nil, {}, decoded, NewTree(10, 10).Snapshot()} {
		if s.Len() != 0 || s.Has(0) || s.Has(1) || s.Match(chainOf("ab")) != 0 || !bytes.Equal(s.AppendBinary(nil), []byte{0}) || len(maps.Collect(s.All())) != 0 {
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
		{"a byte over", "\x01\x00" + string(hashes(1)) + "!", "snapshot: 1 bytes left over"},
		{"bytes after none", "\x00!", "snapshot: 1 bytes left over"},
		{"a name twice", "\x02\x00\x00" + string(hashes(1, 1)), "snapshot: block 1 is zero, named twice, or not in order"},
		{"no name", "\x01\x00" + string(hashes(0)), "snapshot: block 0 is zero, named twice, or not in order"},
		{"siblings not in order", "\x03\x00\x00\x01" + string(hashes(1, 3, 2)), "snapshot: block 2 is zero, named twice, or not in order"},
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
		for slot := range s.slots() {
			if run++; s.hash(slot) == 0 {
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

// A poll in which one conversation of 100 blocks came, 90 of them new, and as many
// went: what it costs is to depend on that, not on what the tree holds.
func BenchmarkSnapshot(b *testing.B) {
	for _, blocks := range []int{1000, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			tree, _ := bigTree(blocks)
			text := make([]byte, 100*BlockBytes)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				copy(text[10*BlockBytes:], fmt.Sprintf("x%08d", i))
				tree.Insert(NewChain(1, text), 1600)
				tree.Snapshot()
			}
		})
	}
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
