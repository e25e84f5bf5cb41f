package mesh

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

// spareWait is how long a stream is kept that is needed no more, as when a cluster has
// grown beyond Config.RelayAbove: it may shrink again.
const spareWait = time.Minute

// relink brings the rumor streams in line with who is a member. Up to RelayAbove nodes
// each has one with every other; above, with its neighbours and with those that speak
// no version that relays. The end that dials decides. It needs the lock.
func (m *Mesh) relink() {
	if m.closed || m.leaving {
		return
	}
	var names []string
	for _, p := range m.peers {
		if p.member {
			names = append(names, p.Name)
		}
	}
	was := m.relaying
	m.relaying = !m.cfg.Whole && m.cfg.RelayAbove > 0 && len(names)+1 > m.cfg.RelayAbove
	var near []string
	if m.relaying {
		near = gossip.Neighbours(m.cfg.Name, names)
	}
	for _, name := range names {
		p := m.peers[name]
		_, isNear := slices.BinarySearch(near, name)
		switch needed := !m.relaying || p.old || isNear; {
		case needed:
			p.spareAt = time.Time{}
			m.link(p)
		case p.spareAt.IsZero():
			p.spareAt = time.Now() // a dial that is under way goes on: the other end would take it for an attack
			if p.stream == nil {
				m.due(p, stagger(len(names)), 0)
			}
		}
	}
	if m.relaying && !was {
		m.log.Info("rumors are relayed: more nodes than each speaks to", "nodes", len(names)+1, "neighbours", len(near))
	}
	if m.relaying && !m.inquiring {
		m.inquiring = true
		m.wg.Go(m.inquire)
	}
	if m.relaying && !m.pulling {
		m.pulling = true
		m.wg.Go(m.pull)
	}
}

// link dials p's rumor stream, if this end does. It needs the lock.
func (m *Mesh) link(p *peer) {
	if m.cfg.Name < p.Name && p.unlink == nil {
		ctx, cancel := context.WithCancel(m.ctx)
		p.unlink = cancel
		addr := p.Addr
		m.wg.Go(func() { m.keepLink(ctx, p, addr) })
	}
}

// unlink dials no more. It needs the lock.
func (m *Mesh) unlink(p *peer) {
	if p.unlink != nil {
		p.unlink()
		p.unlink = nil
	}
}

// tend ends streams that have been spare for long, and has members pulled of which
// nothing is heard.
func (m *Mesh) tend(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.relaying {
		return
	}
	for _, p := range m.peers {
		if !p.member || p.spareAt.IsZero() {
			continue
		}
		s := p.stream
		if s == nil && !p.heardLately(now, m.patience()) {
			m.due(p, 0, pullAgain)
		}
		if m.cfg.Name < p.Name && now.Sub(p.spareAt) > spareWait {
			m.unlink(p)
			if s != nil {
				s.give(func() { s.rest = true })
			}
		}
	}
}

// patience is for how long a member that is heard by relay may be silent.
func (m *Mesh) patience() time.Duration { return max(silentPull, 10*m.speech.every()) }

// heardLately says whether p, with which no stream is needed, is heard all the same.
func (p *peer) heardLately(now time.Time, within time.Duration) bool {
	return !p.spareAt.IsZero() && now.Sub(p.heardAt) < within
}

// Relaying says whether rumors are relayed: there are more nodes than each speaks to.
func (m *Mesh) Relaying() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.relaying
}

// acceptRumors serves the stream of a peer with a smaller name: of each pair the
// smaller name dials, so that there is one stream and not two.
func (m *Mesh) acceptRumors(w http.ResponseWriter, r *http.Request) {
	p, version := m.welcome(w, r, upgradeRumors)
	if p == nil {
		return
	}
	if conn := m.port.accept(w, upgradeRumors, version, m.greeting(p.Name)); conn != nil {
		m.remember(r.Header)
		m.newStream(p, conn, version).run()
	}
}

// welcome returns the peer that asks for u and the version to speak with it. Where it
// is none, or this node has to refuse it, that is written and nil returned.
func (m *Mesh) welcome(w http.ResponseWriter, r *http.Request, u upgrade) (_ *peer, version int) {
	if version = m.port.fits(w, r, u); version == 0 {
		return nil, 0
	}
	from, addr := r.Header.Get(headerFrom), r.Header.Get(headerAddr)
	known := "" // where membership has it
	m.mu.Lock()
	p, leaving := m.peers[from], m.leaving
	if p != nil && p.member {
		known = p.Addr
	}
	m.mu.Unlock()
	switch {
	case from == m.cfg.Name:
		m.port.refuse(w, r, http.StatusConflict, refusedName, "two nodes are called "+from+"; give one another --name")
	case from > m.cfg.Name && u == upgradeRumors:
		m.port.refuse(w, r, http.StatusBadRequest, refusedRequest, fmt.Sprintf("%s dials %s, not the other way: the smaller name dials", m.cfg.Name, from))
	case leaving:
		http.Error(w, m.cfg.Name+" is leaving", http.StatusServiceUnavailable)
	case known == "":
		// Membership spreads by gossip, so the dialler may know of this node first.
		http.Error(w, fmt.Sprintf("%s has not heard of %s yet", m.cfg.Name, from), http.StatusServiceUnavailable)
	case known != addr:
		// Another node of that name, or the same one that has moved and whose old
		// place is not known to be dead yet.
		m.clash(from, known, addr)
		http.Error(w, fmt.Sprintf("to %s %s is the node at %s; two nodes may have one name", m.cfg.Name, from, known), http.StatusConflict)
	default:
		sentence := m.cfg.Naming.differ(m.cfg.Name, from, r.Header.Get(headerNames))
		if sentence == "" {
			return p, version
		}
		m.trouble(from, sentence)
		m.port.refuse(w, r, http.StatusPreconditionFailed, refusedNaming, sentence)
	}
	return nil, 0
}
