package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// A cluster is the state of a run.
type cluster struct {
	cfg      Config
	mode     mode
	next     func() (Request, bool)
	rng      *rand.Rand // of the network, the arrivals and the baselines
	acks     *rand.Rand // of the loss of acks, so that the other chances stay as they are
	now      time.Time
	queue    queue
	members  []*member
	index    map[string]int // of a node by its name
	attempts uint64
	pulled   int  // requests taken from the sequence
	spent    bool // the sequence has no more
	open     int  // requests that came and are not answered
	faultsAt int  // the next of cfg.Faults
	cuts     int  // partitions so far
	stopped  bool // faults are over: nothing is lost any more
	stats    stats
	check    *checker // nil unless cfg.Check
	err      error

	tripTimes []time.Duration // trips' scratch
	encoded   []byte          // utter's scratch
	seen      []sighting      // sight's scratch
}

// A member is a node, its engine and what the cluster knows of it.
type member struct {
	*node.Node
	index    int
	name     string
	engine   *emulate.Engine
	up       bool
	life     uint64
	side     int           // of a partition; nodes of one side reach each other
	wake     time.Duration // when the engine is due next; 0 when no event is queued
	linkFree time.Duration // until when its link is taken by transfers
	stuck    *spoken       // what it tells for ever, if anything
	journal  gossip.Journal
	acked    []acked       // by index of the other node
	calls    map[int]*call // that came to it and are open
	jobs     map[uint64]*attempt
	warming  *attempt // nil while none is under way
	peers    []peer   // by index, where rivals route; nil before the first rumor
}

func newCluster(cfg Config, next func() (Request, bool)) *cluster {
	m, err := modeOf(cfg.Policy)
	if err != nil {
		panic(err) // Validate has asked
	}
	c := &cluster{
		cfg: cfg, mode: m, next: next, now: start,
		rng:   rand.New(rand.NewPCG(cfg.Seed, 1)),
		acks:  rand.New(rand.NewPCG(cfg.Seed, 0)),
		index: map[string]int{},
	}
	c.stats.byNode = make([]int, cfg.Nodes)
	if cfg.Check {
		c.check = newChecker(c)
	}
	for i := range cfg.Nodes {
		mem := &member{index: i, name: fmt.Sprintf("n%d", i+1)}
		c.members = append(c.members, mem)
		c.index[mem.name] = i
		c.start(mem)
	}
	for _, f := range cfg.Faults {
		c.queue.push(event{at: f.At, what: fault})
	}
	for i := 0; i < max(1, cfg.Arrival.Clients) && !c.spent; i++ {
		c.pull(0)
	}
	return c
}

// start gives a member a new life with a cold engine.
func (c *cluster) start(m *member) {
	m.life++
	cfg := node.Config{
		Name: m.name, Life: uint64(c.now.UnixNano()) + m.life, // no two in one nanosecond
		Policy: c.mode.policy(), Rand: rand.New(rand.NewPCG(c.cfg.Seed, uint64(m.index)<<32+m.life+1)),
		Poll: c.cfg.Poll, PauseFor: min(2*c.cfg.Poll, gossip.MaxInterval),
		CapacityTokens: c.cfg.TreeTokens, LearnCapacity: c.cfg.Feedback == Learn,
		MaxBlocks:      maxBlocks(c.cfg),
		QueueThreshold: c.cfg.QueueThreshold, NoWarming: c.cfg.NoWarming,
		// A block of the node is so many bytes of text, one here so many tokens:
		// a token passes for text of such a length that the two are one, and the
		// node counts tokens as it would beside an engine with a tokenizer.
		BytesPerToken: float64(prefix.BlockBytes) / float64(c.cfg.BlockTokens),
	}
	if c.cfg.Whole {
		cfg.RumorBytes = -1
	}
	if c.mode.fetchTrees {
		cfg.Poll = node.MaxPoll // its rumors are answers: silence between two means nothing
	}
	m.Node = node.New(cfg)
	m.up = true
	c.connect(m)
	m.calls, m.jobs, m.warming, m.peers = map[int]*call{}, map[uint64]*attempt{}, nil, nil
	if m.engine == nil {
		m.engine = emulate.New(c.cfg.Profile, c.cfg.BlockTokens)
	}
	if c.mode.rumors {
		// Nodes do not start in step, so they do not speak in step.
		c.after(time.Duration(c.rng.Int64N(int64(c.cfg.Poll))), event{what: speak, node: int32(m.index), life: m.life})
	}
	if c.check != nil {
		c.check.started(m)
	}
}

// maxBlocks is how many blocks a tree may hold, as far as a tree goes.
func maxBlocks(cfg Config) int {
	if cfg.Feedback == Learn {
		return prefix.MaxBlocks
	}
	return max(1, min(cfg.TreeTokens/cfg.BlockTokens, prefix.MaxBlocks))
}

// bytes is the text that so many tokens pass for.
func (c *cluster) bytes(tokens int) int { return tokens * prefix.BlockBytes / c.cfg.BlockTokens }

func (c *cluster) after(d time.Duration, e event) {
	e.at = c.now.Sub(start) + d
	c.push(e)
}

// horizon is the longest that a run may take, far enough below what a
// time.Duration holds that no event's time wraps around it.
const horizon = 100 * 365 * 24 * time.Hour

// push queues an event, unless it lies beyond the horizon.
func (c *cluster) push(e event) {
	if e.at < 0 || e.at > horizon {
		c.fail("virtual time runs beyond a century; take fewer requests, or shorter ones")
		return
	}
	c.queue.push(e)
}

// run handles events until every request is answered.
func (c *cluster) run() (Result, error) {
	const askEvery = 4096
	stopped := false
	for !(c.spent && c.open == 0) && c.err == nil && !stopped {
		c.step()
		stopped = c.stats.events%askEvery == 0 && c.cfg.Stop != nil && c.cfg.Stop()
	}
	c.stats.end = c.now.Sub(start)
	result := c.result() // what the checks do from here is no part of the run
	if c.check != nil && c.err == nil && !stopped {
		c.settle()
		if c.err == nil {
			c.check.atEnd()
		}
	}
	return result, c.err
}

// settle lets engines finish what nobody waits for any more, and then two polls go by
// in which nothing is lost.
func (c *cluster) settle() {
	c.stopped = true
	for _, m := range c.members {
		m.side = 0
	}
	for c.working() && len(c.queue.events) > 0 && c.err == nil {
		c.step()
	}
	end := c.now.Sub(start) + 2*c.cfg.Poll + 2*c.slowest()
	for len(c.queue.events) > 0 && c.queue.events[0].at <= end && c.err == nil {
		c.step()
	}
	c.now = start.Add(end)
}

func (c *cluster) working() bool {
	return slices.ContainsFunc(c.members, func(m *member) bool { return m.up && len(m.jobs) > 0 })
}

func (c *cluster) step() {
	e := c.queue.pop()
	c.now = start.Add(e.at)
	c.stats.events++
	c.stats.hash.mix(uint64(e.at), uint64(e.what), uint64(e.node))
	c.handle(&e)
	if c.check != nil {
		c.check.after(&e)
	}
}

func (c *cluster) handle(e *event) {
	m := c.members[e.node]
	switch e.what {
	case arrival:
		c.arrive(e.call)
	case engineDue:
		if m.wake == e.at {
			m.wake = 0
		}
		c.stepEngine(m)
	case speak:
		c.speak(m, e.life)
	case hear:
		c.hear(e)
	case forwarded:
		c.receive(e.attempt)
	case answered:
		c.answer(e.attempt)
	case refused:
		c.refuse(e.attempt)
	case cancelled:
		c.cancel(e.attempt)
	case watch:
		c.watch(e.attempt)
	case ask, told, giveUp:
		c.fetching(e)
	case loaded:
		c.loaded(e)
	case fault:
		c.befall()
	}
}

func (c *cluster) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// delay draws how long one trip takes.
func (c *cluster) delay(from, to int) time.Duration {
	d := c.cfg.Network.Delay
	if c.cfg.Network.Matrix != nil {
		d = c.cfg.Network.Matrix[from][to]
	}
	if j := int64(c.cfg.Network.Jitter); j > 0 {
		d += time.Duration(c.rng.Int64N(2*j+1) - j)
	}
	return max(0, d)
}

// slowest bounds every trip.
func (c *cluster) slowest() time.Duration {
	d := c.cfg.Network.Delay
	for _, row := range c.cfg.Network.Matrix {
		for _, v := range row {
			d = max(d, v)
		}
	}
	return d + c.cfg.Network.Jitter
}

// reaches reports whether a message gets from a to b at present.
func (c *cluster) reaches(a, b int) bool { return c.members[a].side == c.members[b].side }

// patience is the silence after which a peer is given up.
func (c *cluster) patience() time.Duration { return max(3*c.cfg.Poll, 200*time.Millisecond) }

// transfer returns when bytes have come into a node, behind what is on its way
// there, and whether that is before they are given up: then the transfer is cut.
func (c *cluster) transfer(to *member, bytes int64, giveUp time.Duration) (at time.Duration, inTime bool) {
	begin := max(c.now.Sub(start), to.linkFree)
	at = begin + c.over(bytes)
	to.linkFree = max(to.linkFree, min(at, giveUp))
	return at, at <= giveUp
}

// over is how long bytes take on a free link.
func (c *cluster) over(bytes int64) time.Duration {
	if c.cfg.Network.Bandwidth == 0 {
		return 0
	}
	return time.Duration(min(float64(bytes)/float64(c.cfg.Network.Bandwidth)*float64(time.Second), float64(horizon)))
}
