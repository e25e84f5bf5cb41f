package main

import (
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/daemon"
)

// The table for people says how KV events are followed, where they are.
func TestStatusShowsKVEvents(t *testing.T) {
	var with, without strings.Builder
	events := daemon.KVEventsStatus{
		Ranks: 2, Connected: 1, Blocks: 812, Batches: 4123, Gaps: 3, Replays: 4, Clears: 5, Skipped: 6, Prompts: 312, Unlinked: 7,
	}
	for out, s := range map[*strings.Builder]daemon.Status{&with: {KVEvents: &events}, &without: {}} {
		if err := printStatus(out, s); err != nil {
			t.Fatal(err)
		}
	}
	const want = "\n  KV events: 1 of 2 ranks connected, 812 blocks held; 4123 batches, 3 gaps, 4 replays, cleared 5 times, 6 skipped; 312 prompts linked, 7 not\n"
	if !strings.Contains(with.String(), want) || strings.Contains(without.String(), "KV events") {
		t.Errorf("with:\n%s\nwithout:\n%s", with.String(), without.String())
	}
}
