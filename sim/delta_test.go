package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// What is decided does not depend on how trees are told - whole, by changes that are
// taken apart as from the wire, or by changes that stand for the tree they lead to -
// and changes are a fraction of the bytes.
func TestHistoryIsTheSameHoweverTreesAreTold(t *testing.T) {
	cfg := Config{
		Nodes: 4, Policy: "longest+pushback", Profile: gpu, BlockTokens: 512, Seed: 1, Check: true,
		Network: Network{Delay: 2 * time.Millisecond}, Arrival: Arrival{Rate: 40},
	}
	var bytes []int64
	var hashes []uint64
	for _, form := range []struct{ whole, check bool }{{true, true}, {false, true}, {false, false}} {
		cfg.Whole, cfg.Check = form.whole, form.check
		r, err := Run(cfg, trace(3000))
		if err != nil {
			t.Fatal(err)
		}
		bytes, hashes = append(bytes, r.RumorBytes), append(hashes, r.Hash)
	}
	if len(slices.Compact(hashes)) != 1 {
		t.Error("two histories")
	}
	if bytes[1] != bytes[2] || 2*bytes[1] > bytes[0] {
		t.Errorf("bytes of rumors: whole %d, changes %d on the wire and %d otherwise", bytes[0], bytes[1], bytes[2])
	}
}

// Where rumors and acks are lost and late, a change starts from what was acknowledged
// last, and what a restarted node is told before it is known to have restarted leaves
// a gap; every promise holds all the same (Check), and the bytes stay fewer.
func TestChangesThroughLossAndRestarts(t *testing.T) {
	for seed := range uint64(5) {
		cfg := Config{
			Nodes: 5, Policy: "longest", Profile: gpu, BlockTokens: 512, Seed: seed, Check: true, Poll: 100 * time.Millisecond,
			Network: Network{Delay: 150 * time.Millisecond, Loss: 0.3, Duplicate: 0.2, Reorder: 0.3}, Arrival: Arrival{Rate: 40},
		}
		for i := range 8 {
			cfg.Faults = append(cfg.Faults, Fault{At: time.Duration(1+i) * 5 * time.Second, Kind: Restart, Nodes: []int{i % 5}})
		}
		changes, err := Run(cfg, trace(2000))
		if err != nil {
			t.Fatal(fmt.Errorf("seed %d: %w", seed, err))
		}
		cfg.Whole = true
		if whole, err := Run(cfg, trace(2000)); err != nil || 2*changes.RumorBytes > whole.RumorBytes {
			t.Errorf("seed %d: %d bytes by changes, %d whole, %v", seed, changes.RumorBytes, whole.RumorBytes, err)
		}
	}
}
