package sim

import (
	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/node"
)

// warm lets a node whose engine is idle compute a prefix of its own will.
func (c *cluster) warm(m *member) {
	w, ok := m.NextWarming(c.now)
	if !ok {
		return
	}
	a := &attempt{id: c.attempts, node: m.index, warming: &w}
	c.attempts++
	m.warming, m.jobs[a.id] = a, a
	chain := w.Req.Chain[:w.Blocks]
	m.engine.Submit(c.now, emulate.Job{ID: a.id, Chain: chain, Tokens: w.Blocks * c.cfg.BlockTokens, Output: 1})
	c.rouse(m)
}

// stepWarming takes in what happened to a prefix that a node computes.
func (c *cluster) stepWarming(m *member, a *attempt, e emulate.Event) {
	if e.Kind == emulate.FirstToken {
		a.cached = e.Cached
		return
	}
	delete(m.jobs, a.id)
	m.warming = nil
	tokens := a.warming.Blocks * c.cfg.BlockTokens
	c.stats.warmed += int64(tokens - a.cached)
	m.Warmed(c.now, a.warming.Flight, node.Outcome{Known: true, PromptTokens: tokens, CachedTokens: a.cached})
}

// dropWarming cancels it for a request that has come.
func (c *cluster) dropWarming(m *member) {
	a := m.warming
	m.warming = nil
	delete(m.jobs, a.id)
	m.engine.Cancel(c.now, a.id)
	m.Drop(c.now, a.warming.Flight)
}
