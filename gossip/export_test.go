package gossip

// SetMergeStep has a view merge so many blocks with each rumor.
func (v *View) SetMergeStep(n int) { v.mergeStep = n }

// Merging returns how many peers' trees are on their way into the index.
func (v *View) Merging() int { return len(v.merging) }
