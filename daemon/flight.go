package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/node"
)

// errBounced is why a node does not take a forward.
var errBounced = errors.New("the request would cost more here than elsewhere")

// dispatch records that q is on its way to where d says; q has one flight at most.
// Whatever becomes of it, settle ends it at the latest. Daemon.mu is held.
func (d *Daemon) dispatch(now time.Time, n *node.Node, q *request, decision node.Decision) {
	if decision.Self && q.endpoint.Generates() {
		d.yield(now, n)
	}
	if q.route.Bytes == 0 {
		return
	}
	if q.hop != "" {
		q.report.Shared, q.report.Others = n.Shared(q.route)
	}
	q.flight = n.Dispatch(now, q.route, decision)
	if n.Urgent(now) {
		select {
		case d.urgent <- struct{}{}:
		default: // it is being told
		}
	}
	if !decision.Self {
		q.promise = node.Promise{Within: decision.Elsewhere}
	}
}

// settle drops the flight of q, if it has one that has not landed. Daemon.mu is held.
func (q *request) settle(now time.Time, n *node.Node) {
	n.Drop(now, q.flight)
	q.flight = nil
}

// begin takes in that the first byte of an answer is here, and returns what the node
// that forwarded the request is told of it, if there is one.
func (p *passage) begin(from node.Decision, a *answer) node.Report {
	q, status := p.q, a.resp.StatusCode
	late := from.Self && status < 400 && q.flight != nil && isLate(q, a)
	p.waits = from.Self && status < 400 && startsWithComment(a)
	p.d.locked(func(now time.Time, n *node.Node) {
		switch f := q.flight; {
		case !from.Self:
			n.Begun(now, f)
			q.report = readReport(a.resp.Header)
		case status < 400 && !p.waits:
			if f != nil {
				f.Late = late
			}
			n.Prefilled(now, q.route, f)
		}
		if q.hop != "" && q.flight != nil {
			q.report = n.Report(now, q.flight, q.report.Shared, q.report.Others)
		}
	})
	return q.report
}

// began takes in the first token of a stream that began with less.
func (p *passage) began() {
	if p.waits {
		p.waits = false
		p.d.locked(func(now time.Time, n *node.Node) { n.Prefilled(now, p.q.route, p.q.flight) })
	}
}

// isLate says whether an answer's first byte comes long after its first token: where
// it is no stream, and longer than a token or two.
func isLate(q *request, a *answer) bool {
	whole, inHand := a.body.(*bytes.Reader)
	if !inHand {
		return !q.read.Stream
	}
	s := dialect.NewScanner(q.endpoint, a.resp.Header.Get)
	_, _ = whole.WriteTo(s)
	_, _ = whole.Seek(0, io.SeekStart)
	usage, _ := s.Usage()
	return usage.Completion < 1 || usage.Completion > 2
}

// startsWithComment says whether a stream's first event is none: engines and those
// before them keep connections open so.
func startsWithComment(a *answer) bool {
	stream, ok := a.body.(interface{ Peek(int) ([]byte, error) })
	if !ok {
		return false
	}
	first, err := stream.Peek(1)
	return err == nil && first[0] == ':'
}

// Promises and reports travel in microseconds, as fields of one header each.
const (
	promiseFormat = "within=%d"
	bounceFormat  = "backlog=%d pause=%d"
	reportFormat  = "took=%d backlog=%d shared=%d others=%d"
)

func writePromise(h http.Header, p node.Promise) {
	h.Set(promiseHeader, fmt.Sprintf(promiseFormat, p.Within.Microseconds()))
}

// readPromise returns what a forward was promised; nothing where that is not said. Fields
// of other versions are skipped.
func readPromise(h http.Header) (p node.Promise) {
	for field := range strings.FieldsSeq(h.Get(promiseHeader)) {
		var within int64
		if n, err := fmt.Sscanf(field, promiseFormat, &within); n == 1 && err == nil {
			p.Within = microseconds(within)
		}
	}
	return p
}

func writeReport(h http.Header, r node.Report) {
	if r.Known {
		h.Set(reportHeader, fmt.Sprintf(reportFormat, r.Took.Microseconds(), r.Backlog.Microseconds(), r.Shared, r.Others))
	}
}

// readReport returns what a peer says beside its answer.
func readReport(h http.Header) (r node.Report) {
	var took, backlog, shared, others int64
	n, err := fmt.Sscanf(h.Get(reportHeader), reportFormat, &took, &backlog, &shared, &others)
	if n != 4 || err != nil || min(took, backlog, shared, others) < 0 {
		return node.Report{}
	}
	return node.Report{
		Known: true, Took: microseconds(took), Backlog: microseconds(backlog),
		Shared: int(min(shared, gossip.MaxTokens)), Others: int(min(others, gossip.MaxTokens)),
	}
}

// microseconds is a duration that a peer has told, within bounds.
func microseconds(v int64) time.Duration {
	return time.Duration(max(0, min(v, gossip.MaxInterval.Microseconds()))) * time.Microsecond
}

// admit decides about a forward: it is served here, or bounced. Daemon.mu is held.
func (d *Daemon) admit(now time.Time, n *node.Node, q *request) node.Decision {
	decision, ok := n.Admit(now, q.route, q.promise)
	decision.Reason = q.stay
	if q.bounced = !ok; q.bounced {
		q.report.Backlog, q.pause = n.Backlog(now), n.Pause(now)
	}
	return decision
}

// bounce refuses a forward that would cost too much here, and says how busy this node is.
func (d *Daemon) bounce(w http.ResponseWriter, q *request) result {
	w.Header().Set(reportHeader, fmt.Sprintf(bounceFormat, q.report.Backlog.Microseconds(), q.pause.Microseconds()))
	res := d.refuse(w, q, errBounced)
	res.outcome = outcomeBounced
	return res
}

// readBounce returns what a peer that has bounced a forward says of itself.
func readBounce(h http.Header) (backlog, pause time.Duration) {
	var b, p int64
	if n, err := fmt.Sscanf(h.Get(reportHeader), bounceFormat, &b, &p); n == 2 && err == nil {
		backlog, pause = microseconds(b), microseconds(p)
	}
	return backlog, pause
}

// turnBack takes in that a peer has bounced q, which is no failure: what it said is
// fresher than its rumor. It may be asked again, but for one that bounces what it was
// to serve in any case.
func (d *Daemon) turnBack(q *request, peer string, bounced *failure) {
	if q.promise.Within > 0 {
		q.route.Bounced = append(q.route.Bounced, peer)
	} else {
		q.tried = append(q.tried, peer)
	}
	d.log.Debug("bounced", "request_id", q.http.Header.Get(requestIDHeader), "node", peer, "backlog_ms", milliseconds(bounced.backlog))
	d.locked(func(now time.Time, n *node.Node) {
		d.bounces++
		if q.flight != nil {
			n.Bounced(now, q.flight, bounced.backlog)
			q.settle(now, n)
		}
		if bounced.pause > 0 {
			n.Busy(now, peer, bounced.pause)
		}
	})
}
