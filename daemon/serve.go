package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// Why a forward is given up.
var (
	errSilent  = errors.New("the peer's heartbeat stopped")
	errTimeout = errors.New("no first byte within the forward timeout")
	errFull    = errors.New("the engine's queue is full")
)

// request is one request on its way through this node.
type request struct {
	http    *http.Request
	body    []byte
	prompt  engine.Prompt
	route   node.Request // its chain is empty where there is nothing to route by
	root    prefix.Hash
	hop     string // the node that a client asked, or "" where this one is it
	arrived time.Time
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

// serve is the way of every request. from is the node that forwarded it.
func (d *Daemon) serve(w http.ResponseWriter, r *http.Request, from string) {
	q, err := d.read(w, r, from)
	if err != nil {
		d.refuse(w, q, node.Decision{}, err)
		return
	}
	var tried []string
	for {
		decision := d.decide(q, tried)
		answer, err := d.ask(q, decision)
		if err == nil {
			defer answer.close()
			d.relay(w, q, decision, answer)
			return
		}
		if r.Context().Err() != nil {
			d.finished(q, decision, result{outcome: outcomeCancelled})
			return
		}
		if decision.Self {
			d.refuse(w, q, decision, err)
			return
		}
		d.setAside(decision.Node, err)
		tried = append(tried, decision.Node)
	}
}

// read takes in the whole request, bounded in bytes and time, and names its prompt.
func (d *Daemon) read(w http.ResponseWriter, r *http.Request, from string) (*request, error) {
	q := &request{http: r, hop: from, arrived: time.Now()}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(q.arrived.Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, d.cfg.BodyMax))
	if err != nil {
		return q, fmt.Errorf("read the request's body: %w", err)
	}
	_ = control.SetReadDeadline(time.Time{})
	q.body = body
	if r.Method != http.MethodPost || !engine.Routed(r.URL.Path) {
		return q, nil
	}
	if q.prompt, err = engine.Read(r.URL.Path, body); err != nil {
		d.log.Debug("request without a readable prompt", "err", err)
		return q, nil
	}
	q.root = d.cfg.Key.Root(q.prompt.Scope)
	q.route = node.Request{
		Model: q.prompt.Scope.Model,
		Chain: prefix.NewChain(q.root, q.prompt.Text),
		Bytes: len(q.prompt.Text),
	}
	return q, nil
}

// decide asks the node where q runs. What came over a hop stays, and so does
// what has no prompt or has used up its tries.
func (d *Daemon) decide(q *request, tried []string) (decision node.Decision) {
	d.locked(func(now time.Time, n *node.Node) {
		switch {
		case q.hop != "":
			decision = n.Here(q.route, "forwarded here")
		case q.route.Bytes == 0:
			decision = n.Here(q.route, "nothing to route by")
		case len(tried) >= d.cfg.ForwardsMax:
			decision = n.Here(q.route, "tried enough peers")
		default:
			decision = n.Route(now, q.route, tried...)
		}
	})
	return decision
}

// setAside notes that a node did not take the request. Only a peer that failed
// is doubted: one that was full, or is leaving, said so.
func (d *Daemon) setAside(name string, err error) {
	d.log.Warn("served elsewhere", "peer", name, "err", err)
	if errors.Is(err, errFull) {
		return
	}
	d.metrics.forwardFailures.WithLabelValues(name).Inc()
	d.locked(func(now time.Time, n *node.Node) { n.Failed(now, name) })
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
	d.locked(func(now time.Time, n *node.Node) {
		if d.inFlight >= d.cfg.InFlightMax {
			err = errFull
			return
		}
		d.inFlight++
		n.Queued(now, d.inFlight)
	})
	if err != nil {
		return err
	}
	a.onClose = append(a.onClose, func() {
		d.locked(func(now time.Time, n *node.Node) {
			d.inFlight--
			n.Queued(now, d.inFlight)
		})
	})
	if a.resp, err = d.cfg.Engine.RoundTrip(out); err != nil {
		return fmt.Errorf("ask the engine: %w", err)
	}
	return a.peek()
}

func (d *Daemon) askPeer(a *answer, out *http.Request, peer string) (err error) {
	f := &forward{peer: peer, cancel: a.cancel}
	d.locked(func(time.Time, *node.Node) { d.forwards[f] = struct{}{} })
	timeout := time.AfterFunc(d.cfg.ForwardTimeout, func() { a.cancel(errTimeout) })
	defer func() {
		timeout.Stop()
		d.locked(func(time.Time, *node.Node) { delete(d.forwards, f) })
		if cause := context.Cause(out.Context()); err != nil && cause != nil {
			err = cause
		}
	}()
	out.Header.Set(hopHeader, d.cfg.Node.Name)
	if a.resp, err = d.mesh.RoundTrip(peer, out); err != nil {
		return fmt.Errorf("forward to %s: %w", peer, err)
	}
	switch status := a.resp.StatusCode; {
	case status == http.StatusTooManyRequests:
		return fmt.Errorf("forward to %s: %w", peer, errFull)
	case status >= 500:
		return fmt.Errorf("forward to %s: status %d", peer, status)
	}
	return a.peek()
}
