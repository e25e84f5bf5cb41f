package workload

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// sessionSpread is the time within which all recorded sessions begin. Each was
// recorded by itself, from its own second 0.
const sessionSpread = time.Hour

// A session is one file of the Claude Code traces of kv-cache-tester: the
// requests of one coding session, of which ids name blocks within it alone.
type session struct {
	Block    int    `json:"block_size"`
	Scope    string `json:"hash_id_scope"` // local, or global for ids that name blocks of all sessions
	Tools    int    `json:"tool_tokens"`
	System   int    `json:"system_tokens"`
	Requests []turn `json:"requests"`
}

type turn struct {
	At     float64  `json:"t"` // seconds
	Input  int      `json:"in"`
	Output int      `json:"out"`
	IDs    []uint64 `json:"hash_ids"`
}

// openSessions reads every session of a folder and lets each begin at a random
// moment of an hour. Sessions whose tool definitions have the same length are
// taken to have the same ones, and the same system prompt if that is as long,
// because ids do not tell across sessions; a repeat keeps both.
func (s *Stream) openSessions(dir string) error {
	files, err := find(dir, "*.json", "*.json.gz")
	if err != nil {
		return fmt.Errorf("read sessions: %w", err)
	}
	known := newForest()
	rng := newRand(s.Seed, sessionStream)
	for i, file := range files {
		var recorded session
		if err := readJSON(file, &recorded); err != nil {
			return fmt.Errorf("read sessions: %w", err)
		}
		if i == 0 {
			s.unit = recorded.Block
		}
		if err := recorded.check(s.unit); err != nil {
			return fmt.Errorf("read sessions: %s: %w", file, err)
		}
		begin := time.Duration(rng.Int64N(int64(sessionSpread)))
		s.sequences = append(s.sequences, recorded.sequences(known, uint64(i), begin)...)
	}
	if len(s.sequences) == 0 {
		return fmt.Errorf("read sessions: the files of %s hold no request", dir)
	}
	slices.SortStableFunc(s.sequences, func(a, b sequence) int { return cmp.Compare(a.at, b.at) })
	s.Source = fmt.Sprintf("%s (%d sessions, %d requests)", dir, len(files), len(s.sequences))
	return nil
}

func (r *session) check(unit int) error {
	if r.Block != unit || unit < 1 || unit > maxBlockTokens {
		return fmt.Errorf("a block_size of %d tokens; all sessions need one and the same", r.Block)
	}
	if r.Tools < 0 || r.System < 0 || r.Tools > maxLength || r.System > maxLength {
		return fmt.Errorf("tool_tokens %d and system_tokens %d", r.Tools, r.System)
	}
	before := 0.0
	for i, q := range r.Requests {
		if q.Input < 1 || q.Input > maxLength || len(q.IDs) != q.Input/unit && len(q.IDs) != (q.Input-1)/unit+1 {
			return fmt.Errorf("request %d: %d hash_ids do not make %d tokens in blocks of %d", i+1, len(q.IDs), q.Input, unit)
		}
		if q.Output < 0 || q.Output > maxLength || q.At < before || q.At > maxTraceTime.Seconds() {
			return fmt.Errorf("request %d: %d tokens out at %g s, %g s before", i+1, q.Output, q.At, before)
		}
		before = q.At
	}
	return nil
}

// sequences numbers the blocks of the i-th session.
func (r *session) sequences(known *forest, i uint64, begin time.Duration) []sequence {
	all := make([]sequence, len(r.Requests))
	tools, system := r.Tools/r.Block, (r.Tools+r.System)/r.Block
	topic := fmt.Sprintf("session %d", i+1)
	var ids []uint64
	var before []uint32
	for k, q := range r.Requests {
		ids = ids[:0]
		shared := 0
		for n, id := range q.IDs {
			// The first request is taken to begin with the tools; others may not.
			if shared == n && n < min(system, len(r.Requests[0].IDs)) && id == r.Requests[0].IDs[n] {
				shared++
			}
			switch {
			case r.Scope == "global":
				ids = append(ids, id)
			case n >= shared:
				ids = append(ids, nameOf(2, i, id))
			case n < tools:
				ids = append(ids, nameOf(0, uint64(r.Tools), uint64(n)))
			default:
				ids = append(ids, nameOf(1, uint64(r.System), uint64(n)))
			}
		}
		row := extend(before, known.row(ids))
		before = row
		all[k] = sequence{
			topic: topic, head: row[:shared], tail: row[shared:], tokens: q.Input, output: q.Output,
			at: begin + time.Duration(q.At*float64(time.Second)),
		}
	}
	return all
}

// nameOf makes one id of a block's kind, scope and number.
func nameOf(kind, scope, number uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], scope)
	binary.LittleEndian.PutUint64(b[8:], number)
	return xxh3.HashSeed(b[:], kind)
}

// extend returns row, in the memory of before if it goes on from there: a
// session's last request then holds most of the others.
func extend(before, row []uint32) []uint32 {
	if len(row) < len(before) || !slices.Equal(row[:len(before)], before) {
		return row
	}
	return append(before, row[len(before):]...)
}

// sideBySide mixes conversations at random, each in its own order.
func (s *Stream) sideBySide(conversations [][]sequence) {
	var deck []int
	for i, c := range conversations {
		for range c {
			deck = append(deck, i)
		}
	}
	newRand(s.Seed, orderStream).Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	next := make([]int, len(conversations))
	for _, i := range deck {
		s.add(conversations[i][next[i]])
		next[i]++
	}
}
