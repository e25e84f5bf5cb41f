package kvevents

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"
)

// frame reads a recorded batch: hex with a comment for each field.
func frame(t testing.TB, name string) (payload []byte) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		code, _, _ := strings.Cut(lines.Text(), "#")
		b, err := hex.DecodeString(strings.TrimSpace(code))
		if err != nil {
			t.Fatal(err)
		}
		payload = append(payload, b...)
	}
	return payload
}

func named(b ...byte) uint64 { return xxh3.Hash(b) }

// span is the bytes from one up to, but not including, another.
func span(from, to byte) (b []byte) {
	for ; from < to; from++ {
		b = append(b, from)
	}
	return b
}

// Both shapes of both engines, of all the versions that this project was told of.
func TestRecordedFrames(t *testing.T) {
	minus := func(n int64) uint64 { return uint64(n) }
	a, b := named(span(0, 32)...), named(span(1, 33)...)
	picture, _ := msgpack.Marshal([]string{"sql-lora", "picture-1"})
	for name, want := range map[string][]Event{
		"vllm-map": {
			{
				Kind: Stored, Counts: true, Hashes: []uint64{15760518052499183552}, BlockSize: 16, Extra: []uint64{0},
				Tokens: []uint32{151644, 872, 198, 9064, 374, 279, 6722, 315, 5616, 30, 151645, 198, 151644, 77091, 198, 151667},
			},
		},
		"vllm-array": {
			{Kind: Stored, Counts: true, Hashes: []uint64{7001, 7002}, BlockSize: 4, Tokens: []uint32{10, 11, 12, 13, 14, 15, 16, 17}},
			{Kind: Stored, Counts: true, Hashes: []uint64{7003}, Parent: 7002, HasParent: true, BlockSize: 4, Tokens: []uint32{18, 19, 20, 21}},
			{Kind: Removed, Counts: true, Hashes: []uint64{7002}},
		},
		"vllm-array-full": {
			{
				Kind: Stored, Counts: true, Hashes: []uint64{a, b}, BlockSize: 4, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8},
				Adapter: "sql-lora", Salt: "tenant-a", Extra: []uint64{0, xxh3.Hash(picture)},
			},
			{Kind: Stored, Hashes: []uint64{named(span(2, 34)...)}, BlockSize: 4, Tokens: []uint32{1, 2, 3, 4}, Adapter: "sql-lora", Group: 1},
			{Kind: Stored, Hashes: []uint64{named(span(3, 35)...)}, BlockSize: 4},
			{Kind: Removed, Counts: true, Hashes: []uint64{b}},
			{Kind: Cleared, Counts: true},
		},
		"sglang-array": {
			{Kind: Stored, Counts: true, Hashes: []uint64{minus(-6148914691236517206)}, BlockSize: 1, Tokens: []uint32{42}},
			{Kind: Stored, Counts: true, Hashes: []uint64{3074457345618258602}, Parent: minus(-6148914691236517206), HasParent: true, BlockSize: 1, Tokens: []uint32{43}},
			{Kind: Stored, Counts: true, Hashes: []uint64{minus(-1)}, BlockSize: 1, Tokens: []uint32{42}, Salt: "tenant-a"},
			{Kind: Stored, Hashes: []uint64{5}, BlockSize: 1, Tokens: []uint32{42}},
			{Kind: Removed, Counts: true, Hashes: []uint64{3074457345618258602}},
		},
		"sglang-map": {
			{Kind: Stored, Counts: true, Hashes: []uint64{minus(-2), minus(-3)}, BlockSize: 2, Tokens: []uint32{1, 2, 3, 4}, Salt: "tenant-a"},
			{Kind: Removed, Counts: true, Hashes: []uint64{minus(-3)}},
			{Kind: Cleared, Counts: true},
		},
		"odd": {
			{Kind: Stored, Counts: true, Hashes: []uint64{8, 9}, BlockSize: 1, Tokens: []uint32{1, 2}},
			{Kind: Unknown, Hashes: []uint64{8}},
			{Kind: Unknown},
		},
	} {
		var d Decoder
		for range 2 { // it keeps its buffers
			got, err := d.Decode(frame(t, name))
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
			}
		}
	}
}

// What is written here is read as it was.
func TestEncodedIsDecoded(t *testing.T) {
	want := []Event{
		{Kind: Stored, Counts: true, Hashes: []uint64{1, 1 << 63}, BlockSize: 2, Tokens: []uint32{1, 200, 70_000, 1 << 31}, Adapter: "a", Salt: "s"},
		{Kind: Stored, Counts: true, Hashes: []uint64{7}, Parent: 1 << 63, HasParent: true, BlockSize: 1, Tokens: []uint32{0}, Group: 3},
		{Kind: Removed, Counts: true, Hashes: []uint64{7, 1}, Group: 3},
		{Kind: Cleared, Counts: true},
		{Kind: Unknown},
	}
	got, err := new(Decoder).Decode(AppendBatch(nil, time.Unix(1, 5), want))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// SGLang with EAGLE writes tokens in pairs with the next ones, and older versions of both
// name an adapter by its number. Null is as good as nothing.
func TestRareFieldsOfEvents(t *testing.T) {
	payload, _ := msgpack.Marshal([]any{1.0, []any{
		[]any{"BlockStored", []any{1, 2}, nil, []any{[]any{10, 11}, []any{11, 12}}, 1, nil, "GPU"},
		[]any{"BlockStored", []any{3}, nil, []any{10}, 1, 7, "GPU"},
		map[string]any{
			"type": "BlockStored", "block_hashes": []any{4}, "parent_block_hash": 3, "token_ids": []any{13}, "block_size": 1,
			"lora_id": nil, "lora_name": nil, "medium": nil, "locality": nil, "extra_keys": nil, "group_idx": nil, "metadata": nil, "cache_salt": nil, "kv_cache_spec_kind": nil,
		},
		map[string]any{"type": "BlockStored", "block_hashes": []any{5}, "parent_block_hash": nil, "token_ids": []any{14}, "block_size": 1, "locality": "REMOTE"},
	}, nil})
	want := []Event{
		{Kind: Stored, Counts: true, Hashes: []uint64{1, 2}, BlockSize: 1, Tokens: []uint32{10, 11}},
		{Kind: Stored, Counts: true, Hashes: []uint64{3}, BlockSize: 1, Tokens: []uint32{10}, Adapter: "#7"},
		{Kind: Stored, Counts: true, Hashes: []uint64{4}, Parent: 3, HasParent: true, BlockSize: 1, Tokens: []uint32{13}},
		{Kind: Stored, Hashes: []uint64{5}, BlockSize: 1, Tokens: []uint32{14}},
	}
	got, err := new(Decoder).Decode(payload)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// What is cut off, or not what a field is, makes the whole batch unreadable: half of
// it could be a removal.
func TestBrokenBatchesAreRefused(t *testing.T) {
	whole := frame(t, "vllm-array-full")
	var d Decoder
	for n := range whole {
		if _, err := d.Decode(whole[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are read as a batch", n, len(whole))
		}
	}
	deep := bytes.Repeat([]byte{0x91}, 10<<20)
	for name, batch := range map[string]any{
		"no array":            "batch",
		"too short":           []any{1.0},
		"a map of others":     map[string]any{"ts": 1.0, "happenings": []any{}},
		"an event is text":    []any{1.0, []any{"BlockStored"}},
		"an event is empty":   []any{1.0, []any{[]any{}}},
		"hashes are no list":  []any{1.0, []any{[]any{"BlockRemoved", 7}}},
		"a hash is a map":     []any{1.0, []any{[]any{"BlockRemoved", []any{map[string]any{}}}}},
		"a token is negative": []any{1.0, []any{[]any{"BlockStored", []any{1}, nil, []any{-1}, 1, nil}}},
		"a token is huge":     []any{1.0, []any{[]any{"BlockStored", []any{1}, nil, []any{1 << 40}, 1, nil}}},
		"a token is a triple": []any{1.0, []any{[]any{"BlockStored", []any{1}, nil, []any{[]any{1, 2, 3}}, 1, nil}}},
		"a size is text":      []any{1.0, []any{[]any{"BlockStored", []any{1}, nil, []any{1}, "1", nil}}},
		"too deep":            msgpack.RawMessage(append([]byte{0x92}, deep...)),
	} {
		payload, err := msgpack.Marshal(batch)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.Decode(payload); err == nil {
			t.Errorf("%s: read as %v", name, got)
		}
	}
	if _, err := d.Decode(append(whole, 0xc0)); err == nil {
		t.Error("a batch with a byte after it is read")
	}
}

// A block whose tokens are not told, or not all, has no name. It is not an error.
func TestBlocksWithoutTheirTokensDoNotCount(t *testing.T) {
	for _, event := range [][]any{
		{"BlockStored", []any{1}, nil, []any{}, 16, nil},
		{"BlockStored", []any{1}, nil, []any{1, 2, 3, 4}, 2, nil}, // sparse, as of Mamba layers
		{"BlockStored", []any{1, 2}, nil, []any{1}, 0, nil},
		{"BlockStored", []any{1}, nil, []any{1}, -1, nil},
		{"BlockStored", []any{1}, nil, []any{1}, 1, nil, "DISK"},
		{"BlockStored", []any{1, 2}, nil, []any{1, 2}, 1, nil, "GPU", nil, []any{nil}},
	} {
		payload, _ := msgpack.Marshal([]any{1.0, []any{event}})
		got, err := new(Decoder).Decode(payload)
		if err != nil || len(got) != 1 || got[0].Counts {
			t.Errorf("%v: %v, %v", event, got, err)
		}
	}
}

// A batch of any bytes costs no more memory than some times its own.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"vllm-map", "vllm-array", "vllm-array-full", "sglang-array", "sglang-map", "odd"} {
		f.Add(frame(f, name))
	}
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	var d Decoder
	c := NewCache(nil)
	f.Fuzz(func(t *testing.T, payload []byte) {
		events, err := d.Decode(payload)
		if err != nil {
			return
		}
		for _, e := range events {
			if e.Counts && e.Kind == Stored && (len(e.Tokens) != len(e.Hashes)*e.BlockSize || e.Extra != nil && len(e.Extra) != len(e.Hashes)) {
				t.Fatalf("%+v does not add up", e)
			}
		}
		c.Apply(0, events)
		c.Clear(0)
		if s := c.Stats(); s.Blocks != 0 {
			t.Fatalf("%d blocks are left when all is cleared", s.Blocks)
		}
	})
}
