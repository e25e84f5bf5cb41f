package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/engine/probe"
	"github.com/hearsay-project/hearsay/node"
)

// insight is what a node knows of its engine besides whether it is well: what the
// engine has told, and what answers have shown. Daemon.mu guards it.
type insight struct {
	facts    probe.Facts
	restarts int // noticed
	told     int // tokens that the node was told the cache holds, see capacityTold
	foreign  int // requests at the engine that did not come through this node

	telling map[telling]bool // whose answers have told what was found cached
	silent  int              // answers in a row of this engine's that should have told, and did not
	said    map[string]bool  // complaints to the log: each is made once
}

// telling is an API of the engine beside a node: they differ in what they tell.
type telling struct {
	node    string
	dialect dialect.Dialect
}

// plain says whether it is an API for which an engine may want a flag to tell.
func (t telling) plain() bool { return t.dialect == dialect.Chat || t.dialect == dialect.Completion }

// startedAnew forgets what answers have shown of the engine beside the node of this
// name: it may have other flags now. What the operator was told of it is told again.
func (i *insight) startedAnew(node string) {
	i.restarts++
	i.silent = 0
	maps.DeleteFunc(i.telling, func(from telling, _ bool) bool { return from.node == node })
	for _, what := range []string{sayFound, sayCached, sayOff} {
		delete(i.said, what)
	}
}

// What is said once in a life of the engine.
const (
	sayFound  = "found"
	sayCached = "cached"
	sayOff    = "off"
)

const (
	factsEvery = time.Second // at most; else at each probe

	// stallMax is longer than any step of an engine takes. First requests may compile
	// kernels for minutes.
	stallMax = 5 * time.Minute

	promisedMin = 4    // blocks promised to an answer that should tell something
	silentMax   = 3    // of those in a row before the operator is told
	tellingMax  = 4096 // node names live and die with their processes
)

var errStalled = errors.New("the engine says that requests run, and has not taken a step for minutes")

// askFacts asks the engine what it tells of itself, and has the node go by it.
func (d *Daemon) askFacts(ctx context.Context, models []model) {
	var entries []json.RawMessage
	for _, m := range models {
		entries = append(entries, m.raw)
	}
	facts, restarted := d.prober.Ask(ctx, entries)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	d.changeHealth(func(n *node.Node) {
		d.insight.facts = facts
		if restarted {
			d.insight.startedAnew(d.cfg.Node.Name)
			n.Cleared()
		}
		if told := d.capacityTold(); told != d.insight.told {
			d.insight.told = told
			n.SetCapacity(told)
		}
		if d.insight.foreign = 0; facts.Running >= 0 {
			d.insight.foreign = max(0, facts.Running+max(facts.Waiting, 0)-d.inFlight)
		}
		n.Queued(now, d.depth())
		d.health.worked(now, facts)
	})
	if restarted {
		d.log.Info("the engine has started anew")
	}
	d.complain(facts)
}

const (
	remedyOff    = "start vLLM without --no-enable-prefix-caching, or SGLang without --disable-radix-cache"
	remedyShared = "run a node beside each engine"
)

// capacityTold is how many tokens the engine's cache holds by the operator's word or
// else its own, and no less than are there by its events; 0 where nobody says.
func (d *Daemon) capacityTold() int {
	if d.insight.facts.CacheOff {
		return 1 // no block fits
	}
	told := cmp.Or(d.cfg.Node.CapacityTokens, d.insight.facts.KVTokens)
	if d.events != nil && told > 0 {
		told = max(told, d.events.held())
	}
	return told
}

// depth is how many requests are at the engine, of others too.
func (d *Daemon) depth() int { return d.inFlight + d.insight.foreign }

// complain tells the log what of the engine the operator may want to change, once.
func (d *Daemon) complain(f probe.Facts) {
	if f.Kind != probe.Auto && f.Version != "" {
		d.sayOnce(sayFound, func() {
			d.log.Info("the engine is known", "kind", string(f.Kind), "version", f.Version, "context", f.Context, "kv_tokens", f.KVTokens)
		})
	}
	if f.Cached == probe.ReportsNo {
		d.sayOnce(sayCached, func() {
			d.log.Warn("the engine does not report what it finds cached: promises cannot be checked", "remedy", f.Kind.Remedy())
		})
	}
	if f.CacheOff {
		d.sayOnce(sayOff, func() {
			d.log.Warn("the engine's prefix cache is off: nothing is ever found cached here", "remedy", remedyOff)
		})
	}
	if f.Shared {
		d.sayOnce("shared", func() {
			d.log.Warn("several engines answer in turn at --engine: what one has cached says nothing of the next", "remedy", remedyShared)
		})
	}
}

func (d *Daemon) sayOnce(what string, say func()) {
	said := false
	d.locked(func(time.Time, *node.Node) { said, d.insight.said[what] = d.insight.said[what], true })
	if !said {
		say()
	}
}

// cachedKnown says whether it is known what an answer's engine found cached: it told,
// or it is one of those that leave out a zero.
func (d *Daemon) cachedKnown(q *request, res result) (known bool) {
	silent, kind := false, probe.OpenAI
	d.locked(func(time.Time, *node.Node) {
		i, own := &d.insight, res.decision.Self
		from := telling{res.decision.Node, q.endpoint.Dialect}
		plain := from.plain()
		switch {
		case res.known:
			if len(i.telling) >= tellingMax {
				clear(i.telling)
			}
			i.telling[from] = true
			known = true
		case res.usage.Prompt == 0:
			return // a stream whose client did not ask for usage
		default:
			known = i.telling[from] || own && plain && i.facts.Cached == probe.Reports
		}
		switch {
		case !own || !plain:
		case known:
			i.silent = 0
		case res.decision.Match >= promisedMin:
			i.silent++
			silent, kind = i.silent >= silentMax, i.facts.Kind
		}
	})
	if silent {
		d.sayOnce(sayCached, func() {
			d.log.Warn("the engine's answers do not tell what it finds cached, though prompts come again: promises cannot be checked", "remedy", kind.Remedy())
		})
	}
	return known
}

// EngineStatus is what a node knows of its engine, and from whom.
type EngineStatus struct {
	Kind     Fact `json:"kind"` // vllm, sglang, llamacpp, ollama, openai, builtin or emulated
	Version  Fact `json:"version"`
	Context  Fact `json:"context_tokens"` // of a prompt and its answer together
	KVTokens Fact `json:"kv_tokens"`      // that its cache holds
	KVUse    Fact `json:"kv_use"`         // share of it, 0 to 1
	Running  Fact `json:"running"`        // requests, whoever sent them
	Waiting  Fact `json:"waiting"`
	Cached   Fact `json:"cached_tokens"` // true where answers tell what was found cached

	Adapters map[string]string `json:"adapters"` // models that adapt another, by name
	Restarts int               `json:"restarts"` // noticed
	Losses   int               `json:"losses"`   // times that its answers showed an empty cache
	Remedy   string            `json:"remedy"`   // what to change at the engine; empty where nothing is amiss
}

// A Fact is something known of an engine. Value is null where it is unknown.
type Fact struct {
	Value any    `json:"value"`
	From  string `json:"from"` // see Sources
}

// Who a Fact is from.
const (
	FromEngine  = "engine"
	FromFlag    = "flag"
	FromAnswers = "learnt" // from the engine's answers
	FromNobody  = "unknown"
)

func fact[T comparable](value, unknown T, from string) Fact {
	if value == unknown {
		return Fact{nil, FromNobody}
	}
	return Fact{value, from}
}

// engineStatus is to be called under the lock.
func (d *Daemon) engineStatus(s node.Status) EngineStatus {
	f := d.insight.facts
	kind := fact(string(f.Kind), string(probe.Auto), FromEngine)
	if d.cfg.EngineKind != probe.Auto {
		kind.From = FromFlag
	}
	out := EngineStatus{
		Kind: kind, Version: fact(f.Version, "", FromEngine), Context: fact(f.Context, 0, FromEngine),
		KVTokens: fact(d.insight.told, 0, FromEngine), KVUse: fact(f.KVUse, -1, FromEngine),
		Running: fact(f.Running, -1, FromEngine), Waiting: fact(f.Waiting, -1, FromEngine),
		Cached: Fact{nil, FromNobody}, Adapters: map[string]string{}, Restarts: d.insight.restarts, Losses: s.Losses,
	}
	if d.cfg.Node.CapacityTokens > 0 && d.cfg.Node.CapacityTokens == d.insight.told {
		out.KVTokens.From = cmp.Or(d.cfg.CapacityFrom, FromFlag)
	}
	if d.cfg.Node.LearnCapacity && s.CapacityLearnt != s.CapacityTokens {
		out.KVTokens = Fact{s.CapacityLearnt, FromAnswers}
	}
	plain, other := false, false
	for from := range d.insight.telling {
		plain = plain || from.node == s.Name && from.plain()
		other = other || from.node == s.Name
	}
	switch {
	case plain:
		out.Cached = Fact{true, FromAnswers}
	case f.Cached != probe.Unknown:
		out.Cached = Fact{f.Cached == probe.Reports, FromEngine}
	case d.insight.silent >= silentMax:
		out.Cached = Fact{false, FromAnswers}
	case other: // nobody has asked by the APIs that want a flag for it
		out.Cached = Fact{true, FromAnswers}
	}
	switch {
	case f.Shared:
		out.Remedy = remedyShared
	case f.CacheOff:
		out.KVTokens, out.Remedy = Fact{0, FromEngine}, remedyOff
	case out.Cached.Value == false:
		out.Remedy = f.Kind.Remedy()
	}
	for _, m := range d.health.models {
		if m.parent != "" {
			out.Adapters[m.id] = m.parent
		}
	}
	return out
}
