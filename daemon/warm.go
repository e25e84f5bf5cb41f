package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// warmBodyMax bounds the one request that is kept for its prefix, and those that are
// held until their forwards have been answered.
const warmBodyMax = 1 << 20

// A spare is a client's request that was forwarded, kept because its prompt begins
// with what this node would compute if its engine were idle.
type spare struct {
	of       *node.Flight
	endpoint dialect.Endpoint
	body     []byte
}

// A warming is a prefix that this node has its own engine compute unasked.
type warming struct {
	node.Warming
	spare  spare
	ctx    context.Context
	cancel context.CancelFunc
}

// mayWarm says whether q's body is held until its answer has ended, for its prefix.
func (d *Daemon) mayWarm(q *request, decision node.Decision) bool {
	return d.cfg.Node.Policy == route.Policy(route.Economic{}) && !d.cfg.Node.NoWarming && q.flight != nil && q.hop == "" &&
		!decision.Self && q.read.Replayable && 0 < len(q.body) && len(q.body) <= warmBodyMax
}

// keep keeps q's body if its prefix is what is to be computed next, for as long as it
// is. Daemon.mu is held.
func (d *Daemon) keep(n *node.Node, q *request, landed *node.Flight) {
	if landed == nil || n.Wish() != landed {
		return
	}
	body := q.body
	if real, ok := d.cfg.Aliases[q.read.Model]; ok {
		body = q.read.WithModel(body, real)
	}
	d.spare = spare{landed, q.endpoint, body}
}

// warmNext has the next prefix computed if there is one and the engine is idle.
// Daemon.mu is held.
func (d *Daemon) warmNext(now time.Time, n *node.Node) {
	if d.closing {
		return
	}
	if d.spare.of != n.Wish() {
		d.spare = spare{}
		n.Forgo()
	}
	w, ok := n.NextWarming(now)
	if !ok {
		return
	}
	job := &warming{Warming: w, spare: d.spare}
	job.ctx, job.cancel = context.WithTimeout(context.Background(), d.cfg.FirstByteTimeout)
	d.warming = job
	select {
	case d.toWarm <- struct{}{}:
	default: // one that was given up has not been noticed yet
	}
}

// yield gives up the prefix that is being computed where the node says so, for a
// request that has come. Daemon.mu is held.
func (d *Daemon) yield(now time.Time, n *node.Node) {
	if d.warming != nil && n.Yield(now) {
		d.giveUpWarming(now, n)
	}
}

func (d *Daemon) giveUpWarming(now time.Time, n *node.Node) {
	if job := d.warming; job != nil {
		d.warming = nil
		job.cancel()
		n.Drop(now, job.Flight)
	}
}

// warmEvery computes prefixes, one at a time, until ctx is done.
func (d *Daemon) warmEvery(ctx context.Context) {
	defer d.locked(d.giveUpWarming)
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.toWarm:
			d.careful("a warming", func() { d.warm(ctx) })
		}
	}
}

// warm has the engine compute what d.warming says. It is no request of a client's: it
// is in no count of those, and bears nobody's name.
func (d *Daemon) warm(ctx context.Context) {
	var job *warming
	d.locked(func(time.Time, *node.Node) { job = d.warming })
	if job == nil || job.ctx.Err() != nil {
		return
	}
	defer job.cancel()
	defer context.AfterFunc(ctx, job.cancel)()
	begun, given := time.Now(), false
	out, err := d.askForPrefix(job)
	d.locked(func(now time.Time, n *node.Node) {
		if given = d.warming != job; given {
			return
		}
		d.warming = nil
		if err != nil {
			n.WarmFailed(now, job.Flight, !errors.Is(err, errUncuttable))
		} else {
			n.Warmed(now, job.Flight, out)
		}
		d.warmNext(now, n)
	})
	switch took := milliseconds(time.Since(begun)); {
	case given:
		d.log.Debug("warming given up for a request", "tokens", job.Tokens, "total_ms", took)
	case err != nil:
		d.log.Debug("warming failed", "tokens", job.Tokens, "err", err)
	default:
		d.log.Info("warming", "prompt_tokens", out.PromptTokens, "cached_tokens", out.CachedTokens, "total_ms", took)
	}
}

var errUncuttable = errors.New("its prompt cannot be cut there")

// askForPrefix has the engine compute the prefix and generate one token.
func (d *Daemon) askForPrefix(job *warming) (out node.Outcome, err error) {
	e := job.spare.endpoint
	body := dialect.Cut(e, job.spare.body, min(job.Req.Bytes, job.Blocks*prefix.BlockBytes))
	if body == nil {
		return out, errUncuttable
	}
	req, err := http.NewRequestWithContext(job.ctx, http.MethodPost, "http://engine"+e.Route, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	req.Header.Set("Content-Type", "application/json")
	if e.Dialect == dialect.Messages {
		req.Header.Set(anthropicVersionHeader, "2023-06-01")
	}
	d.authorize(req.Header)
	resp, err := d.cfg.Engine.RoundTrip(req)
	if err != nil {
		return out, fmt.Errorf("ask the engine: %w", err)
	}
	defer resp.Body.Close()
	scanner := dialect.NewScanner(e, resp.Header.Get)
	if _, err := io.Copy(scanner, io.LimitReader(resp.Body, wholeMax)); err != nil {
		return out, fmt.Errorf("read the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("the engine answers with status %d", resp.StatusCode)
	}
	usage, known := scanner.Usage()
	d.locked(func(time.Time, *node.Node) { // it may leave out a zero
		known = known || usage.Prompt > 0 && d.insight.telling[telling{d.cfg.Node.Name, e.Dialect}]
	})
	return node.Outcome{Known: known, PromptTokens: usage.Prompt, CachedTokens: usage.Cached}, nil
}
