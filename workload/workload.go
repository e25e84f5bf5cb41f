// Package workload turns real prompts into streams of requests, drives running
// nodes with them over HTTP and reports what came back.
//
// A Workload is a fixed sequence: the same data, seed and size give the same
// requests in the same order, so that two policies can be compared on one and
// the same traffic. Its prompts are those of the paper's section 4: five
// answered MMLU questions of a subject, then one to answer, which makes
// requests of a subject share a long prefix. Without the data set a synthetic
// one of its measured shape takes its place, and every report says so.
//
// A Stream is the same for a simulator: requests as blocks of tokens, from these
// prompts, from other few-shot sets and conversations, and from recorded traces.
//
// Run is the load generator: a closed loop (a number of clients, each sending
// its next request when the last is answered) or an open one (Poisson arrivals,
// or a trace's own). It measures at the client, and takes from the nodes only what
// their answers say of themselves.
package workload

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The sources of real prompts, by name. A source's data stands behind a colon:
// chat:FILE.
const (
	uniform  = "mmlu"
	skewed   = "mmlu-skewed"
	bigBench = "bbh"
	chats    = "chat"
)

// maxRequests is far above what anyone waits for: a request costs some 40 bytes.
const maxRequests = 10_000_000

// The skew of the paper's section 4: 80 % of requests from 20 % of topics.
const (
	hotRequests = 0.8
	hotTopics   = 0.2
)

// Each use of a seed draws from a stream of its own, so that none disturbs
// another: the order of requests does not depend on where they enter.
const (
	orderStream = iota + 1
	entryStream
	arrivalStream
	syntheticStream
	sessionStream
	tailStream
	blockRounds // and all above it: one for each round of a trace
)

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// A Request is one prompt, for /v1/completions if it is text or tokens and for
// /v1/chat/completions if Chat is set.
type Request struct {
	Topic  string                     // subject of the prompt; "" where the source has none
	Prompt string                     // text to complete
	Tokens []int32                    // ids to complete, in its place
	Chat   map[string]json.RawMessage // OpenAI chat request: messages, tools and the like; shared, not to be changed
	Output int                        // tokens to generate; 0 where the source does not say
}

// Config says which requests a Workload holds.
type Config struct {
	// Name is the source, its data behind a colon or in Data:
	//
	//	mmlu, mmlu-skewed   the paper's prompts; a folder with MMLU's dev/ and test/, or without data synthetic ones
	//	bbh:DIR             BIG-Bench Hard with chain-of-thought examples
	//	chat:FILE           JSON lines of OpenAI chat requests, in the order of the file
	//	stream:FILE         a trace of block ids, see StreamConfig: prompts that share text as far as they share ids
	//	mooncake:FILE       the same, blocks of 512 tokens unless the file's name says otherwise
	Name     string
	Data     string
	Requests int    // 1 to maxRequests; of a trace more than it has are repeats, see Stream
	Seed     uint64 // of the order, and of the hot topics
	Repeats  bool   // draw with replacement; else each question comes at most once
	ByTopic  bool   // with Repeats: draw a topic, then one of its questions; else topics weigh as many as they have
	TokenIDs bool   // of a trace: prompts are token ids, exact in number, not words
}

// sourceOf splits a workload's name from its data, which stands behind a colon or by itself.
func sourceOf(name, data string) (source, path string) {
	source, path, _ = strings.Cut(name, ":")
	return source, cmp.Or(path, data)
}

// isTrace says whether the source holds block ids, not prompts.
func isTrace(source string) bool { return source == blockStream || source == mooncake }

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	source, path := sourceOf(c.Name, c.Data)
	few := slices.Contains(fewShot, source)
	switch {
	case !few && source != chats && !isTrace(source):
		wrong("--workload: there is no %q; choose %s, %s, %s:DIR, %s:FILE, %s:FILE or %s:FILE", c.Name, uniform, skewed, bigBench, chats, blockStream, mooncake)
	case path == "" && source != uniform && source != skewed:
		wrong("--workload %s needs its data; write %s:PATH", source, source)
	case strings.Contains(c.Name, ":") && c.Data != "":
		wrong("--workload %s names its data; leave out --data", c.Name)
	}
	if c.ByTopic && !(c.Repeats && few) {
		wrong("a topic drawn before its question needs topics and repeats; add --repeats")
	}
	if c.Repeats && isTrace(source) {
		wrong("--workload %s is replayed in its order; leave out --repeats", source)
	}
	if c.TokenIDs && !isTrace(source) {
		wrong("--token-ids is for traces of blocks; leave it out, or take --workload %s:FILE or %s:FILE", blockStream, mooncake)
	}
	if c.Requests < 1 || c.Requests > maxRequests {
		wrong("--requests: %d make no workload; ask for 1 to %d", c.Requests, maxRequests)
	}
	return errors.Join(problems...)
}

// A Workload is a finite, repeatable sequence of requests. It keeps its source
// in memory and builds each prompt when it is asked for. Safe for concurrent use.
type Workload struct {
	Config
	Source string // where the prompts come from, for people to read
	Timed  bool   // whether Request.At says anything

	subjects []subject
	chats    []map[string]json.RawMessage
	picks    []pick
	stream   *Stream // of a trace, in place of the others
}

// A pick is one question of one subject, or one chat request.
type pick struct{ subject, question int32 }

// New reads the source c names and lays out its requests. It fails if the
// source is missing or malformed, or too small for c without repeats.
func New(c Config) (*Workload, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	w := &Workload{Config: c}
	source, path := sourceOf(c.Name, c.Data)
	var err error
	switch {
	case isTrace(source):
		if w.stream, err = Open(StreamConfig{Name: source, Data: path, Requests: c.Requests}); err != nil {
			return nil, err
		}
		w.Source, w.Timed = w.stream.Source, w.stream.Timed
		return w, nil
	case source == chats:
		if w.chats, err = readChats(path); err != nil {
			return nil, err
		}
		w.Source = fmt.Sprintf("%s (%d requests)", path, len(w.chats))
		w.picks, err = inOrder(newRand(c.Seed, orderStream), len(w.chats), c)
	default:
		if w.subjects, w.Source, err = readSubjects(source, path); err != nil {
			return nil, err
		}
		c.Name = source
		w.picks, err = lay(c, w.subjects)
	}
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", source, err)
	}
	return w, nil
}

// readSubjects reads the few-shot prompts of the workload name from the folder
// data, and says for people where they come from.
func readSubjects(name, data string) (subjects []subject, source string, err error) {
	switch {
	case name == bigBench:
		subjects, err = readBBH(data)
	case data != "":
		subjects, err = readMMLU(data)
	default:
		subjects = synthesize()
		return subjects, fmt.Sprintf("synthetic in the shape of MMLU (%s)", size(subjects)), nil
	}
	return subjects, fmt.Sprintf("%s (%s)", data, size(subjects)), err
}

// lay draws the requests of c from the subjects: which, and in which order.
func lay(c Config, subjects []subject) (picks []pick, err error) {
	rng := newRand(c.Seed, orderStream)
	if c.Name == skewed {
		picks, _, err = skew(rng, subjects, c)
		return picks, err
	}
	return c.draw(rng, subjects, nil, c.Requests)
}

// draw takes n questions of the subjects at the given indices, nil for all.
func (c Config) draw(rng *rand.Rand, subjects []subject, indices []int, n int) ([]pick, error) {
	if !c.ByTopic {
		return draw(rng, everything(subjects, indices...), n, c.Repeats)
	}
	picks := make([]pick, n)
	for i := range picks {
		topic := rng.IntN(cmp.Or(len(indices), len(subjects)))
		if indices != nil {
			topic = indices[topic]
		}
		picks[i] = pick{int32(topic), int32(rng.IntN(len(subjects[topic].questions)))}
	}
	return picks, nil
}

// data is the path of the prompts, for scripts to read.
func (w *Workload) data() string {
	_, path := sourceOf(w.Name, w.Data)
	return cmp.Or(path, "synthetic")
}

// Len is the number of requests.
func (w *Workload) Len() int { return w.Requests }

// Request builds the i-th request, 0 <= i < Len.
func (w *Workload) Request(i int) Request {
	if w.stream != nil {
		return w.replayed(i)
	}
	p := w.picks[i]
	if w.chats != nil {
		return Request{Chat: w.chats[p.question]}
	}
	s := &w.subjects[p.subject]
	return Request{Topic: s.name, Prompt: s.prompt(int(p.question))}
}

// at is when the i-th request arrives, if the workload is Timed.
func (w *Workload) at(i int) time.Duration { return w.stream.at(i) }

// skew takes 80 % of the requests from a fifth of the subjects, drawn by rng,
// and the rest from the others. The share is exact, the order is shuffled.
func skew(rng *rand.Rand, subjects []subject, c Config) (picks []pick, hot []int, err error) {
	hot, others := split(rng, subjects)
	if len(others) == 0 {
		return nil, nil, errors.New("one subject cannot be asked more than others; give the data of two or more")
	}
	n := hotShare(c.Requests)
	picks, err = c.draw(rng, subjects, hot, n)
	if err != nil {
		return nil, nil, fmt.Errorf("the %d hot subjects of seed %d: %w", len(hot), c.Seed, err)
	}
	cold, err := c.draw(rng, subjects, others, c.Requests-n)
	if err != nil {
		return nil, nil, fmt.Errorf("the subjects that are not hot: %w", err)
	}
	picks = append(picks, cold...)
	rng.Shuffle(len(picks), func(i, j int) { picks[i], picks[j] = picks[j], picks[i] })
	return picks, hot, nil
}

// split draws the hot subjects.
func split(rng *rand.Rand, subjects []subject) (hot, others []int) {
	order := rng.Perm(len(subjects))
	cut := int(math.Ceil(hotTopics * float64(len(subjects))))
	return order[:cut], order[cut:]
}

// hotShare is how many of n requests are of hot subjects.
func hotShare(n int) int { return int(math.Round(hotRequests * float64(n))) }

// most is how many requests c makes of the subjects: as many as there are
// questions, but without repeats as few as keep the shares of a skew.
func most(c Config, subjects []subject) int {
	if c.Name != skewed || c.Repeats {
		return len(everything(subjects))
	}
	hot, others := split(newRand(c.Seed, orderStream), subjects)
	inHot, inOthers := len(everything(subjects, hot...)), len(everything(subjects, others...))
	n := inHot + inOthers
	for hotShare(n) > inHot || n-hotShare(n) > inOthers {
		n--
	}
	return n
}

// everything lists all questions of the subjects at the given indices, or of all subjects.
func everything(subjects []subject, indices ...int) []pick {
	if indices == nil {
		for i := range subjects {
			indices = append(indices, i)
		}
	}
	var all []pick
	for _, i := range indices {
		for q := range subjects[i].questions {
			all = append(all, pick{int32(i), int32(q)})
		}
	}
	return all
}

// draw takes n of pool, every one as likely as another. It may reorder pool.
func draw(rng *rand.Rand, pool []pick, n int, repeats bool) ([]pick, error) {
	if repeats && len(pool) > 0 {
		picks := make([]pick, n)
		for i := range picks {
			picks[i] = pool[rng.IntN(len(pool))]
		}
		return picks, nil
	}
	if n > len(pool) {
		return nil, fmt.Errorf("%d requests asked of %d questions; ask for fewer with --requests, or allow --repeats", n, len(pool))
	}
	rng.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })
	return pool[:n:n], nil
}

// inOrder takes the first requests of a file as they stand, since turns of a
// conversation follow each other; with repeats it draws them.
func inOrder(rng *rand.Rand, size int, c Config) ([]pick, error) {
	all := make([]pick, size)
	for i := range all {
		all[i].question = int32(i)
	}
	if c.Repeats || c.Requests > size {
		return draw(rng, all, c.Requests, c.Repeats)
	}
	return all[:c.Requests], nil
}
