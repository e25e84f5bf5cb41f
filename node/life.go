package node

import "math"

// Outlive tells the node of a life of its own that a peer remembers. Where that is
// later than this one, as after a restart with a clock that had gone back, all that
// this node says would be dropped as old; so it goes on as a still later life. It
// reports whether it had to.
func (n *Node) Outlive(life uint64) bool {
	if life <= n.cfg.Life || life == math.MaxUint64 {
		return false
	}
	n.cfg.Life = life + 1
	return true
}
