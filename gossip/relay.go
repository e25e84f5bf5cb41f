package gossip

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// A Relay is what a node has heard of all authors and passes on as it came: of each
// the last few changes, in the bytes that the author made. Who is some versions behind
// says so in a Digest and is answered with those that lead on from there
// (van Renesse, Dumitriu, Gough and Thomas, Efficient Reconciliation and Flow Control
// for Anti-Entropy Protocols, 2008). It never passes on what it has not taken in, and
// of one author nothing older than what it holds.
//
// The zero Relay is ready. It is not safe for concurrent use.
type Relay struct {
	authors []*relayed // by name
	bytes   int        // kept of all
}

type relayed struct {
	author        string
	life, version uint64 // of the last rumor heard
	kept          []kept // oldest first; each from and to a later version than the one before
	bytes         int
}

// kept is one change, for who holds version since or a later one.
type kept struct {
	since, version uint64
	bytes          []byte
}

const (
	// keptMost is how many changes are kept of one author: some twice as many polls
	// as one node of a thousand is behind another.
	keptMost = 16

	// keptBytes bounds what is kept of all authors together, each having its share.
	keptBytes = 16 << 20

	// digestMost is how many authors a digest may name.
	digestMost = 2 * defaultPeersMax

	digestEntry = 5 // bytes, and a version
)

func (y *Relay) search(author string) (int, bool) {
	return slices.BinarySearchFunc(y.authors, author, func(a *relayed, name string) int { return strings.Compare(a.author, name) })
}

// News reports whether a rumor of that life and version is later than all heard of
// its author.
func (y *Relay) News(author string, life, version uint64) bool {
	i, ok := y.search(author)
	return !ok || life > y.authors[i].life || life == y.authors[i].life && version > y.authors[i].version
}

// Heard takes in that r was heard, and keeps b, which others can be told in its place
// if r is a change: nil where they cannot, and then what was kept before leads nowhere
// and goes. It does nothing unless r is news. It keeps b.
func (y *Relay) Heard(r Rumor, b []byte) {
	if !y.News(r.Author, r.Life, r.Version) {
		return
	}
	i, ok := y.search(r.Author)
	if !ok {
		y.authors = slices.Insert(y.authors, i, &relayed{author: r.Author})
	}
	a := y.authors[i]
	y.bytes -= a.bytes
	if r.Life != a.life || b == nil || r.Change == nil {
		a.kept, a.bytes = nil, 0
	}
	a.life, a.version = r.Life, r.Version
	if b != nil && r.Change != nil {
		a.keep(kept{r.Change.Since, r.Version, b}, keptBytes/max(len(y.authors), 64))
	}
	y.bytes += a.bytes
}

// keep adds the latest change. Of those before it, what it can stand for goes: a
// heartbeat does so for the one before.
func (a *relayed) keep(k kept, most int) {
	for n := len(a.kept); n > 0 && a.kept[n-1].since >= k.since; n-- {
		a.bytes -= len(a.kept[n-1].bytes)
		a.kept = a.kept[:n-1]
	}
	a.kept, a.bytes = append(a.kept, k), a.bytes+len(k.bytes)
	gone := 0
	for len(a.kept)-gone > keptMost || a.bytes > most && gone < len(a.kept)-1 {
		a.bytes -= len(a.kept[gone].bytes)
		gone++
	}
	a.kept = slices.Delete(a.kept, 0, gone)
}

// Forget drops what was heard of an author that has left the membership.
func (y *Relay) Forget(author string) {
	if i, ok := y.search(author); ok {
		y.bytes -= y.authors[i].bytes
		y.authors = slices.Delete(y.authors, i, i+1)
	}
}

// Bytes returns how many bytes of rumors are kept.
func (y *Relay) Bytes() int { return y.bytes }

// after appends what leads from a version on to the latest: as few changes as do. If
// they do not go back so far it is the last alone, whose head is good for everybody.
func (a *relayed) after(all [][]byte, version uint64) [][]byte {
	for n := len(a.kept); n > 0 && version < a.kept[n-1].version; {
		next := n - 1
		for next >= 0 && a.kept[next].since > version {
			next--
		}
		if next < 0 || a.kept[next].version <= version {
			return append(all, a.kept[n-1].bytes)
		}
		all = append(all, a.kept[next].bytes)
		version = a.kept[next].version
	}
	return all
}

// A Digest is what a node has heard, for another to tell it what is later. Authors go
// by a hash under the digest's own salt, so that two who are taken for one are told
// apart in the next.
type Digest struct {
	salt  uint64
	heard map[uint32]known
}

type known struct {
	life    byte // a hash of it
	version uint64
	twice   bool
}

func digestKey(salt uint64, author string) uint32 { return uint32(xxh3.HashStringSeed(author, salt)) }

func digestLife(salt, life uint64) byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], life)
	return byte(xxh3.HashSeed(b[:], salt))
}

// AppendDigest appends what is heard to b, under a salt that is drawn for it:
//
//	8 bytes   the salt, little-endian
//
// and of each author
//
//	4 bytes   XXH3 of the name, seeded by the salt: its lower half, little-endian
//	1 byte    XXH3 of the life's 8 bytes, little-endian, seeded likewise: the lowest
//	uvarint   the version
func (y *Relay) AppendDigest(b []byte, salt uint64) []byte {
	b = binary.LittleEndian.AppendUint64(b, salt)
	for _, a := range y.authors[:min(len(y.authors), digestMost)] {
		b = binary.LittleEndian.AppendUint32(b, digestKey(salt, a.author))
		b = binary.AppendUvarint(append(b, digestLife(salt, a.life)), a.version)
	}
	return b
}

// DecodeDigest reads what AppendDigest wrote; b must hold nothing else, and is not kept.
func DecodeDigest(b []byte) (Digest, error) {
	if most := 8 + digestMost*(digestEntry+binary.MaxVarintLen64); len(b) < 8 || len(b) > most {
		return Digest{}, fmt.Errorf("digest of %d bytes, want 8 to %d", len(b), most)
	}
	d := Digest{salt: binary.LittleEndian.Uint64(b), heard: make(map[uint32]known, len(b)/(digestEntry+2))}
	for in := (reader{b: b[8:]}); len(in.b) > 0; {
		if len(in.b) <= digestEntry || len(d.heard) >= digestMost {
			return Digest{}, fmt.Errorf("digest: cut short, or of more than %d authors", digestMost)
		}
		key, life := binary.LittleEndian.Uint32(in.b), in.b[4]
		in.b = in.b[digestEntry:]
		version := in.uvarint(1<<64 - 1)
		if in.bad {
			return Digest{}, fmt.Errorf("digest: a version is cut short or above 64 bits")
		}
		_, twice := d.heard[key]
		d.heard[key] = known{life, version, twice}
	}
	return d, nil
}

// Newer returns what is kept of the authors in d and later than what d says, of each
// in order, until it is most bytes or more; whoever asks again gets the rest. It
// begins with an author by chance of the salt. The bytes are the relay's.
func (y *Relay) Newer(d Digest, most int) (all [][]byte, size int) {
	for i := range y.authors {
		a := y.authors[(i+int(d.salt%uint64(len(y.authors))))%len(y.authors)]
		at, ok := d.heard[digestKey(d.salt, a.author)]
		if !ok || at.twice {
			continue
		}
		if at.life != digestLife(d.salt, a.life) {
			at.version = 0
		}
		if size >= most {
			break
		}
		had := len(all)
		all = a.after(all, at.version)
		for _, b := range all[had:] {
			size += len(b)
		}
	}
	return all, size
}
