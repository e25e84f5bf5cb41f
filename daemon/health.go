package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/node"
)

// health is what a node holds of its engine: whether it answers probes, and
// whether it generates. The two differ: a frozen engine may go on answering what
// costs it nothing. Daemon.mu guards it.
type health struct {
	probed    bool  // it has answered, or is down
	down      bool  // it does not answer probes
	denied    bool  // it answers that it wants credentials
	failures  int   // probes in a row that failed
	successes int   // probes in a row that did not, while down
	lost      bool  // it refused a connection: what it had cached is gone
	strikes   int   // generations in a row that ended without an answer
	err       error // why it did not answer last time; nil if it did
	models    []model

	work, kvUse float64   // as the engine told last
	moved       time.Time // when they did
}

// errDenied is the error of a probe that lacked credentials.
var errDenied = errors.New("the engine wants credentials: give this node its key with --engine-key, unless its clients bring their own")

// probe takes in how a probe ended and returns whether the engine has come back
// with nothing cached. Refused connections are certain: nobody listens. Anything
// else may be a busy engine, and only failuresMax in a row take it out. One that
// wants credentials lives.
func (h *health) probe(err error, failuresMax, successesMin int) (cleared bool) {
	h.denied = errors.Is(err, errDenied)
	if err != nil && !h.denied {
		h.err, h.successes = err, 0
		h.failures++
		h.refused(err)
		h.down = h.down || h.lost || h.failures >= failuresMax
		h.probed = h.probed || h.down
		return false
	}
	h.probed = true
	h.err, h.failures = err, 0
	h.successes++
	h.down = h.down && h.successes < successesMin
	cleared, h.lost = h.lost, false
	return cleared
}

// generated takes in how a generation ended at the engine: any answer, or none.
func (h *health) generated(err error) {
	if h.err = err; err == nil {
		h.strikes = 0
		return
	}
	h.strikes++
	h.refused(err)
}

func (h *health) refused(err error) { h.lost = h.lost || errors.Is(err, syscall.ECONNREFUSED) }

// worked takes in what the engine says of its work. One that takes no step for
// stallMax though requests run is stuck before clients find out; a long prefill
// moves on chunk by chunk.
func (h *health) worked(now time.Time, f probe.Facts) {
	if f.Work < 0 || f.Running <= 0 || f.Work != h.work || f.KVUse != h.kvUse {
		h.work, h.kvUse, h.moved = f.Work, f.KVUse, now
		return
	}
	if now.Sub(h.moved) >= stallMax {
		h.strikes, h.err, h.moved = max(h.strikes, strikesMax), errStalled, now
	}
}

// strikesMax is how many generations in a row may end without an answer before the
// engine counts as stuck. It comes back by a generation of the node's own.
const strikesMax = 3

func (h *health) stuck() bool { return h.strikes >= strikesMax }

// state is the engine in one word.
func (h *health) state() string {
	switch {
	case !h.probed:
		return "starting"
	case h.down:
		return "down"
	case h.stuck():
		return "stuck"
	case h.denied:
		return "credentials"
	default:
		return "ready"
	}
}

// unready says why no client should be sent here, or "".
func (d *Daemon) unready() (why string) {
	d.locked(func(time.Time, *node.Node) {
		switch state := d.health.state(); {
		case d.closing:
			why = "shutting down"
		case !d.accepts(state):
			why = fmt.Sprintf("the engine is not ready (%s)", state)
			if d.health.err != nil {
				why += ": " + d.health.err.Error()
			}
		}
	})
	if why == "" && !d.mesh.Settled() {
		why = "hearing first what the peers have cached"
	}
	return why
}

// accepts says whether clients are to be sent to an engine in this state. They may
// bring the credentials that the node has not.
func (d *Daemon) accepts(state string) bool {
	return state == "ready" || state == "credentials" && d.cfg.EngineKey == ""
}

const (
	probeTimeout = 5 * time.Second  // of a list of models
	trialTimeout = 30 * time.Second // of a token by an engine that was stuck
	trialWaitMax = time.Minute      // between two trials
)

// probeEvery keeps the engine's health: it asks for the models each interval, and at
// once when a request found nobody there.
func (d *Daemon) probeEvery(ctx context.Context) {
	tick := time.NewTicker(d.cfg.HealthInterval)
	defer tick.Stop()
	wait, stuckSince := d.cfg.HealthInterval, time.Time{} // for the next trial, and from when on
	var asked time.Time
	for {
		d.careful("a probe", func() {
			if models, ok := d.probe(ctx); ok && time.Since(asked) >= factsEvery {
				d.askFacts(ctx, models)
				asked = time.Now()
			}
		})
		well, stuck := false, false
		d.locked(func(time.Time, *node.Node) {
			well, stuck = d.health.strikes == 0, d.health.stuck() && !d.health.down
		})
		switch {
		case well:
			wait, stuckSince = d.cfg.HealthInterval, time.Time{}
		case !stuck:
			stuckSince = time.Time{}
		case stuckSince.IsZero():
			stuckSince = time.Now()
		case time.Since(stuckSince) >= wait:
			d.try(ctx)
			wait, stuckSince = min(2*wait, trialWaitMax), time.Now()
		}
		select {
		case <-tick.C:
		case <-d.wake:
		case <-ctx.Done():
			return
		}
	}
}

// probe asks the engine for its models and tells the node how it stands.
func (d *Daemon) probe(ctx context.Context) (models []model, ok bool) {
	limit, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	models, err := d.engineModels(limit, http.Header{})
	if ctx.Err() != nil {
		return nil, false
	}
	d.changeHealth(func(n *node.Node) {
		if d.health.probe(err, d.cfg.HealthFailures, d.cfg.HealthSuccesses) {
			n.Cleared()
			d.insight.startedAnew(d.cfg.Node.Name)
			d.prober.Forget()
		}
		if err == nil {
			d.health.models = models
			n.SetModels(d.serving())
		}
	})
	return models, err == nil
}

// serving lists the names that a request may call this node's models by.
func (d *Daemon) serving() []string {
	var names []string
	for _, m := range d.health.models {
		names = append(names, m.id)
	}
	if len(names) == 0 {
		return nil // not known
	}
	names = append(names, slices.Sorted(maps.Keys(d.cfg.Aliases))...)
	if d.cfg.AnyModel {
		names = append(names, node.AnyModel)
	}
	return names
}

// trials are requests for one token, by path. An engine may lack the one or the other.
var trials = []struct {
	path, field string
	prompt      any
}{
	{"/v1/completions", "prompt", "ready?"},
	{"/v1/chat/completions", "messages", []map[string]string{{"role": "user", "content": "ready?"}}},
}

// try has a stuck engine generate one token, so that no client has to find out
// whether it can again. Where it takes no such request of this node's, it lives and
// no more is known: the next client's tells, and one that ends without an answer is
// enough to be stuck again.
func (d *Daemon) try(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	for _, t := range trials {
		generated, err := d.tryAt(limit, t.path, map[string]any{"model": d.defaultModel(), t.field: t.prompt, "max_tokens": 1})
		switch {
		case ctx.Err() != nil:
			return
		case generated || err != nil:
			d.changeHealth(func(*node.Node) { d.health.generated(err) })
			return
		}
	}
	d.changeHealth(func(*node.Node) { d.health.strikes, d.health.err = strikesMax-1, nil })
}

// tryAt says whether the engine worked on a request. It did not where it wants
// credentials, or has nothing there.
func (d *Daemon) tryAt(ctx context.Context, path string, request any) (generated bool, err error) {
	body, _ := json.Marshal(request)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine"+path, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	d.authorize(req.Header)
	resp, err := d.cfg.Engine.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	switch status := resp.StatusCode; {
	case err != nil:
		return false, err
	case status >= 500 && status != http.StatusNotImplemented:
		return false, fmt.Errorf("the engine answers a trial with status %d", status)
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound,
		status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented:
		return false, nil
	}
	return true, nil
}

// changeHealth lets change alter the health, and draws the consequences.
func (d *Daemon) changeHealth(change func(n *node.Node)) {
	var was, is string
	var err error
	d.locked(func(_ time.Time, n *node.Node) {
		was = d.health.state()
		change(n)
		is, err = d.health.state(), d.health.err
		n.SetDown(d.closing || d.health.down || d.health.stuck())
	})
	switch {
	case was == is:
	case is == "ready":
		d.log.Info("the engine is ready", "was", was)
	default:
		d.log.Warn("the engine is not ready", "state", is, "err", err)
	}
}

// authorize gives a request of this node, or of a client that reached it, the
// engine's own key.
func (d *Daemon) authorize(h http.Header) {
	if d.cfg.EngineKey != "" {
		h.Set("Authorization", "Bearer "+d.cfg.EngineKey)
	}
}
