package workload

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// realMMLU is the data set, or the test is skipped.
func realMMLU(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("..", "..", "shared", "data", "mmlu")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the MMLU data set is not at %s", dir)
	}
	return dir
}

// folder writes files by name and returns the folder that holds them.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const fiveAnswered = `One?,1,2,3,4,A
Two?,1,2,3,4,B
"Three, or ""3""?",1,2,3,4,C
Four?,1,2,3,4,D
Five?,5,"6, 7",8,9,A
Sixth is not a shot?,1,2,3,4,A
`

func mustNew(t *testing.T, c Config) *Workload {
	t.Helper()
	w, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func requests(w *Workload) []Request {
	var all []Request
	for i := range w.Len() {
		all = append(all, w.Request(i))
	}
	return all
}

// A prompt is the standard form of MMLU, letter by letter.
func TestPromptIsTheStandardForm(t *testing.T) {
	w := mustNew(t, Config{Name: uniform, Requests: 1, Data: folder(t, map[string]string{
		"dev/high_school_sums_dev.csv":   fiveAnswered,
		"test/high_school_sums_test.csv": "\"What is 1+1,\nexactly?\",1,2,3,4,B\n",
	})})
	want := Request{
		Topic: "high_school_sums",
		Prompt: `The following are multiple choice questions (with answers) about  high school sums.

One?
A. 1
B. 2
C. 3
D. 4
Answer: A

Two?
A. 1
B. 2
C. 3
D. 4
Answer: B

Three, or "3"?
A. 1
B. 2
C. 3
D. 4
Answer: C

Four?
A. 1
B. 2
C. 3
D. 4
Answer: D

Five?
A. 5
B. 6, 7
C. 8
D. 9
Answer: A

What is 1+1,
exactly?
A. 1
B. 2
C. 3
D. 4
Answer:`,
	}
	if got := w.Request(0); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// What is wrong with the data is said with its file, its line and the remedy.
func TestBadDataIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"no folder":  {nil, []string{"no MMLU in ", "--data"}},
		"no test":    {map[string]string{"dev/a_dev.csv": fiveAnswered}, []string{"a_test.csv", "no such file"}},
		"few shots":  {map[string]string{"dev/a_dev.csv": "Q,1,2,3,4,A\n"}, []string{"a_dev.csv has 1 questions", "5"}},
		"columns":    {map[string]string{"dev/a_dev.csv": fiveAnswered, "test/a_test.csv": "Q,1,2,3,4,A\nQ,1,2\n"}, []string{"a_test.csv: record on line 2: wrong number of fields", "four choices"}},
		"answer":     {map[string]string{"dev/a_dev.csv": fiveAnswered, "test/a_test.csv": "Q,1,2,3,4,A\n\"Q\nq\",1,2,3,4,E\n"}, []string{"a_test.csv: record on line 3", `"E"`}},
		"header":     {map[string]string{"dev/a_dev.csv": "question,A,B,C,D,answer\n" + fiveAnswered}, []string{"a_dev.csv: record on line 1", "without a header"}},
		"quotes":     {map[string]string{"dev/a_dev.csv": `a "b" c,1,2,3,4,A`}, []string{"a_dev.csv: parse error on line 1"}},
		"empty test": {map[string]string{"dev/a_dev.csv": fiveAnswered, "test/a_test.csv": ""}, []string{"a_test.csv is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{Name: uniform, Requests: 1, Data: folder(t, c.files)})
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v does not say %q", err, want)
				}
			}
		})
	}
}

// The whole test set is there: 57 subjects, 14,042 questions, each once.
func TestUniformTakesEveryQuestionOnce(t *testing.T) {
	t.Run("synthetic", func(t *testing.T) { everyQuestionOnce(t, "") })
	t.Run("real", func(t *testing.T) { everyQuestionOnce(t, realMMLU(t)) })
}

func everyQuestionOnce(t *testing.T, data string) {
	w := mustNew(t, Config{Name: uniform, Data: data, Requests: 14042, Seed: 3})
	topics, picks, bytes := map[string]int{}, map[pick]bool{}, 0
	for i, r := range requests(w) {
		topics[r.Topic]++
		picks[w.picks[i]] = true
		bytes += len(r.Prompt)
	}
	if len(topics) != 57 || len(picks) != 14042 {
		t.Errorf("%d topics, %d questions; want 57 and 14042", len(topics), len(picks))
	}
	if mean := float64(bytes) / 14042; math.Abs(mean-3028) > 30 {
		t.Errorf("a prompt has %.0f bytes in the mean, want 3028", mean)
	}
	if slices.IsSortedFunc(w.picks, func(a, b pick) int { return int(a.subject - b.subject) }) {
		t.Error("the order is not shuffled")
	}
	if _, err := New(Config{Name: uniform, Data: data, Requests: 14043}); err == nil || !strings.Contains(err.Error(), "--repeats") {
		t.Errorf("more requests than questions: error %v", err)
	}
}

// The numbers that the synthetic set is made from are those of the real one.
func TestShapeIsMeasured(t *testing.T) {
	subjects, err := readMMLU(realMMLU(t))
	if err != nil {
		t.Fatal(err)
	}
	var measured []int
	var ratios []float64
	for _, s := range subjects {
		sum := 0
		for _, q := range s.questions {
			sum += len(q)
		}
		mean := float64(sum) / float64(len(s.questions))
		measured = append(measured, len(s.questions), len(s.prefix), int(math.Round(mean)))
		for _, q := range s.questions {
			ratios = append(ratios, float64(len(q))/mean)
		}
	}
	if !slices.Equal(measured, shape) {
		t.Errorf("shape is\n%v, measured\n%v", shape, measured)
	}
	slices.Sort(ratios)
	for i, at := range spreadAt[:len(spreadAt)-1] {
		got := ratios[int(math.Round(at*float64(len(ratios)-1)))]
		if math.Abs(got-spread[i]) > .006 {
			t.Errorf("quantile %g is %.3f, measured %.3f", at, spread[i], got)
		}
	}
}

// The synthetic prompts have the shape of the real: prefix by prefix the same
// bytes, and the same median question.
func TestSyntheticHasTheShape(t *testing.T) {
	var sizes []int
	for i, s := range synthesize() {
		if got, want := len(s.prefix), shape[3*i+1]; got != want {
			t.Errorf("prefix of %s has %d bytes, want %d", s.name, got, want)
		}
		for k, q := range s.questions {
			sizes = append(sizes, len(q))
			if p := s.prompt(k); !strings.HasPrefix(p, s.prefix) || len(p) != len(s.prefix)+len(q) {
				t.Fatalf("prompt %q of %s is not prefix and question", p, s.name)
			}
		}
	}
	slices.Sort(sizes)
	if median := sizes[len(sizes)/2]; median < 290 || median > 320 {
		t.Errorf("the median question has %d bytes, want about 307", median)
	}
}

// Four of five requests are of a fifth of the subjects, exactly, with and
// without repeats.
func TestSkewIsExact(t *testing.T) {
	subjects := synthesize()
	for _, n := range []int{1, 10, 400, 1000, 5000} {
		for seed := range uint64(5) {
			for _, repeats := range []bool{false, true} {
				c := Config{Name: skewed, Requests: n, Seed: seed, Repeats: repeats}
				picks, hot, err := skew(newRand(seed, orderStream), subjects, c)
				if err != nil {
					if !repeats && n == 5000 && strings.Contains(err.Error(), fmt.Sprintf("hot subjects of seed %d", seed)) {
						continue // the hot subjects have fewer questions, which is said
					}
					t.Fatal(err)
				}
				inHot, seen := 0, map[pick]bool{}
				for _, p := range picks {
					if slices.Contains(hot, int(p.subject)) {
						inHot++
					}
					seen[p] = true
				}
				if want := int(math.Round(.8 * float64(n))); len(picks) != n || len(hot) != 12 || inHot != want {
					t.Errorf("%+v: %d of %d in %d hot subjects, want %d in 12", c, inHot, len(picks), len(hot), want)
				}
				if !repeats && len(seen) != n {
					t.Errorf("%+v: %d of %d requests are repeats", c, n-len(seen), n)
				}
			}
		}
	}
}

// The same configuration gives the same requests, another seed others.
func TestSeedDecidesTheStream(t *testing.T) {
	for _, c := range []Config{
		{Name: uniform, Requests: 50},
		{Name: uniform, Requests: 50, Repeats: true},
		{Name: skewed, Requests: 50},
		{Name: skewed, Requests: 50, Repeats: true},
	} {
		one, again := requests(mustNew(t, c)), requests(mustNew(t, c))
		c.Seed++
		other := requests(mustNew(t, c))
		if !reflect.DeepEqual(one, again) || reflect.DeepEqual(one, other) {
			t.Errorf("%+v: the stream is not a matter of the seed", c)
		}
	}
	// A run of today can be told from its seed next year.
	w := mustNew(t, Config{Name: uniform, Requests: 3, Seed: 1})
	if want := []pick{{44, 194}, {56, 133}, {47, 222}}; !slices.Equal(w.picks, want) {
		t.Errorf("seed 1 begins %v, was %v", w.picks, want)
	}
}

// Chats come in the order of their file, without what a run sets itself.
func TestChatFile(t *testing.T) {
	dir := folder(t, map[string]string{
		"good":     `{"messages":[{"role":"user","content":"a<b"}],"model":"x","max_tokens":9}` + "\n\n" + `{"messages":[{"role":"user","content":"2"}],"tools":[]}`,
		"empty":    "\n",
		"broken":   "{\"messages\":[1]}\n{\"messages\":",
		"wordless": `{"prompt":"a"}`,
	})
	file := func(name string) string { return "chat:" + filepath.Join(dir, name) }
	all := requests(mustNew(t, Config{Name: file("good"), Requests: 2}))
	if len(all) != 2 || len(all[0].Chat) != 1 || string(all[0].Chat["messages"]) != `[{"role":"user","content":"a<b"}]` || len(all[1].Chat) != 2 {
		t.Errorf("read %+v", all)
	}
	if n := mustNew(t, Config{Name: file("good"), Requests: 9, Repeats: true}).Len(); n != 9 {
		t.Errorf("%d requests with repeats, want 9", n)
	}
	for name, want := range map[string]string{
		"none": "no such file", "empty": "holds no request", "broken": "line 2", "wordless": "line 1: no messages", "good": "--repeats",
	} {
		if _, err := New(Config{Name: file(name), Requests: 3}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v does not say %q", name, err, want)
		}
	}
}

// Everything that is wrong with a configuration is said at once, flag and remedy.
func TestConfigProblems(t *testing.T) {
	for want, c := range map[string]Config{
		`--workload: there is no "x"; choose mmlu, mmlu-skewed, bbh:DIR, chat:FILE, stream:FILE or mooncake:FILE`: {Name: "x", Requests: 1},
		`there is no ""`: {Requests: 1},
		"--requests: 0 make no workload; ask for 1":   {Name: "x"},
		"--requests: 9223372036854775807 make":        {Name: uniform, Requests: math.MaxInt},
		"--workload bbh needs its data; write bbh:":   {Name: "bbh", Requests: 1},
		"--workload chat needs its data; write chat:": {Name: "chat:", Requests: 1},
		"--workload stream needs its data":            {Name: "stream", Requests: 1},
		"leave out --data":                            {Name: "chat:a", Data: "b", Requests: 1},
		"leave out --repeats":                         {Name: "mooncake:a", Repeats: true, Requests: 1},
		"--token-ids is for traces":                   {Name: uniform, TokenIDs: true, Requests: 1},
		"add --repeats":                               {Name: uniform, ByTopic: true, Requests: 1},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v does not say %q", c, err, want)
		}
	}
}
