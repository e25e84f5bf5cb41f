// Package gossip keeps what a node believes of its peers, which it knows by
// hearsay: from rumors that may be late, lost, doubled or out of order.
//
// A peer's tree has one writer, the peer. Each Rumor carries the whole of it with
// the author's life and a version, and a View applies a rumor when (life, version)
// is greater than the one it holds and drops it otherwise. So applying is
// idempotent, the order of arrival does not matter, a lost rumor is made good by
// any later one, and nothing is merged, replayed or agreed upon: a state-based
// CRDT whose join is "the newer one".
//
// Between two rumors a View adds credits: prefixes that a peer must hold by now
// because it has just served them (the paper's updateTrieEstimate). The peer's
// next rumor, which knows better, replaces them.
package gossip

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

// Config says whose view it is and bounds what it holds. Zero fields take their
// defaults.
type Config struct {
	Self         string // this node's name: rumors that bear it are not applied
	SuspectAfter int    // silent for so many of its own intervals, a peer is suspected; 3
	CreditsMax   int    // credited blocks kept for each peer between two rumors; 65536
	PeersMax     int    // 1024
}

const (
	defaultSuspectAfter = 3
	defaultCreditsMax   = 1 << 16
	defaultPeersMax     = 1024

	// silenceFloor is the least silence that raises suspicion: at polls of
	// 20 ms three intervals are within what a busy machine's scheduler takes.
	silenceFloor = 200 * time.Millisecond

	// relaySlack is how many intervals more may pass where rumors are relayed: of a
	// thousand nodes' rumors hardly one in 100,000 comes later (decision 0017).
	relaySlack = 7

	// doubtFloor and doubtCap bound the backoff after failures: not shorter
	// than a rumor needs to arrive, and short enough that a peer which is back
	// gets work within half a minute.
	doubtFloor = 20 * time.Millisecond
	doubtCap   = 30 * time.Second
)

// A View is what one node believes of its peers. It is not safe for concurrent
// use. Create it with NewView.
type View struct {
	cfg    Config
	peers  []*peer // by name
	byName map[string]*peer
	index  *index  // of merged trees and of credits, by ids
	ids    []bool  // those in use
	depths []int32 // by id, Matches' scratch

	merging   []*peer // whose trees are on their way into the index
	mergeStep int
}

type peer struct {
	name        string
	life        uint64
	version     uint64
	heard       time.Time // when the last applied rumor came
	every       time.Duration
	relayed     bool // the last rumor was
	queue       int
	pausedUntil time.Time
	tokens      int
	down        bool
	models      []string
	load        Load
	told        told

	failures     int // in a row
	failed, lost doubt
}

// A doubt lasts until a time, and until a rumor has been applied since it was last raised.
type doubt struct {
	until   time.Time
	unheard bool
}

func (d doubt) lasts(now time.Time) bool { return d.unheard || now.Before(d.until) }

// A Peer is what is believed of one peer at one moment.
type Peer struct {
	Name        string
	Life        uint64
	Version     uint64
	Heard       time.Time // when its last rumor came
	Every       time.Duration
	Suspected   bool // silent for too long
	Doubted     bool // failed a request or was lost, and its backoff is not over
	Down        bool // says that it cannot serve
	PausedUntil time.Time
	Queue       int
	Told        uint64 // the version of its tree that is held: Version, or behind it when a change was missed; 0: none
	Blocks      int    // of that tree
	Tokens      int
	Credits     int      // blocks credited since
	Failures    int      // in a row
	Models      []string // it serves; the view's own, none while it has not told
	Load        Load     // as its last rumor said
}

// Usable reports whether requests may be sent to the peer: it is neither
// suspected nor doubted, nor down. It may be paused.
func (p Peer) Usable() bool { return !p.Suspected && !p.Doubted && !p.Down }

// NewView returns a view without peers.
func NewView(cfg Config) *View {
	set := func(field *int, preset int) {
		if *field <= 0 {
			*field = preset
		}
	}
	set(&cfg.SuspectAfter, defaultSuspectAfter)
	set(&cfg.CreditsMax, defaultCreditsMax)
	set(&cfg.PeersMax, defaultPeersMax)
	return &View{cfg: cfg, byName: map[string]*peer{}, index: newIndex(), mergeStep: mergeStep}
}

// Hear applies a rumor that came at now and reports whether it did. It does so
// when the author is another node and (life, version) is greater than that held:
// what the rumor says replaces the peer's tree, load and credits. A greater life
// is a restarted peer, of which nothing earlier holds, doubts included. Of a rumor
// that is not so new, but newer than the tree held, it applies the tree alone.
//
// A node whose clock was set back over a restart is not heard until it has left
// the membership (Forget) or its clock has caught up.
func (v *View) Hear(now time.Time, r Rumor) bool {
	if r.Author == v.cfg.Self || r.Author == "" {
		return false
	}
	p := v.byName[r.Author]
	if p == nil {
		if p = v.admit(now, r.Author); p == nil {
			return false
		}
	} else if r.Life < p.life || r.Life == p.life && r.Version <= p.version {
		v.catchUp(p, r)
		return false
	}
	if r.Life > p.life {
		p.trust()
		v.forgetTold(p)
	}
	p.life, p.version = r.Life, r.Version
	p.heard, p.every, p.relayed = now, r.Every, r.Relayed
	p.failed.unheard, p.lost.unheard = false, false
	p.queue, p.tokens, p.down, p.models = r.Queue, r.Tokens, r.Down, r.Models
	p.load = r.Load
	p.pausedUntil = now.Add(max(0, r.Pause))
	v.hearTree(p, r)
	v.merge()
	v.credit(p, r.Computing) // of which the change just merged may have said that it is gone
	v.index.tidy()
	return true
}

// catchUp takes the tree of a rumor that is not news: where a change was missed, the
// tree that is held is of a version before that of the rumor heard last, and what was
// relayed late, or fetched from the author meanwhile, lies between them or is the same.
func (v *View) catchUp(p *peer, r Rumor) {
	if r.Life == p.life && r.Version > p.told.version {
		v.hearTree(p, r)
		v.merge()
		v.index.tidy()
	}
}

// Credit records that peer has just served c and so holds it now. Only blocks
// that it has not told of itself are credits. At CreditsMax the rest of a chain
// is refused rather than older credits dropped: those are about to be replaced,
// and a set that loses heads of chains is no longer prefix-closed.
func (v *View) Credit(now time.Time, peer string, c prefix.Chain) {
	if p := v.byName[peer]; p != nil {
		v.credit(p, c)
	}
}

// Fail records that peer failed a request. It is doubted until a rumor of it has
// been heard and a backoff is over: its poll interval, doubled with each failure
// in a row. Failures of requests that were under way when the doubt began count
// as one, but each asks for a new sign of life.
func (v *View) Fail(now time.Time, peer string) {
	p := v.byName[peer]
	if p == nil {
		return
	}
	if !p.failed.lasts(now) {
		backoff := max(p.every, doubtFloor) << min(p.failures, 16)
		p.failed.until = now.Add(min(backoff, doubtCap))
		p.failures++
	}
	p.failed.unheard = true
}

// Lose records that the connection with peer broke. It is doubted until a rumor of it
// has been heard, and for a poll interval at least, since one that it sent before may
// be on its way by others. That is no failure of a request: a peer that is back as good
// as it was may have been sent none for days, and so have no success to end a row of them.
func (v *View) Lose(now time.Time, peer string) {
	if p := v.byName[peer]; p != nil {
		p.lost = doubt{now.Add(max(p.every, doubtFloor)), true}
	}
}

// Pause records that peer asked to be sent nothing until then, other than by a
// rumor. Its next rumor, which knows better, replaces it.
func (v *View) Pause(peer string, until time.Time) {
	if p := v.byName[peer]; p != nil && until.After(p.pausedUntil) {
		p.pausedUntil = until
	}
}

// Uncredit drops all credits of a peer: what it was thought to be computing it may
// not have computed. Its next rumor tells.
func (v *View) Uncredit(peer string) {
	if p := v.byName[peer]; p != nil {
		v.uncredit(&p.told)
	}
}

// Held reports whether any peer is believed to hold the prefix that h names.
func (v *View) Held(h prefix.Hash) bool {
	return v.index.at(h) != 0 || slices.ContainsFunc(v.peers, func(p *peer) bool { return p.told.tree.Has(h) })
}

// Load returns the load that peer last told, and whether it is known at all.
func (v *View) Load(peer string) (Load, bool) {
	if p := v.byName[peer]; p != nil {
		return p.load, true
	}
	return Load{}, false
}

// Succeed records that peer answered a request: whatever failed before is over.
func (v *View) Succeed(now time.Time, peer string) {
	if p := v.byName[peer]; p != nil {
		p.trust()
	}
}

// Forget drops all that is believed of a peer that has left the membership. A
// rumor of it that is still under way makes it known again, and silence suspected.
func (v *View) Forget(peer string) {
	if i, ok := v.search(peer); ok {
		p := v.peers[i]
		v.peers = slices.Delete(v.peers, i, i+1)
		delete(v.byName, peer)
		v.forgetTold(p)
		v.ids[p.told.id] = false
	}
}

// Match returns how many leading blocks of c peer is believed to hold, by its
// last rumor and the credits since. Of an unknown peer it is 0.
func (v *View) Match(peer string, c prefix.Chain) int {
	if p := v.byName[peer]; p != nil {
		return v.match(p, c)
	}
	return 0
}

// Usable reports whether requests may be sent to peer: it is known, heard of
// lately, and not doubted. It may be paused.
func (v *View) Usable(now time.Time, peer string) bool {
	p := v.byName[peer]
	return p != nil && v.look(now, p).Usable()
}

// Suspected reports whether peer has been silent for too long, or was never heard.
func (v *View) Suspected(now time.Time, peer string) bool {
	p := v.byName[peer]
	return p == nil || v.suspected(now, p)
}

// Len returns the number of peers.
func (v *View) Len() int { return len(v.peers) }

// Peers returns what is believed of all peers, by name.
func (v *View) Peers(now time.Time) []Peer {
	all := make([]Peer, 0, len(v.peers))
	for _, p := range v.peers {
		all = append(all, v.look(now, p))
	}
	return all
}

// Matches yields each usable peer, by name, with the blocks of c that it is
// believed to hold (getBestNode's PrefixMatch over all estimates). It allocates
// nothing and costs look-ups in the number of different matches, not in that of
// peers, and some log2(len(c)) more for each peer whose tree is not merged yet. Two
// runs through it must not be under way at once.
func (v *View) Matches(now time.Time, c prefix.Chain) iter.Seq2[Peer, int] {
	return func(yield func(Peer, int) bool) {
		v.index.matches(c, v.depths)
		for _, p := range v.peers {
			b := v.look(now, p)
			if !b.Usable() {
				continue
			}
			match := int(v.depths[p.told.id])
			if !p.told.merged {
				match = v.match(p, c)
			}
			if !yield(b, match) {
				return
			}
		}
	}
}

// search finds where in peers a name stands or would stand.
func (v *View) search(name string) (int, bool) {
	return slices.BinarySearchFunc(v.peers, name, func(p *peer, name string) int { return strings.Compare(p.name, name) })
}

// admit makes room for a new peer: when the view is full, in the place of the
// suspected one that has been silent longest, or not at all.
func (v *View) admit(now time.Time, name string) *peer {
	if len(v.peers) >= v.cfg.PeersMax {
		oldest := slices.MinFunc(v.peers, func(a, b *peer) int { return a.heard.Compare(b.heard) })
		if !v.suspected(now, oldest) {
			return nil
		}
		v.Forget(oldest.name)
	}
	i, _ := v.search(name)
	p := &peer{name: name, told: told{id: v.takeID()}}
	v.peers = slices.Insert(v.peers, i, p)
	v.byName[name] = p
	return p
}

func (v *View) suspected(now time.Time, p *peer) bool {
	intervals := v.cfg.SuspectAfter
	if p.relayed {
		intervals += relaySlack
	}
	return now.Sub(p.heard) > max(time.Duration(intervals)*p.every, silenceFloor)
}

func (v *View) look(now time.Time, p *peer) Peer {
	return Peer{
		Name: p.name, Life: p.life, Version: p.version,
		Heard: p.heard, Every: p.every,
		Suspected: v.suspected(now, p), Doubted: p.doubted(now),
		PausedUntil: p.pausedUntil, Queue: p.queue,
		Told: p.told.version, Blocks: p.told.blocks, Tokens: p.tokens, Credits: len(p.told.credits),
		Failures: p.failures, Down: p.down, Models: p.models, Load: p.load,
	}
}

func (p *peer) doubted(now time.Time) bool { return p.failed.lasts(now) || p.lost.lasts(now) }

// trust ends every doubt.
func (p *peer) trust() { p.failures, p.failed, p.lost = 0, doubt{}, doubt{} }
