package workload

import (
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/prefix"
)

// A sequence is one prompt as a row of symbols, each of which stands for the
// same number of tokens, its source's unit: token ids, or names of blocks in a
// trace. Two prompts have in common what their rows have. Texts are cut into tokens
// head and tail apart, so that a head is cut once; MMLU's have the tokens of the whole.
type sequence struct {
	topic  string
	head   []uint32 // what others share by design; may be one slice for all of them
	tail   []uint32 // what is its own
	tokens int      // at least as many as the symbols before the last stand for
	output int      // 0 where the source does not say
	at     time.Duration
}

// rootName is h_0 of the chains made here. They meet no others, so no key is needed.
const rootName = 0x68656172736179

// chain names the whole blocks of the prompt, where block is a multiple or a
// divisor of unit. Block i's name is the xxh3 of its symbols seeded with the
// name of block i-1, as in package prefix; a symbol that spans several blocks
// counts in each. From round 1 on, blocks that hold anything of the tail have
// the names of that round.
func (q *sequence) chain(unit, block int, round uint64) prefix.Chain {
	symbols := len(q.head) + len(q.tail)
	c := make(prefix.Chain, min(q.tokens/block, symbols*unit/block))
	fresh := len(c)
	if round > 0 {
		fresh = len(q.head) * unit / block
	}
	var buf []byte
	h := uint64(rootName)
	for i := range c {
		buf = buf[:0]
		if i == fresh {
			buf = binary.LittleEndian.AppendUint64(buf, round)
		}
		first := i * block / unit
		for k := first; k < max(first+1, (i+1)*block/unit); k++ {
			buf = binary.LittleEndian.AppendUint32(buf, q.symbol(k))
		}
		if h = xxh3.HashSeed(buf, h); h == 0 {
			h = 1 // zero is no block
		}
		c[i] = prefix.Hash(h)
	}
	return c
}

func (q *sequence) symbol(k int) uint32 {
	if k < len(q.head) {
		return q.head[k]
	}
	return q.tail[k-len(q.head)]
}

// A forest numbers the prefixes of rows of block ids: two rows have the same
// first numbers as far as they have the same first ids, whatever an id means.
// It also knows where rows part, and how many go through a prefix.
type forest struct {
	nodes map[edge]uint32 // numbers from 1; 0 is before the first id
	rows  []uint32        // by number: how many have it
	child []uint32        // by number: one that follows, 0 for none
	parts []bool          // by number: more than one follow
}

type edge struct {
	parent uint32
	id     uint64
}

func newForest() *forest {
	return &forest{nodes: map[edge]uint32{}, rows: []uint32{0}, child: []uint32{0}, parts: []bool{false}}
}

// row numbers the prefixes of ids.
func (f *forest) row(ids []uint64) []uint32 {
	row := make([]uint32, len(ids))
	at := uint32(0)
	for i, id := range ids {
		next, known := f.nodes[edge{at, id}]
		if !known {
			next = uint32(len(f.child))
			f.nodes[edge{at, id}] = next
			f.rows, f.child, f.parts = append(f.rows, 0), append(f.child, 0), append(f.parts, false)
			f.parts[at] = f.child[at] != 0
			f.child[at] = next
		}
		f.rows[next]++
		row[i], at = next, next
	}
	return row
}

// shared is how many of row's numbers come before the last place where at least
// so many rows part.
func (f *forest) shared(row []uint32, least int) int {
	n := len(row)
	for n > 0 && !(f.parts[row[n-1]] && int(f.rows[row[n-1]]) >= least) {
		n--
	}
	return n
}
