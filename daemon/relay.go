package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

const (
	// wholeMax is the size up to which an answer of known length is read to its
	// end before the client sees any of it, so that it can still be had elsewhere.
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
	if a.resp.Request != nil && a.resp.Request.Method == http.MethodHead {
		a.body = http.NoBody
		return nil
	}
	if n := a.resp.ContentLength; n >= 0 && n <= wholeMax {
		whole := make([]byte, n)
		if _, err := io.ReadFull(a.resp.Body, whole); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		a.body = bytes.NewReader(whole)
		return nil
	}
	body := bufio.NewReaderSize(a.resp.Body, pieceBytes)
	if _, err := body.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	a.body = body
	return nil
}

func (a *answer) close() {
	a.cancel(nil)
	if a.resp != nil {
		a.resp.Body.Close()
	}
	if a.done != nil {
		a.done()
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
	outcome  string
	decision node.Decision
	status   int
	ttft     time.Duration // to the first byte of the body
	usage    engine.Usage
	known    bool // usage.Cached is what the engine reported
	cut      bool // the client's connection is to be cut: never a fake end
}

// relay passes the answer on as it comes, reads it in passing, and tells the node
// what was learnt.
func (d *Daemon) relay(w http.ResponseWriter, q *request, decision node.Decision, a *answer) result {
	res := result{outcome: outcomeOK, decision: decision, status: a.resp.StatusCode, ttft: time.Since(q.arrived)}
	if res.status >= 400 {
		res.outcome = outcomeRejected
	} else if decision.Self {
		d.locked(func(_ time.Time, n *node.Node) { n.Prefilled(q.route) })
	}
	copyEndToEnd(w.Header(), a.resp.Header)
	d.describe(w.Header(), q, decision)
	w.WriteHeader(res.status)

	scanner := engine.NewScanner(a.resp.Header)
	upstream, client := pass(w, a.body, scanner)
	switch left := q.http.Context().Err() != nil; {
	case scanner.Ended(): // a client may leave as soon as it has read that
	case client != nil, upstream != nil && left:
		res.outcome, res.cut = d.cutShort(), true
	case upstream != nil:
		res.outcome, res.cut = outcomeBroken, true
		d.log.Warn("answer broke off", "node", decision.Node, "err", upstream)
	}
	res.usage, res.known = scanner.Usage()
	if res.outcome == outcomeOK && q.route.Bytes > 0 {
		d.learn(q, res, scanner)
	}
	return res
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

// pass copies the body to the client, flushing each piece as it comes, and to
// the scanner. It returns which side failed, if one did.
func pass(w http.ResponseWriter, body io.Reader, scanner *engine.Scanner) (upstream, client error) {
	control := http.NewResponseController(w)
	piece := make([]byte, pieceBytes)
	for {
		n, err := body.Read(piece)
		if n > 0 {
			_, _ = scanner.Write(piece[:n])
			_ = control.SetWriteDeadline(time.Now().Add(stallTimeout))
			if _, client = w.Write(piece[:n]); client != nil {
				return nil, client
			}
			if client = control.Flush(); client != nil {
				return nil, client
			}
			// The engine may take longer than that to the next piece, and
			// on HTTP/2 a deadline cuts a stream that writes nothing.
			_ = control.SetWriteDeadline(time.Time{})
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

// learn tells the node what the engine said of its cache. The next turn of a
// conversation begins with this prompt and its answer, so both are recorded.
func (d *Daemon) learn(q *request, res result, scanner *engine.Scanner) {
	out := node.Outcome{
		Known:        res.known,
		PromptTokens: res.usage.Prompt,
		CachedTokens: res.usage.Cached,
		Promised:     res.decision.Match,
	}
	if text, whole := scanner.Text(); whole && res.usage.Prompt > 0 {
		out.Chain = append(slices.Clip(q.route.Chain), prefix.NewChain(q.last, q.prompt.Continue(text))...)
		out.Tokens = res.usage.Prompt + res.usage.Completion
	}
	d.locked(func(now time.Time, n *node.Node) { n.Served(now, q.route, res.decision.Node, out) })
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
			to[name] = slices.Clone(values)
		}
	}
}
