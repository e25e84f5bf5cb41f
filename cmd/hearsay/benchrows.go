package main

import (
	"slices"
	"strings"

	"github.com/hearsay-project/hearsay/route"
)

// The paper's data sets, as the load generator calls them.
const (
	uniform = "mmlu"
	skewed  = "mmlu-skewed"
)

// rows are the paper's, or what --policy compares: each policy at each delay on each
// workload, on a cluster like the paper's.
func (f *paperFlags) rows() (rows []*paperRow, err error) {
	paper := paperRows()
	if len(f.policies) == 0 {
		return paper, nil
	}
	for _, name := range f.workloads {
		if !slices.Contains([]string{uniform, skewed}, name) {
			return nil, misuse("--workload: %q is none of the paper's; choose %s or %s", name, uniform, skewed)
		}
		for _, delay := range f.delays {
			if delay < 0 {
				return nil, misuse("--delay %v is no delay; choose 0 or more", delay)
			}
			for _, policy := range f.policies {
				policy = strings.TrimSpace(policy)
				if _, err := route.ByName(policy); err != nil {
					return nil, misuse("--policy: %w", err)
				}
				r := &paperRow{scenario: paper[0].scenario, chosen: true}
				r.scenario.Policy, r.scenario.Delay, r.scenario.Skewed = policy, delay, name == skewed
				r.Policy, r.Workload = policy, name
				rows = append(rows, r)
			}
		}
	}
	if len(rows) == 0 {
		return nil, misuse("--policy is given, but no --delay or no --workload; give at least one of each")
	}
	return rows, nil
}
