package workload

import (
	"cmp"
	"context"
	"slices"
)

// demoSubjects is few enough that a score of requests meets each several times.
const demoSubjects = 5

// demoRate, per second, leaves the nodes a poll interval or so between two
// requests, so that a prefix is heard of before it is asked for again.
const demoRate = 4

// Demo sends n prompts of a handful of short synthetic topics to the targets in
// turn: the least that shows prefixes being found again.
func Demo(ctx context.Context, targets []string, n int) (*Report, error) {
	return Run(ctx, Options{Workload: demoWorkload(n), Targets: targets, Rate: demoRate})
}

func demoWorkload(n int) *Workload {
	subjects := synthesize()
	slices.SortFunc(subjects, func(a, b subject) int { return cmp.Compare(len(a.prefix), len(b.prefix)) })
	w := &Workload{
		Config:   Config{Name: "demo", Requests: n, Repeats: true},
		Source:   "synthetic",
		subjects: subjects[:demoSubjects],
	}
	w.picks, _ = draw(newRand(0, orderStream), everything(w.subjects), n, true) // with repeats any n can be drawn
	return w
}
