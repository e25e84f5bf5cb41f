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
// Run is the load generator: a closed loop (a number of clients, each sending
// its next request when the last is answered) or an open one (Poisson
// arrivals). It measures at the client, and takes from the nodes only what
// their answers say of themselves.
package workload

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// The workloads by name; chatPrefix is followed by a file.
const (
	uniform    = "mmlu"
	skewed     = "mmlu-skewed"
	chatPrefix = "chat:"
)

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
)

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// A Request is one prompt, for /v1/completions if it is text and for
// /v1/chat/completions if Chat is set.
type Request struct {
	Topic  string                     // subject of the prompt; "" where the source has none
	Prompt string                     // text to complete
	Chat   map[string]json.RawMessage // OpenAI chat request: messages, tools and the like; shared, not to be changed
}

// Config says which requests a Workload holds.
type Config struct {
	Name     string // mmlu, mmlu-skewed or chat:FILE
	Data     string // folder with MMLU's dev/ and test/; "" takes the synthetic set
	Requests int    // at least 1
	Seed     uint64 // of the order, and of the hot topics
	Repeats  bool   // draw with replacement; else each question comes at most once
}

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var problems []error
	file, chat := strings.CutPrefix(c.Name, chatPrefix)
	switch {
	case c.Name != uniform && c.Name != skewed && !chat:
		problems = append(problems, fmt.Errorf("unknown workload %q; choose %s, %s or %sFILE", c.Name, uniform, skewed, chatPrefix))
	case chat && file == "":
		problems = append(problems, errors.New("workload chat: names no file; write chat:FILE"))
	case chat && c.Data != "":
		problems = append(problems, errors.New("workload chat:FILE has its data in the file; leave out --data"))
	}
	if c.Requests < 1 {
		problems = append(problems, fmt.Errorf("%d requests make no workload; ask for at least 1", c.Requests))
	}
	return errors.Join(problems...)
}

// A Workload is a finite, repeatable sequence of requests. It keeps its source
// in memory and builds each prompt when it is asked for. Safe for concurrent use.
type Workload struct {
	Config
	Source string // where the prompts come from, for people to read

	subjects []subject
	chats    []map[string]json.RawMessage
	picks    []pick
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
	var err error
	file, chat := strings.CutPrefix(c.Name, chatPrefix)
	switch {
	case chat:
		w.chats, err = readChats(file)
		w.Source = fmt.Sprintf("%s (%d requests)", file, len(w.chats))
	case c.Data != "":
		w.subjects, err = readMMLU(c.Data)
		w.Source = fmt.Sprintf("%s (%s)", c.Data, size(w.subjects))
	default:
		w.subjects = synthesize()
		w.Source = fmt.Sprintf("synthetic in the shape of MMLU (%s)", size(w.subjects))
	}
	if err != nil {
		return nil, err
	}
	rng := newRand(c.Seed, orderStream)
	switch {
	case chat:
		w.picks, err = inOrder(rng, len(w.chats), c)
	case c.Name == skewed:
		w.picks, _, err = skew(rng, w.subjects, c)
	default:
		w.picks, err = draw(rng, everything(w.subjects), c.Requests, c.Repeats)
	}
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", c.Name, err)
	}
	return w, nil
}

// data is the path of the prompts, for scripts to read.
func (w *Workload) data() string {
	if file, chat := strings.CutPrefix(w.Name, chatPrefix); chat {
		return file
	}
	return cmp.Or(w.Data, "synthetic")
}

// Len is the number of requests.
func (w *Workload) Len() int { return len(w.picks) }

// Request builds the i-th request, 0 <= i < Len.
func (w *Workload) Request(i int) Request {
	p := w.picks[i]
	if w.chats != nil {
		return Request{Chat: w.chats[p.question]}
	}
	s := &w.subjects[p.subject]
	return Request{Topic: s.name, Prompt: s.prompt(int(p.question))}
}

// skew takes 80 % of the requests from a fifth of the subjects, drawn by rng,
// and the rest from the others. The share is exact, the order is shuffled.
func skew(rng *rand.Rand, subjects []subject, c Config) (picks []pick, hot []int, err error) {
	order := rng.Perm(len(subjects))
	cut := int(math.Ceil(hotTopics * float64(len(subjects))))
	hot = order[:cut]
	n := int(math.Round(hotRequests * float64(c.Requests)))
	picks, err = draw(rng, everything(subjects, hot...), n, c.Repeats)
	if err != nil {
		return nil, nil, fmt.Errorf("the %d hot subjects of seed %d: %w", cut, c.Seed, err)
	}
	cold, err := draw(rng, everything(subjects, order[cut:]...), c.Requests-n, c.Repeats)
	if err != nil {
		return nil, nil, fmt.Errorf("the subjects that are not hot: %w", err)
	}
	picks = append(picks, cold...)
	rng.Shuffle(len(picks), func(i, j int) { picks[i], picks[j] = picks[j], picks[i] })
	return picks, hot, nil
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
