package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// shots is the number of answered questions before the one to answer.
const shots = 5

// A question is a row of MMLU: the question, its choices A to D, the letter that is right.
type question [6]string

const mmluColumns = len(question{})

// A subject is one topic of MMLU. All its prompts begin with the same prefix.
type subject struct {
	name      string
	prefix    string // introduction and answered questions
	questions []question
}

// prompt is the text of the i-th question in the form in which MMLU is given
// to language models (Hendrycks et al. 2021, evaluate.py of their archive).
func (s *subject) prompt(i int) string {
	q := s.questions[i]
	var b strings.Builder
	b.Grow(len(s.prefix) + q.size())
	b.WriteString(s.prefix)
	q.write(&b)
	return b.String()
}

// newSubject renders the prefix from the first five of the answered questions.
func newSubject(name string, answered, questions []question) subject {
	var b strings.Builder
	b.WriteString(introduction(name))
	for _, q := range answered[:shots] {
		q.write(&b)
		fmt.Fprintf(&b, " %s\n\n", q[5])
	}
	return subject{name: name, prefix: b.String(), questions: questions}
}

// introduction has two spaces before the subject, as the original does.
func introduction(name string) string {
	return "The following are multiple choice questions (with answers) about  " + strings.ReplaceAll(name, "_", " ") + ".\n\n"
}

func (q question) write(b *strings.Builder) {
	b.WriteString(q[0])
	for i, letter := range "ABCD" {
		fmt.Fprintf(b, "\n%c. %s", letter, q[1+i])
	}
	b.WriteString("\nAnswer:")
}

// questionFrame is what write adds to the texts of a question, in bytes.
const questionFrame = 4*len("\nA. ") + len("\nAnswer:")

func (q question) size() int {
	size := questionFrame
	for _, text := range q[:5] {
		size += len(text)
	}
	return size
}

// readMMLU reads every subject of the folder dir, in the order of their names.
func readMMLU(dir string) ([]subject, error) {
	const dev, test = "_dev.csv", "_test.csv"
	files, err := filepath.Glob(filepath.Join(escapeGlob(dir), "dev", "*"+dev))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no MMLU in %s: no files dev/*%s; give the folder that holds dev/ and test/ with --data, or leave --data out for synthetic prompts", dir, dev)
	}
	subjects := make([]subject, 0, len(files))
	for _, file := range files { // sorted by Glob
		name := strings.TrimSuffix(filepath.Base(file), dev)
		answered, err := readQuestions(file)
		if err != nil {
			return nil, err
		}
		if len(answered) < shots {
			return nil, fmt.Errorf("read MMLU: %s has %d questions; a prompt needs %d answered ones", file, len(answered), shots)
		}
		questions, err := readQuestions(filepath.Join(dir, "test", name+test))
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, newSubject(name, answered, questions))
	}
	return subjects, nil
}

// escapeGlob makes dir match itself where its name holds pattern characters.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`[`, `[[]`, `*`, `[*]`, `?`, `[?]`).Replace(dir)
}

func readQuestions(file string) ([]question, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read MMLU: %w; every subject needs dev/NAME_dev.csv and test/NAME_test.csv", err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.FieldsPerRecord = mmluColumns
	var questions []question
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && (len(row[5]) != 1 || !strings.Contains("ABCD", row[5])) {
			line, _ := r.FieldPos(5)
			err = fmt.Errorf("record on line %d: the answer is %q", line, row[5])
		}
		if err != nil {
			return nil, fmt.Errorf("read MMLU: %s: %w; a row is the question, four choices and a letter A to D, without a header", file, err)
		}
		questions = append(questions, question(row))
	}
	if len(questions) == 0 {
		return nil, fmt.Errorf("read MMLU: %s is empty; fetch the data again", file)
	}
	return questions, nil
}

// size says how much there is, for people.
func size(subjects []subject) string {
	questions := 0
	for _, s := range subjects {
		questions += len(s.questions)
	}
	return fmt.Sprintf("%d subjects, %d questions", len(subjects), questions)
}
