package node

import "github.com/hearsay-project/hearsay/prefix"

// Evicted records that the engine has told which blocks it no longer holds. They
// leave the tree, and with each all that followed it: a prefix is held from its
// beginning or not at all. What is not in the tree changes nothing.
func (n *Node) Evicted(blocks []prefix.Hash) {
	for _, h := range blocks {
		n.tree.Prune(prefix.Chain{h}, 0)
	}
}
