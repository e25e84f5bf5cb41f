package dialect

import (
	"bytes"
	"strconv"
)

// An outline is what two runs of a request give alike in an event, and where it
// lies. White space is not part of it, nor are numbers but for those that say of
// which part of an answer an event is; ids, times, usage and fingerprints are left
// out. Its text is kept apart: the one string that is not empty under a key that
// holds what a model says. An event with two of them, or none, has no text.
type outline struct {
	doc    doc
	strict bool // a text is part of the outline

	form  []byte
	text  value
	texts int
	cut   Span // where in form the text is

	// What events of a further run are given of the first.
	further  bool
	ids, own [][]byte // the first run's, as JSON, and the present run's for the same things
	created  []byte
	sequence int    // sequence_number of the next event that is passed on
	next     int    // and that of the one after it, if this one is passed on
	edits    []edit // what makes the event one of the first run
}

// idsMax bounds the ids of one answer: its own, those of its items and of the calls
// of tools in it.
const idsMax = 64

// read reads an event's data. It returns false if that cannot be compared.
func (o *outline) read(data []byte) (ok bool) {
	o.form, o.text, o.texts, o.edits = o.form[:0], value{}, 0, o.edits[:0]
	o.next = o.sequence
	if bytes.IndexByte(data, mark) >= 0 {
		return false
	}
	if o.doc.parse(data) != nil { // [DONE]
		o.form = append(o.form, data...)
		return true
	}
	o.walk(o.doc.root())
	if o.texts != 1 || o.strict {
		o.text = value{}
	} else {
		o.form = append(o.form[:o.cut.From], o.form[o.cut.To:]...)
	}
	return len(o.ids) <= idsMax
}

func (o *outline) walk(v value) {
	d := &o.doc
	switch d.kind(v) {
	case '{':
		o.form = append(o.form, '{')
		for key, m := range d.members(v) {
			if !o.differs(key, m) {
				o.form = append(append(o.form, key...), ':')
				o.member(key, m)
				o.form = append(o.form, ',')
			}
		}
		o.form = append(o.form, '}')
	case '[':
		o.form = append(o.form, '[')
		for e := range d.elements(v) {
			o.walk(e)
			o.form = append(o.form, ',')
		}
		o.form = append(o.form, ']')
	default:
		if d.number(v) {
			o.form = append(o.form, '0')
			return
		}
		o.form = append(o.form, d.raw(v)...)
	}
}

// member writes the value under a key.
func (o *outline) member(key []byte, v value) {
	d := &o.doc
	switch string(key) {
	case "index", "output_index", "content_index", "summary_index":
		o.form = append(o.form, d.raw(v)...)
		return
	case "content", "text", "delta", "response", "reasoning_content", "reasoning", "thinking", "refusal", "arguments", "partial_json":
		if d.kind(v) == '"' && !d.empty(v) {
			o.text, o.cut = v, Span{len(o.form), len(o.form) + v.end - v.at}
			o.texts++
		}
	}
	o.walk(v)
}

// differs says whether a member is one that differs from run to run. It notes what
// has to become the first run's.
func (o *outline) differs(key []byte, v value) bool {
	d := &o.doc
	switch string(key) {
	case "id", "item_id", "call_id":
		if d.kind(v) == '"' && !d.empty(v) {
			o.change(v, o.id(d.raw(v)))
		}
		return true
	case "created", "created_at":
		if d.number(v) { // Ollama writes each line's own time, as text
			if o.created == nil {
				o.created = bytes.Clone(d.raw(v))
			}
			o.change(v, o.created)
		}
		return true
	case "sequence_number":
		if n, ok := d.integer(v); ok && !o.further {
			o.next = n + 1
		} else if ok {
			o.next = o.sequence + 1
			o.change(v, strconv.AppendInt(nil, int64(o.sequence), 10))
		}
		return true
	case "usage", "system_fingerprint", "obfuscation":
		return true
	}
	return false
}

// id returns the first run's id for what the present run calls own: the ids of a
// run come in one order.
func (o *outline) id(own []byte) []byte {
	for i := len(o.own) - 1; i >= 0; i-- {
		if bytes.Equal(o.own[i], own) {
			return o.ids[i]
		}
	}
	o.own = append(o.own, bytes.Clone(own))
	if n := len(o.own); n > len(o.ids) {
		o.ids = append(o.ids, o.own[n-1])
	}
	return o.ids[len(o.own)-1]
}

// change notes that v has to be changed in an event of a further run.
func (o *outline) change(v value, to []byte) {
	if o.further && !bytes.Equal(o.doc.raw(v), to) {
		o.edits = append(o.edits, edit{v.span(), string(to)})
	}
}

// loseText notes that only the end of the event's text is to be passed on.
func (o *outline) loseText(rest []byte) {
	o.edits = append(o.edits, edit{o.text.span(), string(appendQuoted(nil, string(rest)))})
}

// pass returns the data of the event that was read, as it is passed on.
func (o *outline) pass(data []byte) []byte {
	if o.sequence = o.next; len(o.edits) == 0 {
		return data
	}
	return splice(data, o.edits)
}

// start says that a further run begins, or, where nothing was passed on yet, a
// first one.
func (o *outline) start(first bool) {
	if o.own, o.further = nil, !first; first {
		o.ids, o.created, o.sequence = nil, nil, 0
	}
}
