package mesh

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// moveWait is how long a node may take to answer for itself where another
	// bears its name.
	moveWait = 2 * time.Second

	// clashWait is how long the answer counts: two nodes of one name are heard of
	// again and again, and one that only this node cannot reach denies its death.
	clashWait = 10 * time.Second

	// clashTold is for how long after the last sign of it a clash is a trouble.
	clashTold = time.Minute

	clashesMax = 1000 // names
)

// A clash is what is known of two nodes that bear one name.
type clash struct {
	asking   bool      // whether they are two
	asked    time.Time // when the answer came
	sentence string    // for the operator, where they are
}

// clash takes in that the name of the node at addr is borne at another address too.
// Either two nodes were given one name, which only an operator can mend; or a node
// was started anew elsewhere, and then what was at addr no longer answers to the name.
// SWIM would take some eight seconds to bury it, so the place is asked at once.
func (m *Mesh) clash(name, addr, other string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clashes[name]
	if c == nil {
		if len(m.clashes) >= clashesMax {
			maps.DeleteFunc(m.clashes, func(_ string, c *clash) bool { return !c.asking && time.Since(c.asked) > clashTold })
		}
		c = &clash{}
	}
	if m.closed || m.leaving || c.asking || time.Since(c.asked) < clashWait || len(m.clashes) >= clashesMax {
		return
	}
	c.asking = true
	m.clashes[name] = c
	m.wg.Go(func() {
		place, own := addr, name == m.cfg.Name
		if own {
			place = other // this node knows where it is itself
		}
		began := time.Now()
		two := m.answers(name, place) || !own && m.speaks(name, began)
		if !two && !own {
			m.bury(name)
			_, _ = m.members.Join([]string{other})
		}
		m.clashed(c, two, name, fmt.Sprintf("at %s and at %s; give one another --name", addr, other))
	})
}

// meet takes in who has dialled, and from where it says that it is dialled. One of
// this node's own name is another node, or this one by a way round.
func (m *Mesh) meet(name, addr string) {
	if at, err := netip.ParseAddrPort(addr); name == m.cfg.Name && addr != m.addr && err == nil && dialable(at.Addr()) {
		m.clash(name, m.addr, addr)
	}
}

// clashed takes in whether there are two nodes of one name, and where.
func (m *Mesh) clashed(c *clash, two bool, name, where string) {
	m.mu.Lock()
	c.asking, c.asked, c.sentence = false, time.Now(), ""
	if two {
		c.sentence = fmt.Sprintf("two nodes are called %s, %s", name, where)
	}
	m.mu.Unlock()
	if two {
		m.clashSeldom.Do(func() { m.log.Warn("two nodes have one name", "peer", name, "err", where) })
	}
}

// clashOf is the trouble with a name that two nodes bear now. It needs the lock.
func (m *Mesh) clashOf(name string) string {
	if c := m.clashes[name]; c != nil && time.Since(c.asked) < clashTold {
		return c.sentence
	}
	return ""
}

// Trouble is what an operator has to mend about this node's place among the others,
// in a sentence, or empty.
func (m *Mesh) Trouble() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.clashOf(m.cfg.Name)
}

// answers says whether a node called name is at addr.
func (m *Mesh) answers(name, addr string) bool {
	ctx, cancel := context.WithTimeout(m.ctx, moveWait+3*m.port.roundTrip())
	defer cancel()
	conn, _, _, err := m.port.upgrade(ctx, addr, upgradeStreams, name, nil)
	if err == nil {
		conn.Close()
		return true
	}
	no, ok := errors.AsType[refusal](err)
	return ok && no.status != http.StatusMisdirectedRequest
}

// speaks says whether a member that does not answer at its place is heard all the
// same: this node may be the only one that cannot reach it.
func (m *Mesh) speaks(name string, since time.Time) bool {
	linked := func() (*peer, bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		p := m.peers[name]
		return p, p != nil && p.stream != nil
	}
	if _, ok := linked(); !ok {
		return false
	}
	sleep(m.ctx, moveWait-time.Since(since))
	p, ok := linked()
	m.mu.Lock()
	defer m.mu.Unlock()
	return ok && p.heardAt.After(since)
}

// bury has memberlist declare a member dead. One that lives denies it, as it does
// any rumor of its death. Two seconds on, it is believed of a member that began, and
// denied something, within this one.
func (m *Mesh) bury(name string) {
	m.transport.tell(memberDead, name, m.cfg.Name, time.Now().Add(2*time.Second))
}

// tell has memberlist hear a suspicion or a death of the node called name, as a
// packet of an incarnation that stands for now.
func (t *transport) tell(kind byte, name, from string, now time.Time) {
	b := []byte{kind, 0x83} // a map of three in MessagePack
	text := func(s string) { b = append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(s))), s...) }
	text("Incarnation")
	b = binary.BigEndian.AppendUint32(append(b, 0xce), uint32(now.Unix()))
	text("Node")
	text(name)
	text("From")
	text(from)
	select {
	case t.packets <- &memberlist.Packet{Buf: b, From: &net.TCPAddr{IP: t.ip, Port: t.tcpPort}, Timestamp: now}:
	case <-t.port.ctx.Done():
	}
}
