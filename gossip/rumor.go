package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/hearsay-project/hearsay/prefix"
)

// A Rumor is what one node tells all others each poll interval: its load, and its
// tree or what has changed in it. It is the paper's broadcast (sendTrie), the carrier
// of its push-back, and its heartbeat.
type Rumor struct {
	Author  string        // 1 to MaxName bytes of UTF-8
	Life    uint64        // when the author started, in Unix nanoseconds
	Version uint64        // grows with each rumor of one life
	Every   time.Duration // the author's poll interval, by which its silence is measured
	Queue   int           // requests that it has admitted and not finished
	Pause   time.Duration // for how long from now on it wants no forwards; 0: it takes them
	Tokens  int           // of the blocks that it tells
	Down    bool          // its engine cannot serve, or it is leaving: it wants no forwards until it says otherwise
	Models  []string      // that its engine serves; none while it has not told
	Load    Load
	Tree    *prefix.Snapshot // nil where only Change came
	Change  *Change          // nil where Tree is all there is to know
	Relayed bool             // heard from another than the author; not in the encoding

	// Computing are blocks of prompts whose prefill is under way, beyond Tree and
	// from the head of each prompt on: whoever wants them had better wait for them.
	Computing []prefix.Hash
}

// Blocks returns how many blocks the author tells, in this rumor and those before.
func (r Rumor) Blocks() int {
	if r.Change != nil {
		return r.Change.Blocks
	}
	return r.Tree.Len()
}

// A Load is how soon and how fast the author's engine would serve one request
// more, which is what others need to price it.
type Load struct {
	Backlog  time.Duration // until the prefill of a request that came now would begin
	Base     time.Duration // of a time to first token, whatever is cached
	PerToken time.Duration // of each prompt token that is not cached; 0 while its speed is not known
	Rate     float64       // requests a second that it serves, in the long run
	Toll     float64       // requests a second that come while it is busy, over the share of time that it is not
}

// What a rumor may say. A decoder refuses more; an encoder says no more.
const (
	MaxName     = 128
	MaxInterval = time.Hour // of Every and Pause
	MaxQueue    = 1 << 20
	MaxTokens   = 1 << 40
	MaxModels   = 512
	MaxModel    = 256 // bytes of a model's name

	MaxComputing = 4096
	MaxToll      = 1e6
)

// MaxRumorBytes is the size of the largest rumor.
const MaxRumorBytes = 1 + 16*binary.MaxVarintLen64 + MaxName + MaxModels*(2+MaxModel) + 8*MaxComputing + prefix.MaxSnapshotBytes

const rumorFormat = 3

// AppendBinary appends the rumor's encoding to b:
//
//	byte               3, the format
//	uvarint, bytes     the author's name behind its length
//	uvarints           Life, Version, Every in ns, Queue, Pause in ns, Tokens, Down as 0 or 1
//	uvarint            the number of Models, and of each
//	uvarint, bytes     its name behind its length
//	uvarints           Load: Backlog, Base and PerToken in ns, Rate and Toll in thousandths
//	uvarint            the number of Computing, and of each
//	8 bytes            its hash, little-endian
//	uvarint            0, or Change.Since
//	the rest           Tree, as prefix.Snapshot encodes it, or the rest of Change
//
// Where there is a Change, Tree is not sent.
//
// A quantity above its limit is sent as the limit; a model whose name is too long,
// and those beyond the limit, are left out.
func (r Rumor) AppendBinary(b []byte) []byte {
	b = r.AppendHead(b)
	if r.Change != nil {
		return r.Change.appendBinary(b)
	}
	return r.Tree.AppendBinary(b)
}

// AppendHead appends what stands before the rest in the rumor's encoding. A tree
// that has not changed since the last rumor is so encoded once.
func (r Rumor) AppendHead(b []byte) []byte {
	b = append(b, rumorFormat)
	b = binary.AppendUvarint(b, uint64(len(r.Author)))
	b = append(b, r.Author...)
	for _, v := range []uint64{
		r.Life, r.Version,
		uint64(max(0, min(r.Every, MaxInterval))),
		uint64(max(0, min(r.Queue, MaxQueue))),
		uint64(max(0, min(r.Pause, MaxInterval))),
		uint64(max(0, min(r.Tokens, MaxTokens))),
		bit(r.Down),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendModels(b, r.Models)
	for _, v := range []uint64{
		uint64(max(0, min(r.Load.Backlog, MaxInterval))),
		uint64(max(0, min(r.Load.Base, MaxInterval))),
		uint64(max(0, min(r.Load.PerToken, MaxInterval))),
		thousandths(r.Load.Rate, MaxToll),
		thousandths(r.Load.Toll, MaxToll),
	} {
		b = binary.AppendUvarint(b, v)
	}
	computing := r.Computing[:min(len(r.Computing), MaxComputing)]
	b = binary.AppendUvarint(b, uint64(len(computing)))
	for _, h := range computing {
		b = binary.LittleEndian.AppendUint64(b, uint64(h))
	}
	if r.Change != nil {
		return binary.AppendUvarint(b, r.Change.Since)
	}
	return append(b, 0)
}

// thousandths is v, 0 to limit, in fixed point.
func thousandths(v, limit float64) uint64 {
	if !(v > 0) { // nor is it a number
		return 0
	}
	return uint64(math.Round(min(v, limit) * 1000))
}

func bit(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}

func appendModels(b []byte, models []string) []byte {
	sent := make([]string, 0, min(len(models), MaxModels))
	for _, m := range models {
		if len(m) > 0 && len(m) <= MaxModel && utf8.ValidString(m) && len(sent) < MaxModels {
			sent = append(sent, m)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(sent)))
	for _, m := range sent {
		b = append(binary.AppendUvarint(b, uint64(len(m))), m...)
	}
	return b
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
		Author:  in.name(MaxName),
		Life:    in.uvarint(1<<64 - 1),
		Version: in.uvarint(1<<64 - 1),
		Every:   time.Duration(in.uvarint(uint64(MaxInterval))),
		Queue:   int(in.uvarint(MaxQueue)),
		Pause:   time.Duration(in.uvarint(uint64(MaxInterval))),
		Tokens:  int(in.uvarint(MaxTokens)),
		Down:    in.uvarint(1) == 1,
	}
	for range in.uvarint(MaxModels) {
		r.Models = append(r.Models, in.name(MaxModel))
		if in.bad {
			break
		}
	}
	r.Load = Load{
		Backlog:  time.Duration(in.uvarint(uint64(MaxInterval))),
		Base:     time.Duration(in.uvarint(uint64(MaxInterval))),
		PerToken: time.Duration(in.uvarint(uint64(MaxInterval))),
		Rate:     float64(in.uvarint(1000*MaxToll)) / 1000,
		Toll:     float64(in.uvarint(1000*MaxToll)) / 1000,
	}
	r.Computing = in.hashes(MaxComputing)
	since := in.uvarint(1<<64 - 1)
	if in.bad {
		return Rumor{}, errors.New("rumor: a field is cut short or beyond its limit")
	}
	var err error
	if since > 0 {
		r.Change, err = decodeChange(since, in.b)
	} else {
		r.Tree, err = prefix.DecodeSnapshot(in.b)
	}
	if err != nil {
		return Rumor{}, fmt.Errorf("rumor of %s: %w", r.Author, err)
	}
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

func (r *reader) name(most int) string {
	n := int(r.uvarint(uint64(most)))
	if r.bad || n == 0 || n > len(r.b) || !utf8.Valid(r.b[:n]) {
		r.bad = true
		return ""
	}
	name := string(r.b[:n])
	r.b = r.b[n:]
	return name
}

func (r *reader) hashes(most int) []prefix.Hash {
	n := int(r.uvarint(uint64(most)))
	if r.bad || 8*n > len(r.b) {
		r.bad = true
		return nil
	}
	var hashes []prefix.Hash
	for i := range n {
		hashes = append(hashes, prefix.Hash(binary.LittleEndian.Uint64(r.b[8*i:])))
	}
	r.b = r.b[8*n:]
	return hashes
}
