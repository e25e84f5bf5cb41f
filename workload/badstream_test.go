package workload

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// badStreams are files and folders that are no data, but for those named good.
func badStreams(t *testing.T) string {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	fmt.Fprintln(w, `{"hash_ids":[1],"input_length":16}`)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return folder(t, map[string]string{
		"good.b16.jsonl":                    `{"hash_ids":[1],"input_length":16}`,
		"good.b16.jsonl.gz":                 packed.String(),
		"nameless.jsonl":                    `{"hash_ids":[1],"input_length":16}`,
		"json.b16.jsonl":                    "{\"hash_ids\":[1],\"input_length\":16}\n\n{\"hash_ids\":",
		"type.b16.jsonl":                    `{"hash_ids":["a"],"input_length":16}`,
		"negative.b16.jsonl":                `{"hash_ids":[-1],"input_length":16}`,
		"few.b16.jsonl":                     `{"hash_ids":[1],"input_length":50}`,
		"many.b16.jsonl":                    `{"hash_ids":[1,2,3],"input_length":16}`,
		"zero.b16.jsonl":                    `{"hash_ids":[],"input_length":0}`,
		"output.b16.jsonl":                  `{"hash_ids":[1],"input_length":16,"output_length":-1}`,
		"endless.b16.jsonl":                 `{"hash_ids":[1],"input_length":16,"output_length":9223372036854775807}`,
		"long.b65536.jsonl":                 `{"hash_ids":[` + strings.Repeat("1,", 256) + `1],"input_length":16842752}`,
		"folder.b16.jsonl/x":                "",
		"time.b16.jsonl":                    "{\"hash_ids\":[1],\"input_length\":16,\"timestamp\":9}\n{\"hash_ids\":[1],\"input_length\":16,\"timestamp\":8}",
		"year.b16.jsonl":                    `{"hash_ids":[1],"input_length":16,"timestamp":1e300}`,
		"empty.b16.jsonl":                   "\n",
		"text.b16.jsonl.gz":                 "not packed",
		"torn.b16.jsonl.gz":                 packed.String()[:packed.Len()-9],
		"sessions/a.json":                   `{"block_size":64,"requests":[{"t":0,"in":64,"hash_ids":[1]},{"t":1,"in":300,"hash_ids":[1]}]}`,
		"sizes/a.json":                      `{"block_size":64,"requests":[]}`,
		"sizes/b.json":                      `{"block_size":32,"requests":[]}`,
		"torn/a.json":                       "{\n\"block_size\":64,\n\"requests\":[",
		"idle/a.json":                       `{"block_size":64,"requests":[]}`,
		"bbh/a.json":                        `{"examples":[{"input":"q"}]}`,
		"void/a.json":                       `{"examples":[]}`,
		"void/a.txt":                        "x",
		"tot/prompts.json":                  `{"propose_prompt":"a"}`,
		"tot/log.json":                      `[]`,
		"bfcl/system_prompt.txt":            "{functions}",
		"bfcl/BFCL_v4_multi_turn_base.json": `{"id":"a","question":[[{"role":"user","content":"x"}]],"involved_classes":["Gone"]}`,
		"bfcl/possible_answer_BFCL_v4_multi_turn_base.json": `{"id":"a","ground_truth":[["f()"]]}`,
		"bfcl/BFCL_v4_live_multiple.json":                   "{\"id\":\"a\",\"question\":[]}",
		"mute/system_prompt.txt":                            "{functions}",
		"mute/BFCL_v4_multi_turn_base.json":                 `{"id":"a","question":[[{"role":"user","content":"x"}]],"involved_classes":["Gone"]}`,
		"mute/possible_answer_BFCL_v4_multi_turn_base.json": `{"id":"b","ground_truth":[]}`,
	})
}

// What is wrong with a file is said in one sentence that names it and the line.
func TestBadStreamsAreNamed(t *testing.T) {
	dir := badStreams(t)
	for name, want := range map[string]string{
		"stream:good.b16.jsonl": "", "stream:good.b16.jsonl.gz": "", "mooncake:nameless.jsonl": "", // one block of 16 tokens makes none of 512
		"stream:nameless.jsonl":     "name it like trace.b16.jsonl",
		"stream:json.b16.jsonl":     "line 3: unexpected end",
		"stream:type.b16.jsonl":     "line 1: json: cannot unmarshal string",
		"stream:negative.b16.jsonl": "line 1: json: cannot unmarshal number -1",
		"stream:few.b16.jsonl":      "line 1: 1 hash_ids do not make an input_length of 50 in blocks of 16 tokens",
		"stream:many.b16.jsonl":     "line 1: 3 hash_ids do not make",
		"stream:zero.b16.jsonl":     "line 1: 0 hash_ids do not make an input_length of 0",
		"stream:output.b16.jsonl":   "line 1: an input_length of 16 and an output_length of -1; both have at most",
		"stream:endless.b16.jsonl":  "an output_length of 9223372036854775807",
		"stream:long.b65536.jsonl":  "an input_length of 16842752",
		"stream:folder.b16.jsonl":   "is a directory",
		"stream:time.b16.jsonl":     "line 2: the timestamp 8 goes back; sort",
		"stream:year.b16.jsonl":     "line 1: a timestamp of 1e+300 ms",
		"stream:empty.b16.jsonl":    "holds no request",
		"stream:text.b16.jsonl.gz":  "gzip: invalid header",
		"stream:torn.b16.jsonl.gz":  "line 2: unexpected EOF",
		"stream:gone.b16.jsonl":     "no such file",
		"claude-code:sessions":      "a.json: request 2: 1 hash_ids do not make 300 tokens",
		"claude-code:sizes":         "b.json: a block_size of 32",
		"claude-code:torn":          "a.json, line 3: unexpected end",
		"claude-code:idle":          "hold no request",
		"claude-code:gone":          "gone holds no *.json or *.json.gz; name the folder",
		"bbh:bbh":                   "every task needs NAME.json and NAME.txt",
		"bbh:void":                  "a.json has no examples",
		"tot:tot":                   "has no place for {input}",
		"bfcl:bfcl":                 `base.json, line 1: unknown class of tools "Gone"`,
		"bfcl:mute":                 "line 1: task \"a\" has 1 turns, and answers to 0",
		"bfcl-live:bfcl":            "multiple.json, line 1: task \"a\" asks no question",
	} {
		t.Run(name, func(t *testing.T) {
			kind, file, _ := strings.Cut(name, ":")
			_, err := Open(StreamConfig{Name: kind, Data: filepath.Join(dir, file)})
			switch {
			case want == "" && err != nil:
				t.Error(err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error %v does not say %q", err, want)
			}
		})
	}
}

// Everything that is wrong with a configuration is said at once.
func TestStreamConfigProblems(t *testing.T) {
	for want, c := range map[string]StreamConfig{
		`unknown workload "x"; choose mmlu, mmlu-skewed, or one of bbh`: {Name: "x", Requests: -1},
		"-1 requests make no workload":                                  {Name: "x", Requests: -1},
		"9223372036854775807 requests make no workload":                 {Name: "mmlu", Requests: math.MaxInt, Repeats: true},
		"workload tot needs its data; write tot:PATH":                   {Name: "tot"},

		"leave out --data":      {Name: "tot:a", Data: "b"},
		"leave out --repeats":   {Name: "tot:a", Repeats: true},
		"a block of -1 tokens":  {Name: "mmlu", BlockTokens: -1},
		"-2 tokens to generate": {Name: "mmlu", Output: -2},
	} {
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v does not say %q", c, err, want)
		}
	}
}

// Whatever a file of block ids holds, it is read or refused with its name; what
// is read makes chains no longer than its prompts.
func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(`{"group":"a","hash_ids":[1,2,3],"input_length":33,"output_length":5,"timestamp":1.5}`), 16)
	f.Add([]byte("{\"hash_ids\":[18446744073709551615],\"input_length\":1}\n{\"hash_ids\":[],\"input_length\":1}"), 512)
	f.Add([]byte("{\"hash_ids\":[1],\"input_length\":9223372036854775807}\n"), 1)
	f.Fuzz(func(t *testing.T, text []byte, unit int) {
		if unit < 1 || unit > maxBlockTokens {
			return
		}
		all, err := readTrace(bytes.NewReader(text), "the file", unit)
		if err != nil {
			if !strings.Contains(err.Error(), "the file") || all != nil {
				t.Fatalf("%d sequences and error %v", len(all), err)
			}
			return
		}
		for i := range all {
			q := &all[i]
			for _, round := range []uint64{0, 1} {
				if n := len(q.chain(unit, unit, round)); n != q.tokens/unit {
					t.Fatalf("%d tokens make %d blocks of %d", q.tokens, n, unit)
				}
			}
			if q.at < 0 || i > 0 && q.at < all[i-1].at {
				t.Fatalf("request %d comes at %s", i, q.at)
			}
		}
	})
}

// What a request costs: the names of its blocks, at 16 tokens and at one.
func BenchmarkItem(b *testing.B) {
	for _, block := range []int{16, 1} {
		b.Run(fmt.Sprintf("block=%d", block), func(b *testing.B) {
			s := mustOpen(b, StreamConfig{Name: uniform, BlockTokens: block})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Item(i % s.Len())
			}
		})
	}
}
