package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hearsay-project/hearsay/tokens"
)

// tokenBytes is how many bytes of an MMLU prompt are one token of cl100k_base
// in the mean. TestSyntheticTokens takes it anew.
const tokenBytes = 4.42

// cutSynthetic gives synthetic text as many tokens as a real prompt of its size has:
// its common words alone would give a fifth fewer.
func cutSynthetic(text string) []uint32 { return tokens.Cut(text, tokenBytes) }

// openSubjects takes the requests that the HTTP workload of the same name,
// data, seed and size sends, in its order.
func (s *Stream) openSubjects(name, path string) error {
	subjects, source, err := readSubjects(name, path)
	if err != nil {
		return err
	}
	encode := tokens.CL100K
	if path == "" {
		encode = cutSynthetic
	}
	c := Config{Name: name, Requests: s.Requests, Seed: s.Seed, Repeats: s.Repeats, ByTopic: s.ByTopic}
	if limit := most(c, subjects); c.Requests == 0 || !c.Repeats && c.Requests > limit {
		c.Requests = limit
	}
	picks, err := lay(c, subjects)
	if err != nil {
		return fmt.Errorf("workload %s: %w", name, err)
	}
	s.Source = source
	heads := make([][]uint32, len(subjects))
	number := map[pick]int32{}
	s.order = make([]int32, len(picks))
	for i, p := range picks {
		k, known := number[p]
		if !known {
			k = int32(len(s.sequences))
			number[p] = k
			topic := &subjects[p.subject]
			if heads[p.subject] == nil {
				heads[p.subject] = encode(topic.prefix)
			}
			s.add(sequence{topic: topic.name, head: heads[p.subject], tail: encode(topic.questions[p.question])})
		}
		s.order[i] = k
	}
	return nil
}

// add appends a sequence of tokens.
func (s *Stream) add(q sequence) {
	q.tokens = len(q.head) + len(q.tail)
	s.sequences = append(s.sequences, q)
}

// readBBH reads every task of BIG-Bench Hard (Suzgun et al. 2022): NAME.json
// with the questions and NAME.txt with the answered ones, whose reasoning is
// written out. The text file's head, up to a line of dashes, is not part of it.
func readBBH(dir string) ([]subject, error) {
	files, err := find(dir, "*.json")
	if err != nil {
		return nil, fmt.Errorf("read BIG-Bench Hard: %w", err)
	}
	var subjects []subject
	for _, file := range files {
		name := strings.TrimSuffix(file, ".json")
		var task struct{ Examples []struct{ Input string } }
		if err := readJSON(file, &task); err != nil {
			return nil, fmt.Errorf("read BIG-Bench Hard: %w", err)
		}
		if len(task.Examples) == 0 {
			return nil, fmt.Errorf("read BIG-Bench Hard: %s has no examples; fetch the data again", file)
		}
		answered, err := os.ReadFile(name + ".txt")
		if err != nil {
			return nil, fmt.Errorf("read BIG-Bench Hard: %w; every task needs NAME.json and NAME.txt", err)
		}
		_, text, found := strings.Cut(string(answered), "\n-----\n")
		if !found {
			text = string(answered)
		}
		s := subject{name: filepath.Base(name), prefix: strings.TrimSpace(text) + "\n\n"}
		for _, e := range task.Examples {
			s.questions = append(s.questions, "Q: "+e.Input+"\nA: Let's think step by step.")
		}
		subjects = append(subjects, s)
	}
	return subjects, nil
}
