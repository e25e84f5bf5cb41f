package workload

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/tokens"
)

// trace is a file of four requests: two that share two blocks, one that shares the
// first, and one with a part that no id names.
const trace = `{"hash_ids":[7,8,9],"input_length":40,"output_length":5,"timestamp":0}
{"hash_ids":[7,8,1],"input_length":48,"output_length":6,"timestamp":2000}
{"hash_ids":[7,1],"input_length":32,"timestamp":2000}
{"hash_ids":[3,8],"input_length":45,"output_length":1,"timestamp":8000}
`

func traced4(t *testing.T, c Config) *Workload {
	dir := folder(t, map[string]string{"t.b16.jsonl": trace})
	c.Name = "stream:" + dir + "/t.b16.jsonl"
	return mustNew(t, c)
}

// common counts the leading elements that two prompts share.
func common[T comparable](a, b []T) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Prompts of a trace have the tokens that it says, as words and as ids, and share
// them exactly as far as they share ids.
func TestTracePromptsShareWhatTheyNameAlike(t *testing.T) {
	for _, ids := range []bool{false, true} {
		w := traced4(t, Config{Requests: 4, TokenIDs: ids})
		var prompts [][]uint32
		for i, want := range []int{40, 48, 32, 45} {
			r := w.Request(i)
			cut := tokens.CL100K(r.Prompt)
			if ids {
				for _, id := range r.Tokens {
					if id < firstID || id >= firstID+manyIDs {
						t.Errorf("token %d", id)
					}
					cut = append(cut, uint32(id))
				}
			}
			if len(cut) != want || (r.Prompt == "") != ids {
				t.Errorf("request %d has %d tokens, want %d: %+v", i, len(cut), want, r)
			}
			prompts = append(prompts, cut)
		}
		for _, c := range []struct{ a, b, whole int }{{0, 1, 32}, {0, 2, 16}, {1, 2, 16}, {0, 3, 0}, {2, 3, 0}} {
			if n := common(prompts[c.a], prompts[c.b]); n < c.whole || n > c.whole+3 {
				t.Errorf("ids %v: requests %d and %d share %d tokens, want %d", ids, c.a, c.b, n, c.whole)
			}
		}
		again := traced4(t, Config{Requests: 4, TokenIDs: ids, Seed: 9})
		if !slices.EqualFunc([]int{0, 1, 2, 3}, []int{0, 1, 2, 3}, func(i, j int) bool { return fmt.Sprint(w.Request(i)) == fmt.Sprint(again.Request(j)) }) {
			t.Error("the same file gives other prompts")
		}
	}
}

// More requests than the trace has repeat what is shared by design alone, as in a
// Stream of the same file, and their times go on.
func TestTraceRepeatsAreFresh(t *testing.T) {
	line := `{"hash_ids":[1,2,3],"input_length":48}` + "\n" + `{"hash_ids":[1,2,4],"input_length":48}` + "\n"
	name := "stream:" + folder(t, map[string]string{"t.b16.jsonl": line})
	w := mustNew(t, Config{Name: name + "/t.b16.jsonl", Requests: 6})
	s := mustOpen(t, StreamConfig{Name: name + "/t.b16.jsonl", Requests: 6})
	for i := range 6 {
		for j := range i {
			words := common(strings.Fields(w.Request(i).Prompt), strings.Fields(w.Request(j).Prompt))
			if blocks := common(s.Item(i).Chain, s.Item(j).Chain); words/16 != blocks {
				t.Errorf("requests %d and %d share %d words and %d blocks of 16", j, i, words, blocks)
			}
		}
	}
}

// Driven at the trace's own speed, requests come when it says, with the lengths it
// says unless one length is asked for.
func TestTraceTimesAndLengths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, lan := traced4(t, Config{Requests: 6}), network{}
		nodes, handlers := doubles(1)
		start := time.Now()
		rep := drive(t, Options{Workload: w, Targets: lan.serve(t, handlers...), Dial: lan.dial, Speed: 2})
		var got []string
		for _, q := range nodes[0].asked {
			got = append(got, fmt.Sprint(q.at.Sub(start), " ", q.body["max_tokens"]))
		}
		slices.Sort(got)
		want := []string{"0s 5", "1s 1", "1s 6", "4s 1", "5.333333333s 5", "6.333333333s 6"} // a round's last gap is the mean one
		if !slices.Equal(got, want) || rep.Errors > 0 {
			t.Errorf("asked at %q, want %q", got, want)
		}
		var b strings.Builder
		if err := rep.WriteTable(&b); err != nil || !strings.Contains(b.String(), "open loop at 2 times the speed of the trace, max tokens the trace's") {
			t.Errorf("%v in\n%s", err, &b)
		}

		nodes, handlers = doubles(1)
		drive(t, Options{Workload: w, Targets: lan.serve(t, handlers...), Dial: lan.dial, MaxTokens: 3})
		for _, q := range nodes[0].asked {
			if q.body["max_tokens"] != 3. {
				t.Errorf("asked for %v tokens", q.body["max_tokens"])
			}
		}
	})
}

// Token ids go out as a list of numbers.
func TestTokenIDsAreSent(t *testing.T) {
	g := &generator{}
	path, body := g.encode(Request{Tokens: []int32{300, 301}, Output: 2})
	var sent struct {
		Prompt []int `json:"prompt"`
		Most   int   `json:"max_tokens"`
	}
	if err := json.Unmarshal(body, &sent); err != nil || path != "/v1/completions" || !slices.Equal(sent.Prompt, []int{300, 301}) || sent.Most != 2 {
		t.Errorf("%s %s: %v", path, body, err)
	}
}

// The tokens of a real trace come out to the token, and the words that stand for
// them are one each.
func TestRealTraces(t *testing.T) {
	for _, name := range []string{"stream:" + shared(t, "streams", "mmlu_uniform.b16.jsonl.gz"), "mooncake:" + shared(t, "mooncake", "raw", "conversation_trace.jsonl")} {
		w := mustNew(t, Config{Name: name, Requests: 50})
		for i := range 50 {
			r := w.Request(i)
			if got, want := len(strings.Fields(r.Prompt)), w.stream.Item(i).Tokens; got != want || i < 3 && len(tokens.CL100K(r.Prompt)) != want {
				t.Errorf("%s: request %d has %d words, want %d", name, i, got, want)
			}
		}
	}
	for _, word := range words {
		if n := len(tokens.CL100K(" " + word)); n != 1 {
			t.Errorf("%q is %d tokens", word, n)
		}
	}
}
