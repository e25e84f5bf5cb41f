package sim

import (
	"slices"
	"testing"
	"time"
)

// A node that dies while it warms a prefix takes that along, and nothing else: nobody
// waits for it. Seed 525 was the first to find one.
func TestCrashWhileWarming(t *testing.T) {
	cfg, requests := scenario(525)
	cfg.Policy = "economic"
	warmed := int64(0)
	for range 20 {
		r, err := Run(cfg, slices.Values(requests))
		if err != nil {
			t.Fatal(err)
		}
		warmed += r.Warmed
		for i := range cfg.Faults {
			cfg.Faults[i].At += 10 * time.Millisecond
		}
	}
	if warmed == 0 {
		t.Error("nothing was warmed")
	}
}

// An engine that still computes what nobody waits for changes its tree when all else
// is quiet, which is no fault of the rumors. Seed 2213 was the first to find it so.
func TestQuietBeginsWhenEnginesAreIdle(t *testing.T) {
	cfg, requests := scenario(2213)
	if _, err := Run(cfg, slices.Values(requests)); err != nil {
		t.Fatal(err)
	}
}
