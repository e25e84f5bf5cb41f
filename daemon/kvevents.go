package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// events keeps the node's tree true to what the engine publishes of its cache. The
// engine speaks of blocks of tokens; the tree, and what peers are told, is of blocks
// of text (docs/decisions/0013). What links the two is the engine's own tokenizer,
// which is asked for each prompt that is not all known yet: beside the request, never
// before it.
type events struct {
	d        *Daemon
	follower *kvevents.Follower
	cache    *kvevents.Cache
	memo     *kvevents.Memo
	prompts  chan uncut

	cut, dropped atomic.Int64 // prompts
	texts, chats tokenizer

	linked   atomic.Bool  // something was evicted that a prompt of this node's needs
	unneeded atomic.Int64 // blocks that were evicted before
}

// uncut is a prompt that is to be cut into tokens.
type uncut struct {
	endpoint dialect.Endpoint
	body     []byte // of its request
	chain    prefix.Chain
	bytes    int
	space    kvevents.Space
	model    string
	done     chan struct{} // closed when it was cut, or will not be
}

const (
	promptsMax      = 32      // that wait to be cut; more are left uncut
	promptMax       = 1 << 20 // bytes of a body: with promptsMax it bounds what is held
	tokenizeTimeout = 2 * time.Second
	settleMax       = 20 * time.Millisecond // that an answer waits for the tokens of its prompt
	tokensMax       = 16 << 20              // bytes of the engine's answer
	linkedMin       = 32                    // prompts, before they are missed among what is evicted
	tokenizePause   = 10 * time.Second      // after an engine took longer: answers are to wait for none that hangs
	tokenizeRetry   = time.Minute           // after an engine said that it has no tokenizer

	tokenizeFailuresMax = 8 // in a row, before the operator is told; one may be its prompt's fault
)

func newEvents(d *Daemon) (*events, error) {
	e := &events{d: d, memo: kvevents.NewMemo(), prompts: make(chan uncut, promptsMax)}
	e.cache = kvevents.NewCache(e.forgot)
	cfg := d.cfg.KVEvents
	cfg.Log = d.log
	var err error
	e.follower, err = kvevents.New(cfg, e)
	return e, err
}

// Apply is for the follower.
func (e *events) Apply(rank int, told []kvevents.Event) {
	e.d.careful("KV events", func() {
		for i := range told {
			if told[i].Kind == kvevents.Cleared {
				e.cleared()
			}
		}
		e.cache.Apply(rank, told)
	})
}

// Clear is for the follower.
func (e *events) Clear(rank int) {
	e.d.careful("KV events", func() {
		e.cleared()
		e.cache.Clear(rank)
	})
}

// cleared forgets all of the engine's cache where there is one: also what has never
// been cut into tokens. Of several ranks each has its own, and the others may hold it.
func (e *events) cleared() {
	if e.d.cfg.KVEvents.Ranks <= 1 {
		e.d.locked(func(_ time.Time, n *node.Node) { n.Cleared() })
	}
}

// forgot takes what the engine has evicted out of the tree. An engine that has evicted
// all it held twice over, and nothing that its prompts need, is another one, or makes
// other tokens of them.
func (e *events) forgot(names []prefix.Hash) {
	texts := e.memo.Evicted(names)
	if len(texts) > 0 {
		e.linked.Store(true)
		e.d.locked(func(_ time.Time, n *node.Node) { n.Evicted(texts) })
	}
	held := e.cache.Stats().Blocks // none: it was cleared
	if held == 0 || e.linked.Load() || e.cut.Load() < linkedMin || e.unneeded.Add(int64(len(names))) < 2*int64(held) {
		return
	}
	e.d.sayOnce("foreign", func() {
		e.d.log.Warn("the KV events tell of none of the prompts that the engine was sent: what it evicts is promised on",
			"remedy", "give as --kv-events where the engine at --engine publishes; the prompts of some models, such as gpt-oss on vLLM, cannot be linked")
	})
}

// held is how many tokens the engine's cache has been seen to hold at a time.
func (e *events) held() int { return e.cache.Stats().Most * e.cache.BlockSize() }

// parted says whether a promise is known in tokens, and not by an estimate.
func (e *events) parted(chain prefix.Chain, blocks int) bool {
	_, _, parted := e.memo.Tokens(chain, blocks)
	return parted || blocks == 0
}

// expect puts what is known in tokens in the place of an estimate.
func (e *events) expect(chain prefix.Chain, decision *node.Decision) {
	if tokens, known, _ := e.memo.Tokens(chain, decision.Match); known {
		decision.Expected = tokens
	}
}

// sent has the prompt of a request that is on its way to an engine cut into tokens,
// unless all is known of it: of one that goes elsewhere, what is promised.
func (e *events) sent(q *request, decision node.Decision) {
	switch {
	case q.cut != nil, len(q.route.Chain) == 0, len(q.body) > promptMax:
		return
	case decision.Self && e.memo.Knows(q.route.Chain), !decision.Self && e.parted(q.route.Chain, decision.Match):
		return
	}
	body := q.body
	if real, ok := e.d.cfg.Aliases[q.read.Model]; ok {
		body = q.read.WithModel(body, real)
	}
	p := uncut{endpoint: q.endpoint, body: body, chain: q.route.Chain, bytes: q.route.Bytes, model: q.route.Model, done: make(chan struct{})}
	p.space = kvevents.Space{Adapter: q.read.Scope.Adapter, Salt: q.read.Scope.Salt}
	select {
	case e.prompts <- p:
		q.cut = p.done
	default:
		e.dropped.Add(1)
	}
}

// settle looks again at what is promised, now that an engine begins to answer. The
// prompt's tokens have been there for long, as a rule: cutting is quicker than
// computing.
func (e *events) settle(q *request, decision *node.Decision) {
	if q.cut != nil {
		late := time.NewTimer(settleMax)
		defer late.Stop()
		select {
		case <-q.cut:
		case <-late.C:
		}
	}
	e.expect(q.route.Chain, decision)
}

// found learns what an engine has found of a promise that was known in text alone.
func (e *events) found(q *request, res result) {
	if res.known && res.usage.Cached > 0 && !e.parted(q.route.Chain, res.decision.Match) {
		e.memo.Found(q.route.Chain, res.decision.Match, res.usage.Cached)
	}
}

// cutPrompts has the engine cut prompts into tokens, one at a time.
func (e *events) cutPrompts(ctx context.Context) {
	for {
		select {
		case p := <-e.prompts:
			e.d.careful("a prompt's tokens", func() {
				defer close(p.done)
				e.cutPrompt(ctx, p)
			})
		case <-ctx.Done():
			return
		}
	}
}

func (e *events) cutPrompt(ctx context.Context, p uncut) {
	ids, weights, err := e.tokens(ctx, p)
	if err != nil {
		e.dropped.Add(1)
		e.d.log.Debug("no tokens of a prompt", "err", err)
		return
	}
	e.cut.Add(1)
	names := e.cache.Names(e.space(p), ids)
	e.memo.Learn(kvevents.Prompt{Chain: p.chain, Bytes: p.bytes, Names: names, Tokens: len(ids), BlockSize: e.cache.BlockSize(), Weights: weights})
}

// space is that of a prompt's blocks. With vLLM an adapter is a model, which its events
// name.
func (e *events) space(p uncut) (s kvevents.Space) {
	s = p.space
	e.d.locked(func(time.Time, *node.Node) {
		for _, m := range e.d.health.models {
			if m.id == p.model && m.parent != "" {
				s.Adapter = m.id
			}
		}
	})
	return s
}

var (
	errNoTokenizer = errors.New("the engine has no /tokenize for it, or gave no answer not long ago")
	errNoPrompt    = errors.New("it is not known of what tokens the engine makes its prompt")
)

// tokens asks the engine for those of a prompt. The weights are the lengths of the
// tokens' texts, of an engine that shows them; nil else.
func (e *events) tokens(ctx context.Context, p uncut) (ids []uint32, weights []int, err error) {
	var kind probe.Kind
	e.d.locked(func(time.Time, *node.Node) { kind = e.d.insight.facts.Kind })
	ask, ids := dialect.Tokenize(p.endpoint, p.body, kind == probe.SGLang)
	switch {
	case len(ids) > 0:
		return ids, nil, nil
	case ask == nil:
		return nil, nil, errNoPrompt
	}
	of := &e.chats
	switch p.endpoint.Dialect {
	case dialect.Completion, dialect.Generate, dialect.OllamaGenerate:
		of = &e.texts
	}
	if time.Now().Before(of.none) {
		return nil, nil, errNoTokenizer
	}
	ids, weights, err = e.tokenize(ctx, ask)
	if errors.Is(err, context.DeadlineExceeded) {
		of.none = time.Now().Add(tokenizePause)
	}
	var status tokenizeStatus
	switch {
	case err == nil:
		of.known, of.failures = true, 0
	case errors.As(err, &status) && (status.missing() || of == &e.chats && !of.known && status.unreadable()):
		of.none, of.failures = time.Now().Add(tokenizeRetry), 0
		e.d.sayOnce("tokenize", func() {
			e.d.log.Warn("the engine does not cut prompts into tokens, or not those of chats: its KV events cannot be linked to them", "err", err,
				"remedy", "update it to a version whose POST /tokenize takes a prompt, and messages")
		})
	default:
		if of.failures++; of.failures == tokenizeFailuresMax {
			e.tellFailure(err)
		}
	}
	return ids, weights, err
}

// tellFailure says that prompts are not cut, one after another, by an engine that has
// not said that it has no tokenizer.
func (e *events) tellFailure(err error) {
	remedy := "see to it that its POST /tokenize answers within 2s, with tokens"
	var status tokenizeStatus
	if errors.As(err, &status) && (status == http.StatusUnauthorized || status == http.StatusForbidden) {
		remedy = "give this node its key with --engine-key"
	}
	e.d.sayOnce("tokenize fails", func() {
		e.d.log.Warn("the engine has cut none of the last prompts into tokens: its KV events are not linked to them", "err", err, "remedy", remedy)
	})
}

// A tokenizer is what is known of the engine's, of texts or of chats: SGLang's has not
// always taken both. It is for the goroutine that asks.
type tokenizer struct {
	known    bool      // it has answered
	failures int       // answers in a row without tokens
	none     time.Time // until when it is not asked
}

// A tokenizeStatus is that of a question for tokens.
type tokenizeStatus int

func (s tokenizeStatus) Error() string {
	return fmt.Sprintf("the engine answers /tokenize with status %d", int(s))
}

func (s tokenizeStatus) missing() bool {
	return s == http.StatusNotFound || s == http.StatusMethodNotAllowed || s == http.StatusNotImplemented
}

// unreadable may be the prompt's fault, or that of an engine that reads none of its kind.
func (s tokenizeStatus) unreadable() bool {
	return s == http.StatusBadRequest || s == http.StatusUnprocessableEntity
}

func (e *events) tokenize(ctx context.Context, ask []byte) (ids []uint32, weights []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokenizeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/tokenize", bytes.NewReader(ask))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	e.d.authorize(req.Header)
	resp, err := e.d.cfg.Engine.RoundTrip(req)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the engine for tokens: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, tokenizeStatus(resp.StatusCode)
	}
	var said struct {
		Tokens []uint32 `json:"tokens"`
		Texts  []string `json:"token_strs"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, tokensMax)).Decode(&said)
	if err == nil && len(said.Tokens) == 0 {
		err = errors.New("there are none")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read a prompt's tokens: %w", err)
	}
	for _, text := range said.Texts { // tokenizers write a byte, or a character, as one
		weights = append(weights, utf8.RuneCountInString(text))
	}
	return said.Tokens, weights, nil
}

// KVEventsStatus says how the engine's events are followed.
type KVEventsStatus struct {
	Ranks     int   `json:"ranks"`     // data-parallel, of the engine
	Connected int64 `json:"connected"` // of them, whose publisher is there
	Blocks    int   `json:"blocks"`    // of tokens that the engine holds, as far as its events tell
	Batches   int64 `json:"batches"`
	Gaps      int64 `json:"gaps"`
	Replays   int64 `json:"replays"`
	Clears    int64 `json:"clears"`  // times that the cache was lost track of
	Skipped   int64 `json:"skipped"` // events of kinds that are not known, and batches that cannot be read
	Prompts   int64 `json:"prompts"` // linked to the engine's tokens
	Unlinked  int64 `json:"unlinked"`
}

func (e *events) status() *KVEventsStatus {
	if e == nil {
		return nil
	}
	f, c := e.follower.Stats(), e.cache.Stats()
	return &KVEventsStatus{
		Ranks: max(e.d.cfg.KVEvents.Ranks, 1), Connected: f.Connected, Blocks: c.Blocks, Batches: f.Batches, Gaps: f.Gaps, Replays: f.Replays,
		Clears: f.Clears, Skipped: f.Unknown + f.Unreadable, Prompts: e.cut.Load(), Unlinked: e.dropped.Load(),
	}
}

// collect emits the metrics of the engine's events.
func (s *KVEventsStatus) collect(emit func(prometheus.ValueType, *prometheus.Desc, float64, ...string)) {
	if s == nil {
		return
	}
	emit(prometheus.GaugeValue, descEventsConnected, float64(s.Connected))
	emit(prometheus.GaugeValue, descEventsBlocks, float64(s.Blocks))
	emit(prometheus.CounterValue, descEventsBatches, float64(s.Batches))
	emit(prometheus.CounterValue, descEventsGaps, float64(s.Gaps))
	emit(prometheus.CounterValue, descEventsClears, float64(s.Clears))
	emit(prometheus.CounterValue, descEventsSkipped, float64(s.Skipped))
	emit(prometheus.CounterValue, descEventsPrompts, float64(s.Prompts), "linked")
	emit(prometheus.CounterValue, descEventsPrompts, float64(s.Unlinked), "unlinked")
}
