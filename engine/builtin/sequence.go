package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// ErrQueueFull means that as many requests wait as may.
var ErrQueueFull = errors.New("the engine's queue is full; try again in a moment")

// ErrClosed means that the engine was closed.
var ErrClosed = errors.New("the engine is shutting down")

// A ContextError says that a prompt and its answer are too long together.
type ContextError struct {
	Prompt, Answer, Limit int // tokens; Answer 0: as many as fit, and none do
}

func (e *ContextError) Error() string {
	if e.Answer == 0 {
		return fmt.Sprintf("the prompt has %d tokens, and prompt and answer together may have %d; shorten the prompt", e.Prompt, e.Limit)
	}
	return fmt.Sprintf("%d tokens in the prompt and %d for the answer are more than the %d they may have together; shorten the prompt or lower max_tokens", e.Prompt, e.Answer, e.Limit)
}

// A Request is one prompt to continue.
type Request struct {
	Prompt      []int32  // token ids, at least one, each within the vocabulary
	MaxTokens   int      // of the answer; 0: 256, or what fits if that is less
	Temperature float64  // 0: always the best token
	TopP        float64  // draw from the best tokens that hold this share; 0 or 1: from all
	Seed        uint64   // of the draws
	Stop        []string // strings that end the answer and are not part of it
	TrimSpace   bool     // drop one space before the answer
}

// Usage counts the tokens of a request. CachedTokens are those of the prompt
// that were found in the cache, or became so while the request waited.
type Usage struct {
	PromptTokens, CachedTokens, CompletionTokens int
}

// A Stream is the answer to one request, token by token. It belongs to one
// goroutine; to leave it early, cancel the context it was made with.
type Stream struct{ seq *sequence }

// Generate queues a request. It fails at once with ErrQueueFull, ErrClosed or a
// *ContextError; once it has not, the stream ends.
func (e *Engine) Generate(ctx context.Context, r Request) (*Stream, error) {
	if len(r.Prompt) == 0 {
		return nil, errors.New("the prompt is empty")
	}
	if err := e.tok.check(r.Prompt); err != nil {
		return nil, err
	}
	room := e.Context() - len(r.Prompt)
	if room < max(r.MaxTokens, 1) {
		return nil, &ContextError{Prompt: len(r.Prompt), Answer: r.MaxTokens, Limit: e.Context()}
	}
	if r.MaxTokens == 0 {
		r.MaxTokens = min(defaultMaxTokens, room)
	}
	if r.TopP == 0 {
		r.TopP = 1
	}
	q := &sequence{
		ctx: ctx, tokens: slices.Clone(r.Prompt), most: r.MaxTokens,
		usage: Usage{PromptTokens: len(r.Prompt)},
		pick:  newSampler(r.Temperature, r.TopP, r.Seed),
		text:  textStream{pieces: e.tok.pieces, stops: r.Stop, trim: r.TrimSpace},
		out:   make(chan string, r.MaxTokens+1),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return nil, ErrClosed
	case e.load.Running+e.waiting >= e.maxBatch+e.queueMax:
		return nil, ErrQueueFull
	}
	e.waiting++
	e.arrived = append(e.arrived, q)
	e.poke()
	return &Stream{seq: q}, nil
}

// defaultMaxTokens is the length of an answer when the request names none.
const defaultMaxTokens = 256

// Next waits for the next token and gives the text that it made safe to show,
// which may be none. False means that the answer has ended.
func (s *Stream) Next() (text string, ok bool) {
	text, ok = <-s.seq.out
	return text, ok
}

// CachedTokens is Usage's; call it once Next has returned.
func (s *Stream) CachedTokens() int { return s.seq.usage.CachedTokens }

// Usage counts the request's tokens; call it once the answer has ended.
func (s *Stream) Usage() Usage { return s.seq.usage }

// Finish says, once the answer has ended, why: "stop" for the model's end or a
// stop string, "length" for MaxTokens, or the error that ended it: the
// context's, or ErrClosed.
func (s *Stream) Finish() (reason string, err error) { return s.seq.finish, s.seq.err }

// A sequence is a request in the scheduler, which alone touches it. Computing
// what is left of its tokens is prefill and decoding alike: when all are
// computed, the next one is picked and appended.
type sequence struct {
	ctx  context.Context
	most int // tokens the answer may have
	pick *sampler
	text textStream
	out  chan string // has room for the whole answer, so the scheduler never waits

	tokens   []int32     // the prompt and the answer so far
	pos      int         // of which are computed, or were found in the cache
	found    int         // of those, the ones found in the cache
	answered int         // tokens of the answer
	path     []*node     // full pages, shared
	tail     [][]float32 // pages being filled, private
	planned  int         // tokens of this step

	usage  Usage  // the prompt's part is settled before the first send on out,
	finish string // the rest before it is closed
	err    error
	ended  bool
}

func (q *sequence) left() int { return len(q.tokens) - q.pos }

// held counts the pages q has; pagesFor those that so many tokens need.
func (q *sequence) held() int             { return len(q.path) + len(q.tail) }
func (*sequence) pagesFor(tokens int) int { return (tokens + pageTokens - 1) / pageTokens }
func (q *sequence) pages() (all [][]float32) {
	for _, n := range q.path {
		all = append(all, n.page)
	}
	return append(all, q.tail...)
}

// reuse extends q over pages that the tree holds by now, whoever computed
// them. The last token is always left to compute, since the next is picked
// from its scores.
func (q *sequence) reuse(c *cache) {
	for {
		at := len(q.path) * pageTokens
		if q.left() <= 1 || at+pageTokens >= len(q.tokens) {
			break
		}
		next := c.match(q.last(), q.tokens[at:])
		if next == nil {
			break
		}
		q.path = append(q.path, next)
		if len(q.tail) > 0 {
			c.discard(q.tail[0])
			q.tail = q.tail[1:]
		}
		q.found += at + pageTokens - q.pos
		q.pos = at + pageTokens
	}
}

func (q *sequence) last() *node {
	if len(q.path) == 0 {
		return nil
	}
	return q.path[len(q.path)-1]
}

// follows says whether a full page that q would compute next is one that an
// earlier sequence of the same step is about to compute: q waits for it.
func (q *sequence) follows(planned []*sequence) bool {
	for _, p := range planned {
		same := 0
		for end := min(p.pos+p.planned, len(q.tokens)-1); same < end && p.tokens[same] == q.tokens[same]; same++ {
		}
		if same/pageTokens*pageTokens > q.pos {
			return true
		}
	}
	return false
}

// advance counts what the step computed and shares the pages it filled.
func (q *sequence) advance(c *cache) {
	q.pos += q.planned
	for (len(q.path)+1)*pageTokens <= q.pos {
		n := c.insert(q.last(), q.tokens[len(q.path)*pageTokens:], q.tail[0])
		q.path, q.tail = append(q.path, n), q.tail[1:]
	}
}

// answer picks the next token from the scores after the last one and sends it.
func (q *sequence) answer(c *cache, tok *tokenizer, logits []float32) {
	if q.answered == 0 {
		q.usage.CachedTokens = q.found
	}
	t := q.pick.next(logits)
	q.answered++
	if tok.stops(t) {
		q.end(c, "stop", nil)
		return
	}
	text, stopped := q.text.push(t)
	q.out <- text
	switch {
	case stopped:
		q.end(c, "stop", nil)
	case q.answered == q.most:
		q.end(c, "length", nil)
	default:
		q.tokens = append(q.tokens, t)
	}
}

// leave gives back all that q holds of the cache, to begin anew later.
func (q *sequence) leave(c *cache) {
	for _, page := range q.tail {
		c.discard(page)
	}
	c.release(q.path)
	q.path, q.tail, q.pos, q.found = nil, nil, 0, 0
}

// end closes the answer.
func (q *sequence) end(c *cache, finish string, err error) {
	q.leave(c)
	q.finish, q.err, q.ended = finish, err, true
	q.usage.CompletionTokens = q.answered
	if rest := q.text.flush(); rest != "" && err == nil {
		q.out <- rest
	}
	close(q.out)
}
