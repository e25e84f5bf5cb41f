package engine

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// Usage is what an engine reports of a request, in tokens.
type Usage struct {
	Prompt     int
	Completion int
	Cached     int // of Prompt, taken from the KV cache
}

const (
	// answerBytesMax bounds what a Scanner keeps of one answer: a JSON body, a
	// line of a stream, the text so far. Beyond it the answer still streams,
	// but is not learnt from.
	answerBytesMax = 1 << 20

	// PromptTokensHeader and CachedTokensHeader are set by engines of this
	// project when the first token is ready, so that a stream without usage
	// tells what its cache gave.
	PromptTokensHeader = "Hearsay-Prompt-Tokens"
	CachedTokensHeader = "Hearsay-Cached-Tokens"
)

// Scanner reads an answer in passing: write the body to it as it comes, then
// ask it what it saw. It never fails; what it cannot read it does not know.
type Scanner struct {
	stream    bool
	pending   []byte // the JSON body so far, or an unfinished line of the stream
	skipping  bool   // inside a line that is too long
	text      strings.Builder
	cut       bool // the text is not whole
	usage     Usage
	usageSeen bool
	ended     bool
}

// NewScanner returns a scanner for an answer with these headers.
func NewScanner(header http.Header) *Scanner {
	s := &Scanner{stream: strings.HasPrefix(header.Get("Content-Type"), "text/event-stream")}
	prompt, err1 := strconv.Atoi(header.Get(PromptTokensHeader))
	cached, err2 := strconv.Atoi(header.Get(CachedTokensHeader))
	if err1 == nil && err2 == nil {
		s.usage, s.usageSeen = Usage{Prompt: prompt, Cached: cached}, true
	}
	return s
}

// Write takes the next bytes of the body, cut anywhere.
func (s *Scanner) Write(p []byte) (int, error) {
	n := len(p)
	if !s.stream {
		if len(s.pending)+n > answerBytesMax {
			s.skipping, s.cut, s.pending = true, true, nil
		}
		if !s.skipping {
			s.pending = append(s.pending, p...)
		}
		return n, nil
	}
	for {
		line, rest, found := bytes.Cut(p, []byte("\n"))
		if !found {
			s.hold(p)
			return n, nil
		}
		if !s.skipping {
			s.line(append(s.pending, line...))
		}
		s.pending, s.skipping = s.pending[:0], false
		p = rest
	}
}

func (s *Scanner) hold(p []byte) {
	if s.skipping || len(s.pending)+len(p) > answerBytesMax {
		s.skipping, s.cut, s.pending = true, true, nil
		return
	}
	s.pending = append(s.pending, p...)
}

func (s *Scanner) line(line []byte) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if data = bytes.TrimSpace(data); !ok {
		return
	}
	if string(data) == "[DONE]" {
		s.ended = true
		return
	}
	s.object(data)
}

// object takes one JSON object of an answer, a chunk of a stream or the whole.
func (s *Scanner) object(data []byte) {
	var chunk struct {
		Choices []struct {
			Index   int                      `json:"index"`
			Text    string                   `json:"text"`
			Delta   struct{ Content string } `json:"delta"`
			Message struct{ Content string } `json:"message"`
		} `json:"choices"`
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(data, &chunk) != nil {
		return
	}
	for _, c := range chunk.Choices {
		if c.Index != 0 {
			continue // the first choice is the one that a conversation goes on from
		}
		for _, t := range []string{c.Text, c.Delta.Content, c.Message.Content} {
			if s.text.Len()+len(t) > answerBytesMax {
				s.cut = true
			} else {
				s.text.WriteString(t)
			}
		}
	}
	u := chunk.Usage
	if u == nil || u.Prompt == 0 {
		return
	}
	s.usage.Prompt, s.usage.Completion = u.Prompt, u.Completion
	if u.Details != nil {
		s.usage.Cached, s.usageSeen = u.Details.Cached, true
	}
}

// Usage returns what the engine reported and whether it said how much of the
// prompt was cached. Call it when the body has ended.
func (s *Scanner) Usage() (Usage, bool) {
	s.finish()
	return s.usage, s.usageSeen
}

// Text returns the generated text of the first choice, and whether it is whole.
func (s *Scanner) Text() (string, bool) {
	s.finish()
	return s.text.String(), !s.cut
}

// Ended says whether the stream said that it is whole.
func (s *Scanner) Ended() bool { return s.ended }

func (s *Scanner) finish() {
	if len(s.pending) == 0 {
		return
	}
	if s.stream {
		s.line(s.pending)
	} else {
		s.object(s.pending)
	}
	s.pending = nil
}
