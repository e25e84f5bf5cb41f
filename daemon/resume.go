package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
)

const (
	resumesMax     = 2       // of one answer
	resumeBytesMax = 1 << 20 // of a request that is kept until its answer has ended
)

// joinerFor returns what can join q's answer with that of another node, if it breaks
// off; nil if that is not to be tried. Only greedy decoding is likely to give the same
// answer again.
func (d *Daemon) joinerFor(q *request, resp *http.Response) *dialect.Joiner {
	wanted := q.hop == "" && q.named && q.read.Greedy && q.read.Replayable && !d.cfg.NoReplay && len(q.body) <= resumeBytesMax
	if !wanted || resp.StatusCode != http.StatusOK || resp.ContentLength >= 0 {
		return nil
	}
	return dialect.NewJoiner(q.endpoint, resp.Header.Get)
}

// resume has an answer that broke off from another node, which runs the request from
// its beginning; the joiner leaves out what the client has, and sees that it is the
// same. So it costs the decoding again, and the client has the answer that this other
// node gives, the whole of it and nothing else, whatever the engines are; what is learnt
// is of that run alone. Where that
// cannot be, resume says false, and the client's connection is cut.
func (p *passage) resume(broken error) bool {
	p.answer.close()
	if errors.Is(broken, dialect.ErrDiffers) {
		return false
	}
	p.d.setAside(p.q, p.from, &failure{error: broken, ran: true, doubt: true})
	if p.joiner == nil || !p.joiner.Resumable() {
		return false
	}
	for len(p.resumedAt) < resumesMax {
		decision, able := p.d.decide(p.q)
		if !able || slices.Contains(p.q.tried, decision.Node) {
			return false
		}
		p.q.deadline = time.Now().Add(p.d.cfg.FirstByteTimeout)
		a, failed := p.d.ask(p.q, decision)
		if failed == nil && p.d.joinerFor(p.q, a.resp) == nil {
			a.close()
			failed = &failure{error: fmt.Errorf("%s answers with status %d and no stream", decision.Node, a.resp.StatusCode)}
		}
		switch {
		case p.q.http.Context().Err() != nil:
			if failed == nil {
				a.close()
			}
			return false
		case failed != nil:
			p.d.setAside(p.q, decision, failed)
			continue
		}
		if p.d.events != nil {
			p.d.events.settle(p.q, &decision)
		}
		p.begin(decision, a)
		p.joiner.Again()
		p.answer, p.from, p.run = a, decision, dialect.NewScanner(p.q.endpoint, a.resp.Header.Get)
		p.resumedAt = append(p.resumedAt, decision.Node)
		p.w.Header().Set(http.TrailerPrefix+resumedHeader, strings.Join(p.resumedAt, ", "))
		p.d.metrics.resumed.Inc()
		p.d.log.Info("answer resumed", "request_id", p.q.http.Header.Get(requestIDHeader), "node", decision.Node)
		return true
	}
	return false
}
