// Package prefix names the prefixes of prompts and remembers which are cached.
//
// A prompt becomes a Chain: one hash for each of its leading blocks, where a
// hash names not the block but everything up to its end. Two prompts share a
// prefix exactly as far as their chains agree, so a set of prefixes is a set of
// hashes, and the longest cached prefix is found by asking for membership.
//
// A Tree is the exact record of one engine's cache, kept by the one node beside
// it (the paper's radix tree of node i). A Snapshot is an immutable copy of its
// blocks that may travel (what sendTrie sends). Both are prefix-closed: a block
// is in them only with all blocks before it, because a cache evicts leaves first.
package prefix

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sort"

	"github.com/zeebo/xxh3"
)

// BlockBytes is how much text one block covers. A text's last bytes, when they
// fill no block, have no name: a shorter block would cost more rumor bytes for
// less than one block of prefill.
const BlockBytes = 64

// A Hash names a prefix that ends at a block boundary. It is never zero.
type Hash uint64

// A Chain names the prefixes of one text: element i its first i+1 blocks.
type Chain []Hash

// A Key is the cluster's secret. All nodes must hold the same one, or they name
// the same text differently and never match. With an empty key anyone who can
// read a rumor can test whether a text that he guesses is cached, and a client
// can construct texts with colliding names, which cost cache misses.
type Key []byte

// Scheme is the version of the way in which names are made: of Root, of NewChain,
// and of the text that they are given.
const Scheme = "hearsay/prefix/1"

// Fingerprint tells two keys apart, for nodes to compare: eight bytes of an HMAC in
// hexadecimal, from which a long random key cannot be found. That of no key is empty.
func (k Key) Fingerprint() string {
	if len(k) == 0 {
		return ""
	}
	mac := hmac.New(sha256.New, k)
	mac.Write([]byte("hearsay/fingerprint/1"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// A Scope is what makes two equal texts different cache entries.
type Scope struct {
	Model   string
	Adapter string // LoRA adapter, empty for none
	Salt    string // the request's cache_salt: tenants that must not share
}

// Root returns h_0, from which every chain of the scope starts: the first eight
// bytes of HMAC-SHA256 over the scope's fields, each behind its length so that
// no two scopes run together. Images and audio belong to the text.
func (k Key) Root(s Scope) Hash {
	mac := hmac.New(sha256.New, k)
	for _, field := range []string{Scheme, s.Model, s.Adapter, s.Salt} {
		mac.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(field))))
		mac.Write([]byte(field))
	}
	return Hash(binary.LittleEndian.Uint64(mac.Sum(nil)))
}

// NewChain names the whole blocks of text: h_i is the xxh3 of block i seeded with
// h_{i-1} + h_0. Names travel and h_0 does not, so who reads names and lacks the
// cluster's secret can test no block of a text that he guesses, the first or a later
// one. NewChain reads the text once and allocates the chain.
//
// xxh3 is not a cryptographic hash. Who knows the key can make two texts share a
// name; the worst that comes of it is a prompt sent where it is not cached. And
// that no shorter way leads from names and texts to h_0 than trying is not proven.
func NewChain(root Hash, text []byte) Chain { return Chain(nil).Extend(root, text) }

// Extend returns c, whose chain starts from root, and behind it the names of the
// whole blocks of rest, which stands behind c's text. c is not changed.
func (c Chain) Extend(root Hash, rest []byte) Chain {
	h := root
	if len(c) > 0 {
		h = c[len(c)-1]
	}
	out := make(Chain, len(c)+len(rest)/BlockBytes)
	for i := copy(out, c); i < len(out); i++ {
		h = Hash(xxh3.HashSeed(rest[:BlockBytes], uint64(h+root)))
		if h == 0 {
			h = 1 // zero is no block: tables use it for an empty slot
		}
		out[i], rest = h, rest[BlockBytes:]
	}
	return out
}

// Longest returns how many leading blocks of c the set holds of which has tells
// membership. The set must be prefix-closed, which makes membership along c fall
// from true to false once. It asks one question where nothing is held, as is so
// with most peers of most prompts, and else about log2(len(c)): a binary search.
func (c Chain) Longest(has func(Hash) bool) int {
	if len(c) == 0 || !has(c[0]) {
		return 0
	}
	return 1 + sort.Search(len(c)-1, func(i int) bool { return !has(c[i+1]) })
}
