package sim

import "github.com/hearsay-project/hearsay/node"

// A checker holds a run to what the design promises.
type checker struct{ c *cluster }

func newChecker(c *cluster) *checker                     { return &checker{c} }
func (k *checker) started(m *member)                     {}
func (k *checker) spoke(m *member, r *spoken)            {}
func (k *checker) heard(m *member, r *spoken, news bool) {}
func (k *checker) routed(call *call, d node.Decision)    {}
func (k *checker) after(e *event)                        {}
func (k *checker) atEnd()                                {}
