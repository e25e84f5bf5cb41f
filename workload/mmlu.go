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

// A subject is one topic of a set of few-shot prompts, such as MMLU. All its
// prompts begin with the same prefix.
type subject struct {
	name      string
	prefix    string   // introduction and answered questions
	questions []string // the ends of the prompts
}

// prompt is the text that asks the i-th question.
func (s *subject) prompt(i int) string { return s.prefix + s.questions[i] }

// newSubject renders prompts in the form in which MMLU is given to language
// models (Hendrycks et al. 2021, evaluate.py of their archive), with the first
// five of the answered questions.
func newSubject(name string, answered, questions []question) subject {
	var b strings.Builder
	b.WriteString(introduction(name))
	for _, q := range answered[:shots] {
		fmt.Fprintf(&b, "%s %s\n\n", q.text(), q[5])
	}
	s := subject{name: name, prefix: b.String(), questions: make([]string, len(questions))}
	for i, q := range questions {
		s.questions[i] = q.text()
	}
	return s
}

// introduction has two spaces before the subject, as the original does.
func introduction(name string) string {
	return "The following are multiple choice questions (with answers) about  " + strings.ReplaceAll(name, "_", " ") + ".\n\n"
}

// text asks the question.
func (q question) text() string {
	return q[0] + "\nA. " + q[1] + "\nB. " + q[2] + "\nC. " + q[3] + "\nD. " + q[4] + "\nAnswer:"
}

// questionFrame is what text adds to the texts of a question, in bytes.
const questionFrame = 4*len("\nA. ") + len("\nAnswer:")

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
