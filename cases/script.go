package cases

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Script is one answer. Its zero value is 200 without a body.
type Script struct {
	Silence time.Duration // before the first byte
	Status  int           // 200 if zero
	Header  []string      // lines as they go out, without those of the framing
	Framing Framing
	Steps   []Step
	End     End
}

// Step is one write, a chunk of its own where the framing has chunks.
type Step struct {
	Pause time.Duration // before it
	Data  string
}

// Framing says how an answer's body is delimited.
type Framing int

// The framings of RFC 9112, section 6.3, and one that may be false.
const (
	Chunked Framing = iota
	Length
	UntilClose
	Bare // by what Header says
)

// End says what follows the last step.
type End int

// The ways to end.
const (
	Whole   End = iota // as the framing says; the connection is kept, where it can be
	Dropped            // the connection is closed, the framing unfinished
	Broken             // reset
	Stuck              // nothing more comes, until the caller leaves
)

// Body returns the bytes that a caller must get of the answer.
func (s Script) Body() string {
	var b strings.Builder
	for _, step := range s.Steps {
		b.WriteString(step.Data)
	}
	return b.String()
}

// With returns the script with more header lines.
func (s Script) With(lines ...string) Script {
	s.Header = append(append([]string(nil), s.Header...), lines...)
	return s
}

// Stream is an answer of server-sent events, one write for each piece.
func Stream(pieces ...string) Script {
	return Script{Header: []string{"Content-Type: text/event-stream", "Cache-Control: no-cache"}, Steps: steps(0, pieces)}
}

// Drip is a Stream with a pause before every piece but the first.
func Drip(pause time.Duration, pieces ...string) Script {
	s := Stream(pieces...)
	s.Steps = steps(pause, pieces)
	return s
}

// JSON is an answer of known length.
func JSON(status int, body string) Script {
	return Script{Status: status, Header: []string{"Content-Type: application/json"}, Framing: Length, Steps: steps(0, []string{body})}
}

func steps(pause time.Duration, pieces []string) []Step {
	all := make([]Step, len(pieces))
	for i, piece := range pieces {
		all[i] = Step{Pause: pause, Data: piece}
	}
	if len(all) > 0 {
		all[0].Pause = 0
	}
	return all
}

// play writes the answer and says whether the connection may be used again.
func (s Script) play(conn net.Conn, r *Request) (again bool) {
	if !r.wait(s.Silence) {
		return false
	}
	if s.Status == 0 && len(s.Header) == 0 && len(s.Steps) == 0 && s.End != Whole {
		return s.finish(conn, r) // without a header
	}
	if !r.write(conn, s.head()) {
		return false
	}
	for _, step := range s.Steps {
		if !r.wait(step.Pause) {
			return false
		}
		data := step.Data
		if s.Framing == Chunked {
			data = fmt.Sprintf("%x\r\n%s\r\n", len(data), data)
		}
		if !r.write(conn, data) {
			return false
		}
		r.mu.Lock()
		r.sent = append(r.sent, time.Now())
		r.mu.Unlock()
	}
	return s.finish(conn, r)
}

func (s Script) head() string {
	status := s.Status
	if status == 0 {
		status = http.StatusOK
	}
	lines := append([]string{fmt.Sprintf("HTTP/1.1 %d %s", status, http.StatusText(status))}, s.Header...)
	switch s.Framing {
	case Chunked:
		lines = append(lines, "Transfer-Encoding: chunked")
	case Length:
		lines = append(lines, fmt.Sprintf("Content-Length: %d", len(s.Body())))
	case UntilClose:
		lines = append(lines, "Connection: close")
	}
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

func (s Script) finish(conn net.Conn, r *Request) (again bool) {
	switch {
	case s.End == Broken:
		r.end(nil)
		reset(conn)
	case s.End == Stuck:
		<-r.gone
	case s.End == Whole && s.Framing == Chunked:
		return r.write(conn, "0\r\n\r\n")
	case s.End == Whole && s.Framing == Length:
		return true
	}
	return false
}

// write says whether there was still somebody to write to.
func (r *Request) write(conn net.Conn, data string) bool {
	if _, err := io.WriteString(conn, data); err != nil {
		r.end(&r.left)
		return false
	}
	return true
}

// wait takes its time and says whether the caller stayed.
func (r *Request) wait(d time.Duration) bool {
	select {
	case <-r.gone:
		return false
	default:
	}
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.gone:
		return false
	}
}
