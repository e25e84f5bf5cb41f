package node

import (
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

const (
	defaultRumorBytes = 1 << 20
	defaultPeerBytes  = 256 << 20

	nameBytes  = 8   // of a block that came or went, in a rumor
	headBytes  = 100 // of the rest of a rumor, about
	relayBytes = 100 // of its signature, and of digests, where it is relayed, about
	viewBytes  = 20  // of a block of a peer in a view, about
)

// A purse is what rumors may cost. It fills with time, up to what is due in a second
// or in a poll, whichever is longer.
type purse struct {
	bytes float64
	at    time.Time // zero: full
}

// SetRelayed tells whether rumors are relayed. Every node then sends, for each author,
// as much as it hears, which is what one that speaks to all sends of its own, and
// signatures and digests beside.
func (n *Node) SetRelayed(relayed bool) { n.relayed = relayed }

// tell returns what others are told of the tree: as much of it as every node has
// memory for, with so many changes as rumors may tell.
func (n *Node) tell(now time.Time) *prefix.Snapshot {
	peers := n.view.Len()
	if n.cfg.RumorBytes < 0 || peers == 0 {
		s := n.tree.Snapshot()
		n.untold = n.tree.Untold()
		return s
	}
	rate, p := float64(n.cfg.RumorBytes), &n.purse
	full := rate * max(1, n.cfg.Poll.Seconds())
	if p.at.IsZero() {
		p.bytes = full
	} else {
		p.bytes = min(full, p.bytes+rate*max(0, now.Sub(p.at).Seconds()))
	}
	p.at = now
	head := headBytes
	if n.relayed {
		head += relayBytes
	}
	s, changes := n.tree.Tell(n.cfg.PeerBytes/viewBytes/peers, (int(p.bytes)/peers-head)/nameBytes)
	p.bytes -= float64(peers * (head + nameBytes*changes))
	n.untold = n.tree.Untold()
	return s
}
