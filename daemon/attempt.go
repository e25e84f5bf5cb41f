package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hearsay-project/hearsay/node"
)

// Why a node did not answer a request.
var (
	errSilent  = errors.New("its heartbeat stopped")
	errTimeout = errors.New("no first byte within the first-byte timeout")
	errIdle    = errors.New("no byte within the idle timeout")
	errFull    = errors.New("its queue is full")
	errStuck   = errors.New("the engine has stopped generating")
)

// A failure is an attempt without an answer that is worth passing on.
type failure struct {
	error
	decision node.Decision
	ran      bool          // an engine may have worked on the request: another try repeats it
	doubt    bool          // the node is to be doubted
	pause    time.Duration // the node asked for no more for so long
	bounced  bool          // the request would have cost more there than elsewhere
	backlog  time.Duration // of a node that bounced it
	answer   *answer       // what it said, to be passed on where nobody does better
}

// Unwrap lets errors.Is look for the cause.
func (f *failure) Unwrap() error { return f.error }

// engineSaid says whether answer is an engine's own word, and not a peer's refusal.
func (f *failure) engineSaid() bool {
	return f != nil && f.answer != nil && f.answer.resp.Header.Get(refusedHeader) == ""
}

// ask sends q where the decision says and waits for the first byte of a body.
func (d *Daemon) ask(q *request, decision node.Decision) (*answer, *failure) {
	ctx, cancel := context.WithCancelCause(q.http.Context())
	a := &answer{cancel: cancel}
	kept := false
	defer func() {
		if !kept { // in a panic too
			a.close()
		}
	}()
	out, err := d.outgoing(ctx, q, decision)
	if err != nil {
		return nil, &failure{error: err}
	}
	late := time.AfterFunc(time.Until(q.deadline), func() { cancel(errTimeout) })
	if decision.Self {
		err = d.askEngine(a, q, out)
	} else {
		err = d.askPeer(a, out, decision.Node)
	}
	late.Stop()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // given up, perhaps as its first byte came
	}
	switch {
	case err != nil:
		return nil, &failure{error: err, ran: !notSent(err), doubt: !errors.Is(err, errFull) && !errors.Is(err, errStuck)}
	case q.hop == "" && q.named:
		f := d.judge(a, decision)
		kept = f == nil || f.answer != nil
		if f != nil {
			return nil, f
		}
	case q.hop != "" && busy(a.resp.StatusCode): // its origin judges the rest
		d.locked(func(now time.Time, n *node.Node) { n.Busy(now, decision.Node, retryAfter(a.resp.Header)) })
	}
	kept = true
	return a, nil
}

// outgoing is the request as the node that serves it gets it: the client's, without
// what belongs to the client's connection.
func (d *Daemon) outgoing(ctx context.Context, q *request, decision node.Decision) (*http.Request, error) {
	body := q.body
	if real, ok := d.cfg.Aliases[q.read.Model]; ok && decision.Self {
		body = q.read.WithModel(body, real)
	}
	out, err := http.NewRequestWithContext(ctx, q.http.Method, "http://engine", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	from := q.http.URL
	out.URL = &url.URL{Scheme: "http", Host: "engine", Path: from.Path, RawPath: from.RawPath, RawQuery: from.RawQuery, ForceQuery: from.ForceQuery}
	copyEndToEnd(out.Header, q.http.Header)
	dropOwn(out.Header)
	for _, name := range []string{requestIDHeader, traceparentHeader} { // whatever Connection says of them
		out.Header[name] = q.http.Header[name]
	}
	if out.Header["User-Agent"] == nil {
		out.Header["User-Agent"] = []string{""} // or net/http adds its own
	}
	if out.Header["Idempotency-Key"] == nil && !d.cfg.NoReplay && (!q.named || q.read.Replayable) {
		// An engine may close a kept connection just as it is used. This,
		// which is not sent, lets net/http try another when no byte came back.
		out.Header["Idempotency-Key"] = []string{}
	}
	if decision.Self {
		d.authorize(out.Header)
	} else {
		out.Header.Set(hopHeader, d.cfg.Node.Name)
		if q.flight != nil {
			writePromise(out.Header, q.promise)
		}
		out.Header.Set(deadlineHeader, strconv.FormatInt(max(1, (time.Until(q.deadline)-deadlineMargin).Milliseconds()), 10))
	}
	return out, nil
}

// deadlineMargin is by how much the deadline of the node beside the engine lies
// before the origin's: it is the one to find out that its engine is stuck.
const deadlineMargin = 5 * time.Millisecond

func (d *Daemon) askEngine(a *answer, q *request, out *http.Request) (err error) {
	var refused error
	d.locked(func(now time.Time, n *node.Node) {
		switch {
		case d.health.stuck() && q.endpoint.Generates():
			refused = errStuck
		case d.inFlight >= d.cfg.InFlightMax:
			refused = errFull
		default:
			d.inFlight++
			n.Queued(now, d.depth())
		}
	})
	if refused != nil {
		return refused
	}
	a.done = func() {
		d.locked(func(now time.Time, n *node.Node) {
			d.inFlight--
			n.Queued(now, d.depth())
			d.warmNext(now, n)
		})
	}
	begun := time.Now()
	a.resp, err = d.cfg.Engine.RoundTrip(out)
	if err == nil {
		err = a.peek()
	}
	cause := context.Cause(out.Context())
	if err != nil {
		if err = fmt.Errorf("ask the engine: %w", err); errors.Is(cause, errTimeout) {
			err = fmt.Errorf("ask the engine: %w", errTimeout)
		}
	}
	// An engine that had little time left has not shown that it is stuck.
	late := errors.Is(cause, errTimeout) && time.Since(begun) > d.cfg.FirstByteTimeout/2
	if cause == nil || late {
		d.changeHealth(func(*node.Node) {
			if q.endpoint.Generates() {
				d.health.generated(err)
			} else if err != nil {
				d.health.refused(err)
			}
		})
		if err != nil {
			select {
			case d.wake <- struct{}{}:
			default:
			}
		}
	}
	return err
}

// A forward waits for the first byte of a peer's answer.
type forward struct {
	peer   string
	cancel context.CancelCauseFunc
}

func (d *Daemon) askPeer(a *answer, out *http.Request, peer string) (err error) {
	f := &forward{peer: peer, cancel: a.cancel}
	d.locked(func(time.Time, *node.Node) { d.forwards[f] = struct{}{} })
	defer d.locked(func(time.Time, *node.Node) { delete(d.forwards, f) })
	if a.resp, err = d.mesh.RoundTrip(peer, out); err != nil {
		return fmt.Errorf("forward to %s: %w", peer, err)
	}
	return a.peek()
}

// judge tells what an engine's answer means for the request: whether it is one to
// pass on, or another node may do better. What the client did wrong is wrong
// everywhere, and its engine's error is passed on; so is anything of which the
// engine says that it is not to be tried again.
func (d *Daemon) judge(a *answer, decision node.Decision) *failure {
	status, header := a.resp.StatusCode, a.resp.Header
	f := &failure{error: fmt.Errorf("%s answers with status %d", decision.Node, status)}
	switch code := header.Get(refusedHeader); {
	case code == codeBounced && !decision.Self:
		f.bounced = true
		f.backlog, f.pause = readBounce(header)
		return f
	case code != "" && !decision.Self:
		f.error = fmt.Errorf("%s refuses: %s", decision.Node, code)
		f.doubt = code == codeUnavailable || code == codeStuck
		if code == codeFull {
			f.pause = retryAfter(header)
		}
	case header.Get("X-Should-Retry") == "false":
		return nil
	case busy(status):
		f.pause = retryAfter(header)
	case status >= 500:
		f.ran, f.doubt = true, true
	case status == http.StatusNotFound && !decision.Self: // it may have unloaded the model
	default:
		return nil
	}
	if !a.keep() {
		return nil // too long to be held while others are asked
	}
	f.answer = a
	return f
}

// busy says whether a status asks to come back later.
func busy(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable || status == statusOverloaded
}

// statusOverloaded is Anthropic's.
const statusOverloaded = 529

// retryAfter reads how long an engine wants to be left alone: what it says, by any
// of the usual headers, at least a moment and at most some minutes.
func retryAfter(h http.Header) time.Duration {
	const least, most = 0.1, 300
	seconds := 1.0
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		seconds = ms / 1000
	} else if s, err := strconv.ParseFloat(h.Get("Retry-After"), 64); err == nil {
		seconds = s
	} else if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		seconds = time.Until(at).Seconds()
	}
	if !(seconds >= least) { // NaN is not
		seconds = least
	}
	return time.Duration(min(seconds, most) * float64(time.Second))
}

// notSent says whether no engine can have seen the request.
func notSent(err error) bool {
	var op *net.OpError
	return errors.Is(err, errFull) || errors.Is(err, errStuck) || errors.As(err, &op) && op.Op == "dial"
}

const (
	// wholeMax is the size up to which an answer of known length, or one in JSON, is
	// read to its end before the client sees any of it, so that it can still be had
	// elsewhere.
	wholeMax = 1 << 20

	// pieceBytes is the most that is passed on at a time.
	pieceBytes = 32 << 10
)

// answer is an engine's or a peer's answer, of which the first byte is in hand.
type answer struct {
	resp   *http.Response
	body   io.Reader // of resp.Body, or what was read of it already
	cancel context.CancelCauseFunc
	done   func() // if not nil: the engine is free of it
}

// peek waits for the first byte of the body, or for all of a short one.
func (a *answer) peek() error {
	switch status := a.resp.StatusCode; {
	case status < 200:
		return fmt.Errorf("the engine switches protocols (status %d), which nobody asked for", status)
	case status == http.StatusNoContent, status == http.StatusNotModified,
		a.resp.Request != nil && a.resp.Request.Method == http.MethodHead:
		a.body = http.NoBody
		return nil
	}
	if n := a.resp.ContentLength; n >= 0 && n <= wholeMax {
		whole := make([]byte, n)
		if _, err := io.ReadFull(a.resp.Body, whole); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		a.body = bytes.NewReader(whole)
		a.free() // before the client has it, and sends its next request
		return nil
	}
	if kind, _, _ := mime.ParseMediaType(a.resp.Header.Get("Content-Type")); kind == "application/json" && a.resp.ContentLength < 0 {
		whole, err := io.ReadAll(io.LimitReader(a.resp.Body, wholeMax+1))
		switch {
		case err != nil:
			return fmt.Errorf("read the answer: %w", err)
		case len(whole) <= wholeMax:
			a.body = bytes.NewReader(whole)
			a.free()
		default:
			a.body = io.MultiReader(bytes.NewReader(whole), a.resp.Body)
		}
		return nil
	}
	body := bufio.NewReaderSize(a.resp.Body, pieceBytes)
	if _, err := body.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	a.body = body
	return nil
}

// keep reads what is left of a short answer and frees what it came over.
func (a *answer) keep() bool {
	whole, err := io.ReadAll(io.LimitReader(a.body, wholeMax+1))
	if err != nil || len(whole) > wholeMax {
		a.body = io.MultiReader(bytes.NewReader(whole), a.body)
		return false
	}
	a.body = bytes.NewReader(whole)
	a.close()
	return true
}

func (a *answer) close() {
	a.cancel(nil)
	if a.resp != nil {
		a.resp.Body.Close()
	}
	a.free()
}

func (a *answer) free() {
	if a.done != nil {
		a.done()
		a.done = nil
	}
}
