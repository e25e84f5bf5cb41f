package workload

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

// An Item is one request as caches see it.
type Item struct {
	Topic  string        // subject, or group of the trace; "" where the source has none
	Chain  prefix.Chain  // the whole blocks of the prompt; the receiver's own
	Tokens int           // of the prompt, its last partial block included
	Output int           // tokens to generate, at least 1
	At     time.Duration // arrival since the first request; 0 throughout where the source has no times
}

// The sources of token blocks beside those of Config, by name.
const (
	treeOfThoughts = "tot"
	bfclTurns      = "bfcl"
	bfclLive       = "bfcl-live"
	claudeCode     = "claude-code"
	blockStream    = "stream"
	mooncake       = "mooncake"
)

// fewShot are the sources that are drawn from subjects; needsData those that
// have no synthetic stand-in.
var (
	fewShot   = []string{uniform, skewed, bigBench}
	needsData = []string{bigBench, treeOfThoughts, bfclTurns, bfclLive, claudeCode, blockStream, mooncake}
)

// StreamConfig says which Items a Stream holds.
type StreamConfig struct {
	// Name is the source, its data behind a colon or in Data:
	//
	//	mmlu, mmlu-skewed   the prompts of the HTTP workload, in the same order; without data synthetic ones
	//	bbh:DIR             BIG-Bench Hard with chain-of-thought examples, in random order
	//	tot:DIR             Tree of Thoughts, Game of 24: 100 searches side by side
	//	bfcl:DIR            Berkeley Function Calling, multi-turn: growing conversations side by side
	//	bfcl-live:DIR       the same, one turn, each with its own tool documents, in random order
	//	claude-code:DIR     recorded coding sessions, with times
	//	stream:FILE         JSON lines of block ids, named NAME.b16.jsonl for blocks of 16 tokens, or .jsonl.gz
	//	mooncake:FILE       the same, blocks of 512 tokens unless the file's name says otherwise
	Name        string
	Data        string
	BlockTokens int    // tokens a block; 0: 16 for texts, a trace's own; a trace's can be split or joined evenly
	Requests    int    // up to maxRequests; 0: as many as the source has; more are repeats, see Stream
	Seed        uint64 // of the order, the hot topics, when sessions begin
	Repeats     bool   // mmlu, mmlu-skewed and bbh: draw questions with replacement
	ByTopic     bool   // with Repeats: draw a topic, then one of its questions
	Output      int    // tokens to generate where the source does not say; 0: 1, as in the paper
	Arrivals    string // CSV file with a column TIMESTAMP, as Azure's LLM traces: its times in place of the source's
}

// Validate reports everything that is wrong with c.
func (c StreamConfig) Validate() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	name, path := sourceOf(c.Name, c.Data)
	switch {
	case !slices.Contains(fewShot, name) && !slices.Contains(needsData, name):
		wrong("unknown workload %q; choose %s, %s, or one of %s with its data behind a colon", c.Name, uniform, skewed, strings.Join(needsData, ", "))
	case slices.Contains(needsData, name) && path == "":
		wrong("workload %s needs its data; write %s:PATH", name, name)
	case strings.Contains(c.Name, ":") && c.Data != "":
		wrong("workload %s names its data; leave out --data", c.Name)
	case c.ByTopic && !c.Repeats:
		wrong("a topic drawn before its question needs repeats; add --repeats")
	case c.Repeats && !slices.Contains(fewShot, name):
		wrong("workload %s is replayed in its order; leave out --repeats", name)
	}
	if c.BlockTokens < 0 || c.BlockTokens > maxBlockTokens {
		wrong("a block of %d tokens; take 1 to %d, or 0 for the source's own", c.BlockTokens, maxBlockTokens)
	}
	if c.Requests < 0 || c.Requests > maxRequests {
		wrong("%d requests make no workload; ask for 1 to %d, or 0 for all", c.Requests, maxRequests)
	}
	if c.Output < 0 {
		wrong("%d tokens to generate; ask for at least 1", c.Output)
	}
	return errors.Join(problems...)
}

// textBlock is how many tokens a block of text has by default, as in vLLM.
const textBlock = 16

// maxBlockTokens is far above what any engine uses.
const maxBlockTokens = 1 << 16

// A Stream is a fixed, repeatable sequence of Items: the workload as caches see
// it. It keeps its source in memory and names the blocks of a request when it
// is asked for, so that a million requests cost no more memory than the source.
// Safe for concurrent use.
//
// When more requests are asked of it than the source has, it begins again. A
// repeat keeps what a request shares by design - the examples of its subject,
// tools and system prompt; in a file of block ids all up to the last place
// where the paths of one request in 200 part - and what follows is fresh, as if
// other users asked other questions in the same way. Arrivals go on from those
// before.
type Stream struct {
	StreamConfig        // as opened, with BlockTokens, Requests and Output filled in
	Source       string // where the requests come from, for people to read
	Timed        bool   // whether Item.At says anything

	unit      int // tokens a symbol
	sequences []sequence
	order     []int32 // of sequences; nil: as they stand
	arrivals  []time.Duration
	period    time.Duration // by which a round of arrivals is later than the one before
}

// Open reads the source c names and lays out its requests. An error names the
// file, and the line where there are lines.
func Open(c StreamConfig) (*Stream, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Stream{StreamConfig: c, unit: 1}
	name, path := sourceOf(c.Name, c.Data)
	var err error
	switch name {
	case treeOfThoughts:
		err = s.openTree(path)
	case bfclTurns:
		err = s.openTurns(path)
	case bfclLive:
		err = s.openLive(path)
	case claudeCode:
		err = s.openSessions(path)
	case blockStream, mooncake:
		err = s.openBlocks(name, path)
	default:
		err = s.openSubjects(name, path)
	}
	if err != nil {
		return nil, err
	}
	if err := s.fill(); err != nil {
		return nil, fmt.Errorf("workload %s: %w", c.Name, err)
	}
	return s, s.arrive()
}

// fill puts the source's own values where the configuration has none.
func (s *Stream) fill() error {
	if s.BlockTokens == 0 {
		s.BlockTokens = s.unit
		if s.unit == 1 {
			s.BlockTokens = textBlock
		}
	}
	if s.BlockTokens%s.unit != 0 && s.unit%s.BlockTokens != 0 {
		return fmt.Errorf("its blocks of %d tokens make none of %d; take a multiple or a divisor with --block-tokens", s.unit, s.BlockTokens)
	}
	if s.Requests == 0 {
		s.Requests = s.Round()
	}
	if s.Output == 0 {
		s.Output = 1
	}
	return nil
}

// arrive settles when requests come.
func (s *Stream) arrive() error {
	if s.Arrivals != "" {
		var err error
		if s.arrivals, err = readArrivals(s.Arrivals); err != nil {
			return fmt.Errorf("%w: %w", ErrArrivals, err)
		}
		s.Source += ", arrivals of " + s.Arrivals
	} else if s.sequences[len(s.sequences)-1].at > 0 { // times do not go back
		s.arrivals = make([]time.Duration, len(s.sequences))
		for i, q := range s.sequences {
			s.arrivals[i] = q.at - s.sequences[0].at
		}
	}
	n := len(s.arrivals)
	if n == 0 {
		return nil
	}
	s.Timed = true
	last := s.arrivals[n-1]
	s.period = last + last/time.Duration(max(n-1, 1)) // the mean gap before the next round
	if rounds := s.Requests/n + 1; time.Duration(rounds) > math.MaxInt64/max(s.period, 1) {
		return fmt.Errorf("%d requests are %d rounds of a trace of %s, which time does not hold; ask for fewer with --requests", s.Requests, rounds, last)
	}
	return nil
}

// Round is how many requests come before the source begins again.
func (s *Stream) Round() int {
	if s.order != nil {
		return len(s.order)
	}
	return len(s.sequences)
}

// Len is the number of requests.
func (s *Stream) Len() int { return s.Requests }

// Item makes the i-th request, 0 <= i < Len. It costs one hash per block.
func (s *Stream) Item(i int) Item {
	round, k := i/s.Round(), i%s.Round()
	if s.order != nil {
		k = int(s.order[k])
	}
	q := &s.sequences[k]
	item := Item{Topic: q.topic, Chain: q.chain(s.unit, s.BlockTokens, uint64(round)), Tokens: q.tokens, Output: q.output}
	if item.Output == 0 {
		item.Output = s.Output
	}
	item.At = s.at(i)
	return item
}

// at is when the i-th request arrives.
func (s *Stream) at(i int) time.Duration {
	n := len(s.arrivals)
	if n == 0 {
		return 0
	}
	return s.arrivals[i%n] + time.Duration(i/n)*s.period
}

// Items are all requests in order.
func (s *Stream) Items() iter.Seq[Item] {
	return func(yield func(Item) bool) {
		for i := range s.Requests {
			if !yield(s.Item(i)) {
				return
			}
		}
	}
}
