package workload

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/hearsay-project/hearsay/tokens"
)

// The prompts of a Tree of Thoughts search for the Game of 24, as prompts.json has them.
type treePrompts struct {
	Propose string `json:"propose_prompt"`
	Value   string `json:"value_prompt"`
	Last    string `json:"value_last_step_prompt"`
	Answer  string `json:"cot_prompt"`
}

// A search is the log of one puzzle: each step proposes from the partial
// solutions kept so far, then values every new one once.
type search struct {
	Steps []struct {
		Puzzle string   `json:"x"`
		Kept   []string `json:"ys"`
		New    []string `json:"new_ys"`
	} `json:"steps"`
}

// openTree reads the logs of Tree of Thoughts (Yao et al. 2023) and makes the
// requests that the search sent, puzzles side by side.
func (s *Stream) openTree(dir string) error {
	files, err := find(dir, "*.json")
	if err != nil {
		return fmt.Errorf("read Tree of Thoughts: %w", err)
	}
	var prompts treePrompts
	if err := readJSON(filepath.Join(filepath.Dir(files[0]), "prompts.json"), &prompts); err != nil {
		return fmt.Errorf("read Tree of Thoughts: %w", err)
	}
	for _, prompt := range []string{prompts.Propose, prompts.Value, prompts.Last, prompts.Answer} {
		if !strings.Contains(prompt, "{input}") {
			return fmt.Errorf("read Tree of Thoughts: a prompt of %s/prompts.json has no place for {input}", filepath.Dir(files[0]))
		}
	}
	heads := map[string][]uint32{}
	var puzzles [][]sequence
	for _, file := range files {
		if filepath.Base(file) == "prompts.json" {
			continue
		}
		var searches []search
		if err := readJSON(file, &searches); err != nil {
			return fmt.Errorf("read Tree of Thoughts: %w", err)
		}
		for _, one := range searches {
			puzzles = append(puzzles, one.requests(&prompts, heads))
		}
	}
	s.sideBySide(puzzles)
	if len(s.sequences) == 0 {
		return fmt.Errorf("read Tree of Thoughts: the logs of %s hold no request", dir)
	}
	s.Source = fmt.Sprintf("%s (%d puzzles, %d requests)", dir, len(puzzles), len(s.sequences))
	return nil
}

func (r *search) requests(p *treePrompts, heads map[string][]uint32) (all []sequence) {
	ask := func(topic, prompt, input string) {
		head, rest, _ := strings.Cut(prompt, "{input}")
		if heads[head] == nil {
			heads[head] = tokens.CL100K(head)
		}
		all = append(all, sequence{topic: topic, head: heads[head], tail: tokens.CL100K(input + rest)})
	}
	for _, step := range r.Steps {
		for _, thought := range step.Kept {
			if left := numbersLeft(step.Puzzle, thought); left == "24" {
				ask(step.Puzzle, p.Answer+"Steps:\n"+thought, step.Puzzle)
			} else {
				ask(step.Puzzle, p.Propose, left)
			}
		}
		valued := map[string]bool{}
		for _, thought := range step.New {
			if valued[thought] {
				continue
			}
			valued[thought] = true
			if last := lastLine(thought); strings.Contains(last, "left: ") {
				ask(step.Puzzle, p.Value, numbersLeft(step.Puzzle, thought))
			} else {
				answer := strings.TrimPrefix(strings.ToLower(last), "answer: ")
				ask(step.Puzzle, strings.ReplaceAll(p.Last, "{answer}", answer), step.Puzzle)
			}
		}
	}
	return all
}

// numbersLeft is what a partial solution leaves of the puzzle's numbers, as
// its last line says: 4 + 5 = 9 (left: 6 9 10).
func numbersLeft(puzzle, thought string) string {
	if thought == "" {
		return puzzle
	}
	last := lastLine(thought)
	if _, after, found := strings.Cut(last, "left: "); found {
		last = after
	}
	left, _, _ := strings.Cut(last, ")")
	return left
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
