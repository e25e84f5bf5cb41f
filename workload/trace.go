package workload

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// mooncakeBlock is how many tokens a block of a Mooncake trace has (Qin et al.
// 2025, section 4 of the traces' description).
const mooncakeBlock = 512

var blockInName = regexp.MustCompile(`\.b(\d{1,5})\.`)

// What Open cannot read for reasons that lie beside the source's own data.
var (
	// ErrBlockSize is of a file of block ids for which StreamConfig.BlockTokens is to be given.
	ErrBlockSize = errors.New("its name does not say how many tokens a block has; name it like trace.b16.jsonl")
	// ErrArrivals is of the file StreamConfig.Arrivals.
	ErrArrivals = errors.New("read arrivals")
)

// openBlocks reads a file of block ids. Their number of tokens stands in its
// name, as in mmlu.b16.jsonl; else it is 512 for Mooncake and must be
// configured for others.
func (s *Stream) openBlocks(kind, file string) error {
	s.unit = s.BlockTokens
	if kind == mooncake {
		s.unit = mooncakeBlock
	}
	if m := blockInName.FindStringSubmatch(filepath.Base(file)); m != nil {
		s.unit, _ = strconv.Atoi(m[1])
	}
	if s.unit < 1 || s.unit > maxBlockTokens {
		return fmt.Errorf("read trace: %s: %w", file, ErrBlockSize)
	}
	f, err := openFile(file)
	if err != nil {
		return fmt.Errorf("read trace: %w; name a file of JSON lines as %s:FILE", err, kind)
	}
	defer f.Close()
	s.sequences, err = readTrace(f, file, s.unit)
	s.Source = fmt.Sprintf("%s (%d requests)", file, len(s.sequences))
	return err
}

// A traced request is a line of a Mooncake trace, and of the block streams of
// the same form. The last id may stand for a block that is not full.
type traced struct {
	Group  string   `json:"group"`
	IDs    []uint64 `json:"hash_ids"`
	Input  int      `json:"input_length"`  // tokens
	Output int      `json:"output_length"` // tokens, 0 for unknown
	At     float64  `json:"timestamp"`     // ms
}

// maxTraceTime bounds a timestamp, so that repeats of a trace have times too.
const maxTraceTime = 366 * 24 * time.Hour

// maxLength is far above what any model reads or writes, in tokens.
const maxLength = 1 << 24

func (r *traced) check(unit int, before time.Duration) error {
	switch at := time.Duration(r.At * float64(time.Millisecond)); {
	case r.Input < 1 || len(r.IDs) != r.Input/unit && len(r.IDs) != (r.Input-1)/unit+1:
		return fmt.Errorf("%d hash_ids do not make an input_length of %d in blocks of %d tokens", len(r.IDs), r.Input, unit)
	case r.Input > maxLength || r.Output < 0 || r.Output > maxLength:
		return fmt.Errorf("an input_length of %d and an output_length of %d; both have at most %d tokens", r.Input, r.Output, maxLength)
	case r.At < 0 || r.At > float64(maxTraceTime.Milliseconds()):
		return fmt.Errorf("a timestamp of %g ms is not within a year", r.At)
	case at < before:
		return fmt.Errorf("the timestamp %g goes back; sort the lines by it", r.At)
	}
	return nil
}

// byDesign tells what many requests begin with, such as a system prompt, from
// what a few users have asked again: it is one request in so many. With it a
// trace repeated five times hits as it does once; see TestRepeatsHitAsTheSource.
const byDesign = 200

func readTrace(r io.Reader, file string, unit int) ([]sequence, error) {
	var all []sequence
	known := newForest()
	err := scanLines(r, file, func(line []byte) error {
		var t traced
		if err := json.Unmarshal(line, &t); err != nil {
			return fmt.Errorf("%w; a line is one JSON object with hash_ids and input_length", err)
		}
		before := time.Duration(0)
		if len(all) > 0 {
			before = all[len(all)-1].at
		}
		if err := t.check(unit, before); err != nil {
			return err
		}
		all = append(all, sequence{
			topic: t.Group, tail: known.row(t.IDs), tokens: t.Input, output: t.Output,
			at: time.Duration(t.At * float64(time.Millisecond)),
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read trace: %s holds no request; write one JSON object per line", file)
	}
	for i := range all { // now that all places where rows part are known
		q := &all[i]
		n := known.shared(q.tail, len(all)/byDesign)
		q.head, q.tail = q.tail[:n], q.tail[n:]
	}
	return all, nil
}

// arrivalLayouts are those of Azure's traces of 2023 and of 2024.
var arrivalLayouts = []string{time.DateTime, time.DateTime + "Z07:00"}

// readArrivals reads when requests came, from 0, of a CSV file whose first
// column is TIMESTAMP (Azure's LLM inference traces; Patel et al. 2024). Its
// other columns, the lengths, are left alone: lengths belong to prompts.
func readArrivals(file string) ([]time.Duration, error) {
	f, err := openFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w; name a CSV file with a column TIMESTAMP", err)
	}
	defer f.Close()
	rows := csv.NewReader(f)
	rows.ReuseRecord = true
	var all []time.Duration
	var first time.Time
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		line, _ := rows.FieldPos(0)
		if line == 1 {
			if strings.TrimPrefix(row[0], "\ufeff") != "TIMESTAMP" {
				return nil, fmt.Errorf("%s, line 1: the first column is %q; it should be TIMESTAMP", file, row[0])
			}
			continue
		}
		at, err := parseTime(row[0])
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, line, err)
		}
		if len(all) == 0 {
			first = at
		}
		since := at.Sub(first)
		if n := len(all); since < 0 || since > maxTraceTime || n > 0 && since < all[n-1] {
			return nil, fmt.Errorf("%s, line %d: %s does not follow the line before; sort the lines", file, line, row[0])
		}
		all = append(all, since)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no rows; fetch the data again", file)
	}
	return all, nil
}

func parseTime(text string) (at time.Time, err error) {
	for _, layout := range arrivalLayouts {
		if at, err = time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return at, fmt.Errorf("%q is no time such as 2023-11-16 18:17:03.97", text)
}
