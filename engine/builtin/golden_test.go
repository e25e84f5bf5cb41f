package builtin

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/viterin/vek"
)

// shared is test data that lies beside the repository, not in it.
const shared = "../../../shared/models"

func sharedFile(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(shared, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not there: this test reads model files that are not part of the repository", path)
	}
	return path
}

// A golden is one block of tiny/golden.txt.
type golden struct {
	prompt       string
	promptTokens []int32
	answer       []int32
	text         string
}

func goldens(t testing.TB) []golden {
	t.Helper()
	raw, err := os.ReadFile("tiny/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []golden
	for _, block := range strings.Split(string(raw), "\n----\n") {
		var g golden
		section := "prompt"
		for _, line := range strings.Split(block, "\n") {
			word, rest, _ := strings.Cut(line, " ")
			switch {
			case word == "prompt":
				g.prompt = unquote(t, rest)
			case word == "float32,":
				section = "float32"
			case word == "llama-server,":
				section = "another engine"
			case word == "tokens" && section == "prompt":
				g.promptTokens = ints(t, rest)
			case word == "tokens" && section == "float32":
				g.answer = ints(t, rest)
			case word == "text" && section == "float32":
				g.text = unquote(t, rest)
			}
		}
		if g.prompt != "" {
			all = append(all, g)
		}
	}
	if len(all) != 5 {
		t.Fatalf("golden.txt has %d prompts, want 5", len(all))
	}
	return all
}

func unquote(t testing.TB, s string) string {
	s, err := strconv.Unquote(s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ints(t testing.TB, s string) (ids []int32) {
	if err := json.Unmarshal([]byte(strings.ReplaceAll(s, " ", ",")), &ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

// greedy continues prompt with the bare model, one run at a time.
func greedy(m *model, prompt []int32, n int) []int32 {
	var s scratch
	var pages [][]float32
	for range (len(prompt)+n)/pageTokens + 1 {
		pages = append(pages, make([]float32, m.pageFloats()))
	}
	var answer []int32
	pick := newSampler(0, 1, 0)
	logits := make([]float32, m.vocab)
	for pos, next := 0, prompt; len(answer) < n; next = answer[len(answer)-1:] {
		m.forward(&s, []run{{tokens: next, pos: pos, pages: pages, logits: logits}})
		pos += len(next)
		answer = append(answer, pick.next(logits))
	}
	return answer
}

func tiny(t testing.TB) (*model, *tokenizer) {
	t.Helper()
	m, tok, err := loadGGUF(bytes.NewReader(tinyModel), int64(len(tinyModel)))
	if err != nil {
		t.Fatal(err)
	}
	return m, tok
}

func checkGolden(t *testing.T, m *model, tok *tokenizer) {
	t.Helper()
	for _, g := range goldens(t) {
		prompt := tok.prompt(g.prompt)
		if !slices.Equal(prompt, g.promptTokens) {
			t.Errorf("%q: tokens %v, want %v", g.prompt, prompt, g.promptTokens)
		}
		if answer := greedy(m, prompt, len(g.answer)); !slices.Equal(answer, g.answer) {
			t.Errorf("%q: answered %q, want %q", g.prompt, tok.text(answer), g.text)
		}
	}
}

// The embedded model continues as the float32 pass it was verified with.
func TestGoldenEmbedded(t *testing.T) {
	m, tok := tiny(t)
	checkGolden(t, m, tok)
	for _, g := range goldens(t) {
		if text := tok.text(append(slices.Clone(g.promptTokens), g.answer...)); text != g.prompt+g.text {
			t.Errorf("decoded %q, want %q", text, g.prompt+g.text)
		}
	}
}

// Without vector instructions the same texts come out.
func TestGoldenWithoutAcceleration(t *testing.T) {
	withoutAcceleration(t)
	m, tok := tiny(t)
	checkGolden(t, m, tok)
}

func withoutAcceleration(t *testing.T) {
	before := accelerated
	accelerated = false
	vek.SetAcceleration(false)
	t.Cleanup(func() {
		accelerated = before
		vek.SetAcceleration(before)
	})
}
