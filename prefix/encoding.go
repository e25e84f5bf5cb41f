package prefix

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
)

// MaxSnapshotBytes is the size of the largest encoding. A level number takes more
// than one byte only from 128 levels on, and no walk goes up further than down.
const MaxSnapshotBytes = binary.MaxVarintLen32 + 9*MaxBlocks + MaxBlocks/128

// AppendBinary appends the snapshot's encoding to b. It is columnar, since levels
// compress to a byte and hashes not at all:
//
//	uvarint            n, the number of blocks, at most MaxBlocks
//	n uvarints         in preorder, how many levels up from the previous block
//	                   its parent is; 0: the previous block is the parent
//	n 8-byte integers  the blocks' hashes in the same order, little endian
//
// The first block's level is counted from h_0, which is not sent. Any levels that
// do not leave the tree describe one, so what decodes is prefix-closed. Siblings
// stand in the order of their hashes, so a set has one encoding.
//
// It costs about 5 ms for 100,000 blocks.
func (s *Snapshot) AppendBinary(b []byte) []byte {
	n := s.Len()
	b = binary.AppendUvarint(b, uint64(n))
	if n == 0 {
		return b
	}
	b = slices.Grow(b, 9*n+n/128)
	names := make([]byte, 0, 8*n)
	f := s.family()
	var path []int32 // from a first block to the parent of i
	up := uint64(0)
	for i := f.eldest(0); i != 0; {
		b = binary.AppendUvarint(b, up)
		names = binary.LittleEndian.AppendUint64(names, uint64(s.hash(uint(i-1))))
		if child := f.eldest(i); child != 0 {
			path = append(path, i)
			i, up = child, 0
			continue
		}
		up = 1
		for f.next[i] == 0 && len(path) > 0 {
			i, path = path[len(path)-1], path[:len(path)-1]
			up++
		}
		i = f.next[i]
	}
	return append(b, names...)
}

// A family links the blocks of a snapshot downwards. A block goes by its slot,
// counted from 1; 0 is h_0 as a parent, and no block as a child or sibling.
type family struct {
	*Snapshot
	child, next []int32
	scratch     []int32
}

func (s *Snapshot) family() *family {
	f := &family{Snapshot: s, child: make([]int32, s.slots()+1), next: make([]int32, s.slots()+1)}
	for slot := range s.slots() {
		if s.hash(slot) == 0 {
			continue
		}
		i, parent := int32(slot+1), uint(0)
		if h := s.parent(slot); h != 0 {
			at, _ := s.find(h)
			parent = at + 1
		}
		f.next[i], f.child[parent] = f.child[parent], i
	}
	return f
}

// eldest puts the children of i in order and returns the first.
func (f *family) eldest(i int32) int32 {
	first := f.child[i]
	if first == 0 || f.next[first] == 0 {
		return first
	}
	all := f.scratch[:0]
	for ; first != 0; first = f.next[first] {
		all = append(all, first)
	}
	slices.SortFunc(all, func(a, b int32) int { return cmp.Compare(f.hash(uint(a-1)), f.hash(uint(b-1))) })
	for k, i := range all[1:] {
		f.next[all[k]] = i
	}
	f.next[all[len(all)-1]] = 0
	f.scratch = all
	return all[0]
}

// DecodeSnapshot reads what AppendBinary wrote; b must hold nothing else, and
// is not kept. Whatever b holds, it costs time and memory linear in len(b).
func DecodeSnapshot(b []byte) (*Snapshot, error) {
	count, width := uvarint(b)
	switch {
	case width <= 0:
		return nil, errors.New("snapshot: no block count")
	case count > MaxBlocks:
		return nil, fmt.Errorf("snapshot: %d blocks, more than %d", count, MaxBlocks)
	case count > uint64(len(b)-width)/9:
		return nil, fmt.Errorf("snapshot: %d blocks in %d bytes", count, len(b)-width)
	}
	n := int(count)
	levels, names := b[width:len(b)-8*n], b[len(b)-8*n:]
	var d draft
	d.resize(n, xxh3.Hash(b))
	var path Chain // from a first block to the previous one
	for i := range n {
		up, width := uvarint(levels)
		if width <= 0 || up > uint64(len(path)) {
			return nil, fmt.Errorf("snapshot: block %d has no parent", i)
		}
		levels = levels[width:]
		h, elder, parent := Hash(binary.LittleEndian.Uint64(names[8*i:])), Hash(0), Hash(0)
		if up > 0 {
			elder = path[len(path)-int(up)]
			path = path[:len(path)-int(up)]
		}
		if len(path) > 0 {
			parent = path[len(path)-1]
		}
		if h <= elder || !d.put(h, parent) {
			return nil, fmt.Errorf("snapshot: block %d is zero, named twice, or not in order", i)
		}
		path = append(path, h)
	}
	if len(levels) > 0 {
		return nil, fmt.Errorf("snapshot: %d bytes left over", len(levels))
	}
	return d.take(), nil
}

// uvarint is binary.Uvarint that takes only the shortest form of a number, so
// that a set has one encoding.
func uvarint(b []byte) (v uint64, width int) {
	v, width = binary.Uvarint(b)
	if width > 1 && b[width-1] == 0 {
		return 0, -1
	}
	return v, width
}
