package dialect

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// ErrDiffers is the error of a run that does not give what an earlier run of the
// same request gave the client.
var ErrDiffers = errors.New("another run of the request gives another answer")

// A Joiner makes one stream of a run that broke off and of further runs of the
// same request, each from its beginning. What the client has of an answer is left
// out of a further run and compared instead; the first difference is ErrDiffers.
// So the client has the answer of the last run, the whole of it and nothing else,
// or can tell that it has not.
//
// Two runs cut one answer into other events, and call it by another id. Of each
// event its outline is compared (see outline), and apart from that its text: that
// of events with one outline runs on, wherever it was cut. Of a further run an
// event whose text the client has in part loses that part; ids and created become
// the first run's, and sequence_number counts on. No other byte changes.
//
// It passes on whole events only, so that there is a place to go on from.
type Joiner struct {
	framing framing
	outline outline
	out     []byte

	held    []byte // the bytes of an unfinished event
	inLine  bool   // the last line has not ended
	afterCR bool   // it ended in CR: an LF is the same end
	crlf    bool   // lines end in both
	owed    bool   // a run broke off between the two
	left    bool   // the last event was left out

	sent  []byte // the events that the client has, as they are compared
	at    int    // of it, what the present run has given
	form  []byte // the last event's outline, if it had a text
	piece []byte // the event in hand, as it is compared
	lost  bool   // an event could not be held: no further run can follow
}

// mark stands before an outline and before the text that follows it. It is no byte
// of UTF-8.
const mark = 0xFF

// NewJoiner returns a joiner for the answer to a request to e; header gives the
// answer's headers by name. It is nil if that is no stream that can be read.
func NewJoiner(e Endpoint, header func(name string) string) *Joiner {
	f := framingOf(e, header)
	if f != events && f != lines {
		return nil
	}
	// SGLang's events hold all of the text so far: there it does not run on.
	return &Joiner{framing: f, outline: outline{strict: e.Dialect == Generate}}
}

// Resumable says whether a further run could follow what has come so far.
func (j *Joiner) Resumable() bool { return !j.lost }

// Again says that the run broke off, and that the next bytes are those of a
// further run, from its beginning.
func (j *Joiner) Again() {
	j.owed = j.owed || j.crlf && j.afterCR && len(j.held) == 0 && !j.left
	j.held, j.inLine, j.afterCR = j.held[:0], false, false
	j.at, j.form = 0, j.form[:0]
	j.outline.start(len(j.sent) == 0)
}

// Next takes the next bytes of the present run, cut anywhere, the last if it has
// ended well, and returns those that are ready for the client; they are valid until
// the next call. From an event of more than 256 KiB on (a line: 1 MiB), or where more
// than 1 MiB would have to be kept to be compared, bytes pass as they come and no
// further run can follow.
func (j *Joiner) Next(p []byte, last bool) ([]byte, error) {
	if j.out = j.out[:0]; j.owed {
		j.out, j.owed = append(j.out, '\n'), false
	}
	for i, c := range p {
		if j.lost {
			j.out = append(j.out, p[i:]...)
			break
		}
		half := j.framing == events && c == '\n' && j.afterCR // the second half of a line's end
		j.afterCR, j.crlf = c == '\r', j.crlf || half
		if half && len(j.held) == 0 {
			if !j.left {
				j.out = append(j.out, c)
			}
			continue
		}
		j.held = append(j.held, c)
		if j.ends(c) && !half {
			if err := j.event(); err != nil {
				return nil, err
			}
		}
	}
	if last && len(j.held) > 0 {
		if err := j.event(); err != nil {
			return nil, err
		}
	}
	if (j.lost || last) && j.at < len(j.sent) {
		return nil, ErrDiffers
	}
	return j.out, nil
}

// ends says whether an event ends in c, or has become too long to be held.
func (j *Joiner) ends(c byte) bool {
	if j.framing == lines {
		j.lost = len(j.held) > answerMax
		return c == '\n' || j.lost
	}
	end := c == '\n' || c == '\r'
	blank := end && !j.inLine
	j.inLine = !end
	j.lost = len(j.held) > lineMax
	return blank || j.lost
}

// event takes the event that is held, with the blank line that ends it: the client
// has it, or lacks it, or has a part of its text.
func (j *Joiner) event() error {
	event := j.held
	j.held = j.held[:0]
	at := Span{0, len(event)}
	if j.framing == events {
		at = dataOf(event)
	}
	data := event[at.From:at.To]
	has := j.sent[j.at:]
	if len(bytes.TrimSpace(data)) == 0 { // a comment
		if j.left = len(has) > 0; !j.left {
			j.out = append(j.out, event...)
		}
		return nil
	}
	lead := j.compare(data)
	if j.lost {
		j.out, j.left = append(j.out, event...), false
		return nil
	}
	if j.left = bytes.HasPrefix(has, j.piece); j.left {
		j.at += len(j.piece)
		return nil
	}
	if len(has) > 0 {
		if !bytes.HasPrefix(j.piece, has) || len(has) < lead || !utf8.Valid(j.piece[len(has):]) {
			return ErrDiffers
		}
		j.outline.loseText(j.piece[len(has):])
	}
	j.sent = append(j.sent, j.piece[len(has):]...)
	j.at = len(j.sent)
	j.out = append(append(j.out, event[:at.From]...), j.outline.pass(data)...)
	j.out = append(j.out, event[at.To:]...)
	return nil
}

// compare writes an event's data as it is compared: its text alone, if that runs on
// from the last event's, or else its outline, a lead of so many bytes, and then its
// text.
func (j *Joiner) compare(data []byte) (lead int) {
	o := &j.outline
	j.lost = j.lost || !o.read(data) || len(j.sent)+len(o.form)+len(data) > answerMax
	j.piece = j.piece[:0]
	if !o.text.given() || !bytes.Equal(o.form, j.form) {
		j.piece = append(append(j.piece, mark), o.form...)
		if o.text.given() {
			j.piece = append(j.piece, mark)
		}
	}
	lead = len(j.piece)
	j.piece = o.doc.appendString(j.piece, o.text)
	j.form, o.form = o.form, j.form[:0]
	if !o.text.given() {
		j.form = j.form[:0]
	}
	return lead
}

// dataOf returns where an event's data is, from its first such line to the last.
// That of several is no JSON.
func dataOf(event []byte) (data Span) {
	for i := 0; i < len(event); i++ {
		end := len(event)
		if n := bytes.IndexAny(event[i:], "\r\n"); n >= 0 {
			end = i + n
		}
		if bytes.HasPrefix(event[i:end], []byte("data:")) {
			if data.To == 0 {
				data.From = i + len("data:")
				for data.From < end && event[data.From] == ' ' {
					data.From++
				}
			}
			data.To = end
		}
		i = end
	}
	return data
}
