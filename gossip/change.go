package gossip

import (
	"encoding/binary"
	"errors"

	"github.com/hearsay-project/hearsay/prefix"
)

// A Change is what has become of the author's tree since an earlier version: the
// blocks that came or went meanwhile, at whatever moment and however often, as they
// stand now. So it holds for whoever has that version or any later one.
type Change struct {
	Since  uint64        // the version, of the same life; above 0
	Gone   []prefix.Hash // not in the tree; in ascending order, as Come
	Come   []prefix.Hash // in the tree
	Blocks int           // of the tree, with the change
	Digest prefix.Digest // of the tree, with the change
}

// appendBinary appends the encoding of what follows Since:
//
//	uvarint   Blocks
//	8 bytes   Digest, little-endian
//	uvarints  the numbers of Gone and of Come
//	the rest  their names, 8 bytes each, little-endian, in ascending order
func (c *Change) appendBinary(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(c.Blocks))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Digest))
	b = binary.AppendUvarint(b, uint64(len(c.Gone)))
	b = binary.AppendUvarint(b, uint64(len(c.Come)))
	for _, names := range [][]prefix.Hash{c.Gone, c.Come} {
		for _, h := range names {
			b = binary.LittleEndian.AppendUint64(b, uint64(h))
		}
	}
	return b
}

var errChange = errors.New("change: a field is cut short or beyond its limit, or its names are not in order")

// decodeChange reads what appendBinary wrote; b holds nothing else, and is not kept.
// It allocates no more than b is long.
func decodeChange(since uint64, b []byte) (*Change, error) {
	in := reader{b: b}
	c := &Change{Since: since, Blocks: int(in.uvarint(prefix.MaxBlocks)), Digest: prefix.Digest(in.fixed())}
	gone, come := in.uvarint(prefix.MaxBlocks), in.uvarint(prefix.MaxBlocks)
	if in.bad || 8*(gone+come) != uint64(len(in.b)) {
		return nil, errChange
	}
	c.Gone, c.Come = in.names(gone), in.names(come)
	if in.bad {
		return nil, errChange
	}
	return c, nil
}

func (r *reader) fixed() uint64 {
	if r.bad || len(r.b) < 8 {
		r.bad = true
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

// names reads so many names, of which there is room for all, in ascending order and
// none of them zero.
func (r *reader) names(n uint64) (names []prefix.Hash) {
	if n > 0 {
		names = make([]prefix.Hash, 0, n)
	}
	last := prefix.Hash(0)
	for range n {
		h := prefix.Hash(r.fixed())
		r.bad = r.bad || h <= last
		names, last = append(names, h), h
	}
	return names
}
