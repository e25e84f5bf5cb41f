package workload

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearsay-project/hearsay/tokens"
)

// toolDocuments names the file of each class of tools in BFCL's conversations.
var toolDocuments = map[string]string{
	"GorillaFileSystem": "gorilla_file_system.json",
	"MathAPI":           "math_api.json",
	"MessageAPI":        "message_api.json",
	"TwitterAPI":        "posting_api.json",
	"TicketAPI":         "ticket_api.json",
	"TradingBot":        "trading_bot.json",
	"TravelAPI":         "travel_booking.json",
	"VehicleControlAPI": "vehicle_control.json",
}

type message struct{ Role, Content string }

// A toolTask is a line of a BFCL file.
type toolTask struct {
	ID        string
	Question  [][]message     // by turn
	Functions json.RawMessage `json:"function"`          // one-turn tasks
	Classes   []string        `json:"involved_classes"`  // conversations
	Without   []string        `json:"excluded_function"` // tools of the classes that are left out
}

// tools reads the Berkeley Function Calling Leaderboard (Patil et al. 2025):
// tasks, the system prompt and the documents of tools that go into it.
type tools struct {
	dir    string
	system string              // with {functions}
	heads  map[string][]uint32 // tokens by documents
}

func openTools(dir, tasks string) (t *tools, file string, err error) {
	files, err := find(dir, tasks)
	if err != nil {
		return nil, "", err
	}
	t = &tools{dir: filepath.Dir(files[0]), heads: map[string][]uint32{}}
	system, err := os.ReadFile(filepath.Join(t.dir, "system_prompt.txt"))
	if err != nil {
		return nil, "", err
	}
	t.system = string(system)
	return t, files[0], nil
}

// head encodes the system prompt with the documents of the tools.
func (t *tools) head(documents string) []uint32 {
	if t.heads[documents] == nil {
		t.heads[documents] = tokens.CL100K(strings.ReplaceAll(t.system, "{functions}", documents))
	}
	return t.heads[documents]
}

// documents joins those of the classes of a conversation.
func (t *tools) documents(task *toolTask) (string, error) {
	var all []string
	for _, class := range task.Classes {
		name, known := toolDocuments[class]
		if !known {
			return "", fmt.Errorf("unknown class of tools %q", class)
		}
		err := eachLine(filepath.Join(t.dir, name), func(line []byte) error {
			var tool struct{ Name string }
			if err := json.Unmarshal(line, &tool); err != nil {
				return err
			}
			if !slices.Contains(task.Without, tool.Name) {
				all = append(all, string(line))
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return "[" + strings.Join(all, ", ") + "]", nil
}

// eachTask hands over the tasks of a file.
func eachTask(file string, use func(*toolTask) error) error {
	return eachLine(file, func(line []byte) error {
		var task toolTask
		if err := json.Unmarshal(line, &task); err != nil {
			return err
		}
		if len(task.Question) == 0 {
			return fmt.Errorf("task %q asks no question", task.ID)
		}
		return use(&task)
	})
}

// render writes what is said, up to the word of the assistant.
func render(said []message) string {
	var b strings.Builder
	for _, m := range said {
		fmt.Fprintf(&b, "%s: %s\n\n", m.Role, m.Content)
	}
	return b.String() + "assistant:"
}

// openTurns makes a request of every turn of the multi-turn conversations. The
// prompt holds the turns before it with the calls that BFCL takes for right.
func (s *Stream) openTurns(dir string) error {
	t, file, err := openTools(dir, "BFCL_v*_multi_turn_base.json")
	if err != nil {
		return fmt.Errorf("read BFCL: %w", err)
	}
	answers := map[string][][]string{}
	err = eachLine(filepath.Join(t.dir, "possible_answer_"+filepath.Base(file)), func(line []byte) error {
		var answer struct {
			ID    string
			Calls [][]string `json:"ground_truth"` // by turn
		}
		err := json.Unmarshal(line, &answer)
		answers[answer.ID] = answer.Calls
		return err
	})
	if err != nil {
		return fmt.Errorf("read BFCL: %w", err)
	}
	var conversations [][]sequence
	err = eachTask(file, func(task *toolTask) error {
		calls := answers[task.ID]
		if len(calls) != len(task.Question) {
			return fmt.Errorf("task %q has %d turns, and answers to %d", task.ID, len(task.Question), len(calls))
		}
		documents, err := t.documents(task)
		if err != nil {
			return err
		}
		turns := make([]sequence, len(calls))
		var said []uint32
		for k, question := range task.Question {
			said = append(said, tokens.CL100K(render(question))...)
			turns[k] = sequence{topic: strings.Join(task.Classes, " "), head: t.head(documents), tail: said}
			said = append(said, tokens.CL100K(" ["+strings.Join(calls[k], ", ")+"]\n\n")...)
		}
		conversations = append(conversations, turns)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read BFCL: %w", err)
	}
	return s.openConversations(file, conversations)
}

// openLive makes a request of every one-turn task with several tools.
func (s *Stream) openLive(dir string) error {
	t, file, err := openTools(dir, "BFCL_v*_live_multiple.json")
	if err != nil {
		return fmt.Errorf("read BFCL: %w", err)
	}
	var tasks [][]sequence
	err = eachTask(file, func(task *toolTask) error {
		tasks = append(tasks, []sequence{{
			head: t.head(string(task.Functions)), tail: tokens.CL100K(render(task.Question[0])),
		}})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read BFCL: %w", err)
	}
	return s.openConversations(file, tasks)
}

func (s *Stream) openConversations(file string, conversations [][]sequence) error {
	s.sideBySide(conversations)
	if len(s.sequences) == 0 {
		return fmt.Errorf("read BFCL: %s holds no task; fetch the data again", file)
	}
	s.Source = fmt.Sprintf("%s (%d conversations, %d requests)", file, len(conversations), len(s.sequences))
	return nil
}
