package node

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
	"pgregory.net/rapid"
)

const (
	poll        = 500 * time.Millisecond
	blockTokens = prefix.BlockBytes / defaultBytesPerToken
)

var start = time.Unix(1_800_000_000, 0)

// request is for a prompt with one block for each letter.
func request(letters string) Request {
	var text []byte
	for _, l := range []byte(letters) {
		text = append(text, bytes.Repeat([]byte{l}, prefix.BlockBytes)...)
	}
	return Request{Model: "m", Chain: prefix.NewChain(1, text), Bytes: len(text)}
}

// llm is what every engine computes: its answer depends on the prompt alone.
func llm(prompt string) string {
	h := fnv.New64a()
	h.Write([]byte(prompt))
	return fmt.Sprintf("%x", h.Sum64())
}

// An engine is the cache of an LLM server, as prefixes from the least to the most
// recently used.
type engine struct {
	capacity int // blocks
	cache    []string
}

// run answers a prompt and reports how many of its blocks were cached.
func (e *engine) run(prompt string) (answer string, cached int) {
	for cached < len(prompt) && slices.Contains(e.cache, prompt[:cached+1]) {
		cached++
	}
	for i := len(prompt); i > 0; i-- {
		if at := slices.Index(e.cache, prompt[:i]); at >= 0 {
			e.cache = slices.Delete(e.cache, at, at+1)
		}
		e.cache = append(e.cache, prompt[:i])
	}
	e.cache = slices.Delete(e.cache, 0, max(0, len(e.cache)-e.capacity))
	return llm(prompt), cached
}

// A cluster drives nodes by hand in virtual time: its engines are caches, its
// network a list of rumors that are still under way.
type cluster struct {
	t       rapid.TB
	cfg     Config
	rng     *rand.Rand
	now     time.Time
	members []*member
	flight  []parcel
	lives   uint64

	// How the network treats rumors and requests.
	loss, double float64
	delay        func() time.Duration
	cut          func(from, to string) bool
}

type member struct {
	*Node
	engine engine
	up     bool
	next   time.Time // to speak
}

type parcel struct {
	due      time.Time
	from, to string
	data     []byte
}

// newCluster starts n nodes named n1, n2... They differ from cfg in name and chance.
func newCluster(t rapid.TB, n int, cfg Config) *cluster {
	c := &cluster{
		t: t, cfg: cfg, now: start, rng: rand.New(rand.NewPCG(1, 1)),
		delay: func() time.Duration { return 2 * time.Millisecond },
		cut:   func(string, string) bool { return false },
	}
	c.cfg.CapacityTokens = cmp.Or(c.cfg.CapacityTokens, 1000*blockTokens)
	for i := range n {
		c.members = append(c.members, &member{next: start.Add(time.Duration(i) * poll / time.Duration(n))})
		c.restart(i)
	}
	return c
}

// restart gives member i a new life and an empty cache.
func (c *cluster) restart(i int) {
	cfg := c.cfg
	c.lives++ // no two in one nanosecond
	cfg.Name, cfg.Life = fmt.Sprintf("n%d", i+1), uint64(c.now.UnixNano())+c.lives
	cfg.Rand = rand.New(rand.NewPCG(uint64(i), cfg.Life))
	m := c.members[i]
	m.Node, m.up = New(cfg), true
	m.engine = engine{capacity: cfg.CapacityTokens / blockTokens}
}

func (c *cluster) node(name string) *member {
	i := slices.IndexFunc(c.members, func(m *member) bool { return m.cfg.Name == name })
	return c.members[i]
}

// An answer is what a client sees, and what the harness knows.
type answer struct {
	text   string
	by     string
	cached int        // blocks that the engine found
	route  []Decision // one for each try
}

// ask carries a request on its straight line: route, forward once, and on failure
// route again. It fails the test unless the answer is the LLM's.
func (c *cluster) ask(entry, prompt string) (a answer) {
	c.t.Helper()
	origin, req, tried := c.node(entry), request(prompt), []string(nil)
	for {
		d := origin.Route(c.now, req, tried...)
		a.route = append(a.route, d)
		if len(tried) >= len(c.members) || slices.Contains(tried, d.Node) {
			c.t.Fatalf("%s at %s is routed to %+v after %v", prompt, entry, d, tried)
		}
		if !d.Self && origin.mustSpare(c.now, d.Node) {
			c.t.Fatalf("%s at %s is sent to %s, which is to be spared", prompt, entry, d.Node)
		}
		if to := c.node(d.Node); d.Self || to.up && !c.cut(entry, d.Node) {
			promised := to.Stay(req, "asked by a peer").Match
			a.by = d.Node
			a.text, a.cached = to.engine.run(prompt)
			out := Outcome{Known: true, PromptTokens: len(prompt) * blockTokens, CachedTokens: a.cached * blockTokens, Promised: promised}
			to.Served(c.now, req, d.Node, out)
			if !d.Self {
				out.Promised = d.Match
				origin.Served(c.now, req, d.Node, out)
			}
			if a.text != llm(prompt) {
				c.t.Fatalf("%s answers %s", prompt, a.text)
			}
			return a
		}
		origin.Failed(c.now, d.Node)
		tried = append(tried, d.Node)
	}
}

// mustSpare reports whether the node may send nothing to peer.
func (m *member) mustSpare(now time.Time, peer string) bool {
	for _, p := range m.Status(now).Peers {
		if p.Name == peer {
			_, heeds := m.cfg.Policy.(route.LongestPushback)
			return p.State == Suspected || p.State == Doubted || p.State == Paused && heeds
		}
	}
	return true
}

// pass lets time go by: nodes speak every poll, and rumors arrive when they are due.
func (c *cluster) pass(d time.Duration) {
	c.t.Helper()
	for end := c.now.Add(d); ; {
		speaker := slices.MinFunc(c.members, func(a, b *member) int { return a.next.Compare(b.next) })
		slices.SortStableFunc(c.flight, func(a, b parcel) int { return a.due.Compare(b.due) })
		switch {
		case len(c.flight) > 0 && !c.flight[0].due.After(end) && !c.flight[0].due.After(speaker.next):
			p := c.flight[0]
			c.flight = c.flight[1:]
			c.now = p.due
			c.deliver(p)
		case !speaker.next.After(end):
			c.now = speaker.next
			speaker.next = c.now.Add(poll)
			c.broadcast(speaker)
		default:
			c.now = end
			return
		}
	}
}

func (c *cluster) broadcast(m *member) {
	if !m.up {
		return
	}
	data := m.Speak(c.now).AppendBinary(nil)
	for _, to := range c.members {
		for range cmp.Or(c.chance(c.double), 1) {
			if to != m && c.chance(c.loss) == 0 {
				c.flight = append(c.flight, parcel{c.now.Add(c.delay()), m.cfg.Name, to.cfg.Name, data})
			}
		}
	}
}

// chance is 2 with probability p, else 0.
func (c *cluster) chance(p float64) int {
	if c.rng.Float64() < p {
		return 2
	}
	return 0
}

func (c *cluster) deliver(p parcel) {
	c.t.Helper()
	to := c.node(p.to)
	if !to.up || c.cut(p.from, p.to) {
		return
	}
	r, err := gossip.DecodeRumor(p.data)
	if err != nil {
		c.t.Fatalf("%s to %s: %v", p.from, p.to, err)
	}
	to.Hear(c.now, r)
}

// knows reports whether at's estimate of peer is exactly peer's tree.
func (c *cluster) knows(at, peer string) bool {
	view, tree := c.node(at).view, c.node(peer).tree.Snapshot()
	for h := range tree.All() {
		if view.Match(peer, prefix.Chain{h}) == 0 {
			return false
		}
	}
	i := slices.IndexFunc(view.Peers(c.now), func(p gossip.Peer) bool { return p.Name == peer })
	if i < 0 {
		return tree.Len() == 0
	}
	p := view.Peers(c.now)[i]
	return p.Blocks+p.Credits == tree.Len()
}

// mustConverge fails the test unless every live node knows every live peer's tree.
func (c *cluster) mustConverge() {
	c.t.Helper()
	for _, at := range c.members {
		for _, peer := range c.members {
			if at != peer && at.up && peer.up && !c.knows(at.cfg.Name, peer.cfg.Name) {
				c.t.Fatalf("%s does not know the tree of %s", at.cfg.Name, peer.cfg.Name)
			}
		}
	}
}

// mustFollow fails the test unless each live node's tree is its engine's cache.
func (c *cluster) mustFollow() {
	c.t.Helper()
	for _, m := range c.members {
		if !m.up {
			continue
		}
		for _, s := range m.engine.cache {
			if m.tree.Match(request(s).Chain) != len(s) {
				c.t.Fatalf("%s does not know that its engine holds %s", m.cfg.Name, s)
			}
		}
		if m.tree.Len() != len(m.engine.cache) {
			c.t.Fatalf("%s knows %d blocks, its engine holds %d", m.cfg.Name, m.tree.Len(), len(m.engine.cache))
		}
	}
}

// longest is a cluster's config with Algorithm 1 to the letter.
var longest = Config{Policy: route.Longest{}}
