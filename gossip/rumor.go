package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/hearsay-project/hearsay/prefix"
)

// A Rumor is what one node tells all others each poll interval: its load and the
// whole of its tree. It is the paper's broadcast (sendTrie), the carrier of its
// push-back, and its heartbeat.
type Rumor struct {
	Author  string        // 1 to MaxName bytes of UTF-8
	Life    uint64        // when the author started, in Unix nanoseconds
	Version uint64        // grows with each rumor of one life
	Every   time.Duration // the author's poll interval, by which its silence is measured
	Queue   int           // requests that it has admitted and not finished
	Pause   time.Duration // for how long from now on it wants no forwards; 0: it takes them
	Tokens  int           // tokens cached
	Tree    *prefix.Snapshot
}

// What a rumor may say. A decoder refuses more; an encoder says no more.
const (
	MaxName     = 128
	MaxInterval = time.Hour // of Every and Pause
	MaxQueue    = 1 << 20
	MaxTokens   = 1 << 40
)

// MaxRumorBytes is the size of the largest rumor.
const MaxRumorBytes = 1 + 7*binary.MaxVarintLen64 + MaxName + prefix.MaxSnapshotBytes

const rumorFormat = 1

// AppendBinary appends the rumor's encoding to b:
//
//	byte               1, the format
//	uvarint, bytes     the author's name behind its length
//	uvarints           Life, Version, Every in ns, Queue, Pause in ns, Tokens
//	the rest           Tree, as prefix.Snapshot encodes it
//
// A quantity above its limit is sent as the limit.
func (r Rumor) AppendBinary(b []byte) []byte {
	b = append(b, rumorFormat)
	b = binary.AppendUvarint(b, uint64(len(r.Author)))
	b = append(b, r.Author...)
	for _, v := range []uint64{
		r.Life, r.Version,
		uint64(max(0, min(r.Every, MaxInterval))),
		uint64(max(0, min(r.Queue, MaxQueue))),
		uint64(max(0, min(r.Pause, MaxInterval))),
		uint64(max(0, min(r.Tokens, MaxTokens))),
	} {
		b = binary.AppendUvarint(b, v)
	}
	return r.Tree.AppendBinary(b)
}

// DecodeRumor reads what AppendBinary wrote; b must hold nothing else, and is
// not kept.
func DecodeRumor(b []byte) (Rumor, error) {
	if len(b) == 0 {
		return Rumor{}, errors.New("rumor: empty")
	}
	if b[0] != rumorFormat {
		return Rumor{}, fmt.Errorf("rumor: format %d, this node reads %d: run one version on all nodes", b[0], rumorFormat)
	}
	in := reader{b: b[1:]}
	r := Rumor{
		Author:  in.name(),
		Life:    in.uvarint(1<<64 - 1),
		Version: in.uvarint(1<<64 - 1),
		Every:   time.Duration(in.uvarint(uint64(MaxInterval))),
		Queue:   int(in.uvarint(MaxQueue)),
		Pause:   time.Duration(in.uvarint(uint64(MaxInterval))),
		Tokens:  int(in.uvarint(MaxTokens)),
	}
	if in.bad {
		return Rumor{}, errors.New("rumor: a field is cut short or beyond its limit")
	}
	tree, err := prefix.DecodeSnapshot(in.b)
	if err != nil {
		return Rumor{}, fmt.Errorf("rumor of %s: %w", r.Author, err)
	}
	r.Tree = tree
	return r, nil
}

// A reader takes fields off the front of b; once one is bad, all are.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 || v > limit {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) name() string {
	n := int(r.uvarint(MaxName))
	if r.bad || n == 0 || n > len(r.b) || !utf8.Valid(r.b[:n]) {
		r.bad = true
		return ""
	}
	name := string(r.b[:n])
	r.b = r.b[n:]
	return name
}
