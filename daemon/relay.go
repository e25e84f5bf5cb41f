package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// wholeMax is the size up to which an answer of known length is read to its
// end before the client sees any of it, so that it can still be had elsewhere.
const wholeMax = 1 << 20

// answer is an engine's or a peer's answer whose first bytes are in hand.
type answer struct {
	resp    *http.Response
	first   []byte
	ended   bool // first is all there is
	cancel  context.CancelCauseFunc
	onClose []func()
}

// peek waits for the first bytes of the body, or for all of a short one.
func (a *answer) peek() error {
	n := a.resp.ContentLength
	if n >= 0 && n <= wholeMax {
		a.first = make([]byte, n)
		if _, err := io.ReadFull(a.resp.Body, a.first); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		a.ended = true
		return nil
	}
	buf := make([]byte, 32<<10)
	for len(a.first) == 0 {
		n, err := a.resp.Body.Read(buf)
		a.first = buf[:n]
		if errors.Is(err, io.EOF) {
			a.ended = true
			return nil
		}
		if err != nil && n == 0 {
			return fmt.Errorf("read the answer: %w", err)
		}
	}
	return nil
}

func (a *answer) close() {
	a.cancel(nil)
	if a.resp != nil {
		a.resp.Body.Close()
	}
	for _, f := range a.onClose {
		f()
	}
}

// The ways in which a request ends; metrics and logs use these words.
const (
	outcomeOK        = "ok"
	outcomeRejected  = "rejected"  // the engine answered with an error
	outcomeRefused   = "refused"   // this node answered with an error
	outcomeBroken    = "broken"    // cut off after the first byte
	outcomeCancelled = "cancelled" // the client left
)

// result is what there is to say of a request that has ended.
type result struct {
	outcome string
	status  int
	ttft    time.Duration // to the first byte of the body
	usage   engine.Usage
	known   bool // usage.Cached is what the engine reported
}

// relay passes the answer on as it comes, reads it in passing, and tells the
// node what was learnt. An answer that breaks off is broken off for the client
// too: never a fake end.
func (d *Daemon) relay(w http.ResponseWriter, q *request, decision node.Decision, a *answer) {
	res := result{outcome: outcomeOK, status: a.resp.StatusCode, ttft: time.Since(q.arrived)}
	if res.status >= 400 {
		res.outcome = outcomeRejected
	} else if decision.Self {
		d.locked(func(_ time.Time, n *node.Node) { n.Prefilled(q.route) })
	}
	copyEndToEnd(w.Header(), a.resp.Header)
	d.describe(w.Header(), q, decision)
	w.WriteHeader(res.status)

	scanner := engine.NewScanner(a.resp.Header)
	upstream, client := pass(w, a, scanner)
	switch {
	case client != nil || q.http.Context().Err() != nil:
		res.outcome = outcomeCancelled
	case upstream != nil:
		res.outcome = outcomeBroken
		d.log.Warn("answer broke off", "node", decision.Node, "err", upstream)
	}
	res.usage, res.known = scanner.Usage()
	if res.outcome == outcomeOK && q.route.Bytes > 0 {
		d.learn(q, decision, res, scanner)
	}
	d.finished(q, decision, res)
	if res.outcome == outcomeBroken {
		panic(http.ErrAbortHandler) // the one way to cut a client's connection
	}
}

// pass copies the body to the client, flushing what it has each time, and to
// the scanner. It returns which side failed, if one did.
func pass(w http.ResponseWriter, a *answer, scanner *engine.Scanner) (upstream, client error) {
	control := http.NewResponseController(w)
	buf := a.first
	var err error
	for {
		_, _ = scanner.Write(buf)
		_ = control.SetWriteDeadline(time.Now().Add(stallTimeout))
		if _, client = w.Write(buf); client != nil {
			return nil, client
		}
		if client = control.Flush(); client != nil {
			return nil, client
		}
		switch {
		case a.ended || errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return err, nil
		}
		if cap(buf) < 32<<10 {
			buf = make([]byte, 32<<10)
		}
		var n int
		n, err = a.resp.Body.Read(buf[:cap(buf)])
		buf = buf[:n]
	}
}

// learn tells the node what the engine said of its cache. The next turn of a
// conversation begins with this prompt and its answer, so both are recorded.
func (d *Daemon) learn(q *request, decision node.Decision, res result, scanner *engine.Scanner) {
	out := node.Outcome{
		Known:        res.known,
		PromptTokens: res.usage.Prompt,
		CachedTokens: res.usage.Cached,
		Promised:     decision.Match,
	}
	if text, whole := scanner.Text(); whole && res.usage.Prompt > 0 {
		out.Chain = prefix.NewChain(q.root, q.prompt.Continue(text))
		out.Tokens = res.usage.Prompt + res.usage.Completion
	}
	d.locked(func(now time.Time, n *node.Node) { n.Served(now, q.route, decision.Node, out) })
}

// describe sets the headers that tell a client what was decided.
func (d *Daemon) describe(h http.Header, q *request, decision node.Decision) {
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
		if !hopByHop[name] && !named[name] && name != hopHeader {
			to[name] = append([]string(nil), values...)
		}
	}
}
