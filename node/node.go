// Package node is the core of hearsay: it is told what happened and when, and
// answers what to do. It is Algorithm 1 of the paper without the doing.
//
// A Node holds the exact tree of what the engine beside it has cached and a view
// of its peers, which it knows by hearsay. Route decides where a request runs
// (getBestNode), from local state alone and in microseconds. Served and Failed
// take in how that went (updateTrie, updateTrieEstimate, a sendRequest that timed
// out). Speak makes the rumor that all peers are to hear (sendTrie), Hear takes in
// theirs. Whoever drives it - the daemon, the simulator, a test - runs the engine,
// carries requests and rumors, and says what time it is.
//
// A node never blocks, starts nothing, reads no clock and draws no chance but its
// own: the same calls give the same answers. It holds no lock; its caller does.
package node

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/estimate"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// A Node routes the requests that come to one engine. Create it with New. It is
// not safe for concurrent use.
type Node struct {
	cfg    Config
	tree   *prefix.Tree
	view   *gossip.View
	models rates
	heads  heads
	gauge  gauge // of the engine's cache, where Config.LearnCapacity

	version     uint64   // of the last rumor spoken
	purse       purse    // of rumors
	untold      int      // blocks that the last one left out
	relayed     bool     // rumors are
	serving     []string // models, by the engine's word
	down        bool
	queue       int
	pausedUntil time.Time
	pauses      int // begun

	here, there Totals
	clashes     int
	cands       []route.Candidate // Route's scratch

	priced    bool // the policy goes by prices
	speed     speed
	theirs    speed // as peers tell, see hearSpeed
	scratch   speed // speedOf's
	meter     meter
	meanWork  float64   // of all nodes, see excess
	pending   []*Flight // to this node's engine, without a first token; in order
	lastFirst time.Time // when the last first token came
	accounts  map[string]*account
	flights   int // under way

	ledger    ledger
	spoke     time.Time     // when the last rumor was
	notice    bool          // a prefill has begun since that peers should hear of
	wish      *wish         // nil where nothing is worth warming
	warming   *Flight       // under way
	allowance float64       // of tokens to warm
	tailWorth estimate.Mean // seconds that the tail of the tree saves a request, for each of its tokens
	inflow    estimate.Mean // tokens that are new to the tree in a request
	warmed    WarmTotals
	bounced   int // forwards that were refused, as they would have cost more than elsewhere
}

// New returns a node with an empty cache and no peers. It panics when cfg is not
// valid: what an operator gives is to be checked with Validate before.
func New(cfg Config) *Node {
	if err := cfg.Validate(); err != nil {
		panic(fmt.Sprintf("node: invalid config: %v", err))
	}
	cfg = cfg.WithDefaults()
	return &Node{
		cfg:    cfg,
		tree:   prefix.NewTree(capacity(cfg.CapacityTokens), cfg.MaxBlocks),
		view:   gossip.NewView(gossip.Config{Self: cfg.Name, SuspectAfter: cfg.SuspectAfter}),
		models: rates{preset: cfg.BytesPerToken},

		gauge: newGauge(cfg.CapacityTokens, cfg.MaxBlocks),

		priced: cfg.Policy == route.Policy(route.Economic{}),
		speed:  newSpeed(), accounts: map[string]*account{},
		allowance: warmBurst, tailWorth: estimate.Mean{Span: meanSpan}, inflow: estimate.Mean{Span: meanSpan},
	}
}

// A Request is what routing needs to know of a prompt.
type Request struct {
	Model string       // as the engine knows it: tokens are counted per model
	Chain prefix.Chain // names the prompt's prefixes
	Bytes int          // of the prompt's canonical text

	Bounced []string // peers that have bounced it, see Admit
}

// A Decision says where a request is to run and what is hoped for there.
type Decision struct {
	Node     string
	Self     bool
	Match    int    // leading blocks that the node is believed to hold
	Expected int    // the same in tokens: how many the engine should find cached
	Reason   string // one short line

	Elsewhere time.Duration // the price of the next best, by the economic policy; 0 where there is none, or it is no more to be had

	forwarded bool          // by a peer, to here
	rent      time.Duration // what it costs more than if this node held what Node does
	relief    time.Duration // what others would gain if this node held it
}

// An Outcome is what became of a request that was answered.
type Outcome struct {
	Known        bool // the engine reported the next two
	PromptTokens int
	CachedTokens int
	Promised     int          // Match of the Decision for the node that served it
	Chain        prefix.Chain // of prompt and completion, nil where only the prompt is known
	Tokens       int          // of Chain's text, 0 where not known
	Flight       *Flight      // of Dispatch, nil where there was none
	Report       Report       // of the peer that served it
}

// Route decides where req runs, leaving out the peers already tried and those that
// do not serve its model (getBestNode, Algorithm 1 line 5). It always has an
// answer: this node is the last resort where it is down, was tried, or does not
// serve the model either. Route changes nothing but the state of Rand.
//
// A request that has been bounced bouncesMax times is no more sent where hearsay leads:
// it runs here, or at one of those who have just said how long it takes there.
//
// With 64 peers and a prompt of 100 blocks it takes about 5 microseconds.
func (n *Node) Route(now time.Time, req Request, tried ...string) Decision {
	self := route.Candidate{
		Name: n.cfg.Name, Self: true,
		Match: n.tree.Match(req.Chain), Queue: n.queue, Paused: n.queue > n.cfg.QueueThreshold,
	}
	able := n.Able(req.Model) && !slices.Contains(tried, n.cfg.Name)
	tokens := n.tokens(req, req.Bytes)
	if n.priced {
		self.Price, self.Paused = n.priceHere(now, req, tokens, self.Match), false
	}
	if !able {
		self.Match, self.Paused = -1, true
	}
	last := len(req.Bounced) >= bouncesMax
	n.cands = append(n.cands[:0], self)
	for p, match := range n.view.Matches(now, req.Chain) {
		if slices.Contains(tried, p.Name) || !serves(p.Models, req.Model) || last && able && !slices.Contains(req.Bounced, p.Name) {
			continue
		}
		c := route.Candidate{Name: p.Name, Match: match, Queue: p.Queue, Paused: now.Before(p.PausedUntil)}
		if n.priced {
			c.Price, c.Paused = n.price(now, req, tokens, p, match), false
		}
		n.cands = append(n.cands, c)
	}
	if !able && len(n.cands) == 1 {
		return n.Stay(req, "no other node is left")
	}
	i, reason := n.cfg.Policy.Choose(n.cands, n.cfg.Rand)
	if n.priced && able {
		i, reason = n.deal(now, req, tokens, i, reason)
	}
	if n.cands[i].Self && !able {
		i, reason = route.Elsewhere(n.cands, n.cfg.Rand)
	}
	d := n.decide(req, n.cands[i], reason)
	if n.priced {
		if !last {
			d.Elsewhere = elsewhere(n.cands, i)
		}
		d.rent = n.rent(now, req, tokens, n.cands[i])
		if !d.Self {
			load, _ := n.view.Load(d.Node)
			d.relief = n.relief(load, n.cands[i].Price)
		}
	}
	return d
}

// Considered returns what the last Route chose among, this node first. It is valid
// until the next.
func (n *Node) Considered() []route.Candidate { return n.cands }

// elsewhere is the price of the best but the i-th.
func elsewhere(cands []route.Candidate, i int) (least time.Duration) {
	for j, c := range cands {
		if j != i && !c.Paused && (least == 0 || c.Price.Total() < least) {
			least = c.Price.Total()
		}
	}
	return least
}

// Stay decides for a request that must be served by this node, for the reason
// given, as one that a peer has forwarded: the match is that of the exact tree.
func (n *Node) Stay(req Request, reason string) Decision {
	return n.decide(req, route.Candidate{Name: n.cfg.Name, Self: true, Match: n.tree.Match(req.Chain)}, reason)
}

func (n *Node) decide(req Request, c route.Candidate, reason string) Decision {
	return Decision{
		Node: c.Name, Self: c.Self, Match: c.Match,
		Expected: n.tokens(req, min(c.Match*prefix.BlockBytes, req.Bytes)),
		Reason:   reason,
	}
}

// Served records that the node named by has answered req.
//
// When that is this node, its tree follows the engine (updateTrie): a hit clearly
// below what was promised prunes what the engine has evidently evicted, and what
// it has computed is inserted. When it is a peer, the estimate of that peer is
// credited (updateTrieEstimate, lines 16-18) and its failures are over.
func (n *Node) Served(now time.Time, req Request, by string, out Outcome) {
	n.land(now, out)
	chain := out.Chain
	if chain == nil {
		chain = req.Chain
	}
	promised := n.tokens(req, min(out.Promised*prefix.BlockBytes, req.Bytes))
	if by != n.cfg.Name {
		n.there.add(promised, out)
		n.view.Succeed(now, by)
		n.view.Credit(now, by, chain)
	} else {
		n.here.add(promised, out)
		tokens := n.tokensOf(req, chain, out)
		n.measure(req, out, chain, tokens)
		if keep, short := shortfall(req, out); short {
			n.tree.Prune(req.Chain, keep)
		}
		n.tree.Insert(chain, tokens)
		if n.allowance < warmBurst {
			n.allowance += n.cfg.WarmShare * float64(out.PromptTokens)
		}
	}
	n.models.learn(req.Model, req.Bytes, out.PromptTokens)
	n.heads.learn(req.Chain, req.Bytes, out.PromptTokens)
}

// tokensOf counts the tokens of chain's text, by the engine's word as far as it goes.
func (n *Node) tokensOf(req Request, chain prefix.Chain, out Outcome) int {
	switch {
	case out.Tokens > 0:
		return out.Tokens
	case out.Known:
		beyond := max(0, len(chain)-len(req.Chain))
		return out.PromptTokens + n.tokens(req, beyond*prefix.BlockBytes)
	default:
		return n.tokens(req, len(chain)*prefix.BlockBytes)
	}
}

// Failed records that a request sent to the node named was not answered: refused,
// reset, timed out, or answered with a server's error. Route again, naming it as
// tried. Where that is this node, its engine is down: peers are asked to pause.
func (n *Node) Failed(now time.Time, name string) {
	if name == n.cfg.Name {
		n.beginPause(now)
		return
	}
	n.view.Fail(now, name)
}

// Lost records that the connection with the peer named broke: it is sent nothing until
// it has been heard again.
func (n *Node) Lost(now time.Time, name string) { n.view.Lose(now, name) }

// Busy records that the engine of a peer, or of this node, has asked for no more
// requests for some time: it answered 429, or 503 with Retry-After. Peers are told
// of this node's own as a pause.
func (n *Node) Busy(now time.Time, name string, retryAfter time.Duration) {
	retryAfter = min(retryAfter, gossip.MaxInterval)
	if name != n.cfg.Name {
		n.view.Pause(name, now.Add(retryAfter))
		return
	}
	until := max(retryAfter, n.pause(now))
	n.beginPause(now)
	n.pausedUntil = now.Add(until)
}

// Queued tells how many requests are here, running or waiting. Above the threshold
// the next rumor asks peers to pause (push-back, section 3.2 of the paper). By prices
// only those count that have no first token yet.
func (n *Node) Queued(now time.Time, depth int) {
	n.queue = max(depth, 0)
	waiting := n.queue
	if n.priced { // who writes an answer keeps nobody waiting
		waiting = min(waiting, len(n.pending))
	}
	if waiting > n.cfg.QueueThreshold {
		n.beginPause(now)
	}
}

// Cleared records that the engine has lost its whole cache: it restarted, or was
// told to drop it.
func (n *Node) Cleared() {
	n.tree.Clear()
	n.gauge.forget()
}

// SetCapacity tells how many tokens the engine can cache, 0 when it is not known.
// What no longer fits leaves the tree at once. To be told the same again changes
// nothing of what has been learnt since.
func (n *Node) SetCapacity(tokens int) {
	n.cfg.CapacityTokens = max(tokens, 0)
	n.gauge.tell(n.cfg.CapacityTokens)
	n.tree.SetMaxTokens(capacity(n.gauge.tokens))
}

// Speak returns the rumor that all peers are to hear, every Poll (sendTrie). Each
// has a new version. While the queue stays too long, so does the pause.
func (n *Node) Speak(now time.Time) gossip.Rumor {
	n.version++
	n.Queued(now, n.queue)
	n.weigh(now)
	n.spoke, n.notice = now, false
	tree := n.tell(now)
	told := float64(tree.Len()) / float64(max(n.tree.Len(), 1))
	return gossip.Rumor{
		Author: n.cfg.Name, Life: n.cfg.Life, Version: n.version,
		Every: n.cfg.Poll, Queue: n.queue, Pause: n.pause(now),
		Tokens: int(math.Round(told * float64(n.tree.Tokens()))), Down: n.down, Models: n.serving, Tree: tree, Load: n.load(now), Computing: n.computing(),
	}
}

// Hear takes in a rumor and reports whether it was news. A pause is stretched by
// up to a quarter, by chance, so that peers do not come back in step.
//
// A rumor that bears this node's own name changes nothing. When it is of another
// life it is counted: two nodes have one name, or an old rumor is still about.
func (n *Node) Hear(now time.Time, r gossip.Rumor) bool {
	if r.Author == n.cfg.Name {
		if r.Life != n.cfg.Life {
			n.clashes++
		}
		return false
	}
	if r.Pause > 0 {
		r.Pause += time.Duration(n.cfg.Rand.Int64N(int64(r.Pause)/4 + 1))
	}
	if !n.view.Hear(now, r) {
		return false
	}
	n.hearSpeed(r.Load)
	if len(r.Models) == 1 && !n.models.knows(r.Models[0]) { // of several the tree tells no one's
		const tail = prefix.BlockBytes / 2 // of a prompt, after its last whole block: it has tokens and no block
		n.models.hear(r.Models[0], r.Blocks()*prefix.BlockBytes+tail, r.Tokens)
	}
	return true
}

// Told returns which version of peer's tree, and of which life, is held here: the
// peer tells what has changed since. 0: none.
func (n *Node) Told(peer string) (life, version uint64) { return n.view.Told(peer) }

// Forget drops what is believed of a peer that has left the cluster, and what was
// learnt by dealing with it.
func (n *Node) Forget(peer string) {
	n.view.Forget(peer)
	delete(n.accounts, peer)
}

// Suspected reports whether peer has been silent for too long, or was never heard
// (section 3.3 of the paper: the broadcast is the heartbeat).
func (n *Node) Suspected(now time.Time, peer string) bool { return n.view.Suspected(now, peer) }

// load is what others need to price a request here.
func (n *Node) load(now time.Time) gossip.Load {
	n.meter.tick(now, len(n.pending) > 0)
	l := gossip.Load{Backlog: n.backlog(now), Rate: n.meter.rate(), Toll: n.meter.toll()}
	if n.speed.known() {
		l.Base, l.PerToken = seconds(n.speed.line.Base), seconds(n.speed.line.Slope)
	}
	return l
}

func (n *Node) beginPause(now time.Time) {
	if n.pause(now) == 0 {
		n.pauses++
	}
	n.pausedUntil = now.Add(n.cfg.PauseFor)
}

// Pause is how much longer this node asks its peers to send it nothing.
func (n *Node) Pause(now time.Time) time.Duration { return n.pause(now) }

func (n *Node) pause(now time.Time) time.Duration { return max(0, n.pausedUntil.Sub(now)) }

// capacity is the tree's limit where the engine's is not known: none.
func capacity(tokens int) int {
	if tokens <= 0 {
		return gossip.MaxTokens
	}
	return tokens
}
