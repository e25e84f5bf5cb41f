package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// request is one request on its way through this node.
type request struct {
	http     *http.Request
	endpoint dialect.Endpoint
	arrived  time.Time
	deadline time.Time // for the first byte of an answer, over all tries
	hop      string    // the node that a client asked, or "" where this one is it
	wrong    error     // why it is refused unread, or nil

	body []byte // until an answer has begun
	held int64  // its share of Config.BodiesMax

	// What was read of it, where it could be: of the prompt's text only the bytes
	// after its last whole block are kept, which with the answer go on from
	// route.Chain. That is empty where there is nothing to route by.
	read  dialect.Request
	named bool // read is meaningful
	route node.Request
	root  prefix.Hash   // of its names
	cut   chan struct{} // of Daemon.events: closed when the prompt's tokens are known, or will not be

	flight  *node.Flight  // of the try under way, nil where it has no prompt
	promise node.Promise  // of a forward: what it was sent here for, or is sent on with
	report  node.Report   // of a forward: what this node says beside its answer, or was told
	bounced bool          // of a forward: by this node
	pause   time.Duration // of this node that bounces it

	stay     string   // why it is to be served here, once that is settled
	tried    []string // nodes
	failed   *failure // of the last of them, or of the last whose engine gave a word
	replays  int      // tries after one that an engine may have worked on
	wasRead  bool     // all of its body has come
	answered bool     // the client has been sent a status
}

// newRequest looks at a request that has just come, from a client or a peer.
func newRequest(r *http.Request, hop string) *request {
	q := &request{http: r, arrived: time.Now(), hop: hop}
	if hop != "" {
		q.promise = readPromise(r.Header)
	}
	known := plainPath(r.URL)
	if known {
		q.endpoint, known = dialect.Lookup(r.URL.Path)
	}
	if !known {
		q.wrong = errNotFound
	}
	return q
}

// serve sees a request through and books how it ended, once.
func (d *Daemon) serve(w http.ResponseWriter, q *request) {
	if !d.enter() {
		d.book(q, d.refuse(w, q, errClosed))
		return
	}
	defer d.leave()
	defer d.release(q)
	defer d.locked(q.settle)
	res := d.survive(w, q)
	d.book(q, res)
	if res.cut {
		panic(http.ErrAbortHandler) // the one way to cut a client's connection
	}
}

// survive handles q; a fault of this program costs that one request.
func (d *Daemon) survive(w http.ResponseWriter, q *request) (res result) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		d.panicked("a request", v)
		cut := q.answered
		if res = d.refuse(w, q, errPanic); cut {
			res.outcome, res.cut = outcomeBroken, true
		}
	}()
	return d.handle(w, q)
}

// panicked logs a fault of this program. The value of a panic may hold a client's
// text; where it happened does not.
func (d *Daemon) panicked(where string, v any) {
	d.metrics.panics.Inc()
	what := fmt.Sprintf("%T", v)
	if err, ok := v.(interface{ RuntimeError() }); ok {
		what = fmt.Sprint(err)
	}
	d.log.Error("hearsay is at fault: panic in "+where, "panic", what, "stack", string(debug.Stack()))
}

// handle is the way of every request. A node that gives no answer worth passing on
// is set aside, and the next one asked, within one budget of tries and time.
func (d *Daemon) handle(w http.ResponseWriter, q *request) result {
	if q.wrong != nil {
		return d.refuse(w, q, q.wrong)
	}
	if err := d.read(w, q); err != nil {
		return d.refuse(w, q, err)
	}
	if q.isModels() {
		return d.serveModels(w, q)
	}
	if err := d.knowsModel(q); err != nil {
		return d.refuse(w, q, err)
	}
	for {
		decision, able := d.decide(q)
		if !able || slices.Contains(q.tried, decision.Node) {
			return d.giveUp(w, q)
		}
		if q.bounced {
			return d.bounce(w, q)
		}
		if d.events != nil {
			d.events.sent(q, decision)
		}
		a, failed := d.ask(q, decision)
		switch {
		case failed == nil:
			return d.relay(w, q, decision, a)
		case q.http.Context().Err() != nil:
			return result{outcome: d.cutShort(), decision: decision, cut: true}
		}
		d.setAside(q, decision, failed)
		if !d.mayTryAgain(q, failed) {
			return d.giveUp(w, q)
		}
	}
}

// isModels says whether a client asks what the cluster serves.
func (q *request) isModels() bool {
	path := q.http.URL.Path
	reads := q.http.Method == http.MethodGet || q.http.Method == http.MethodHead
	return reads && q.hop == "" && (path == modelsPath || strings.HasPrefix(path, modelsPath+"/"))
}

// read takes in the whole request, bounded in bytes and time, and names its prompt.
func (d *Daemon) read(w http.ResponseWriter, q *request) error {
	if q.http.ContentLength > d.cfg.BodyMax {
		return &http.MaxBytesError{Limit: d.cfg.BodyMax} // before the client sends it
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(q.arrived.Add(bodyTimeout))
	body, err := io.ReadAll(&chargedReader{http.MaxBytesReader(w, q.http.Body, d.cfg.BodyMax), d, q, 0})
	if err != nil {
		return fmt.Errorf("read the request's body: %w", err)
	}
	_ = control.SetReadDeadline(time.Time{})
	q.body, q.wasRead = body, true
	d.setDeadline(q)
	if q.http.Method != http.MethodPost || !q.endpoint.NamesModel() {
		return nil
	}
	return d.name(q)
}

// setDeadline starts the wait for an answer, which lasts no longer than a peer's that
// forwarded the request.
func (d *Daemon) setDeadline(q *request) {
	wait := d.cfg.FirstByteTimeout
	if ms, err := strconv.ParseInt(q.http.Header.Get(deadlineHeader), 10, 64); q.hop != "" && err == nil && ms >= 0 && ms < wait.Milliseconds() {
		wait = time.Duration(ms) * time.Millisecond
	}
	q.deadline = time.Now().Add(wait)
}

// chargedReader takes a request's share of Config.BodiesMax as its bytes come, so
// that a client who only says that many will come holds nothing.
type chargedReader struct {
	io.Reader
	d    *Daemon
	q    *request
	read int64
}

// chargeStep is what is charged at a time, and at least for each request: it
// bounds their number too.
const chargeStep = 32 << 10

func (c *chargedReader) Read(p []byte) (int, error) {
	for c.q.held <= c.read {
		if !c.d.bodies.TryAcquire(chargeStep) {
			return 0, errHeld
		}
		c.q.held += chargeStep
	}
	n, err := c.Reader.Read(p[:min(int64(len(p)), c.q.held-c.read)])
	c.read += int64(n)
	return n, err
}

// name reads the prompt and names its prefixes. What cannot be read is the engine's
// to judge, and served here, unless it is one of the documented limits.
func (d *Daemon) name(q *request) error {
	p, err := dialect.Read(q.endpoint, q.body)
	switch {
	case errors.Is(err, dialect.ErrDepth), errors.Is(err, dialect.ErrDuplicateModel):
		return &unreadableError{err}
	case err != nil:
		d.log.Debug("request without a readable prompt", "request_id", q.http.Header.Get(requestIDHeader), "err", err)
		return nil
	}
	q.read, q.named = p, true
	q.route.Model = d.canonicalModel(p.Model)
	if !q.endpoint.Generates() {
		return nil
	}
	p.Scope.Model = q.route.Model
	root := d.cfg.Key.Root(p.Scope)
	chain := prefix.NewChain(root, p.Text)
	q.route.Chain, q.route.Bytes = chain, len(p.Text)
	q.root = root
	q.read.Text = bytes.Clone(p.Text[len(chain)*prefix.BlockBytes:])
	return nil
}

// knowsModel refuses what no live node serves, at once: a client's typing error is
// no reason to ask every engine.
func (d *Daemon) knowsModel(q *request) error {
	if !q.named {
		return nil
	}
	known := true
	d.locked(func(now time.Time, n *node.Node) {
		if known = n.ServesHere(q.read.Model); !known && q.hop == "" {
			known = n.Serves(now, q.read.Model)
		}
	})
	if known {
		return nil
	}
	return &noModelError{q.read.Model, d.knownModels()}
}

// release gives up what the request holds of other requests' memory.
func (d *Daemon) release(q *request) {
	d.bodies.Release(q.held)
	q.held, q.body = 0, nil
}

// decide asks the node where q runs. What came over a hop stays, and so does
// what has no prompt or has used up its tries. able is false where that would be
// here, and this node's engine does not serve the model.
func (d *Daemon) decide(q *request) (decision node.Decision, able bool) {
	switch {
	case q.hop != "":
		q.stay = "forwarded here"
	case !q.named:
		q.stay = "nothing to route by"
	case q.read.Pinned:
		q.stay = "goes on from an earlier one"
	case len(q.tried) > d.cfg.ForwardsMax:
		q.stay = "tried enough peers"
	}
	d.locked(func(now time.Time, n *node.Node) {
		asked := q.route
		asked.Model = q.read.Model // as peers list it, an alias too
		able = !q.named || n.ServesHere(asked.Model)
		q.settle(now, n)
		switch {
		case q.hop != "" && q.route.Bytes > 0:
			decision = d.admit(now, n, q)
		case q.stay != "":
			decision = n.Stay(q.route, q.stay)
		case q.route.Bytes == 0 && len(q.tried) == 0 && n.Able(asked.Model):
			decision = n.Stay(q.route, "nothing to route by")
		default:
			decision = n.Route(now, asked, q.tried...)
			d.recent.add(now, q, decision, n.Considered())
		}
		if (able || !decision.Self) && !q.bounced && !slices.Contains(q.tried, decision.Node) {
			d.dispatch(now, n, q, decision)
		}
	})
	if d.events != nil {
		d.events.expect(q.route.Chain, &decision)
	}
	return decision, able || !decision.Self
}

// mayTryAgain says whether another node may be asked. A request that an engine may
// have worked on is repeated once at most, and never where that could have an
// effect twice.
func (d *Daemon) mayTryAgain(q *request, failed *failure) bool {
	switch {
	case q.hop != "" || !q.named || time.Until(q.deadline) < 2*deadlineMargin:
		return false
	case failed.ran:
		q.replays++
		return q.replays <= 1 && q.read.Replayable && !d.cfg.NoReplay
	default:
		return true
	}
}

// setAside notes why a node did not answer. One that failed is doubted; one that is
// busy is left alone for as long as it says; one that refused said why.
func (d *Daemon) setAside(q *request, decision node.Decision, failed *failure) {
	if failed.bounced {
		d.turnBack(q, decision.Node, failed)
		return
	}
	q.tried = append(q.tried, decision.Node)
	d.log.Warn("no answer", "request_id", q.http.Header.Get(requestIDHeader),
		"node", decision.Node, "replay", failed.ran, "err", failed.error)
	failed.decision = decision
	if !q.failed.engineSaid() || failed.engineSaid() {
		q.failed = failed
	}
	d.locked(func(now time.Time, n *node.Node) {
		q.settle(now, n)
		switch {
		case failed.pause > 0:
			n.Busy(now, decision.Node, failed.pause)
		case failed.doubt:
			n.Failed(now, decision.Node)
		}
	})
	if failed.doubt {
		d.metrics.failures.WithLabelValues(decision.Node).Inc()
	}
}

// giveUp ends a request that nobody answered well: with what an engine said last,
// word for word, or with an error of this node's own.
func (d *Daemon) giveUp(w http.ResponseWriter, q *request) result {
	if q.failed == nil {
		return d.refuse(w, q, errNobody)
	}
	if a := q.failed.answer; a != nil {
		return d.relay(w, q, q.failed.decision, a)
	}
	return d.refuse(w, q, q.failed)
}

// cutShort says how a request ended whose context did: its client left, or this
// node's time to drain is over.
func (d *Daemon) cutShort() (outcome string) {
	d.locked(func(time.Time, *node.Node) {
		if outcome = outcomeCancelled; d.drained {
			outcome = outcomeBroken
		}
	})
	return outcome
}
