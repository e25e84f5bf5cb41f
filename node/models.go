package node

import (
	"slices"
	"strings"
	"time"
)

// AnyModel among a node's models says that its engine serves whatever name it is
// asked for.
const AnyModel = "*"

// SetModels tells which models this node's engine serves, the default first, and
// nil while it has not told. Peers hear of it with the next rumor.
func (n *Node) SetModels(models []string) { n.serving = models }

// SetDown tells whether this node takes no more requests: its engine cannot serve,
// or the node is leaving. Peers hear of it with the next rumor; of its own
// clients' requests it serves what no peer can.
func (n *Node) SetDown(down bool) { n.down = down }

// Serves reports whether this node or a peer that requests may be sent to serves
// model, as far as this node knows. Where it is false nobody is worth asking.
func (n *Node) Serves(now time.Time, model string) bool {
	if serves(n.serving, model) {
		return true
	}
	for _, p := range n.view.Peers(now) {
		if !p.Suspected && serves(p.Models, model) {
			return true
		}
	}
	return false
}

// ServesHere reports whether this node's own engine serves model, as far as it has told.
func (n *Node) ServesHere(model string) bool { return serves(n.serving, model) }

// Able reports whether this node takes requests for model: it serves it, and is not down.
func (n *Node) Able(model string) bool { return !n.down && serves(n.serving, model) }

// serves reads a list of models as engines do: a name stands for itself; "m" also
// for Ollama's "m:latest"; and "m:a", as SGLang spells adapter a of model m, for m.
// Who lists nothing may serve anything, and a request without a model is anyone's.
func serves(models []string, model string) bool {
	if len(models) == 0 || model == "" || slices.Contains(models, model) || slices.Contains(models, AnyModel) {
		return true
	}
	base, _, adapted := strings.Cut(model, ":")
	return adapted && slices.Contains(models, base) || slices.Contains(models, model+":latest")
}
