package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/node"
)

const (
	resumesMax     = 2       // of one answer
	resumeBytesMax = 1 << 20 // of a request that is kept until its answer has ended
	countBytesMax  = 8 << 20 // of an engine's answer to /tokenize: a prompt's tokens are in it
)

// mayResume says whether the rest of q's answer could be had elsewhere if it broke
// off, so that the client would see what an undisturbed engine gives.
func (d *Daemon) mayResume(q *request) bool {
	return q.hop == "" && q.named && q.read.Resumable() && q.read.Stream && !d.cfg.NoReplay && len(q.body) <= resumeBytesMax
}

// resume has the rest of an answer that broke off from another node, which goes on
// from its text so far. It is exact for greedy decoding only, and only if the engine
// reads that text as the tokens that it was made of. It is asked to count them, and
// equal counts are taken for equal tokens: a tokenizer with two tokens of one text
// can deceive that. Where none of this holds it says false, and the client's connection is cut.
func (p *passage) resume(broken error) bool {
	p.answer.close()
	p.fail(p.from, broken)
	text, whole := p.scanner.Text()
	if p.rewriter == nil || !whole || !p.scanner.Resumable() || len(p.resumedAt) == resumesMax {
		return false
	}
	for range p.d.cfg.ForwardsMax {
		decision, able := p.d.decide(p.q)
		if !able || slices.Contains(p.q.tried, decision.Node) {
			return false
		}
		p.q.deadline = time.Now().Add(p.d.cfg.FirstByteTimeout)
		a, tokens, err := p.rest(decision, text)
		switch {
		case p.q.http.Context().Err() != nil:
			if err == nil {
				a.close()
			}
			return false
		case err != nil:
			p.fail(decision, err)
			continue
		}
		if !p.rewriter.Resume(tokens) {
			a.close()
			return false
		}
		p.answer, p.from = a, decision
		p.resumedAt = append(p.resumedAt, decision.Node)
		p.w.Header().Set(http.TrailerPrefix+resumedHeader, strings.Join(p.resumedAt, ", "))
		p.d.metrics.resumed.Inc()
		p.d.log.Info("answer resumed", "request_id", p.q.http.Header.Get(requestIDHeader), "node", decision.Node, "tokens", tokens)
		return true
	}
	return false
}

// fail books that a node did not give the rest of the answer either.
func (p *passage) fail(decision node.Decision, err error) {
	var failed *failure
	if !errors.As(err, &failed) {
		failed = &failure{error: err, ran: true, doubt: true}
	}
	p.d.setAside(p.q, decision, failed)
}

// further is a copy of q that asks for what comes after text, of so many tokens.
func (q *request) further(text string, tokens int) (*request, bool) {
	body, ok := q.read.Resume(q.body, text, tokens)
	again, err := dialect.Read(q.endpoint, body)
	if !ok || err != nil {
		return nil, false
	}
	further := *q
	further.http = q.http.Clone(q.http.Context())
	further.body, further.read.ModelAt = body, again.ModelAt
	return &further, true
}

// rest asks a node for what comes after text, and returns of how many tokens the
// text is by its engine's word.
func (p *passage) rest(decision node.Decision, text string) (*answer, int, error) {
	d, q := p.d, p.q
	if decision.Self && q.read.Chat && !d.cfg.Continues {
		return nil, 0, &failure{error: errNoResume}
	}
	before, err := p.countTokens(decision, "")
	if err != nil {
		return nil, 0, err
	}
	upTo, err := p.countTokens(decision, text)
	if err != nil {
		return nil, 0, err
	}
	tokens := upTo - before
	if said, exact := p.scanner.Generated(); exact && said != tokens {
		return nil, 0, &failure{error: fmt.Errorf("%s reads %d tokens as %d", decision.Node, said, tokens)}
	}
	further, ok := q.further(text, tokens)
	if !ok {
		return nil, 0, &failure{error: errors.New("nothing is left to ask for")}
	}
	further.http.Header.Set(resumeHeader, "1")
	a, failed := d.ask(further, decision)
	switch {
	case failed != nil:
		return nil, 0, failed
	case a.resp.StatusCode != http.StatusOK || !strings.HasPrefix(a.resp.Header.Get("Content-Type"), "text/event-stream"):
		a.close()
		return nil, 0, &failure{error: fmt.Errorf("%s answers with status %d and no stream", decision.Node, a.resp.StatusCode)}
	}
	if n, err := strconv.Atoi(a.resp.Header.Get(dialect.PromptTokensHeader)); err == nil && n != upTo {
		a.close()
		return nil, 0, &failure{error: fmt.Errorf("%s counts %d tokens and runs %d", decision.Node, upTo, n)}
	}
	return a, tokens, nil
}

// countTokens asks the engine that is to give the rest how many tokens the prompt
// with text after it is (vLLM's and SGLang's /tokenize, which take a prompt or
// messages as the requests themselves do).
func (p *passage) countTokens(decision node.Decision, text string) (int, error) {
	q, ok := p.q.further(text, 0)
	if !ok {
		return 0, &failure{error: errors.New("the text so far cannot be gone on from")}
	}
	q.http.URL = &url.URL{Path: "/tokenize"}
	q.endpoint, _ = dialect.Lookup(q.http.URL.Path)
	a, failed := p.d.ask(q, decision)
	if failed != nil {
		return 0, failed
	}
	defer a.close()
	var counted struct {
		Count *int `json:"count"`
	}
	err := json.NewDecoder(io.LimitReader(a.body, countBytesMax)).Decode(&counted)
	if a.resp.StatusCode != http.StatusOK || err != nil || counted.Count == nil {
		return 0, &failure{error: fmt.Errorf("%s cannot count tokens: status %d", decision.Node, a.resp.StatusCode)}
	}
	return *counted.Count, nil
}
