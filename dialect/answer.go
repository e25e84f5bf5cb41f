package dialect

import (
	"bytes"
	"strconv"
	"strings"
)

// Usage is what an engine reports of a request, in tokens.
type Usage struct {
	Prompt     int // all of the prompt, cached or not
	Completion int
	Cached     int // of Prompt, taken from the KV cache
}

const (
	// answerMax bounds what a Scanner keeps of one answer, its text and a body
	// that is no stream of events, and lineMax one line or event of a stream, in
	// bytes. Beyond them the answer still passes but is not learnt from.
	answerMax = 1 << 20
	lineMax   = 256 << 10

	// PromptTokensHeader and CachedTokensHeader are set by engines of this
	// project when the first token is ready, so that a stream without usage
	// tells what its cache gave.
	PromptTokensHeader = "Hearsay-Prompt-Tokens"
	CachedTokensHeader = "Hearsay-Cached-Tokens"
)

type framing uint8

const (
	whole  framing = iota // one JSON value
	events                // server-sent events (WHATWG HTML, section 9.2)
	lines                 // a JSON value on each line
	sealed                // compressed: nothing can be read
)

// A Scanner reads an answer in passing: write the body to it as it comes, then
// ask it what it saw. It never fails and keeps a bounded part of the answer; what
// it cannot read it does not know.
type Scanner struct {
	dialect Dialect
	framing framing
	doc     doc

	line     []byte // the body so far, or an unfinished line
	event    []byte // the data of an unfinished event
	skipping bool   // inside a line or body that is too long
	afterCR  bool   // a line has just ended in CR: an LF is the same end

	text  []byte
	cut   bool // the text is not whole
	usage Usage
	known bool
	began bool
	ended bool
}

// NewScanner returns a scanner for the answer to a request to e; header gives
// the answer's headers by name, as http.Header.Get does.
func NewScanner(e Endpoint, header func(name string) string) *Scanner {
	s := &Scanner{dialect: e.Dialect, framing: framingOf(e, header)}
	s.cut = s.framing == sealed
	prompt, err1 := strconv.Atoi(header(PromptTokensHeader))
	cached, err2 := strconv.Atoi(header(CachedTokensHeader))
	if err1 == nil && err2 == nil {
		s.usage, s.known = Usage{Prompt: prompt, Cached: cached}, true
	}
	return s
}

func framingOf(e Endpoint, header func(name string) string) framing {
	if c := header("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") || !e.Generates() {
		return sealed
	}
	kind, _, _ := strings.Cut(header("Content-Type"), ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "text/event-stream":
		return events
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		return lines
	}
	return whole
}

// Write takes the next bytes of the body, cut anywhere.
func (s *Scanner) Write(p []byte) (int, error) {
	n := len(p)
	switch s.framing {
	case sealed:
		s.began = s.began || n > 0
	case whole:
		s.began = s.began || len(bytes.TrimSpace(p)) > 0
		s.hold(p, answerMax)
	default:
		for len(p) > 0 {
			p = s.scan(p)
		}
	}
	return n, nil
}

// scan takes up to the end of a line and returns what is left.
func (s *Scanner) scan(p []byte) []byte {
	if s.afterCR {
		if s.afterCR = false; p[0] == '\n' {
			return p[1:]
		}
	}
	end := bytes.IndexByte(p, '\n')
	if s.framing == events {
		// CR alone ends a line too; JSON has neither inside a string.
		if cr := bytes.IndexByte(p[:max(end, 0)], '\r'); cr >= 0 {
			end = cr
		} else if end < 0 {
			end = bytes.IndexByte(p, '\r')
		}
	}
	limit := lineMax
	if s.framing == lines { // the last one of Ollama's may hold all token ids
		limit = answerMax
	}
	if end < 0 {
		s.hold(p, limit)
		return nil
	}
	line := p[:end]
	if len(s.line) > 0 || s.skipping || len(line) > limit {
		s.hold(line, limit)
		line = s.line
	}
	s.afterCR = p[end] == '\r'
	if !s.skipping {
		s.take(line)
	} else {
		s.began = true
	}
	s.line, s.skipping = s.line[:0], false
	return p[end+1:]
}

func (s *Scanner) hold(p []byte, limit int) {
	if s.skipping || len(s.line)+len(p) > limit {
		s.skipping, s.cut, s.line = true, true, nil
		return
	}
	s.line = append(s.line, p...)
}

// take takes a whole line of a stream.
func (s *Scanner) take(line []byte) {
	if s.framing == lines {
		if len(bytes.TrimSpace(line)) > 0 {
			s.began = true
			s.object(line)
		}
		return
	}
	if len(line) == 0 {
		s.dispatch()
		return
	}
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return // a comment, or a field that only names what the data says too
	}
	data = bytes.TrimPrefix(data, []byte(" "))
	switch {
	case string(bytes.TrimSpace(data)) == "[DONE]":
		s.dispatch()
		s.began, s.ended = true, true
	case len(s.event)+len(data) > lineMax:
		s.began, s.cut, s.event = true, true, s.event[:0]
	default:
		if len(s.event) > 0 {
			s.event = append(s.event, '\n')
		}
		s.event = append(s.event, data...)
	}
}

func (s *Scanner) dispatch() {
	if len(s.event) > 0 {
		s.object(s.event)
		s.event = s.event[:0]
	}
}

// object takes one JSON value of an answer, a piece of a stream or the whole.
func (s *Scanner) object(data []byte) {
	if s.doc.parse(data) != nil {
		s.began, s.cut = true, true
		return
	}
	read := s.openAI
	switch s.dialect {
	case Responses:
		read = s.responses
	case Messages:
		read = s.messages
	case Generate:
		read = s.sglang
	case LlamaCompletion:
		read = s.llama
	case OllamaChat, OllamaGenerate:
		read = s.ollama
	}
	root := s.doc.root()
	if s.doc.kind(root) == '[' { // the answers to a batch: the first counts
		if root = s.doc.first(root); !root.given() {
			return
		}
	}
	s.began = read(root) || s.began
}

// add appends v, if it is a string, to the text.
func (s *Scanner) add(v value) {
	if s.doc.kind(v) != '"' {
		return
	}
	if len(s.text)+len(s.doc.raw(v)) > answerMax {
		s.cut = true
	} else {
		s.text = s.doc.appendString(s.text, v)
	}
}

// Usage returns what the engine reported, and whether it said how much of the
// prompt was cached; more than all of it is no answer to that. Call it when the
// body has ended.
func (s *Scanner) Usage() (u Usage, known bool) {
	s.finish()
	if s.usage.Cached > s.usage.Prompt {
		return Usage{Prompt: s.usage.Prompt, Completion: s.usage.Completion}, false
	}
	return s.usage, s.known
}

// Text returns the generated text of the first choice, and whether it is whole
// as far as the answer has come.
func (s *Scanner) Text() (text string, complete bool) {
	if s.framing == whole {
		s.finish()
	}
	return string(s.text), !s.cut
}

// Ended says whether the stream said that it is whole.
func (s *Scanner) Ended() bool { return s.ended }

// Began says whether a part of the answer has been seen: of a stream an event
// that is neither a comment nor a ping, else any byte.
func (s *Scanner) Began() bool { return s.began }

// finish takes what no line end follows.
func (s *Scanner) finish() {
	if len(s.line) > 0 && s.framing == whole {
		s.object(s.line)
	} else if len(s.line) > 0 {
		s.take(s.line)
	}
	s.line = s.line[:0]
	s.dispatch()
}
