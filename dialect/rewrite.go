package dialect

import (
	"bytes"
	"strconv"
)

// A Rewriter joins the streams of a run that broke off and of the runs that
// resume it (Request.Resume) into the one that an undisturbed run would have
// given. It passes on whole events only, so that there is a place to go on from.
//
// In a resumed run's events three things are changed, and no other byte: id and
// created become the first run's; the tokens that were resumed from are counted
// as generated, not as prompt; and what opens a stream before its first text is
// left out, as the client has it already.
//
// It reads the streams of Chat and Completion. The zero Rewriter is ready.
type Rewriter struct {
	doc     doc
	held    []byte // the bytes of an unfinished event
	out     []byte
	inLine  bool // the last line has not ended
	afterCR bool // it ended in CR: an LF is the same end
	crlf    bool // lines end in both
	owed    bool // a run broke off between the two
	left    bool // the last event was left out

	id, created []byte // JSON, as the first run wrote them
	passed      bool   // an event with data was passed on
	resumed     bool   // the present run goes on from events that were passed on
	opening     bool   // it has given no text yet
	prior       int    // tokens that the runs before it gave
	lost        bool   // an event was too long to be held
}

// Write takes the next bytes of an engine's stream, cut anywhere, and returns
// those that are ready for the client; they are valid until the next call. An
// event of more than 256 KiB ends rewriting: from there on bytes pass as they
// come, and the stream cannot be resumed.
func (w *Rewriter) Write(p []byte) []byte {
	if w.out = w.out[:0]; w.owed {
		w.out, w.owed = append(w.out, '\n'), false
	}
	for i, c := range p {
		if w.lost {
			return append(w.out, p[i:]...)
		}
		half := c == '\n' && w.afterCR // the second half of a line's end
		w.afterCR, w.crlf = c == '\r', w.crlf || half
		if half && len(w.held) == 0 {
			if !w.left {
				w.out = append(w.out, c)
			}
			continue
		}
		w.held = append(w.held, c)
		ends := c == '\n' || c == '\r'
		w.lost = len(w.held) > lineMax
		if ends && !w.inLine && !half || w.lost {
			w.event(w.held)
			w.held = w.held[:0]
		}
		w.inLine = !ends
	}
	return w.out
}

// Rest returns what is left of a stream that has ended well.
func (w *Rewriter) Rest() []byte { return w.held }

// Resume says that the run broke off, after it and those before it had given
// this many tokens in the events that were passed on, and that the next bytes
// are of a run that goes on from there. It returns false if that cannot be done.
func (w *Rewriter) Resume(tokens int) bool {
	w.owed = w.owed || w.crlf && w.afterCR && len(w.held) == 0 && !w.left
	w.held, w.inLine, w.afterCR = w.held[:0], false, false
	w.prior, w.resumed, w.opening = tokens, w.passed, w.passed
	return !w.lost
}

// event passes on an event with the blank line that ends it.
func (w *Rewriter) event(event []byte) {
	at := dataOf(event)
	data := event[at.From:at.To]
	if w.lost || w.passed && !w.resumed || len(data) == 0 || data[0] != '{' || w.doc.parse(data) != nil {
		w.out, w.left = append(w.out, event...), false
		return
	}
	if w.left = w.opening && w.opens(); w.left {
		return
	}
	w.opening = false
	if !w.passed {
		w.passed = true
		w.id = bytes.Clone(w.field("id"))
		w.created = bytes.Clone(w.field("created"))
	}
	w.out = append(w.out, event[:at.From]...)
	w.out = append(w.out, splice(data, w.edits())...)
	w.out = append(w.out, event[at.To:]...)
}

// dataOf returns where an event's data is, or the empty span if it is not on one
// line.
func dataOf(event []byte) (data Span) {
	for i := 0; i < len(event); i++ {
		end := len(event)
		if n := bytes.IndexAny(event[i:], "\r\n"); n >= 0 {
			end = i + n
		}
		if bytes.HasPrefix(event[i:end], []byte("data:")) {
			if data.To > 0 {
				return Span{}
			}
			data = Span{i + len("data:"), end}
			for data.From < end && event[data.From] == ' ' {
				data.From++
			}
		}
		i = end
	}
	return data
}

// field returns a member of the event's object as it was written, nil for none.
func (w *Rewriter) field(name string) []byte {
	if v := w.doc.member(w.doc.root(), name); v.given() {
		return w.doc.raw(v)
	}
	return nil
}

// opens says whether the event has nothing to say but that a stream begins.
func (w *Rewriter) opens() bool {
	d := &w.doc
	root := d.root()
	for c := range d.elements(d.member(root, "choices")) {
		said := d.member(c, "text")
		if delta := d.member(c, "delta"); delta.given() {
			said = d.member(delta, "content")
		}
		if !d.empty(said) || !d.null(d.member(c, "finish_reason")) {
			return false
		}
	}
	return d.member(root, "choices").given() && d.null(d.member(root, "usage"))
}

// edits returns what is to be changed in an event of a resumed run.
func (w *Rewriter) edits() (edits []edit) {
	if !w.resumed {
		return nil
	}
	d := &w.doc
	for key, v := range d.members(d.root()) {
		at := v.span()
		switch {
		case string(key) == "id" && w.id != nil:
			edits = append(edits, edit{at, string(w.id)})
		case string(key) == "created" && w.created != nil:
			edits = append(edits, edit{at, string(w.created)})
		case string(key) == "usage":
			edits = append(edits, w.recount(v)...)
		}
	}
	return edits
}

// recount moves the tokens of the runs before from the prompt to the answer;
// their sum stays.
func (w *Rewriter) recount(usage value) (edits []edit) {
	for key, v := range w.doc.members(usage) {
		n, ok := w.doc.integer(v)
		switch {
		case ok && string(key) == "prompt_tokens":
			n = max(n-w.prior, 0)
		case ok && string(key) == "completion_tokens":
			n += w.prior
		default:
			continue
		}
		edits = append(edits, edit{v.span(), strconv.Itoa(n)})
	}
	return edits
}
