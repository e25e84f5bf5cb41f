// Package sim runs a whole cluster in virtual time: the production node.Node
// beside emulated engines, over a network that delays, loses, doubles and cuts.
//
// Run takes a Config and a sequence of requests and returns what came of it. It is
// one thread around one heap of events; all chance comes from the seed, so that a
// config and a seed have one history, and its running hash tells whether two runs
// had the same. Beside the policies of package route it knows baselines that no
// real cluster could run, such as a router that sees every cache at once.
//
// Only what costs time is modelled: trips of messages, the engines' queues and
// prefills, transfers of what is large. Routing and the reading of a rumor take no
// time, and a forwarded prompt none for its length.
package sim

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// A Request is one prompt, cut into blocks of Config.BlockTokens.
type Request struct {
	Topic  string // for reports; may be empty
	Chain  prefix.Chain
	Tokens int           // of the prompt
	Output int           // tokens to generate; below 1 counts as 1
	At     time.Duration // when it comes, where Arrival says that requests tell; they must not go back
}

// Config describes a cluster and how it is used. Zero fields with a default take it.
type Config struct {
	Nodes  int    // 1 to MaxNodes; 4
	Policy string // of package route, or one of this package; see Policies
	Seed   uint64

	Profile        emulate.Profile // of every engine; required
	BlockTokens    int             // 1 to emulate.MaxBlockTokens; 16
	CapacityTokens int             // of every cache; 0 takes the profile's
	TreeTokens     int             // of every node's tree; 0 takes CapacityTokens, less is a router that knows less than its engine holds
	Feedback       Feedback        // what nodes make of what their engines report

	Poll           time.Duration // between two rumors of a node; 500ms
	Whole          bool          // every rumor has the whole tree, as the paper's; else what has changed since what each peer has acknowledged
	NoWarming      bool          // engines compute nothing but what clients ask for
	QueueThreshold int           // of push-back; the node's default

	Network Network
	Arrival Arrival
	Entry   Entry
	Faults  []Fault // by time

	// Check makes Run hold the run to the promises of the design after each
	// event, and fail at the first broken one. It costs some tenfold time.
	Check bool
	// Trace is given every finished request, in the order of answers.
	Trace func(Record)
	// Stop is asked every few thousand events whether to end the run, with what it
	// has come to by then.
	Stop func() bool

	entry func(index int) int // a script's word on where requests come in; nil leaves it to Entry
}

// Feedback says what a node makes of the cached tokens that its engine reports.
type Feedback uint8

const (
	Prune Feedback = iota // a hit below what was promised prunes the tree
	Deaf                  // nothing is reported
	Learn                 // as Prune, and TreeTokens is corrected (node.Config.LearnCapacity)
)

// Bounds of a Config.
const (
	MaxNodes     = 1024 // each node keeps a view of every other
	MinBandwidth = 1000 // bytes a second, a telephone line
	MinSlow      = 0.01 // a Factor: an engine a hundred times as fast
	MaxSlow      = 1000
)

// A Network says how messages travel. Rumors may be lost, since a later one makes
// good; requests and answers travel over connections, which a partition holds up.
type Network struct {
	Delay  time.Duration     // one way
	Jitter time.Duration     // added to each trip, uniform between minus and plus it; a trip takes no less than nothing
	Matrix [][]time.Duration // one way from row to column, in the place of Delay

	Loss      float64 // share of rumors that are lost
	Duplicate float64 // share of rumors that come twice
	Reorder   float64 // share of rumors that are late by up to two polls

	Bandwidth int64 // bytes a second into one node, for KV caches and fetched trees; MinBandwidth or more, or 0 for no limit
}

// Arrival says when requests come: from so many clients of which each sends its
// next when the last is answered, or at a Poisson rate, or, where both are zero,
// when they themselves tell.
type Arrival struct {
	Clients int
	Rate    float64 // requests a second
}

// Entry says to which node a request comes. A node that is down is passed over.
type Entry int

// Ways of entry.
const (
	RoundRobin Entry = iota
	Random
	First
)

// ParseEntry reads "round-robin", "random" or "first".
func ParseEntry(s string) (Entry, error) {
	for e := RoundRobin; e <= First; e++ {
		if e.String() == s {
			return e, nil
		}
	}
	return 0, fmt.Errorf("unknown entry %q; choose round-robin, random or first", s)
}

func (e Entry) String() string { return [...]string{"round-robin", "random", "first"}[e] }

// A Kind is what befalls nodes.
type Kind string

// Kinds of faults.
const (
	Crash     Kind = "crash"     // processes die; caches and requests are lost
	Restart   Kind = "restart"   // processes start anew, dying before if they live
	Partition Kind = "partition" // the nodes are cut off from all others
	Heal      Kind = "heal"      // ends all partitions
	Slow      Kind = "slow"      // engines take Factor times as long, also after a restart
	Stuck     Kind = "stuck"     // rumors go on to tell what they would have told then, until a restart
)

// A Fault befalls nodes at a time.
type Fault struct {
	At     time.Duration
	Kind   Kind
	Nodes  []int   // by index from 0
	Factor float64 // of Slow, MinSlow to MaxSlow; 1 is normal again
}

// A Record is what became of one request.
type Record struct {
	Index     int // in the sequence of requests
	Topic     string
	At        time.Duration // when it came
	Entry     int           // the node it came to
	Node      int           // the node that served it
	TTFT      time.Duration // at the client
	Latency   time.Duration // until the last token
	Tokens    int           // of the prompt
	Expected  int           // tokens said to be cached when it was routed
	Cached    int           // tokens found cached
	Reason    string        // of the last decision
	Err       string        // why it was not answered; empty otherwise
	Forwarded bool
}

// A Summary describes a distribution of times.
type Summary struct{ Mean, P50, P99 time.Duration }

// A Result is what a run came to.
type Result struct {
	Requests int
	Errors   int
	Latency  Summary // of requests that were answered
	TTFT     Summary

	ExpectedHit float64 // share of prompt tokens said to be cached, 0 to 1
	ActualHit   float64 // share found cached

	ShareByNode    []float64 // of answered requests
	FullestShare   float64
	ForwardedShare float64

	RumorBytes   int64         // sent, each copy to each peer counted
	RumorRate    float64       // bytes a second sent by one node, on average
	Warmed       int64         // prompt tokens that engines computed for no client
	FetchedBytes int64         // KV caches and trees fetched by request that came
	Unfetched    int           // of them, how many were given up
	Bounced      int           // forwards that a node refused, as they would have cost more than elsewhere
	Befallen     int           // of Config.Faults, how many came before the end
	End          time.Duration // when the last answer came
	Events       int
	Hash         uint64 // of the whole history
}

// Validate reports every problem of the configuration at once.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	d := c.WithDefaults()
	check(d.Nodes >= 1 && d.Nodes <= MaxNodes, "%d nodes; choose 1 to %d", c.Nodes, MaxNodes)
	if _, err := modeOf(c.Policy); err != nil {
		problems = append(problems, err)
	}
	if err := d.Profile.Validate(); err != nil {
		problems = append(problems, err)
	}
	check(d.BlockTokens >= 1 && d.BlockTokens <= emulate.MaxBlockTokens, "blocks of %d tokens; choose 1 to %d", c.BlockTokens, emulate.MaxBlockTokens)
	check(d.Poll >= node.MinPoll && d.Poll <= node.MaxPoll, "poll %v; choose between %v and %v", c.Poll, node.MinPoll, node.MaxPoll)
	check(c.TreeTokens >= 0, "a tree of %d tokens; give more, or 0 for what the cache holds", c.TreeTokens)
	check(c.QueueThreshold >= 0, "queue threshold %d is negative", c.QueueThreshold)
	n := c.Network
	check(n.Delay >= 0 && n.Jitter >= 0, "network: a delay or jitter is negative")
	check(n.Bandwidth == 0 || n.Bandwidth >= MinBandwidth, "network: bandwidth %d; choose %d bytes a second or more, or 0 for no limit", n.Bandwidth, MinBandwidth)
	for _, p := range []float64{n.Loss, n.Duplicate, n.Reorder} {
		check(p >= 0 && p <= 1, "network: share %v; choose 0 to 1", p)
	}
	square := n.Matrix == nil || len(n.Matrix) == d.Nodes
	for _, row := range n.Matrix {
		square = square && len(row) == d.Nodes
	}
	check(square, "network: the matrix of delays is not %d by %d", d.Nodes, d.Nodes)
	check(c.Arrival.Clients >= 0 && c.Arrival.Rate >= 0, "arrival: clients or rate negative")
	check(c.Arrival.Clients == 0 || c.Arrival.Rate == 0, "arrival: clients and a rate exclude each other; give one")
	check(c.Entry >= RoundRobin && c.Entry <= First, "entry %d is none", int(c.Entry))
	for i, f := range c.Faults {
		check(f.Kind == Crash || f.Kind == Restart || f.Kind == Partition || f.Kind == Heal || f.Kind == Slow || f.Kind == Stuck, "fault %d: unknown kind %q", i, f.Kind)
		check(i == 0 || f.At >= c.Faults[i-1].At, "fault %d comes before the one before it; sort them by time", i)
		check(f.Kind != Slow || f.Factor >= MinSlow && f.Factor <= MaxSlow, "fault %d: slow by %v; choose %v to %v", i, f.Factor, MinSlow, MaxSlow)
		for _, k := range f.Nodes {
			check(k >= 0 && k < d.Nodes, "fault %d: no node %d", i, k)
		}
	}
	return errors.Join(problems...)
}

// WithDefaults returns c with every zero field that has a default set to it.
func (c Config) WithDefaults() Config {
	set := func(field *int, preset int) {
		if *field == 0 {
			*field = preset
		}
	}
	set(&c.Nodes, 4)
	set(&c.BlockTokens, 16)
	if c.CapacityTokens > 0 {
		c.Profile.CapacityTokens = c.CapacityTokens
	}
	c.CapacityTokens = c.Profile.CapacityTokens
	set(&c.TreeTokens, c.CapacityTokens)
	if c.Poll == 0 {
		c.Poll = 500 * time.Millisecond
	}
	return c
}

// Run simulates the requests until the last is answered. It fails when the config
// is not valid or, with Check, when a promise is broken: the error says which,
// when, and under what seed.
func Run(cfg Config, requests iter.Seq[Request]) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, fmt.Errorf("sim: %w", err)
	}
	next, stop := iter.Pull(requests)
	defer stop()
	c := newCluster(cfg.WithDefaults(), next)
	result, err := c.run()
	if err != nil {
		return Result{}, fmt.Errorf("sim: seed %d: at %v: %w", cfg.Seed, c.now.Sub(start), err)
	}
	return result, nil
}

// Policies lists what Config.Policy may be: the node's own, longest with other
// rules for ties, then the baselines and the rivals.
func Policies() []string {
	names := strings.Split(route.Names(), ", ")
	for _, m := range slices.Concat(tieBreaks, baselines, rivals) {
		names = append(names, m.name)
	}
	return names
}

// start is when every run begins; model is the one that all engines serve.
var start = time.Unix(1_800_000_000, 0)

const model = "m"
