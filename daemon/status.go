package daemon

import (
	"cmp"
	"time"

	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/node"
)

// Status is what a node believes of itself and its peers, as
// /hearsay/v1/status tells it. Durations are in milliseconds.
type Status struct {
	Name           string             `json:"name"`
	Policy         string             `json:"policy"`
	PollMS         float64            `json:"poll_ms"`
	LinkDelayMS    float64            `json:"link_delay_ms"`
	LinkJitterMS   float64            `json:"link_jitter_ms"`
	Version        uint64             `json:"version"` // of the last rumor spoken
	Queue          int                `json:"queue"`
	PausedMS       float64            `json:"paused_ms"`
	Pauses         int                `json:"pauses"`
	TreeBlocks     int                `json:"tree_blocks"`
	UntoldBlocks   int                `json:"untold_blocks"` // of them, that the last rumor left out
	TreeTokens     int                `json:"tree_tokens"`
	CapacityTokens int                `json:"capacity_tokens"` // of the tree, as told or learnt; 0 for no limit
	BytesPerToken  map[string]float64 `json:"bytes_per_token"` // by model, as learnt
	Here           Totals             `json:"here"`            // requests that this node's engine served
	There          Totals             `json:"there"`           // requests that peers served for this node
	EngineState    string             `json:"engine_state"`    // starting, ready, down, stuck or credentials
	Models         []string           `json:"models"`          // that requests may name, the default first
	EngineError    string             `json:"engine_error"`    // why the engine did not answer last time; empty if it did
	Engine         EngineStatus       `json:"engine"`
	KVEvents       *KVEventsStatus    `json:"kv_events,omitempty"` // where --kv-events follows them
	Trouble        string             `json:"trouble"`             // about this node's place among its peers, for its operator to mend
	Economy        EconomyStatus      `json:"economy"`             // what prices rest on
	Peers          []PeerStatus       `json:"peers"`
}

// Totals add up predictions and what the engines reported.
type Totals struct {
	Requests        int `json:"requests"`
	Reported        int `json:"reported"` // those whose engine reported its cache; the rest is of these
	PromptTokens    int `json:"prompt_tokens"`
	PredictedTokens int `json:"predicted_tokens"`
	CachedTokens    int `json:"cached_tokens"`
}

// PeerStatus is what this node believes of a peer.
type PeerStatus struct {
	Name               string  `json:"name"`
	Addr               string  `json:"addr"`
	State              string  `json:"state"`        // of a member alive, paused, doubted, down, suspected or refused; else dead or left
	Trouble            string  `json:"trouble"`      // why nothing, or not all, is routed between the two, in a sentence
	RumorAgeMS         float64 `json:"rumor_age_ms"` // -1 where it was never heard
	TreeBlocks         int     `json:"tree_blocks"`
	TreeTokens         int     `json:"tree_tokens"`
	Credits            int     `json:"credits"` // blocks credited since its last rumor
	Queue              int     `json:"queue"`
	PausedMS           float64 `json:"paused_ms"`
	Failures           int     `json:"failures"` // in a row
	RTTMS              float64 `json:"rtt_ms"`   // of a rumor and its acknowledgement
	RumorBytesSent     uint64  `json:"rumor_bytes_sent"`
	RumorBytesReceived uint64  `json:"rumor_bytes_received"`

	Models []string `json:"models"`
}

// Status returns what the node believes now. It costs a copy of the peers'
// numbers under the lock.
func (d *Daemon) Status() Status {
	var s node.Status
	engineState, engineError, engine, economy := "", "", EngineStatus{}, EconomyStatus{}
	d.locked(func(now time.Time, n *node.Node) {
		s = n.Status(now)
		engineState, engine, economy = d.health.state(), d.engineStatus(s), d.economyStatus(now, n)
		if d.health.err != nil {
			engineError = d.health.err.Error()
		}
	})
	out := Status{
		Name: s.Name, Policy: s.Policy, PollMS: milliseconds(s.Poll),
		LinkDelayMS: milliseconds(d.cfg.Mesh.LinkDelay), LinkJitterMS: milliseconds(d.cfg.Mesh.LinkJitter),
		Version: s.Version, Queue: s.Queue, PausedMS: milliseconds(s.PausedFor), Pauses: s.Pauses,
		TreeBlocks: s.TreeBlocks, UntoldBlocks: s.Untold, TreeTokens: s.TreeTokens, CapacityTokens: s.CapacityLearnt,
		BytesPerToken: s.BytesPerToken, Here: Totals(s.Here), There: Totals(s.There),
		EngineState: engineState, EngineError: engineError, Engine: engine, KVEvents: d.events.status(), Models: append([]string{}, s.Models...), Trouble: d.mesh.Trouble(), Peers: []PeerStatus{},
		Economy: economy,
	}
	heard := map[string]node.PeerStatus{}
	for _, p := range s.Peers {
		heard[p.Name] = p
	}
	for _, m := range d.mesh.Peers() {
		p := peerStatus(m, heard)
		p.Trouble = cmp.Or(p.Trouble, modelTrouble(p.Name, s.Models, p.Models))
		out.Peers = append(out.Peers, p)
	}
	return out
}

// peerStatus joins what the membership knows of a peer with what it has said.
func peerStatus(m mesh.Peer, heard map[string]node.PeerStatus) PeerStatus {
	out := PeerStatus{
		Name: m.Name, Addr: m.Addr, State: string(node.Suspected), Trouble: m.Trouble, RumorAgeMS: -1, Models: []string{},
		RTTMS: milliseconds(m.RTT), RumorBytesSent: m.RumorBytesSent, RumorBytesReceived: m.RumorBytesReceived,
	}
	if m.State == mesh.StateDead || m.State == mesh.StateLeft {
		out.State = m.State
	} else if p, ok := heard[m.Name]; ok {
		out.State, out.RumorAgeMS = string(p.State), milliseconds(p.RumorAge)
		out.TreeBlocks, out.TreeTokens, out.Credits = p.TreeBlocks, p.TreeTokens, p.Credits
		out.Models = append(out.Models, p.Models...)
		out.Queue, out.PausedMS, out.Failures = p.Queue, milliseconds(p.PauseLeft), p.Failures
	} else if m.Trouble != "" {
		out.State = stateRefused
	}
	return out
}
