package daemon

import (
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/node"
)

// The ways in which a request ends; metrics and logs use these words.
const (
	outcomeOK        = "ok"
	outcomeRejected  = "rejected"  // the engine answered with an error
	outcomeRefused   = "refused"   // this node answered with an error
	outcomeBounced   = "bounced"   // a forward would have cost more here than elsewhere
	outcomeBroken    = "broken"    // cut off after the first byte
	outcomeCancelled = "cancelled" // the client left
)

// result is what there is to say of a request that has ended.
type result struct {
	outcome  string
	decision node.Decision
	status   int
	ttft     time.Duration // of a stream, to its first piece that is no comment; 0 for what is none
	usage    dialect.Usage
	known    bool // usage.Cached is what the engine reported
	resumed  int  // times that the rest of it came from another node: the last is decision's
	cut      bool // the client's connection is to be cut: never a fake end
}

// relay passes the answer on as it comes, reads it in passing, and tells the node
// what was learnt.
func (d *Daemon) relay(w http.ResponseWriter, q *request, decision node.Decision, a *answer) result {
	if d.events != nil {
		d.events.settle(q, &decision)
	}
	p := &passage{d: d, w: w, q: q, from: decision, answer: a}
	defer func() { p.answer.close() }()
	res := result{outcome: outcomeOK, decision: decision, status: a.resp.StatusCode}
	if res.status >= 400 {
		res.outcome = outcomeRejected
	}
	report := p.begin(decision, a)
	copyEndToEnd(w.Header(), a.resp.Header)
	w.Header().Del(refusedHeader)
	w.Header().Del(reportHeader)
	if q.hop != "" {
		writeReport(w.Header(), report)
	}
	if n, err := strconv.Atoi(a.resp.Header.Get(dialect.PromptTokensHeader)); err == nil && n > 0 {
		decision.Expected = min(decision.Expected, n)
	}
	d.describe(w.Header(), q, decision)
	q.answered = true
	w.WriteHeader(res.status)

	p.scanner = dialect.NewScanner(q.endpoint, a.resp.Header.Get)
	p.run = p.scanner
	if p.joiner = d.joinerFor(q, a.resp); p.joiner == nil && !d.mayWarm(q, decision) {
		d.release(q)
	}
	upstream, client := p.pass()
	for upstream != nil && !p.scanner.Ended() && q.http.Context().Err() == nil && p.resume(upstream) {
		upstream, client = p.pass()
	}
	switch left := q.http.Context().Err() != nil; {
	case p.scanner.Ended(): // a client may leave as soon as it has read that
	case client != nil, upstream != nil && left:
		res.outcome, res.cut = d.cutShort(), true
	case upstream != nil:
		res.outcome, res.cut = outcomeBroken, true
		d.log.Warn("answer broke off", "request_id", q.http.Header.Get(requestIDHeader), "node", p.from.Node, "err", upstream)
	}
	res.decision, res.resumed = p.from, len(p.resumedAt)
	if q.read.Stream {
		res.ttft = p.ttft
	}
	res.usage, res.known = p.run.Usage()
	if res.usage.Prompt > 0 { // the promise was an estimate, maybe of more
		res.decision.Expected = min(res.decision.Expected, res.usage.Prompt)
	}
	res.known = d.cachedKnown(q, res)
	if res.outcome == outcomeOK && q.route.Bytes > 0 {
		d.learn(q, res, p.run)
		if d.events != nil {
			d.events.found(q, res)
		}
	}
	return res
}

// A passage is the way of one answer's body to its client.
type passage struct {
	d       *Daemon
	w       http.ResponseWriter
	q       *request
	scanner *dialect.Scanner // of what the client gets
	run     *dialect.Scanner // of what the node that gives it now says; the same until a first run has broken off
	joiner  *dialect.Joiner  // nil where the answer cannot be resumed
	waits   bool             // for this node's engine's first token, of an answer that began with less

	from      node.Decision // who gives it now
	answer    *answer
	ttft      time.Duration // 0 until a piece came that is more than a comment
	resumedAt []string      // nodes
}

// pieces are the buffers of passages: most answers are far smaller than one.
var pieces = sync.Pool{New: func() any { return new([pieceBytes]byte) }}

// pass copies the body to the client, flushing each piece as it comes, and to the
// scanner; through the joiner, where there is one. It returns which side failed, if
// one did.
func (p *passage) pass() (upstream, client error) {
	control := http.NewResponseController(p.w)
	buffer := pieces.Get().(*[pieceBytes]byte)
	defer pieces.Put(buffer)
	piece := buffer[:]
	a := p.answer
	idle := time.AfterFunc(p.d.cfg.IdleTimeout, func() { a.cancel(errIdle) })
	defer idle.Stop()
	for {
		n, err := a.body.Read(piece)
		idle.Stop() // a slow client is not an idle engine
		ended := errors.Is(err, io.EOF)
		out := piece[:n]
		if p.run != p.scanner {
			if _, _ = p.run.Write(out); p.run.Began() {
				p.began()
			}
		}
		if p.joiner != nil {
			var differs error
			if out, differs = p.joiner.Next(out, ended); differs != nil {
				return differs, nil
			}
		}
		if client = p.send(control, out); client != nil {
			return nil, client
		}
		switch {
		case ended:
			return nil, nil
		case err != nil:
			return err, nil
		}
		idle.Reset(p.d.cfg.IdleTimeout)
	}
}

func (p *passage) send(control *http.ResponseController, out []byte) error {
	if len(out) == 0 {
		return nil
	}
	_, _ = p.scanner.Write(out)
	if p.ttft == 0 && p.scanner.Began() {
		p.ttft = time.Since(p.q.arrived)
		p.began()
	}
	_ = control.SetWriteDeadline(time.Now().Add(stallTimeout))
	if _, err := p.w.Write(out); err != nil {
		return err
	}
	if err := control.Flush(); err != nil {
		return err
	}
	// The engine may take longer than that to the next piece, and on HTTP/2 a
	// deadline cuts a stream that writes nothing.
	_ = control.SetWriteDeadline(time.Time{})
	return nil
}

// learn tells the node what the engine said of its cache. The next turn of a
// conversation begins with this prompt and its answer, so both are recorded.
func (d *Daemon) learn(q *request, res result, scanner *dialect.Scanner) {
	out := node.Outcome{
		Known:        res.known,
		PromptTokens: res.usage.Prompt,
		CachedTokens: res.usage.Cached,
		Promised:     res.decision.Match,
		Flight:       q.flight,
		Report:       q.report,
	}
	if !d.mayWarm(q, res.decision) {
		out.Report.Others = 0 // none that this node could compute
	}
	if text, whole := scanner.Text(); whole && res.usage.Prompt > 0 {
		out.Chain = q.route.Chain.Extend(q.root, q.read.Continue(text))
		out.Tokens = res.usage.Prompt + res.usage.Completion
	}
	d.locked(func(now time.Time, n *node.Node) {
		n.Served(now, q.route, res.decision.Node, out)
		d.keep(n, q, q.flight)
		q.flight = nil
		d.warmNext(now, n)
	})
}

// describe sets the headers that tell a client what was decided, and what to ask for
// in the logs.
func (d *Daemon) describe(h http.Header, q *request, decision node.Decision) {
	id := q.http.Header.Get(requestIDHeader)
	h.Set(requestIDHeader, id)
	if isAnthropic(q.http) {
		h.Set(anthropicIDHeader, id)
	}
	hops := 0
	if q.hop != "" || !decision.Self {
		hops = 1
	}
	h.Set(nodeHeader, decision.Node)
	h.Set(hopsHeader, strconv.Itoa(hops))
	h.Set(reasonHeader, decision.Reason)
	h.Set(expectedHeader, strconv.Itoa(decision.Expected))
}

// hopByHop are the headers that belong to one connection (RFC 9110, section 7.6.1).
var hopByHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Proxy-Authenticate": true, "Proxy-Authorization": true,
}

func copyEndToEnd(to, from http.Header) {
	named := map[string]bool{}
	for _, line := range from["Connection"] {
		for _, name := range strings.Split(line, ",") {
			named[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for name, values := range from {
		if !hopByHop[name] && !named[name] {
			to[name] = slices.Clone(values)
		}
	}
}
