package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/node"
)

// stateRefused is the state of a member with which no rumors are exchanged.
const stateRefused = "refused"

// troubleWait is how soon a mismatch that only rumors show is logged.
const troubleWait = 5 * time.Second

// modelTrouble says that the node called peer serves none of this node's models, which
// is as it should be in a cluster of several, and else an oversight. It is empty
// where there is one in common, or one of the two has not told.
func modelTrouble(peer string, own, theirs []string) string {
	const anyModel = "*"
	if len(own) == 0 || len(theirs) == 0 || slices.Contains(own, anyModel) || slices.Contains(theirs, anyModel) {
		return ""
	}
	names := map[string]bool{}
	for _, m := range own {
		names[m] = true
	}
	if slices.ContainsFunc(theirs, func(m string) bool { return names[m] }) {
		return ""
	}
	return fmt.Sprintf("%s serves %s and this node %s: no model in common, so no prompts are routed between them; if they are one model, give it one name with --alias",
		peer, few(theirs), few(own))
}

// few lists the first names.
func few(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// tellTroubles logs which peers serve none of this node's models, once each time it
// comes to be so. Other mismatches the mesh tells when it meets them.
func (d *Daemon) tellTroubles(ctx context.Context) {
	tick := time.NewTicker(troubleWait)
	defer tick.Stop()
	told := map[string]string{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s := d.Status()
		now := map[string]string{}
		for _, p := range s.Peers {
			sentence := modelTrouble(p.Name, s.Models, p.Models)
			if sentence == "" {
				continue
			}
			now[p.Name] = sentence
			if told[p.Name] != sentence {
				d.log.Info("peer has other models", "peer", p.Name, "why", sentence)
			}
		}
		told = now
	}
}

// remembered takes in which life of this node a peer has heard last.
func (d *Daemon) remembered(life uint64) {
	later := false
	d.locked(func(_ time.Time, n *node.Node) { later = n.Outlive(life) })
	if later {
		d.log.Warn("peers remember this node from a time that its clock has not reached: the clock was ahead, or has gone back; going on as a later life", "remembered", time.Unix(0, int64(life)))
	}
}
