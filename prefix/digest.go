package prefix

// A Digest stands for a set of blocks, whatever the order in which they came and
// went: the sum of a mixed hash of each. Two different sets share one by chance once
// in 2^64. It tells a view that has drifted from its author's tree; it does not
// protect from who wants to deceive. The zero Digest is that of no blocks.
type Digest uint64

// With returns the digest of the set and h, which it does not hold.
func (d Digest) With(h Hash) Digest { return d + mix(h) }

// Without returns the digest of the set without h, which it holds.
func (d Digest) Without(h Hash) Digest { return d - mix(h) }

// mix is the finalizer of MurmurHash3 (Appleby; constants of Stafford's mix 13): a
// sum of bare hashes would be blind to any two changes that cancel.
func mix(h Hash) Digest {
	x := uint64(h)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return Digest(x ^ x>>31)
}
