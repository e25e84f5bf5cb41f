package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// Headers that hearsay adds.
const (
	hopHeader      = "Hearsay-Hop"             // on a forwarded request: the node that a client asked
	nodeHeader     = "Hearsay-Node"            // on an answer: the node whose engine gave it
	hopsHeader     = "Hearsay-Hops"            // on an answer: 0 or 1
	reasonHeader   = "Hearsay-Reason"          // on an answer: why that node
	expectedHeader = "Hearsay-Expected-Tokens" // on an answer: cached tokens that the estimate promised
)

// Why a node did not answer a request.
var (
	errSilent  = errors.New("its heartbeat stopped")
	errTimeout = errors.New("no first byte within the forward timeout")
	errFull    = errors.New("its queue is full")
	errRejects = errors.New("it rejects the request")
	errHeld    = errors.New("requests that wait hold all the memory they may")
)

// request is one request on its way through this node.
type request struct {
	http    *http.Request
	arrived time.Time
	hop     string // the node that a client asked, or "" where this one is it

	body []byte // until an answer has begun
	held int64  // its share of Config.BodiesMax

	// What routing reads; Chain is empty where there is nothing to route by. Of
	// the prompt's text only the bytes after its last whole block are kept, which
	// with the answer go on from the hash last.
	route  node.Request
	prompt engine.Prompt
	last   prefix.Hash
	stay   string // why it is to be served here, once that is settled
}

// serveClient answers a request of a client; serveForwarded one of a peer.
func (d *Daemon) serveClient(w http.ResponseWriter, r *http.Request) {
	d.serve(w, r, r.Header.Get(hopHeader))
}

func (d *Daemon) serveForwarded(w http.ResponseWriter, r *http.Request) {
	from := r.Header.Get(hopHeader)
	if from == "" {
		from = "unknown"
	}
	d.serve(w, r, from)
}

// serve sees a request through and books how it ended, once.
func (d *Daemon) serve(w http.ResponseWriter, r *http.Request, from string) {
	if !d.enter() {
		writeError(w, http.StatusServiceUnavailable, "shutting_down", "the node has shut down")
		return
	}
	defer d.running.Done()
	q := &request{http: r, arrived: time.Now(), hop: from}
	defer d.release(q)
	res := d.handle(w, q)
	d.book(q, res)
	if res.cut {
		panic(http.ErrAbortHandler) // the one way to cut a client's connection
	}
}

// handle is the way of every request. A node that fails before the first byte of
// an answer is set aside, and the next one asked; this one may be asked twice, as
// the last resort.
func (d *Daemon) handle(w http.ResponseWriter, q *request) result {
	if err := d.read(w, q); err != nil {
		return d.refuse(w, q, err)
	}
	var tried []string
	for {
		decision := d.decide(q, tried)
		answer, err := d.ask(q, decision)
		switch {
		case err == nil:
			defer answer.close()
			d.release(q)
			return d.relay(w, q, decision, answer)
		case q.http.Context().Err() != nil:
			return result{outcome: d.cutShort(), decision: decision, cut: true}
		case q.hop != "" || slices.Contains(tried, decision.Node):
			return d.refuse(w, q, err)
		}
		d.setAside(q, decision, err)
		tried = append(tried, decision.Node)
	}
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
	q.body = body
	if q.http.Method == http.MethodPost && engine.Routed(q.http.URL.Path) {
		d.name(q)
	}
	return nil
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

// name reads the prompt and names its prefixes.
func (d *Daemon) name(q *request) {
	p, err := engine.Read(q.http.URL.Path, q.body)
	if err != nil {
		d.log.Debug("request without a readable prompt", "err", err)
		return
	}
	root := d.cfg.Key.Root(p.Scope)
	chain := prefix.NewChain(root, p.Text)
	q.route = node.Request{Model: p.Scope.Model, Chain: chain, Bytes: len(p.Text)}
	q.last = root
	if len(chain) > 0 {
		q.last = chain[len(chain)-1]
	}
	p.Text = bytes.Clone(p.Text[len(chain)*prefix.BlockBytes:])
	q.prompt = p
}

// release gives up what the request holds of other requests' memory.
func (d *Daemon) release(q *request) {
	d.bodies.Release(q.held)
	q.held, q.body = 0, nil
}

// decide asks the node where q runs. What came over a hop stays, and so does
// what has no prompt or has used up its tries.
func (d *Daemon) decide(q *request, tried []string) (decision node.Decision) {
	switch {
	case q.hop != "":
		q.stay = "forwarded here"
	case q.route.Bytes == 0:
		q.stay = "nothing to route by"
	case len(tried) >= d.cfg.ForwardsMax:
		q.stay = "tried enough peers"
	}
	d.locked(func(now time.Time, n *node.Node) {
		if q.stay != "" {
			decision = n.Stay(q.route, q.stay)
		} else {
			decision = n.Route(now, q.route, tried...)
		}
	})
	return decision
}

// setAside notes why a node did not answer. One that failed is doubted; one that
// was full or rejected the request said so. Only the engine beside this node may
// reject a request for good: limits and models may differ.
func (d *Daemon) setAside(q *request, decision node.Decision, err error) {
	d.log.Warn("no answer, asking the next", "node", decision.Node, "err", err)
	switch {
	case errors.Is(err, errRejects):
		q.stay = decision.Node + " rejects it"
	case !errors.Is(err, errFull):
		d.metrics.failures.WithLabelValues(decision.Node).Inc()
		d.locked(func(now time.Time, n *node.Node) { n.Failed(now, decision.Node) })
	}
}

// ask sends q where the decision says and waits for the first byte of a body.
// An error means that nothing of an answer is worth passing on.
func (d *Daemon) ask(q *request, decision node.Decision) (*answer, error) {
	ctx, cancel := context.WithCancelCause(q.http.Context())
	a := &answer{cancel: cancel}
	out, err := http.NewRequestWithContext(ctx, q.http.Method, "http://engine"+q.http.URL.RequestURI(), bytes.NewReader(q.body))
	if err != nil {
		cancel(err)
		return nil, err
	}
	copyEndToEnd(out.Header, q.http.Header)
	if out.Header["Idempotency-Key"] == nil {
		// An engine may close a kept connection just as it is used. This,
		// which is not sent, lets net/http try another when no byte came back.
		out.Header["Idempotency-Key"] = []string{}
	}
	if decision.Self {
		err = d.askEngine(a, out)
	} else {
		err = d.askPeer(a, out, decision.Node)
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (d *Daemon) askEngine(a *answer, out *http.Request) (err error) {
	full := false
	d.locked(func(now time.Time, n *node.Node) {
		if full = d.inFlight >= d.cfg.InFlightMax; !full {
			d.inFlight++
			n.Queued(now, d.inFlight)
		}
	})
	if full {
		return errFull
	}
	a.done = func() {
		d.locked(func(now time.Time, n *node.Node) {
			d.inFlight--
			n.Queued(now, d.inFlight)
		})
	}
	a.resp, err = d.cfg.Engine.RoundTrip(out)
	if err == nil {
		err = a.peek()
	}
	if err != nil {
		err = fmt.Errorf("ask the engine: %w", err)
	}
	if out.Context().Err() == nil {
		d.locked(func(time.Time, *node.Node) { d.engineErr = err })
	}
	return err
}

func (d *Daemon) askPeer(a *answer, out *http.Request, peer string) (err error) {
	f := &forward{peer: peer, cancel: a.cancel}
	d.locked(func(time.Time, *node.Node) { d.forwards[f] = struct{}{} })
	timeout := time.AfterFunc(d.cfg.ForwardTimeout, func() { a.cancel(errTimeout) })
	defer func() {
		timeout.Stop()
		d.locked(func(time.Time, *node.Node) { delete(d.forwards, f) })
		if cause := context.Cause(out.Context()); cause != nil {
			err = cause // given up, perhaps as its first byte came
		}
	}()
	out.Header.Set(hopHeader, d.cfg.Node.Name)
	if a.resp, err = d.mesh.RoundTrip(peer, out); err != nil {
		return fmt.Errorf("forward to %s: %w", peer, err)
	}
	switch status := a.resp.StatusCode; {
	case status == http.StatusTooManyRequests:
		return errFull
	case status >= 500:
		return fmt.Errorf("forward to %s: status %d", peer, status)
	case status >= 400:
		return errRejects
	}
	return a.peek()
}
