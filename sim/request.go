package sim

import (
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/node"
)

// A call is a request on its way from arrival to answer.
type call struct {
	Request
	index    int
	at       time.Duration
	origin   int // the node it came to; -1 when none was up
	tried    []string
	expected int // tokens, by the last decision
	reason   string
	attempt  *attempt // the last one
	closed   bool

	bounced []string // by whom

	fetching int           // trees or KV caches that are still awaited
	fetched  bool          // they came, or are given up
	asked    int64         // bytes of the KV cache
	giveUp   time.Duration // when no more is waited for, since the start
}

// An attempt is one try at serving a call on one node.
type attempt struct {
	id       uint64
	call     *call
	node     int
	promised int // blocks, by the decision of the node that serves
	match    int // blocks, by the decision of the origin
	cached   int // tokens
	hops     int
	over     bool          // answered, or given up
	first    time.Duration // when the first token reaches the client; 0 while it is not on its way
	sent     *node.Flight  // at the origin, of a forward
	run      *node.Flight  // at the node that serves
	came     time.Duration // when it reached that node
	promise  node.Promise
	report   node.Report
	warming  *node.Warming // this is no request, but a prefix that the node computes of its own will
	bounced  bool
	stuck    what          // the message that a partition holds up: forwarded, answered or refused
	since    time.Duration // since when
}

func (k *call) bytes(c *cluster) node.Request {
	return node.Request{Model: model, Chain: k.Chain, Bytes: c.bytes(k.Tokens), Bounced: k.bounced}
}

// pull takes the next request from the sequence, if there is one, and lets it come:
// of a client after a pause.
func (c *cluster) pull(pause time.Duration) {
	if c.spent {
		return
	}
	r, ok := c.next()
	if !ok {
		c.spent = true
		return
	}
	r.Tokens, r.Output = max(r.Tokens, 1), max(r.Output, 1)
	k := &call{Request: r, index: c.pulled}
	c.pulled++
	c.open++
	now := c.now.Sub(start)
	switch {
	case c.cfg.Arrival.Clients > 0:
		k.at = now + pause
	case c.cfg.Arrival.Rate > 0:
		k.at = now + time.Duration(c.rng.ExpFloat64()/c.cfg.Arrival.Rate*float64(time.Second))
	default:
		k.at = max(now, r.At)
	}
	c.push(event{at: k.at, what: arrival, call: k})
}

func (c *cluster) arrive(k *call) {
	if c.cfg.Arrival.Clients == 0 {
		c.pull(0)
	}
	k.origin = c.entry(k.index)
	if k.origin < 0 {
		c.finish(k, nil, "no node is up")
		return
	}
	c.members[k.origin].calls[k.index] = k
	if c.check != nil {
		c.check.came(k.Chain)
	}
	c.dispatch(k)
}

// entry picks the node that a request comes to: clients turn to the next when one
// does not answer.
func (c *cluster) entry(index int) int {
	i := 0
	switch {
	case c.cfg.entry != nil:
		i = c.cfg.entry(index)
	case c.cfg.Entry == RoundRobin:
		i = index % c.cfg.Nodes
	case c.cfg.Entry == Random:
		i = c.rng.IntN(c.cfg.Nodes)
	}
	for range c.cfg.Nodes {
		if c.members[i].up {
			return i
		}
		i = (i + 1) % c.cfg.Nodes
	}
	return -1
}

// dispatch decides where a call runs and sends it there.
func (c *cluster) dispatch(k *call) {
	if c.mode.fetchTrees && !k.fetched {
		c.fetchTrees(k)
		return
	}
	if c.mode.fetchKV && !k.fetched {
		if c.fetchKV(k) {
			return
		}
		k.fetched = true
	}
	origin := c.members[k.origin]
	a := &attempt{id: c.attempts, call: k, node: k.origin}
	c.attempts++
	k.attempt = a
	if c.mode.choose == nil {
		d := origin.Route(c.now, k.bytes(c), k.tried...)
		a.node, a.match = c.index[d.Node], d.Match
		k.expected, k.reason = d.Expected, d.Reason
		if c.check != nil {
			c.check.routed(k, d)
		}
		if !d.Self {
			a.sent = origin.Dispatch(c.now, k.bytes(c), d)
			if c.check != nil && c.mode.name == economic {
				c.check.credited(origin, a.node, k.Chain)
			}
			a.promise = node.Promise{Within: d.Elsewhere}
		}
	} else {
		a.node = c.mode.choose(c, k)
		d := c.members[a.node].Stay(k.bytes(c), c.mode.name)
		a.match, k.expected, k.reason = d.Match, d.Expected, d.Reason
	}
	if a.node == k.origin {
		c.serve(a)
		return
	}
	a.hops++
	c.send(a, forwarded)
	c.after(c.patience()/3, event{what: watch, node: int32(k.origin), attempt: a})
}

// send puts a message between the origin and the node of an attempt under way.
func (c *cluster) send(a *attempt, w what) {
	from, to := a.call.origin, a.node
	if w != forwarded && w != cancelled {
		from, to = to, from
	}
	c.after(c.delay(from, to), event{what: w, node: int32(to), attempt: a})
}

// held reports whether a partition holds a message up; it then waits for watch.
func (c *cluster) held(a *attempt, w what) bool {
	if c.reaches(a.call.origin, a.node) {
		return false
	}
	a.stuck, a.since = w, c.now.Sub(start)
	return true
}

// receive takes in a forwarded request.
func (c *cluster) receive(a *attempt) {
	switch {
	case a.over || c.held(a, forwarded):
	case !c.members[a.node].up:
		c.send(a, refused)
	default:
		m := c.members[a.node]
		if _, ok := m.Admit(c.now, a.call.bytes(c), a.promise); !ok {
			a.report.Backlog = m.Backlog(c.now)
			a.bounced = true
			c.send(a, refused)
			return
		}
		c.serve(a)
	}
}

// serve runs an attempt on its node's engine. Whatever comes over a hop is served
// where it is.
func (c *cluster) serve(a *attempt) {
	m, k := c.members[a.node], a.call
	if w := m.warming; w != nil && m.Yield(c.now) {
		c.dropWarming(m)
	}
	d := node.Decision{Node: m.name, Match: a.match, Expected: k.expected}
	if a.hops > 0 {
		d, _ = m.Admit(c.now, k.bytes(c), node.Promise{})
	}
	a.promised, a.came = d.Match, c.now.Sub(start)
	a.report.Shared, a.report.Others = m.Shared(k.bytes(c))
	if c.mode.choose == nil {
		a.run = m.Dispatch(c.now, k.bytes(c), d)
		if c.mode.rumors && m.Urgent(c.now) {
			c.say(m)
		}
	}
	m.jobs[a.id] = a
	m.engine.Submit(c.now, emulate.Job{ID: a.id, Chain: k.Chain, Tokens: k.Tokens, Output: k.Output})
	m.Queued(c.now, m.engine.Queue())
	c.rouse(m)
}

// rouse queues an event for when the engine is due, unless one is queued.
func (c *cluster) rouse(m *member) {
	next, ok := m.engine.Next()
	if at := next.Sub(start); ok && (m.wake == 0 || at < m.wake) {
		m.wake = at
		c.push(event{at: at, what: engineDue, node: int32(m.index)})
	}
}

func (c *cluster) stepEngine(m *member) {
	for _, e := range m.engine.Step(c.now) {
		a := m.jobs[e.ID]
		if a.warming != nil {
			c.stepWarming(m, a, e)
			continue
		}
		k := a.call
		switch e.Kind {
		case emulate.FirstToken:
			a.cached = e.Cached
			if c.reaches(a.node, k.origin) {
				a.first = c.now.Sub(start)
			}
			if a.hops > 0 && a.first > 0 {
				a.first += c.delay(a.node, k.origin)
			}
			if k.Output > 1 || a.run != nil {
				m.Prefilled(c.now, k.bytes(c), a.run)
			}
			if a.run != nil {
				a.report = m.Report(c.now, a.run, a.report.Shared, a.report.Others)
			}
		case emulate.Done:
			delete(m.jobs, e.ID)
			m.Queued(c.now, m.engine.Queue())
			m.Served(c.now, k.bytes(c), m.name, c.outcome(a, a.promised, a.run))
			if a.node != k.origin {
				c.send(a, answered)
				break
			}
			a.over = true
			c.finish(k, a, "")
		}
	}
	c.warm(m)
	c.rouse(m)
}

// outcome is what the engine reports. It keeps whole blocks, as the tree does.
func (c *cluster) outcome(a *attempt, promised int, f *node.Flight) node.Outcome {
	k := a.call
	return node.Outcome{
		Known: c.cfg.Feedback != Deaf, PromptTokens: k.Tokens, CachedTokens: a.cached, Promised: promised,
		Chain: k.Chain, Tokens: len(k.Chain) * c.cfg.BlockTokens,
		Flight: f, Report: a.report,
	}
}

// answer takes in the answer of a forwarded request.
func (c *cluster) answer(a *attempt) {
	if a.over || c.held(a, answered) {
		return
	}
	a.over = true
	k := a.call
	if !c.begun(a) || k.Output <= 1 { // the only token comes with the end
		a.first = c.now.Sub(start)
	}
	origin := c.members[k.origin]
	origin.Begun(start.Add(a.first), a.sent)
	origin.Served(c.now, k.bytes(c), c.members[a.node].name, c.outcome(a, a.match, a.sent))
	c.warm(origin)
	if c.check != nil {
		c.check.answered(origin, a.node, k.Chain)
	}
	c.finish(k, a, "")
}

// begun reports whether the client has seen the first token.
func (c *cluster) begun(a *attempt) bool { return a.first > 0 && a.first <= c.now.Sub(start) }

// refuse takes in the word of a node that an attempt will not be answered there.
func (c *cluster) refuse(a *attempt) {
	if a.over || c.held(a, refused) {
		return
	}
	if !a.bounced {
		c.lose(a)
		return
	}
	a.over = true
	k := a.call
	k.bounced = append(k.bounced, c.members[a.node].name)
	c.stats.bounced++
	c.members[k.origin].Bounced(c.now, a.sent, a.report.Backlog)
	if c.check != nil {
		c.check.uncredited(c.members[k.origin], a.node)
	}
	c.dispatch(k)
}

// lose takes in that an attempt will not be answered. Once the client has seen a
// token its request cannot be tried again.
func (c *cluster) lose(a *attempt) {
	if a.over {
		return
	}
	a.over = true
	k := a.call
	name := c.members[a.node].name
	c.members[k.origin].Drop(c.now, a.sent)
	c.members[k.origin].Failed(c.now, name)
	if c.check != nil {
		if c.mode.name == economic {
			c.check.uncredited(c.members[k.origin], a.node)
		}
		c.check.failed(c.members[k.origin], a.node)
	}
	if c.begun(a) {
		c.finish(k, a, "broken off after the first token")
		return
	}
	k.tried = append(k.tried, name)
	c.dispatch(k)
}

// watch looks after a forward until it is over: it sends again what a partition
// held up, and gives up when the node has been silent for too long. Once the
// answer has begun only its own connection's silence counts.
func (c *cluster) watch(a *attempt) {
	if a.over {
		return
	}
	origin := c.members[a.call.origin]
	silent := a.stuck != 0 && c.now.Sub(start)-a.since > c.patience()
	if c.mode.rumors && !c.begun(a) {
		silent = origin.Suspected(c.now, c.members[a.node].name)
	}
	if silent {
		c.send(a, cancelled)
		c.lose(a)
		return
	}
	if a.stuck != 0 && c.reaches(a.call.origin, a.node) {
		w := a.stuck
		a.stuck = 0
		c.send(a, w)
	}
	c.after(c.patience()/3, event{what: watch, node: int32(a.call.origin), attempt: a})
}

// cancel takes in that nobody waits for an attempt any more.
func (c *cluster) cancel(a *attempt) {
	m := c.members[a.node]
	if m.jobs[a.id] != a || !c.reaches(a.call.origin, a.node) {
		return
	}
	delete(m.jobs, a.id)
	m.engine.Cancel(c.now, a.id)
	m.Drop(c.now, a.run)
	m.Queued(c.now, m.engine.Queue())
	c.rouse(m)
}

// finish gives a call its answer, from attempt a, or the error it ends with.
func (c *cluster) finish(k *call, a *attempt, err string) {
	if k.closed {
		c.fail("request %d is answered twice", k.index)
		return
	}
	k.closed = true
	c.open--
	if k.origin >= 0 {
		delete(c.members[k.origin].calls, k.index)
	}
	now := c.now.Sub(start)
	r := Record{
		Index: k.index, Topic: k.Topic, At: k.at, Entry: k.origin, Node: -1,
		Latency: now - k.at, Tokens: k.Tokens, Expected: k.expected, Reason: k.reason, Err: err,
	}
	if a != nil {
		r.Node, r.Cached, r.TTFT, r.Forwarded = a.node, a.cached, a.first-k.at, a.hops > 0
		if a.hops > 1 {
			c.fail("request %d took %d hops", k.index, a.hops)
		}
	}
	c.stats.add(r)
	if c.cfg.Trace != nil {
		c.cfg.Trace(r)
	}
	if c.cfg.Arrival.Clients > 0 {
		pause := time.Duration(0)
		if k.origin < 0 {
			pause = clientPause
		}
		c.pull(pause)
	}
}

// clientPause is how long a client that found no node waits before its next request.
const clientPause = time.Second
