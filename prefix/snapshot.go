package prefix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// A Snapshot is the set of blocks that a tree held at one moment: its encoding,
// and a table over it for membership. It never changes, so it may be read from
// anywhere and encoded outside of any lock. The nil Snapshot and the zero one
// are empty.
//
// The encoding is columnar, since levels compress to a byte and hashes not at
// all:
//
//	uvarint            n, the number of blocks, at most MaxBlocks
//	n uvarints         in preorder, how many levels up from the previous block
//	                   its parent is; 0: the previous block is the parent
//	n 8-byte integers  the blocks' hashes in the same order, little endian
//
// The first block's level is counted from h_0, which is not sent. Any levels that
// do not leave the tree describe one, so what decodes is prefix-closed. Siblings
// stand newest first: the order costs nothing to keep, depends only on what
// happened to the tree, and as a tree has one author nobody compares the bytes of
// two.
type Snapshot struct {
	data  []byte
	n     int
	slots []Hash // open addressing with linear probing, 0 empty, at most half full
	mul   uint64
	shift int
}

// MaxSnapshotBytes is the size of the largest encoding. A level number takes more
// than one byte only from 128 levels on, and no walk goes up further than down.
const MaxSnapshotBytes = binary.MaxVarintLen32 + 9*MaxBlocks + MaxBlocks/128

// Len returns the number of blocks.
func (s *Snapshot) Len() int {
	if s == nil {
		return 0
	}
	return s.n
}

// Has reports whether the snapshot holds the prefix that h names.
func (s *Snapshot) Has(h Hash) bool {
	if s.Len() == 0 {
		return false
	}
	for i := s.slot(h); ; i = (i + 1) & (len(s.slots) - 1) {
		switch s.slots[i] {
		case 0:
			return false
		case h:
			return true
		}
	}
}

// Match returns how many leading blocks of c the snapshot holds.
func (s *Snapshot) Match(c Chain) int { return c.Longest(s.Has) }

// All yields the blocks in preorder.
func (s *Snapshot) All() iter.Seq[Hash] {
	return func(yield func(Hash) bool) {
		if s.Len() == 0 {
			return
		}
		for b := s.data[len(s.data)-8*s.n:]; len(b) > 0; b = b[8:] {
			if !yield(Hash(binary.LittleEndian.Uint64(b))) {
				return
			}
		}
	}
}

// AppendBinary appends the encoding to b. It is a copy: a snapshot is encoded
// once, when it is taken.
func (s *Snapshot) AppendBinary(b []byte) []byte {
	if s.Len() == 0 {
		return append(b, 0)
	}
	return append(b, s.data...)
}

// DecodeSnapshot reads what AppendBinary wrote; b must hold nothing else, and
// is not kept. Whatever b holds, it costs time and memory linear in len(b).
func DecodeSnapshot(b []byte) (*Snapshot, error) {
	count, at := uvarint(b)
	switch {
	case at <= 0:
		return nil, errors.New("snapshot: no block count")
	case count > MaxBlocks:
		return nil, fmt.Errorf("snapshot: %d blocks, more than %d", count, MaxBlocks)
	case count > uint64(len(b)-at)/9:
		return nil, fmt.Errorf("snapshot: %d blocks in %d bytes", count, len(b)-at)
	}
	n, depth := int(count), uint64(0)
	for i := range n {
		up, width := uvarint(b[at:])
		if width <= 0 || up > depth {
			return nil, fmt.Errorf("snapshot: block %d has no parent", i)
		}
		at += width
		depth += 1 - up
	}
	if len(b)-at != 8*n {
		return nil, fmt.Errorf("snapshot: %d bytes of hashes for %d blocks", len(b)-at, n)
	}
	s := &Snapshot{data: append([]byte(nil), b...), n: n}
	if !s.fill() {
		return nil, errors.New("snapshot: a block is named twice, or zero")
	}
	return s, nil
}

// uvarint is binary.Uvarint that takes only the shortest form of a number, so
// that a set in an order has one encoding.
func uvarint(b []byte) (v uint64, width int) {
	v, width = binary.Uvarint(b)
	if width > 1 && b[width-1] == 0 {
		return 0, -1
	}
	return v, width
}

// encode takes a snapshot of the tree.
func (t *Tree) encode() *Snapshot {
	n := len(t.index)
	levels := binary.AppendUvarint(make([]byte, 0, 9*n+n/128+binary.MaxVarintLen32), uint64(n))
	hashes := make([]byte, 0, 8*n)
	up := uint64(0)
	for i := t.blocks[0].child; i != 0; {
		levels = binary.AppendUvarint(levels, up)
		hashes = binary.LittleEndian.AppendUint64(hashes, uint64(t.blocks[i].hash))
		if up = 0; t.blocks[i].child != 0 {
			i = t.blocks[i].child
			continue
		}
		up = 1
		for i != 0 && t.blocks[i].next == 0 {
			i = t.blocks[i].parent
			up++
		}
		i = t.blocks[i].next
	}
	s := &Snapshot{data: append(levels, hashes...), n: n}
	if !s.fill() {
		panic("prefix: a tree names a block twice")
	}
	return s
}

// fill builds the table and reports whether all hashes are different and not
// zero. The hashes pick their slots through a multiplier drawn from all of them
// together, so that bytes made to collide cannot make it slow.
func (s *Snapshot) fill() bool {
	if s.n == 0 {
		return true
	}
	width := bits.Len(uint(2*s.n - 1))
	s.slots = make([]Hash, 1<<width)
	s.shift = 64 - width
	s.mul = xxh3.Hash(s.data) | 1
	for h := range s.All() {
		i := s.slot(h)
		for s.slots[i] != 0 && s.slots[i] != h {
			i = (i + 1) & (len(s.slots) - 1)
		}
		if s.slots[i] == h || h == 0 {
			return false
		}
		s.slots[i] = h
	}
	return true
}

func (s *Snapshot) slot(h Hash) int { return int(uint64(h) * s.mul >> s.shift) }
