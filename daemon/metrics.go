package daemon

import (
	"cmp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/node"
)

// metrics are the node's numbers at /metrics; docs/operations.md explains them.
type metrics struct {
	registry       *prometheus.Registry
	requests       *prometheus.CounterVec
	promptTokens   prometheus.Counter
	expectedTokens prometheus.Counter
	actualTokens   prometheus.Counter
	ttft           *prometheus.HistogramVec
	latency        *prometheus.HistogramVec
	failures       *prometheus.CounterVec
	resumed        prometheus.Counter
	panics         prometheus.Counter
}

func newMetrics(d *Daemon) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hearsay_requests_total",
			Help: "Requests that ended, by outcome (ok, rejected, refused, bounced, broken, cancelled) and hop (local, forwarded, received).",
		}, []string{"outcome", "hop"}),
		promptTokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hearsay_prompt_tokens_total",
			Help: "Prompt tokens of answers whose engine reported its cache, counted where the client asked.",
		}),
		expectedTokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hearsay_expected_cached_tokens_total",
			Help: "Cached tokens that the routing node expected for those answers.",
		}),
		actualTokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hearsay_actual_cached_tokens_total",
			Help: "Cached tokens that the engine reported for those answers.",
		}),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "hearsay_ttft_seconds",
			Help:    "Time from a prompt's arrival to the first piece of its answer that is no comment, by hop; of streams that were whole.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"hop"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "hearsay_latency_seconds",
			Help:    "Time from a prompt's arrival to the end of its answer, by hop; of answers that were whole, streams or not.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 20),
		}, []string{"hop"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hearsay_failures_total",
			Help: "Requests that a node failed at, before or after the first byte: a peer, or this one.",
		}, []string{"node"}),
		resumed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hearsay_resumed_total",
			Help: "Streams that broke off and that another node gave again, what the client had left out.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hearsay_panics_total",
			Help: "Faults of this program that cost one request or one rumor; the log says where.",
		}),
	}
	m.registry.MustRegister(m.requests, m.promptTokens, m.expectedTokens, m.actualTokens, m.ttft, m.latency, m.failures, m.resumed, m.panics,
		stateCollector{d}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// book counts and logs a request that has ended; the log line is what
// `hearsay demo` shows live.
func (d *Daemon) book(q *request, res result) {
	decision, hop := res.decision, "local"
	switch {
	case q.hop != "":
		hop = "received"
	case !decision.Self:
		hop = "forwarded"
	}
	d.metrics.requests.WithLabelValues(res.outcome, hop).Inc()
	total := time.Since(q.arrived)
	if res.outcome == outcomeOK && q.route.Bytes > 0 {
		d.metrics.latency.WithLabelValues(hop).Observe(total.Seconds())
		if q.read.Stream {
			d.metrics.ttft.WithLabelValues(hop).Observe(res.ttft.Seconds())
		}
	}
	if res.known && hop != "received" {
		d.metrics.promptTokens.Add(float64(res.usage.Prompt))
		d.metrics.expectedTokens.Add(float64(decision.Expected))
		d.metrics.actualTokens.Add(float64(res.usage.Cached))
	}
	d.log.Info("request",
		"request_id", brief(q.http.Header.Get(requestIDHeader)), "trace_id", traceID(q.http.Header),
		"path", cmp.Or(q.endpoint.Route, "unknown"), "model", brief(q.read.Model), "outcome", res.outcome, "status", res.status,
		"hop", hop, "node", decision.Node, "reason", decision.Reason, "tries", len(q.tried)+1, "resumed", res.resumed,
		"prompt_tokens", res.usage.Prompt, "expected_tokens", decision.Expected, "cached_tokens", res.usage.Cached,
		"ttft_ms", milliseconds(res.ttft), "total_ms", milliseconds(total))
}

// brief bounds what a client can put into a line of the log.
func brief(s string) string {
	if len(s) > 128 {
		s = strings.ToValidUTF8(s[:128], "") + "..."
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// stateCollector reads what the node believes when somebody asks for it.
type stateCollector struct{ d *Daemon }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descQueue    = desc("hearsay_queue_depth", "Requests at this node's engine, waiting and running.")
	descPaused   = desc("hearsay_paused_seconds", "How much longer this node asks its peers to send it nothing.")
	descPauses   = desc("hearsay_pauses_total", "Pauses that this node has asked its peers for.")
	descBlocks   = desc("hearsay_tree_blocks", "Blocks in this node's own prefix tree.")
	descUntold   = desc("hearsay_tree_untold_blocks", "Blocks in this node's own prefix tree that its last rumor left out for want of bytes or memory.")
	descTokens   = desc("hearsay_tree_tokens", "Tokens that this node's own prefix tree stands for.")
	descReady    = desc("hearsay_engine_ready", "1 if the engine answers probes and generates, as far as this node can tell without a client's key.")
	descKV       = desc("hearsay_engine_kv_tokens", "Tokens that the engine's cache is believed to hold; absent while that is not known.")
	descRestarts = desc("hearsay_engine_restarts_total", "Times that the engine was seen to have started anew, or shown by its answers to have lost its cache.")

	descEventsConnected = desc("hearsay_kv_events_connected", "Data-parallel ranks of the engine whose KV events are followed now.")
	descEventsBlocks    = desc("hearsay_kv_events_blocks", "Blocks of tokens that the engine holds, as far as its KV events tell.")
	descEventsBatches   = desc("hearsay_kv_events_batches_total", "Batches of KV events taken in.")
	descEventsGaps      = desc("hearsay_kv_events_gaps_total", "Gaps in the engine's sequence of batches, filled by replay or not.")
	descEventsClears    = desc("hearsay_kv_events_clears_total", "Times that the engine's cache was lost track of, and what was known of it dropped.")
	descEventsSkipped   = desc("hearsay_kv_events_skipped_total", "KV events of unknown kinds, and batches that cannot be read.")
	descEventsPrompts   = desc("hearsay_kv_events_prompts_total", "Prompts that the engine was to cut into tokens, linked to its KV events or not.", "outcome")

	descPeerAge    = desc("hearsay_rumor_age_seconds", "Age of the last rumor heard from a peer.", "peer")
	descPeerBlocks = desc("hearsay_peer_tree_blocks", "Blocks in a peer's tree as it last told.", "peer")
	descPeerQueue  = desc("hearsay_peer_queue_depth", "Queue depth that a peer last reported.", "peer")
	descPeerUsable = desc("hearsay_peer_usable", "1 if this node would forward to the peer now.", "peer")
	descRefused    = desc("hearsay_peer_refused_total", "What the peer port has turned away, by reason.", "reason")
	descCertEnds   = desc("hearsay_peer_certificate_expiry_timestamp_seconds", "Unix time at which this node's certificate ends.")
	descRumorBytes = desc("hearsay_rumor_bytes_total", "Bytes of rumors, by direction (sent, received).", "direction")
	descRelayed    = desc("hearsay_relayed_rumors_total", "Rumors heard from another node than their author, by outcome (news, old).", "outcome")
	descPulls      = desc("hearsay_pulls_total", "Times that this node asked an author for what relayed rumors lack.")
)

// Describe implements prometheus.Collector. It names nothing: what is collected
// depends on the peers.
func (c stateCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.d.Status()
	emit := func(kind prometheus.ValueType, desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, v, labels...)
	}
	emit(prometheus.GaugeValue, descQueue, float64(s.Queue))
	emit(prometheus.GaugeValue, descPaused, s.PausedMS/1000)
	emit(prometheus.CounterValue, descPauses, float64(s.Pauses))
	emit(prometheus.GaugeValue, descBlocks, float64(s.TreeBlocks))
	emit(prometheus.GaugeValue, descUntold, float64(s.UntoldBlocks))
	emit(prometheus.GaugeValue, descTokens, float64(s.TreeTokens))
	ready := 0.0
	if c.d.accepts(s.EngineState) {
		ready = 1
	}
	emit(prometheus.GaugeValue, descReady, ready)
	if s.CapacityTokens > 0 {
		emit(prometheus.GaugeValue, descKV, float64(s.CapacityTokens))
	}
	emit(prometheus.CounterValue, descRestarts, float64(s.Engine.Restarts+s.Engine.Losses))
	s.KVEvents.collect(emit)
	s.Economy.collect(emit)
	for _, p := range s.Peers {
		if p.RumorAgeMS >= 0 {
			emit(prometheus.GaugeValue, descPeerAge, p.RumorAgeMS/1000, p.Name)
		}
		emit(prometheus.GaugeValue, descPeerBlocks, float64(p.TreeBlocks), p.Name)
		emit(prometheus.GaugeValue, descPeerQueue, float64(p.Queue), p.Name)
		usable := 0.0
		if p.State == string(node.Alive) {
			usable = 1
		}
		emit(prometheus.GaugeValue, descPeerUsable, usable, p.Name)
	}
	refused := c.d.mesh.Refused()
	for _, reason := range mesh.Reasons {
		emit(prometheus.CounterValue, descRefused, float64(refused[reason]), reason)
	}
	if id := c.d.cfg.Mesh.Identity; id != nil {
		emit(prometheus.GaugeValue, descCertEnds, float64(id.Expires().Unix()))
	}
	rumors := c.d.mesh.Stats()
	emit(prometheus.CounterValue, descRumorBytes, float64(rumors.RumorBytesSent), "sent")
	emit(prometheus.CounterValue, descRumorBytes, float64(rumors.RumorBytesReceived), "received")
	emit(prometheus.CounterValue, descRelayed, float64(rumors.RelayedNews), "news")
	emit(prometheus.CounterValue, descRelayed, float64(rumors.RelayedOld), "old")
	emit(prometheus.CounterValue, descPulls, float64(rumors.Pulls))
}

var (
	descFlights  = desc("hearsay_flights", "Requests under way, at this node's engine and at peers.")
	descBounces  = desc("hearsay_bounces_total", "Forwards that were refused as they would have cost more than elsewhere, by direction (given by this node, taken by it).", "direction")
	descWarmings = desc("hearsay_warmings_total", "Prefixes that this node had its engine compute unasked, by outcome (done, given_up for a request, failed at the engine).", "outcome")
	descWarmed   = desc("hearsay_warmed_tokens_total", "Prompt tokens that the engine computed for them.")
	descBase     = desc("hearsay_prefill_base_seconds", "What a prefill takes on this node's engine, as learnt, beside its tokens.")
	descPerToken = desc("hearsay_prefill_token_seconds", "What each prompt token adds to it that is not cached.")
	descTrip     = desc("hearsay_peer_trip_seconds", "What a forward to a peer takes there and back, as learnt, beside its bytes.", "peer")
	descTruth    = desc("hearsay_peer_truth", "How much of what a peer is said to hold it held, 0 to 1.", "peer")
)

func (s EconomyStatus) collect(emit func(kind prometheus.ValueType, desc *prometheus.Desc, v float64, labels ...string)) {
	emit(prometheus.GaugeValue, descFlights, float64(s.Flights))
	emit(prometheus.CounterValue, descBounces, float64(s.BouncedOff), "given")
	emit(prometheus.CounterValue, descBounces, float64(s.Bounced), "taken")
	emit(prometheus.CounterValue, descWarmings, float64(s.WarmedPrefixes), "done")
	emit(prometheus.CounterValue, descWarmings, float64(s.WarmedGivenUp), "given_up")
	emit(prometheus.CounterValue, descWarmings, float64(s.WarmedFailed), "failed")
	emit(prometheus.CounterValue, descWarmed, float64(s.WarmedTokens))
	if s.Samples > 0 {
		emit(prometheus.GaugeValue, descBase, s.Base/1000)
		emit(prometheus.GaugeValue, descPerToken, s.PerToken/1000)
	}
	for _, p := range s.Peers {
		emit(prometheus.GaugeValue, descTrip, p.TripMS/1000, p.Name)
		emit(prometheus.GaugeValue, descTruth, p.Truth, p.Name)
	}
}
