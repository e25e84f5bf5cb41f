package node

import (
	"sort"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
)

// Requests for one prefix that nobody holds come together: a class starts its
// exercise, an agent fans out. The node that computes it first says so at once,
// beside its backlog, and for the others to wait for it there is a price like any
// other. What is computed twice is what begins within the time that word takes.

const (
	// noticeMin is the shortest prefill of which peers are told before their next
	// rumor is due: below it the word would come too late to save much.
	noticeMin = 20 * time.Millisecond
	// noticesPerPoll and noticeGap bound the rumors spoken out of turn: eight a poll,
	// or, where polls are long, ten a second.
	noticesPerPoll = 8
	noticeGap      = 100 * time.Millisecond
)

// begins notes that the prefill of a flight has come to this node's engine.
func (n *Node) begins(f *Flight) {
	if n.priced && f.service >= noticeMin && len(f.req.Chain)-f.match >= warmMin {
		n.notice = true
	}
}

// Urgent reports whether peers had better hear a rumor now, before it is due: a
// prefill has begun that is worth waiting for. It does so once for each, and not
// when one has just been spoken.
func (n *Node) Urgent(now time.Time) bool {
	if !n.notice || now.Sub(n.spoke) < min(n.cfg.Poll/noticesPerPoll, noticeGap) {
		return false
	}
	n.notice = false
	return true
}

// computing returns the blocks of all prompts whose prefill is waiting or under way
// here, beyond the tree.
func (n *Node) computing() []prefix.Hash {
	if !n.priced {
		return nil
	}
	var hashes []prefix.Hash
	for _, f := range n.pending {
		c := f.req.Chain
		c = c[n.tree.Match(c):]
		hashes = append(hashes, c[:min(len(c), gossip.MaxComputing-len(hashes))]...)
	}
	return hashes
}

// coming is how many leading blocks of c are cached here by the time that its prefill
// would begin: those that it shares with a prompt in front of it.
func (n *Node) coming(now time.Time, c prefix.Chain) (depth int) {
	for _, f := range n.pending {
		if f.warming && n.Yield(now) {
			continue
		}
		other := f.req.Chain
		depth = max(depth, sort.Search(min(len(c), len(other)), func(i int) bool { return c[i] != other[i] }))
	}
	return depth
}
