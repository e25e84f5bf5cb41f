package sim

import (
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// What is fetched before a request is served: trees (on-demand), or the KV cache of
// its longest match (fetch-kv). Bytes count once they have arrived.

// fetchTrees asks every peer in the membership for its tree.
func (c *cluster) fetchTrees(k *call) {
	k.giveUp = c.now.Sub(start) + c.patience() + 2*c.slowest()
	k.fetching = 0
	for _, m := range c.members {
		if m.index != k.origin {
			k.fetching++
			c.after(c.delay(k.origin, m.index), event{what: ask, node: int32(m.index), call: k})
		}
	}
	if k.fetching == 0 {
		c.fetched(k)
		return
	}
	c.push(event{at: k.giveUp, what: giveUp, node: int32(k.origin), call: k})
}

// fetching carries on what fetchTrees began. A peer that is down, or cut off, does
// not answer: the origin waits until it gives up.
func (c *cluster) fetching(e *event) {
	k := e.call
	if k.closed || k.fetched {
		return
	}
	origin, m := c.members[k.origin], c.members[e.node]
	switch {
	case e.what == giveUp:
		c.fetched(k)
	case !c.reaches(k.origin, int(e.node)) || !m.up:
	case e.what == ask:
		r := c.utter(m)
		if at, inTime := c.transfer(origin, r.bytes, k.giveUp); inTime {
			c.push(event{at: at + c.delay(m.index, k.origin), what: told, node: e.node, call: k, rumor: r})
		}
	default:
		c.stats.fetched += e.rumor.bytes
		news := origin.Hear(c.now, e.rumor.wire)
		if c.check != nil {
			c.check.heard(origin, e.rumor, news)
		}
		if k.fetching--; k.fetching == 0 {
			c.fetched(k)
		}
	}
}

// fetched sends a request on its way, with what has come.
func (c *cluster) fetched(k *call) {
	c.stats.unfetched += k.fetching
	k.fetched = true
	c.dispatch(k)
}

// fetchKV begins to pull the longest match, if a peer has more than the origin and
// the transfer is faster than computing it, and reports whether it did.
func (c *cluster) fetchKV(k *call) bool {
	origin := c.members[k.origin]
	here := origin.engine.Match(k.Chain)
	from := c.members[c.best(k, func(m *member) int { return -m.engine.Match(k.Chain) })]
	match := from.engine.Match(k.Chain)
	if match <= here {
		return false
	}
	k.asked = kvBytes(c.cfg, match-here)
	now := c.now.Sub(start)
	took := c.trip(k.origin, from.index) + c.trip(from.index, k.origin) + max(0, origin.linkFree-now) + c.over(k.asked)
	if took >= c.cfg.Profile.PerToken*time.Duration((match-here)*c.cfg.BlockTokens) {
		return false
	}
	at, _ := c.transfer(origin, k.asked, now+took)
	at += c.delay(k.origin, from.index) + c.delay(from.index, k.origin)
	k.fetching, k.giveUp = 1, at+c.patience()
	c.push(event{at: at, what: loaded, node: int32(k.origin), first: int32(from.index), last: int32(match), life: from.life, call: k})
	return true
}

// kvBytes is the size of the KV cache of so many blocks.
func kvBytes(cfg Config, blocks int) int64 {
	return int64(blocks) * int64(cfg.BlockTokens) * int64(cfg.Profile.KVBytesPerToken)
}

// loaded puts a KV cache into the engine of the origin, once it is there, and serves
// the request. One that a partition holds up may still come; the rest of one whose
// sender has died will not.
func (c *cluster) loaded(e *event) {
	k, origin, from := e.call, c.members[e.node], c.members[e.first]
	reached := c.reaches(origin.index, from.index)
	switch {
	case k.closed:
		return
	case reached && from.up && from.life == e.life:
		k.fetching = 0
		c.stats.fetched += k.asked
		chain := k.Chain[:e.last]
		origin.engine.Load(chain)
		origin.Prefilled(c.now, node.Request{Model: model, Chain: chain, Bytes: len(chain) * prefix.BlockBytes}, nil)
	case !reached && c.now.Sub(start) < k.giveUp:
		c.after(c.patience()/3, *e)
		return
	}
	c.fetched(k)
}
