package sim

import (
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/gossip"
)

// rumorBytesPerBlock is what a block takes in a rumor: a hash and a level. With
// chains above 128 blocks a few levels take a byte more, which is left out.
const rumorBytesPerBlock = 9

// A spoken rumor is under way, shared by all who will hear it.
type spoken struct {
	gossip.Rumor                    // with the whole tree
	wire         gossip.Rumor       // as it is heard
	told         map[uint64]*spoken // by the version that it starts from
	author       *member
	bytes        int64
	usage        emulate.Usage // of the author's engine, where rivals route
}

// speak lets a node tell all others what it holds, and queues its next turn.
func (c *cluster) speak(m *member, life uint64) {
	if !m.up || m.life != life {
		return
	}
	c.say(m)
	c.after(c.cfg.Poll, event{what: speak, node: int32(m.index), life: life})
}

// say sends a node's rumor to all others. Nothing is copied: a rumor is one value,
// its tree one immutable snapshot.
func (c *cluster) say(m *member) {
	r := c.utter(m)
	if !c.cfg.Whole {
		m.journal.Add(r.Rumor)
	}
	// Neighbours that hear it at one time share an event; hear leaves out the speaker.
	var group event
	for to := range c.members {
		if to == m.index {
			if int(group.last) == to {
				group.last++
			}
			continue
		}
		told := c.since(r, c.holds(m, to, r.Life))
		c.stats.rumors += told.bytes
		for _, at := range c.trips(m.index, to) {
			if group.rumor == told && group.at == at && int(group.last) == to {
				group.last++
				continue
			}
			if group.rumor != nil {
				c.queue.push(group)
			}
			group = event{at: at, what: hear, node: int32(m.index), first: int32(to), last: int32(to) + 1, rumor: told}
		}
	}
	if group.rumor != nil {
		c.queue.push(group)
	}
}

// trips draws when the copies of a rumor arrive, none if it is lost.
func (c *cluster) trips(from, to int) []time.Duration {
	now, n := c.now.Sub(start), c.cfg.Network
	if c.stopped {
		n.Loss, n.Duplicate, n.Reorder = 0, 0, 0
	}
	if n.Loss > 0 && c.rng.Float64() < n.Loss {
		return nil
	}
	copies := 1
	if n.Duplicate > 0 && c.rng.Float64() < n.Duplicate {
		copies = 2
	}
	at := c.tripTimes[:0]
	for range copies {
		t := now + c.delay(from, to)
		if n.Reorder > 0 && c.rng.Float64() < n.Reorder {
			t += time.Duration(c.rng.Int64N(int64(2 * c.cfg.Poll)))
		}
		at = append(at, t)
	}
	c.tripTimes = at
	return at
}

// hear delivers a rumor to the nodes that it reaches.
func (c *cluster) hear(e *event) {
	for to := e.first; to < e.last; to++ {
		m := c.members[to]
		if to == e.node || !m.up || !c.reaches(int(e.node), int(to)) {
			continue
		}
		m.SetTrip(e.rumor.Author, c.trip(int(e.node), int(to))+c.trip(int(to), int(e.node)))
		news := m.Hear(c.now, e.rumor.wire)
		c.ackTo(e.rumor, m)
		if news && c.mode.usage {
			m.note(e.rumor, len(c.members))
		}
		if c.check != nil {
			c.check.heard(m, e.rumor, news)
		}
	}
}

// utter makes a rumor and counts the bytes that its encoding would have.
func (c *cluster) utter(m *member) *spoken {
	r := &spoken{Rumor: m.Speak(c.now), author: m}
	if c.mode.usage {
		r.usage = m.engine.Usage()
	}
	if m.stuck != nil {
		version := r.Version
		*r = *m.stuck
		r.Version = version
	}
	head := r.Rumor
	head.Tree = nil
	c.encoded = head.AppendBinary(c.encoded[:0])
	r.bytes = int64(len(c.encoded) + rumorBytesPerBlock*r.Tree.Len())
	r.wire = r.Rumor
	if c.check != nil {
		c.check.spoke(m, r)
	}
	return r
}
