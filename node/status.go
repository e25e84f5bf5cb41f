package node

import "time"

// Status is what a node believes, for people and dashboards.
type Status struct {
	Name           string
	Life           uint64
	Version        uint64 // of the last rumor spoken
	Policy         string
	Poll           time.Duration
	Queue          int
	PausedFor      time.Duration // how long peers are still asked to pause
	Pauses         int           // begun since the start
	Down           bool
	Models         []string // that the engine has listed
	TreeBlocks     int
	Untold         int // of them, those that the last rumor left out for want of bytes or memory
	TreeTokens     int
	CapacityTokens int                // as told; 0 when not known
	CapacityLearnt int                // as believed, 0 when nothing speaks for a limit; where Config.LearnCapacity
	Losses         int                // times that the engine was found to have lost its cache
	BytesPerToken  map[string]float64 // by model, as learnt
	Here           Totals             // of requests that this node has served
	There          Totals             // of requests that peers have served for it
	NameClashes    int                // rumors heard under this node's name but of another life
	Peers          []PeerStatus       // by name
}

// A State says in one word how a peer stands. The first that holds is it.
type State string

// States of a peer. To all but Alive nothing is sent.
const (
	Suspected State = "suspected" // silent for too long
	Down      State = "down"      // says that it cannot serve
	Doubted   State = "doubted"   // failed a request lately, or was lost
	Paused    State = "paused"    // asked for no more
	Alive     State = "alive"
)

// PeerStatus is what is believed of one peer.
type PeerStatus struct {
	Name       string
	State      State
	Life       uint64
	Version    uint64
	RumorAge   time.Duration // since its last rumor came
	TreeBlocks int           // as it told
	TreeTokens int
	Credits    int // blocks credited since
	Queue      int
	PauseLeft  time.Duration
	Failures   int // requests failed in a row
	Models     []string
}

// Totals add up what the engines reported and what had been promised, over the
// requests where they did report.
type Totals struct {
	Requests        int // served, reported or not
	Reported        int
	PromptTokens    int
	PredictedTokens int // said to be cached when the request was routed
	CachedTokens    int // found cached by the engine
}

func (t *Totals) add(promised int, out Outcome) {
	t.Requests++
	if out.Known {
		t.Reported++
		t.PromptTokens += max(out.PromptTokens, 0)
		t.PredictedTokens += min(promised, max(out.PromptTokens, 0)) // an estimate may have been of more
		t.CachedTokens += max(out.CachedTokens, 0)
	}
}

// Status returns what the node believes at now. It allocates; call it for people,
// not for each request.
func (n *Node) Status(now time.Time) Status {
	s := Status{
		Name: n.cfg.Name, Life: n.cfg.Life, Version: n.version, Policy: n.cfg.Policy.Name(), Poll: n.cfg.Poll,
		Queue: n.queue, PausedFor: n.pause(now), Pauses: n.pauses,
		Down: n.down, Models: n.serving,
		TreeBlocks: n.tree.Len(), Untold: n.untold, TreeTokens: n.tree.Tokens(), CapacityTokens: n.cfg.CapacityTokens,
		CapacityLearnt: n.gauge.tokens, Losses: n.gauge.losses,
		BytesPerToken: map[string]float64{},
		Here:          n.here, There: n.there, NameClashes: n.clashes,
	}
	for model := range n.models.models {
		s.BytesPerToken[model] = n.models.bytesPerToken(model)
	}
	for _, p := range n.view.Peers(now) {
		state := Alive
		switch {
		case p.Suspected:
			state = Suspected
		case p.Down:
			state = Down
		case p.Doubted:
			state = Doubted
		case now.Before(p.PausedUntil):
			state = Paused
		}
		s.Peers = append(s.Peers, PeerStatus{
			Name: p.Name, State: state, Life: p.Life, Version: p.Version, RumorAge: now.Sub(p.Heard),
			TreeBlocks: p.Blocks, TreeTokens: p.Tokens, Credits: p.Credits, Queue: p.Queue,
			PauseLeft: max(0, p.PausedUntil.Sub(now)), Failures: p.Failures, Models: p.Models,
		})
	}
	return s
}
