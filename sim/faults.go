package sim

import "slices"

// befall lets the next fault happen.
func (c *cluster) befall() {
	f := c.cfg.Faults[c.faultsAt]
	c.faultsAt++
	if c.stopped {
		return
	}
	switch f.Kind {
	case Partition:
		c.cuts++
	case Heal:
		for _, m := range c.members {
			m.side = 0
		}
	}
	for _, i := range f.Nodes {
		m := c.members[i]
		switch f.Kind {
		case Crash:
			c.crash(m)
		case Restart:
			c.crash(m)
			c.start(m)
		case Partition:
			m.side = c.cuts
		case Slow:
			m.engine.Slow(f.Factor)
		case Stuck:
			if m.up {
				m.stuck = c.utter(m)
			}
		}
	}
}

// crash ends a life: peers see their connections reset, clients theirs.
func (c *cluster) crash(m *member) {
	if !m.up {
		return
	}
	m.up, m.wake, m.linkFree, m.stuck = false, 0, 0, nil
	m.engine.Restart()
	for _, id := range sorted(m.jobs) {
		if a := m.jobs[id]; a.call != nil && a.call.origin != m.index { // warming is nobody's call
			c.send(a, refused)
		}
	}
	for _, index := range sorted(m.calls) {
		k := m.calls[index]
		if a := k.attempt; a != nil && !a.over {
			a.over = true
			c.send(a, cancelled)
		}
		c.finish(k, nil, "the node it came to has died")
	}
	m.jobs, m.calls = map[uint64]*attempt{}, map[int]*call{}
}

func sorted[K int | uint64, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
