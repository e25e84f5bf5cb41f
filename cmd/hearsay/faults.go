package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearsay-project/hearsay/sim"
)

// A timedFault is a --fault, as written and as read.
type timedFault struct {
	text string
	sim.Fault
}

// readFaults reads every --fault, sorts them by time and refuses what could change
// nothing.
func readFaults(texts []string, nodes int) (faults []timedFault, err error) {
	for _, text := range texts {
		f, err := parseFault(text, nodes)
		if err != nil {
			return nil, fmt.Errorf("--fault %q: %w", text, err)
		}
		faults = append(faults, timedFault{text, f})
	}
	slices.SortStableFunc(faults, func(a, b timedFault) int { return int(a.At - b.At) })
	s := newFaultState(nodes)
	for _, f := range faults {
		if err := s.befall(f.Fault); err != nil {
			return nil, fmt.Errorf("--fault %q: %w", f.text, err)
		}
	}
	return faults, nil
}

// parseFault reads "TIME KIND [NODES] [xFACTOR]": 10s crash 2, 1m slow 1,3-4 x8,
// 20s heal. Nodes count from 1, as in their names.
func parseFault(text string, nodes int) (f sim.Fault, err error) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return f, errors.New(`it says too little; write a time, what happens and to which nodes, such as "10s crash 2"`)
	}
	if f.At, err = time.ParseDuration(words[0]); err != nil || f.At < 0 {
		return f, fmt.Errorf("%q is no time since the start; write it as 10s or 1m30s", words[0])
	}
	f.Kind = sim.Kind(words[1])
	rest := words[2:]
	switch f.Kind {
	case sim.Heal:
		if len(rest) > 0 {
			return f, errors.New("heal ends all partitions; name no nodes")
		}
		return f, nil
	case sim.Slow:
		if len(rest) != 2 || !strings.HasPrefix(rest[1], "x") {
			return f, errors.New(`write the nodes and how many times as long their engines take, such as "10s slow 2 x4"`)
		}
		f.Factor, err = strconv.ParseFloat(rest[1][1:], 64)
		if err != nil || !(f.Factor >= sim.MinSlow && f.Factor <= sim.MaxSlow) {
			return f, fmt.Errorf("%q is no factor from x%v to x%v; write x4 for four times as long, x1 for normal again", rest[1], sim.MinSlow, sim.MaxSlow)
		}
	case sim.Crash, sim.Restart, sim.Partition, sim.Stuck:
		if len(rest) != 1 {
			return f, errors.New("name the nodes once, as 2 or 1,3-4")
		}
	default:
		return f, fmt.Errorf("unknown kind %q; choose crash, restart, partition, heal, slow or stuck", f.Kind)
	}
	f.Nodes, err = parseNodes(rest[0], nodes)
	return f, err
}

// parseNodes reads nodes by number from 1, as 2 or 1,3-4, and returns them from 0.
func parseNodes(text string, nodes int) (list []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err1 := strconv.Atoi(first)
		to, err2 := from, error(nil)
		if isRange {
			to, err2 = strconv.Atoi(last)
		}
		if errors.Join(err1, err2) != nil || from < 1 || to < from || to > nodes {
			return nil, fmt.Errorf("%q names no nodes of 1 to %d; write them as 2 or 1,3-4", part, nodes)
		}
		for i := from; i <= to; i++ {
			if slices.Contains(list, i-1) {
				return nil, fmt.Errorf("node %d is named twice; name it once", i)
			}
			list = append(list, i-1)
		}
	}
	return list, nil
}

// A faultState is what faults have made of a cluster so far.
type faultState struct {
	down   []bool
	side   []int // of a partition, by the lowest node on it
	factor []float64
	stuck  []bool
}

func newFaultState(nodes int) *faultState {
	return &faultState{make([]bool, nodes), make([]int, nodes), slices.Repeat([]float64{1}, nodes), make([]bool, nodes)}
}

// befall applies f, or says why it can do nothing. A restart always does: a live
// node's process dies for it, and its cache with it.
func (s *faultState) befall(f sim.Fault) error {
	switch f.Kind {
	case sim.Crash:
		for _, i := range f.Nodes {
			if s.down[i] {
				return fmt.Errorf("node %d is down by then; restart it before, or leave it out", i+1)
			}
			s.down[i], s.stuck[i] = true, false
		}
	case sim.Restart:
		for _, i := range f.Nodes {
			s.down[i], s.stuck[i] = false, false
		}
	case sim.Partition:
		before := slices.Clone(s.side)
		s.cut(f.Nodes)
		switch {
		case len(f.Nodes) == len(s.side):
			return errors.New("these are all nodes, and none is cut off from another; name some of them")
		case slices.Equal(before, s.side):
			return errors.New("these nodes are cut off from the others by then; leave it out, or put a heal before it")
		}
	case sim.Heal:
		if slices.Max(s.side) == 0 {
			return errors.New("no partition is there to end by then; put one before it, or leave it out")
		}
		clear(s.side)
	case sim.Stuck:
		for _, i := range f.Nodes {
			if s.down[i] || s.stuck[i] {
				return fmt.Errorf("node %d is down or stuck by then; restart it before, or leave it out", i+1)
			}
			s.stuck[i] = true
		}
	case sim.Slow:
		changed := false
		for _, i := range f.Nodes {
			changed = changed || s.factor[i] != f.Factor
			s.factor[i] = f.Factor
		}
		if !changed {
			return fmt.Errorf("these engines are at x%v by then; give another factor, or leave it out", f.Factor)
		}
	}
	return nil
}

// cut puts the nodes on a side of their own.
func (s *faultState) cut(nodes []int) {
	apart := len(s.side) // no node's number
	for _, i := range nodes {
		s.side[i] = apart
	}
	lowest := map[int]int{}
	for i, side := range s.side {
		if _, known := lowest[side]; !known {
			lowest[side] = i
		}
		s.side[i] = lowest[side]
	}
}
