package builtin

import (
	"strings"
	"unicode/utf8"
)

// A textStream turns one answer's tokens into text that is safe to send: no
// character is split, and nothing that may begin a stop string leaves before it
// is known not to be one.
type textStream struct {
	pieces []string
	stops  []string
	trim   bool // drop one space before the text
	held   []byte
}

// push gives the text that token makes safe, and whether a stop string ended
// it; the text ends before the stop string.
func (t *textStream) push(token int32) (text string, stopped bool) {
	t.held = append(t.held, t.pieces[token]...)
	if t.trim && len(t.held) > 0 {
		t.trim = false
		if t.held[0] == ' ' {
			t.held = t.held[1:]
		}
	}
	held, end := string(t.held), -1
	safe := len(held) - incomplete(held)
	for _, stop := range t.stops {
		if i := strings.Index(held, stop); i >= 0 && (end < 0 || i < end) {
			end = i
		}
		for n := min(len(stop)-1, len(held)); n > 0; n-- {
			if strings.HasSuffix(held, stop[:n]) {
				safe = min(safe, len(held)-n)
				break
			}
		}
	}
	if end >= 0 {
		t.held = nil
		return valid(held[:end]), true
	}
	t.held = t.held[safe:]
	return valid(held[:safe]), false
}

// flush gives what is still held when the answer ends otherwise.
func (t *textStream) flush() string {
	held := valid(string(t.held))
	t.held = nil
	return held
}

// incomplete is the length of the unfinished character at the end of s.
func incomplete(s string) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if utf8.RuneStart(s[len(s)-n]) {
			if utf8.FullRuneInString(s[len(s)-n:]) {
				return 0
			}
			return n
		}
	}
	return 0
}

// valid replaces each byte that is not part of a character by U+FFFD.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}
