package node

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// A Config says who a node is and what bounds it. Fields with a default take it
// when zero.
type Config struct {
	Name   string       // unique in the cluster, 1 to gossip.MaxName bytes; required
	Life   uint64       // when this process started, in Unix nanoseconds; required
	Policy route.Policy // route.Economic{}
	Rand   *rand.Rand   // all chance the node draws; required

	Poll         time.Duration // between two rumors, 20ms to 300s; 500ms
	SuspectAfter int           // a peer is suspected when silent for so many of its polls; 3

	// CapacityTokens is how many tokens the engine can cache; 0 while it is not
	// known, when MaxBlocks alone bounds the tree and the tree promises too much.
	CapacityTokens int
	// LearnCapacity lets the node correct that by what its engine finds cached. It
	// is for an engine of which nothing better tells.
	LearnCapacity bool
	MaxBlocks     int // of the tree, and so of a rumor (9 bytes each); 131072, 8 MiB of text

	RumorBytes int // a second, of all rumors that this node sends: beyond it blocks are told later, the most recently used first; 1 MiB; negative: no limit
	PeerBytes  int // memory of what is believed of all peers, which all nodes spare one another; 256 MiB, room for 13 million blocks

	// QueueThreshold is how many requests may be here, running or waiting, before
	// peers are asked to pause; 8. A batching engine runs about that many with
	// little loss to each; every further prefill is one more that a newcomer
	// waits for, and then a shorter match elsewhere is the faster answer. By prices
	// only those count that have no first token yet.
	QueueThreshold int
	NoWarming      bool          // compute nothing but what clients ask for
	WarmShare      float64       // prompt tokens to compute unasked for each that is served, 0 to 1; 0.05
	PauseFor       time.Duration // how long they are asked to; 2 polls, so that one lost rumor does not end a pause

	BytesPerToken float64 // of a model until its usage has been seen; 4, common for English
}

// The paper sweeps the poll interval between these (Table 3).
const (
	MinPoll = 20 * time.Millisecond
	MaxPoll = 300 * time.Second
)

const (
	defaultPoll           = 500 * time.Millisecond
	defaultSuspectAfter   = 3
	defaultMaxBlocks      = 1 << 17
	defaultQueueThreshold = 8
	defaultPausePolls     = 2
	defaultBytesPerToken  = 4
)

// Validate reports every problem of the configuration at once, each with the
// field that causes it.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	d := c.WithDefaults()
	check(c.Name != "" && len(c.Name) <= gossip.MaxName, "Name %q: give the node a name of 1 to %d bytes", c.Name, gossip.MaxName)
	check(c.Life > 0, "Life 0: set it to the time at which the process started")
	check(c.Rand != nil, "Rand missing: give the node its source of chance")
	check(d.Poll >= MinPoll && d.Poll <= MaxPoll, "Poll %v: choose between %v and %v", c.Poll, MinPoll, MaxPoll)
	check(d.SuspectAfter > 0, "SuspectAfter %d: a peer needs at least one interval to speak", c.SuspectAfter)
	check(c.CapacityTokens >= 0, "CapacityTokens %d: give the engine's capacity, or 0 when it is not known", c.CapacityTokens)
	check(d.MaxBlocks > 0 && d.MaxBlocks <= prefix.MaxBlocks, "MaxBlocks %d: choose between 1 and %d", c.MaxBlocks, prefix.MaxBlocks)
	check(d.PeerBytes > 0, "PeerBytes %d: peers need some memory", c.PeerBytes)
	check(d.QueueThreshold > 0, "QueueThreshold %d: at least one request must be allowed to wait", c.QueueThreshold)
	check(d.PauseFor > 0 && d.PauseFor <= gossip.MaxInterval, "PauseFor %v: choose at most %v", c.PauseFor, gossip.MaxInterval)
	check(d.WarmShare > 0 && d.WarmShare <= 1, "WarmShare %v: choose at most 1, or NoWarming", c.WarmShare)
	check(d.BytesPerToken > 0 && d.BytesPerToken <= maxBytesPerToken, "BytesPerToken %v: choose at most %d", c.BytesPerToken, maxBytesPerToken)
	return errors.Join(problems...)
}

// WithDefaults returns c with every zero field that has a default set to it.
func (c Config) WithDefaults() Config {
	if c.Policy == nil {
		c.Policy = route.Economic{}
	}
	c.Poll = cmp.Or(c.Poll, defaultPoll)
	c.SuspectAfter = cmp.Or(c.SuspectAfter, defaultSuspectAfter)
	c.MaxBlocks = cmp.Or(c.MaxBlocks, defaultMaxBlocks)
	c.RumorBytes = cmp.Or(c.RumorBytes, defaultRumorBytes)
	c.PeerBytes = cmp.Or(c.PeerBytes, defaultPeerBytes)
	c.QueueThreshold = cmp.Or(c.QueueThreshold, defaultQueueThreshold)
	c.PauseFor = cmp.Or(c.PauseFor, min(defaultPausePolls*c.Poll, gossip.MaxInterval))
	c.WarmShare = cmp.Or(c.WarmShare, defaultWarmShare)
	c.BytesPerToken = cmp.Or(c.BytesPerToken, defaultBytesPerToken)
	return c
}
