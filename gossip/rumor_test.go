package gossip_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"pgregory.net/rapid"
)

// chainOf names a text with one letter for each block.
func chainOf(letters string) prefix.Chain {
	var text []byte
	for _, l := range []byte(letters) {
		text = append(text, bytes.Repeat([]byte{l}, prefix.BlockBytes)...)
	}
	return prefix.NewChain(1, text)
}

// treeOf is the snapshot of a tree that holds the texts.
func treeOf(texts ...string) *prefix.Snapshot {
	tree := prefix.NewTree(1<<30, prefix.MaxBlocks)
	for _, s := range texts {
		tree.Insert(chainOf(s), 16*len(s))
	}
	return tree.Snapshot()
}

// drawText draws a text over few letters, so that texts share prefixes.
func drawText(t *rapid.T, label string) string {
	return rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 8, -1).Draw(t, label)
}

// same reports whether two rumors say the same.
func same(a, b gossip.Rumor) bool { return bytes.Equal(a.AppendBinary(nil), b.AppendBinary(nil)) }

func drawChange(t *rapid.T) *gossip.Change {
	names := func(label string) (all []prefix.Hash) {
		for _, v := range rapid.SliceOfDistinct(rapid.Uint64Min(1), rapid.ID[uint64]).Draw(t, label) {
			all = append(all, prefix.Hash(v))
		}
		slices.Sort(all)
		return all
	}
	return &gossip.Change{
		Since: rapid.Uint64Min(1).Draw(t, "since"), Gone: names("gone"), Come: names("come"),
		Blocks: rapid.IntRange(0, prefix.MaxBlocks).Draw(t, "blocks"), Digest: prefix.Digest(rapid.Uint64().Draw(t, "digest")),
	}
}

// What is sent is what is heard.
func TestRumorSurvivesTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := gossip.Rumor{
			Author:  rapid.StringN(1, -1, gossip.MaxName).Draw(t, "author"),
			Life:    rapid.Uint64().Draw(t, "life"),
			Version: rapid.Uint64().Draw(t, "version"),
			Every:   time.Duration(rapid.Int64Range(0, int64(gossip.MaxInterval)).Draw(t, "every")),
			Queue:   rapid.IntRange(0, gossip.MaxQueue).Draw(t, "queue"),
			Pause:   time.Duration(rapid.Int64Range(0, int64(gossip.MaxInterval)).Draw(t, "pause")),
			Tokens:  rapid.IntRange(0, gossip.MaxTokens).Draw(t, "tokens"),
			Down:    rapid.Bool().Draw(t, "down"),
			Models:  rapid.SliceOfN(rapid.StringN(1, -1, gossip.MaxModel), 0, 4).Draw(t, "models"),
			Load: gossip.Load{
				Backlog:  time.Duration(rapid.Int64Range(0, int64(gossip.MaxInterval)).Draw(t, "backlog")),
				Base:     time.Duration(rapid.Int64Range(0, int64(gossip.MaxInterval)).Draw(t, "base")),
				PerToken: time.Duration(rapid.Int64Range(0, int64(gossip.MaxInterval)).Draw(t, "per token")),
				Rate:     float64(rapid.IntRange(0, 1000*gossip.MaxToll).Draw(t, "rate")) / 1000,
				Toll:     float64(rapid.IntRange(0, 1000*gossip.MaxToll).Draw(t, "toll")) / 1000,
			},
			Computing: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) prefix.Hash { return prefix.Hash(rapid.Uint64().Draw(t, "hash")) }), 1, 9).Draw(t, "computing"),
			Tree:      treeOf(rapid.SliceOf(rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 8, -1)).Draw(t, "tree")...),
		}
		if rapid.Bool().Draw(t, "as a change") {
			r.Change = drawChange(t)
		}
		got, err := gossip.DecodeRumor(r.AppendBinary(nil))
		if err != nil {
			t.Fatal(err)
		}
		if !same(got, r) {
			t.Fatalf("%+v became %+v", r, got)
		}
		if !slices.Equal(got.Models, r.Models) {
			t.Fatalf("models %q became %q", r.Models, got.Models)
		}
		if r.Change != nil && !reflect.DeepEqual(got.Change, r.Change) {
			t.Fatalf("%+v became %+v", r.Change, got.Change)
		}
		got.Change, r.Change = nil, nil
		got.Tree, r.Tree, got.Models, r.Models = nil, nil, nil, nil
		if !reflect.DeepEqual(got, r) {
			t.Fatalf("%+v became %+v", r, got)
		}
	})
}

// Nodes of two versions in one cluster must read each other: the bytes are fixed.
func TestRumorBytesAreFixed(t *testing.T) {
	tree := prefix.NewTree(100, 100)
	tree.Insert(prefix.Chain{1, 2, 3}, 48)
	tree.Insert(prefix.Chain{1, 4}, 32)
	tree.Insert(prefix.Chain{5}, 16)
	r := gossip.Rumor{
		Author: "n1", Life: 300, Version: 7, Every: 200, Queue: 2, Pause: 5,
		Tokens: tree.Tokens(), Down: true, Models: []string{"m", "m-2"}, Tree: tree.Snapshot(),
		Load:      gossip.Load{Backlog: 9, Base: 10, PerToken: 11, Rate: 0.25, Toll: 1.5},
		Computing: []prefix.Hash{6},
	}
	const want = "03" + "026e31" + "ac02" + "07" + "c801" + "02" + "05" + "50" + // 80 tokens
		"01" + "02" + "016d" + "036d2d32" + // down; m and m-2
		"09" + "0a" + "0b" + "fa01" + "dc0b" + // backlog, base, per token; rate and toll in thousandths
		"01" + "0600000000000000" + // one block computing
		"00" + "05" + "0000000202" + // 1; 2 below it; 3 below 2; 4 beside 2; 5 beside 1
		"0100000000000000" + "0200000000000000" + "0300000000000000" + "0400000000000000" + "0500000000000000"
	if got := fmt.Sprintf("%x", r.AppendBinary(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r = gossip.Rumor{Author: "n1", Life: 300, Version: 7, Tree: tree.Snapshot(), Change: &gossip.Change{
		Since: 5, Gone: []prefix.Hash{7}, Come: []prefix.Hash{3, 5}, Blocks: 5, Digest: tree.Snapshot().Digest(),
	}}
	const change = "03" + "026e31" + "ac02" + "07" + "000000000000000000000000" + // no load, models or prefill
		"05" + "05" + "4fb25b600c801bbf" + // since 5; 5 blocks and their digest
		"01" + "02" + "0700000000000000" + "0300000000000000" + "0500000000000000" // 7 is gone, 3 and 5 are there
	if got := fmt.Sprintf("%x", r.AppendBinary(nil)); got != change {
		t.Errorf("got  %s\nwant %s", got, change)
	}
}

// What is beyond a limit is sent as the limit, so that a node's rumors are always heard.
func TestRumorStaysWithinItsLimits(t *testing.T) {
	r := gossip.Rumor{Author: "a", Every: 9 * time.Hour, Queue: 1 << 40, Pause: -1, Tokens: 1 << 50}
	r.Models = append(r.Models, "", strings.Repeat("x", gossip.MaxModel+1), "\xff")
	for i := range gossip.MaxModels + 9 {
		r.Models = append(r.Models, fmt.Sprint(i))
	}
	got, err := gossip.DecodeRumor(r.AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got.Every != gossip.MaxInterval || got.Queue != gossip.MaxQueue || got.Pause != 0 || got.Tokens != gossip.MaxTokens ||
		len(got.Models) != gossip.MaxModels || got.Models[0] != "0" {
		t.Errorf("got %+v", got)
	}
}

func TestDecodeRumorRefuses(t *testing.T) {
	good := string(gossip.Rumor{Author: "a", Life: 1, Version: 1, Every: 500, Tree: treeOf("ab")}.AppendBinary(nil))
	changed := string(gossip.Rumor{Author: "a", Life: 1, Version: 2, Change: &gossip.Change{Since: 1, Come: []prefix.Hash{1, 2}}}.AppendBinary(nil))
	const change = "rumor of a: change: a field is cut short or beyond its limit, or its names are not in order"
	const field = "rumor: a field is cut short or beyond its limit"
	for _, test := range []struct{ name, data, want string }{
		{"nothing", "", "rumor: empty"},
		{"another format", "\x01" + good[1:], "rumor: format 1, this node reads 3: run one version on all nodes"},
		{"no author", "\x03\x00\x01\x01\x01\x00\x00\x00\x00\x00", field},
		{"author too long", "\x03\x81\x01" + strings.Repeat("a", 129) + good[3:], field},
		{"author not UTF-8", "\x03\x01\xff" + good[3:], field},
		{"author cut short", "\x03\x09abc", field},
		{"interval too long", "\x03\x01a\x01\x01\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x00", field},
		{"no tree", good[:19], "rumor of a: snapshot: no block count"},
		{"tree cut short", good[:len(good)-1], "rumor of a: snapshot: 2 blocks in 17 bytes"},
		{"more than a tree", good + "!", "rumor of a: snapshot: 1 bytes left over"},
		{"names twice", changed[:len(changed)-8] + changed[len(changed)-16:len(changed)-8], change},
		{"no name", changed[:len(changed)-16] + string(make([]byte, 8)) + changed[len(changed)-8:], change},
		{"names cut short", changed[:len(changed)-1], change},
		{"more than a change", changed + "!", change},
		{"a change of more names than may be", changed[:len(changed)-18] + "\xff\xff\xff\x7f\x00", change},
	} {
		if _, err := gossip.DecodeRumor([]byte(test.data)); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", test.name, err, test.want)
		}
	}
}

// Whatever the bytes, decoding does not panic, and what it gives says the same
// when it is sent on.
func FuzzDecodeRumor(f *testing.F) {
	f.Add([]byte{})
	f.Add(gossip.Rumor{Author: "a", Life: 1, Version: 1, Every: time.Second, Queue: 3, Pause: time.Second, Tokens: 99, Tree: treeOf("abc", "abd")}.AppendBinary(nil))
	f.Add(gossip.Rumor{Author: "a", Life: 1, Version: 2, Change: &gossip.Change{Since: 1, Gone: []prefix.Hash{4}, Come: []prefix.Hash{1, 2}, Blocks: 2}}.AppendBinary(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := gossip.DecodeRumor(data)
		if err != nil {
			return
		}
		if again, err := gossip.DecodeRumor(r.AppendBinary(nil)); err != nil || !same(r, again) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
