package workload

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/tokens"
)

// shared is a file or folder of the data sets, or the test is skipped.
func shared(t testing.TB, path ...string) string {
	t.Helper()
	name := filepath.Join(append([]string{"..", "..", "shared", "data"}, path...)...)
	if _, err := os.Stat(name); err != nil {
		t.Skipf("the data set is not at %s", name)
	}
	return name
}

func mustOpen(t testing.TB, c StreamConfig) *Stream {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hits is the share of prompt tokens, in percent, that caches without bounds
// on n nodes hold when requests go to the nodes in turn.
func hits(s *Stream, n int) float64 {
	caches := make([]map[prefix.Hash]bool, n)
	for i := range caches {
		caches[i] = map[prefix.Hash]bool{}
	}
	hit, all, i := 0, 0, 0
	for item := range s.Items() {
		cache := caches[i%n]
		i++
		all += item.Tokens
		miss := false
		for _, block := range item.Chain {
			miss = miss || !cache[block]
			if !miss {
				hit += s.BlockTokens
			}
			cache[block] = true
		}
	}
	return 100 * float64(hit) / float64(all)
}

// The hit rates of caches without bounds are those of an independent count
// over the block ids, for one cache and for 4 and 16 nodes in turn; and our own
// prompts have those of the streams made from the same data by others.
func TestHitRatesOfInfiniteCaches(t *testing.T) {
	for name, c := range map[string]struct {
		path   []string
		config StreamConfig
		want   [3]float64
		within float64
	}{
		"mmlu stream":             {[]string{"streams", "mmlu_uniform.b16.jsonl.gz"}, StreamConfig{Name: blockStream}, [3]float64{85.23, 83.50, 79.55}, .01},
		"mmlu skew stream":        {[]string{"streams", "mmlu_skew.b16.jsonl.gz"}, StreamConfig{Name: blockStream}, [3]float64{84.73, 79.32, 69.36}, .01},
		"mmlu skew repeat stream": {[]string{"streams", "mmlu_skew_repl.b16.jsonl.gz"}, StreamConfig{Name: blockStream}, [3]float64{94.32, 89.50, 81.82}, .01},
		"mooncake":                {[]string{"mooncake", "raw", "conversation_trace.jsonl"}, StreamConfig{Name: mooncake}, [3]float64{37.4, 19.6, 10.1}, .1},
		"mooncake, small blocks":  {[]string{"mooncake", "raw", "conversation_trace.jsonl"}, StreamConfig{Name: mooncake, BlockTokens: 128}, [3]float64{37.4, 19.6, 10.1}, .1},
		"mmlu":                    {[]string{"mmlu"}, StreamConfig{Name: uniform}, [3]float64{85.2, 83.5, 79.5}, .1},
		"mmlu-skewed":             {[]string{"mmlu"}, StreamConfig{Name: skewed, Seed: 1}, [3]float64{84.73, 79.32, 69.36}, 2.5},
		"bbh":                     {[]string{"bbh"}, StreamConfig{Name: bigBench}, [3]float64{91.17, 89.30, 84.80}, .1},
		"tot":                     {[]string{"tot"}, StreamConfig{Name: treeOfThoughts}, [3]float64{97.37, 97.04, 96.45}, .5},
		"bfcl":                    {[]string{"bfcl"}, StreamConfig{Name: bfclTurns}, [3]float64{96.19, 88.26, 69.64}, .5},
		"bfcl-live":               {[]string{"bfcl"}, StreamConfig{Name: bfclLive}, [3]float64{77.20, 58.72, 35.72}, 1.5},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Data = shared(t, c.path...)
			s := mustOpen(t, c.config)
			for i, n := range []int{1, 4, 16} {
				if got := hits(s, n); math.Abs(got-c.want[i]) > c.within {
					t.Errorf("%d nodes: %.2f %%, want %.2f", n, got, c.want[i])
				}
			}
		})
	}
}

// The paper's skewed figures, round robin 85.6 % and routed 91.4 %, come out
// when about 5,800 requests are drawn with repeats, topic first: one cache for
// all hits what routing by the longest match can at most. More requests hit
// more, and questions that come once each less. Which topics are hot moves all
// of it by a point or two; this seed's are like the paper's.
func TestSkewReadings(t *testing.T) {
	data := shared(t, "mmlu")
	for name, c := range map[string]struct {
		requests int
		repeats  bool
		rr4, one float64
	}{
		"5,800 with repeats":  {5800, true, 85.1, 91.6},
		"14,042 with repeats": {0, true, 89.5, 94.3},
		"without repeats":     {0, false, 79.3, 84.7},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustOpen(t, StreamConfig{Name: skewed, Data: data, Requests: c.requests, Repeats: c.repeats, ByTopic: c.repeats, Seed: 2})
			if rr4, one := hits(s, 4), hits(s, 1); math.Abs(rr4-c.rr4) > 1.1 || math.Abs(one-c.one) > 1.1 {
				t.Errorf("%d requests: four in turn hit %.1f %%, one %.1f %%; want about %.1f and %.1f", s.Len(), rr4, one, c.rr4, c.one)
			}
		})
	}
}

// Recorded sessions share what a count session by session finds, 95.2 %, and a
// little more: equal tools. Later rounds share the tools alone.
func TestSessions(t *testing.T) {
	s := mustOpen(t, StreamConfig{Name: claudeCode, Data: shared(t, "claude_code")})
	if s.BlockTokens != 64 || s.Len() != 2804 || !s.Timed {
		t.Fatalf("%d requests in blocks of %d", s.Len(), s.BlockTokens)
	}
	if got := hits(s, 1); got < 95.17 || got > 95.6 {
		t.Errorf("one cache hits %.2f %%", got)
	}
	var before Item
	for item := range s.Items() {
		if item.At < before.At || len(item.Chain) != item.Tokens/64 {
			t.Fatalf("%s comes at %s after %s, %d blocks of %d tokens", item.Topic, item.At, before.At, len(item.Chain), item.Tokens)
		}
		before = item
	}
	s.Requests *= 2
	first, again := s.Item(0).Chain, s.Item(2804).Chain
	common := 0
	for common < len(first) && first[common] == again[common] {
		common++
	}
	if common < 100 || common > 300 || slices.Contains(first, again[common]) { // of 9,000 to 16,000 tokens of tools and system prompt
		t.Errorf("a session's repeat has %d of %d blocks in common with it", common, len(first))
	}
}

// Our prompts have token by token the lengths of the stream that others made
// of MMLU, subject by subject.
func TestTokensAreThoseOfTheStream(t *testing.T) {
	lengths := func(s *Stream) map[string][]int {
		all := map[string][]int{}
		for item := range s.Items() {
			all[item.Topic] = append(all[item.Topic], item.Tokens)
		}
		for _, l := range all {
			slices.Sort(l)
		}
		return all
	}
	want := lengths(mustOpen(t, StreamConfig{Name: "stream:" + shared(t, "streams", "mmlu_uniform.b16.jsonl.gz")}))
	if got := lengths(mustOpen(t, StreamConfig{Name: uniform, Data: shared(t, "mmlu")})); !reflect.DeepEqual(got, want) {
		t.Error("the lengths differ")
	}
}

// A prompt encoded in pieces has the tokens of the whole.
func TestPiecesEncodeAsTheWhole(t *testing.T) {
	w := mustNew(t, Config{Name: uniform, Data: realMMLU(t), Requests: 200, Seed: 5})
	for i, p := range w.picks {
		topic := w.subjects[p.subject]
		pieces := append(tokens.CL100K(topic.prefix), tokens.CL100K(topic.questions[p.question])...)
		if !slices.Equal(pieces, tokens.CL100K(w.Request(i).Prompt)) {
			t.Errorf("%s, question %d", topic.name, p.question)
		}
	}
}

// Without data, prompts have the tokens of the real ones in the mean, and hit
// as they do within two points: real questions share passages, too.
func TestSyntheticTokens(t *testing.T) {
	synthetic := mustOpen(t, StreamConfig{Name: uniform})
	if !strings.Contains(synthetic.Source, "synthetic") {
		t.Errorf("the source is %q", synthetic.Source)
	}
	mean := func(s *Stream) float64 {
		sum := 0
		for item := range s.Items() {
			sum += item.Tokens
		}
		return float64(sum) / float64(s.Len())
	}
	real := mustOpen(t, StreamConfig{Name: uniform, Data: shared(t, "mmlu")})
	if got, want := mean(synthetic), mean(real); math.Abs(got-want) > 7 {
		t.Errorf("a synthetic prompt has %.1f tokens in the mean, a real one %.1f", got, want)
	}
	for _, n := range []int{1, 4, 16} {
		if got, want := hits(synthetic, n), hits(real, n); math.Abs(got-want) > 2 {
			t.Errorf("%d nodes hit %.1f %% of synthetic tokens, %.1f of real ones", n, got, want)
		}
	}
}

// A Stream asks what the HTTP workload of the same name, size and seed sends.
func TestStreamIsTheHTTPWorkload(t *testing.T) {
	for _, name := range []string{uniform, skewed} {
		for _, repeats := range []bool{false, true} {
			w := mustNew(t, Config{Name: name, Requests: 300, Seed: 7, Repeats: repeats})
			s := mustOpen(t, StreamConfig{Name: name, Requests: 300, Seed: 7, Repeats: repeats})
			for i := range 300 {
				text := w.Request(i)
				item := s.Item(i)
				if tokens := w.subjects[w.picks[i].subject]; item.Topic != text.Topic || item.Tokens != len(cutSynthetic(tokens.prefix))+len(cutSynthetic(tokens.questions[w.picks[i].question])) {
					t.Fatalf("%s: request %d is %+v, not of %q", name, i, item, text.Topic)
				}
			}
		}
	}
}

// The same configuration gives the same items, another seed others.
func TestSeedDecidesTheItems(t *testing.T) {
	sessions := folder(t, map[string]string{
		"a.json": `{"block_size":64,"requests":[{"t":0,"in":64,"out":2,"hash_ids":[1]},{"t":3.5,"in":130,"out":2,"hash_ids":[1,2]}]}`,
		"b.json": `{"block_size":64,"requests":[{"t":0,"in":64,"out":2,"hash_ids":[1]}]}`,
	})
	for _, c := range []StreamConfig{
		{Name: uniform, Requests: 50},
		{Name: skewed, Requests: 50},
		{Name: skewed, Requests: 50, Repeats: true},
		{Name: claudeCode, Data: sessions, Requests: 50},
	} {
		one, again := slices.Collect(mustOpen(t, c).Items()), slices.Collect(mustOpen(t, c).Items())
		c.Seed++
		other := slices.Collect(mustOpen(t, c).Items())
		if len(one) != 50 || !reflect.DeepEqual(one, again) || reflect.DeepEqual(one, other) {
			t.Errorf("%+v: the items are not a matter of the seed", c)
		}
	}
}

// Two requests have the first k names of blocks in common if and only if the
// first k blocks of their tokens are equal, for every size of blocks.
func TestChainsAgreeAsFarAsTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.SampledFrom([]int{1, 2, 3, 16}).Draw(t, "block")
		row := rapid.SliceOfN(rapid.Uint32Range(0, 1), 0, 40)
		one := func(label string) (sequence, []uint32) {
			head, tail := row.Draw(t, label+" head"), row.Draw(t, label+" tail")
			return sequence{head: head, tail: tail, tokens: len(head) + len(tail)}, slices.Concat(head, tail)
		}
		a, tokensA := one("a")
		b, tokensB := one("b")
		chainA, chainB := a.chain(1, block, 0), b.chain(1, block, 0)
		if len(chainA) != len(tokensA)/block {
			t.Fatalf("%d tokens have %d blocks of %d", len(tokensA), len(chainA), block)
		}
		for k := 1; k <= min(len(chainA), len(chainB)); k++ {
			if same := slices.Equal(tokensA[:k*block], tokensB[:k*block]); same != slices.Equal(chainA[:k], chainB[:k]) {
				t.Fatalf("blocks 1 to %d: tokens equal is %t", k, same)
			}
		}
	})
}

// A trace's blocks can be split and joined: requests then share the same tokens,
// but for what does not fill a larger block.
func TestBlocksSplitAndJoin(t *testing.T) {
	file := filepath.Join(folder(t, map[string]string{"x.b64.jsonl": `{"hash_ids":[1,2,3],"input_length":150}
{"hash_ids":[1,2,4],"input_length":191}
{"hash_ids":[2],"input_length":64}`}), "x.b64.jsonl")
	for block, want := range map[int][]int{ // blocks of each, shared by the first two
		1: {150, 191, 64, 128}, 16: {9, 11, 4, 8}, 64: {2, 2, 1, 2}, 128: {1, 1, 0, 1}, 192: {0, 0, 0, 0},
	} {
		s := mustOpen(t, StreamConfig{Name: "stream:" + file, BlockTokens: block})
		a, b, c := s.Item(0).Chain, s.Item(1).Chain, s.Item(2).Chain
		common := 0
		for common < min(len(a), len(b)) && a[common] == b[common] {
			common++
		}
		if got := []int{len(a), len(b), len(c), common}; !slices.Equal(got, want) {
			t.Errorf("blocks of %d: %v, want %v", block, got, want)
		}
		if len(c) > 0 && slices.Contains(a, c[0]) {
			t.Error("a block that begins a prompt has the name of one that does not")
		}
	}
	if _, err := Open(StreamConfig{Name: "stream:" + file, BlockTokens: 48}); err == nil || !strings.Contains(err.Error(), "multiple or a divisor") {
		t.Errorf("blocks of 48 from 64: error %v", err)
	}
}

// A repeat shares with the round before what others share, and nothing else;
// within a round all is as in the first. Arrivals go on.
func TestRepeatsHaveFreshTails(t *testing.T) {
	file := filepath.Join(folder(t, map[string]string{"x.b16.jsonl": `{"hash_ids":[1,2],"input_length":32,"timestamp":1000}
{"hash_ids":[1,2,3],"input_length":48,"timestamp":1500}
{"hash_ids":[1,4],"input_length":40,"timestamp":3000,"output_length":7}`}), "x.b16.jsonl")
	s := mustOpen(t, StreamConfig{Name: "stream:" + file, Requests: 9, Output: 3})
	all := slices.Collect(s.Items())
	for i, item := range all {
		first := all[i%3]
		if item.Chain[0] != first.Chain[0] || item.Tokens != first.Tokens {
			t.Errorf("item %d does not begin like item %d", i, i%3)
		}
		if i >= 3 && (slices.Contains(first.Chain, item.Chain[1]) || slices.Contains(all[i-3].Chain, item.Chain[1])) {
			t.Errorf("the tail of item %d is not fresh", i)
		}
		if want := all[i/3*3].Chain; i%3 == 1 && !slices.Equal(item.Chain[:2], want) {
			t.Errorf("item %d does not go on from the one before", i)
		}
		if want := []int{3, 3, 7}[i%3]; item.Output != want {
			t.Errorf("item %d has %d tokens to generate, want %d", i, item.Output, want)
		}
		if want := time.Duration([]int{0, 500, 2000}[i%3]+i/3*3000) * time.Millisecond; item.At != want || !s.Timed {
			t.Errorf("item %d comes at %s, want %s", i, item.At, want)
		}
	}
	questions := mustOpen(t, StreamConfig{Name: uniform, Requests: 14043})
	first, again := questions.Item(0), questions.Item(14042)
	if first.Topic != again.Topic || first.Tokens != again.Tokens || first.Chain[0] != again.Chain[0] || first.Chain[len(first.Chain)-1] == again.Chain[len(again.Chain)-1] {
		t.Error("the 14,043rd question is not the first one with a fresh tail")
	}
}

// A source that begins again hits about as it does once: neither does all of it
// come back, nor does a repeat lose what requests share by design.
func TestRepeatsHitAsTheSource(t *testing.T) {
	for name, s := range map[string]*Stream{
		"mooncake": mustOpen(t, StreamConfig{Name: "mooncake:" + shared(t, "mooncake", "raw", "conversation_trace.jsonl")}),
		"mmlu":     mustOpen(t, StreamConfig{Name: "stream:" + shared(t, "streams", "mmlu_uniform.b16.jsonl.gz")}),
		"bfcl":     mustOpen(t, StreamConfig{Name: "stream:" + shared(t, "streams", "bfcl_multiturn.b16.jsonl.gz")}),
	} {
		once := hits(s, 1)
		s.Requests *= 5
		if got := hits(s, 1); got < once-.1 || got > once+2.5 {
			t.Errorf("%s hits %.1f %% once and %.1f %% over five times", name, once, got)
		}
	}
}

// Arrivals of Azure's traces replace a source's own, and go round.
func TestArrivals(t *testing.T) {
	dir := folder(t, map[string]string{
		"2023.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,3180,8\n",
		"2024.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1,1\n2024-05-10 00:00:00.509930+00:00,1,1\n",
		"head.csv": "time\n2023-11-16 18:17:03\n",
		"word.csv": "TIMESTAMP\n2023-11-16 18:17:03\nnoon\n",
		"back.csv": "TIMESTAMP\n2023-11-16 18:17:03\n2023-11-16 18:17:02\n",
		"none.csv": "TIMESTAMP\n",
		"cols.csv": "TIMESTAMP,a\n2023-11-16 18:17:03\n",
	})
	for _, file := range []string{"2023.csv", "2024.csv"} {
		s := mustOpen(t, StreamConfig{Name: uniform, Requests: 5, Arrivals: filepath.Join(dir, file)})
		for i, want := range []int{0, 500, 1000, 1500, 2000} {
			if at := s.Item(i).At; at != time.Duration(want)*time.Millisecond {
				t.Errorf("%s: item %d comes at %s, want %d ms", file, i, at, want)
			}
		}
	}
	for file, want := range map[string]string{
		"head.csv": `line 1: the first column is "time"`, "word.csv": `line 3: "noon" is no time`, "back.csv": "line 3: 2023-11-16 18:17:02 does not follow",
		"none.csv": "no rows", "cols.csv": "line 2: wrong number of fields", "gone.csv": "no such file",
	} {
		_, err := Open(StreamConfig{Name: uniform, Requests: 5, Arrivals: filepath.Join(dir, file)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: error %v does not say %q", file, err, want)
		}
	}
	code := mustOpen(t, StreamConfig{Name: uniform, Arrivals: shared(t, "azure_llm", "raw", "AzureLLMInferenceTrace_code.csv")})
	if at := code.Item(8818).At; at.Round(time.Second) != 57*time.Minute+16*time.Second {
		t.Errorf("the last of Azure's requests comes at %s", at)
	}
}
