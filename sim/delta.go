package sim

import (
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

// An acked is what a node knows of what one other holds of its tree.
type acked struct {
	life, version uint64 // 0: nothing
	coming        []ack  // on their way
}

// An ack says which version of a tree its sender holds.
type ack struct {
	at            time.Duration
	life, version uint64
}

// connect makes a member that starts a stranger to the others, and them to it, as
// streams that begin anew do.
func (c *cluster) connect(m *member) {
	m.journal, m.acked = gossip.Journal{}, make([]acked, c.cfg.Nodes)
	for _, other := range c.members {
		other.acked[m.index] = acked{}
	}
}

// ackTo sends the author of a rumor what a node holds of it now. An ack may be lost
// as a rumor may.
func (c *cluster) ackTo(r *spoken, m *member) {
	if c.cfg.Whole || !c.stopped && c.cfg.Network.Loss > 0 && c.acks.Float64() < c.cfg.Network.Loss {
		return
	}
	life, version := m.Told(r.Author)
	a := &r.author.acked[m.index]
	a.coming = append(a.coming, ack{c.now.Sub(start) + c.trip(m.index, r.author.index), life, version})
}

// holds returns which version of m's tree the node to has acknowledged by now, 0 for
// none of this life.
func (c *cluster) holds(m *member, to int, life uint64) uint64 {
	a := &m.acked[to]
	for len(a.coming) > 0 && a.coming[0].at <= c.now.Sub(start) {
		a.life, a.version = a.coming[0].life, a.coming[0].version
		a.coming = a.coming[1:]
	}
	if a.life != life {
		return 0
	}
	return a.version
}

// since is r as it is told to those who hold a version of its tree. Only where the
// run is checked they get it as from the wire, to take the change apart; else they
// get the tree that it leads to, which is shared.
func (c *cluster) since(r *spoken, version uint64) *spoken {
	if version == 0 {
		return r
	}
	if told, ok := r.told[version]; ok {
		return told
	}
	told := r
	if change := r.author.journal.Since(version); change != nil {
		form := *r
		told = &form
		told.wire.Tree, told.wire.Change = nil, change
		c.encoded = told.wire.AppendBinary(c.encoded[:0])
		told.bytes = int64(len(c.encoded))
		if c.check == nil {
			told.wire.Tree = r.Tree
		} else if heard, err := gossip.DecodeRumor(c.encoded); err != nil {
			c.fail("%s says what cannot be read: %v", r.Author, err)
		} else {
			told.wire = heard
		}
	}
	if r.told == nil {
		r.told = map[uint64]*spoken{}
	}
	r.told[version] = told
	return told
}
