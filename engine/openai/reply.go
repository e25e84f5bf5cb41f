package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// A form is the shape of one answer in its API.
type form interface {
	// whole is the answer that is not streamed.
	whole(a *reply) any
	// open sends what comes before the text, piece a token's text, and last what
	// comes after it.
	open(a *reply)
	piece(a *reply, text string)
	last(a *reply)
}

// A reply is an answer on its way: collected, or sent as a stream, a piece for each
// token that has text. One that fails midway ends without its last piece.
type reply struct {
	*Call
	form
	w       http.ResponseWriter
	model   string
	created time.Time
	id      string // drawn, without a prefix
	begun   bool   // the stream's headers are out

	text   strings.Builder // so far
	usage  usage           // of the answer so far
	reason string          // once it has ended: "stop" or "length"
}

func newReply(w http.ResponseWriter, c *Call, model string, prompt, cached int) *reply {
	return &reply{Call: c, form: c.api.form(), w: w, model: model, created: time.Now(), id: drawID(), usage: usage{Prompt: prompt, cached: cached, Details: &usageDetails{cached}}}
}

// begin starts a stream, once.
func (a *reply) begin() {
	if a.begun {
		return
	}
	a.begun = true
	kind := "text/event-stream"
	if a.api.streams {
		kind = "application/x-ndjson"
	}
	a.w.Header().Set("Content-Type", kind)
	a.w.Header().Set("Cache-Control", "no-cache")
	a.open(a)
}

// add adds what a token said.
func (a *reply) add(text string) {
	a.text.WriteString(text)
	a.usage.Completion++
	if !a.Stream {
		return
	}
	a.begin()
	if text == "" {
		a.flush() // the client sees that its answer has begun
		return
	}
	a.piece(a, text)
}

// end finishes the answer of so many tokens.
func (a *reply) end(reason string, tokens int) {
	a.reason = reason
	a.usage.Completion, a.usage.Total = tokens, a.usage.Prompt+tokens
	if !a.Stream {
		writeJSON(a.w, http.StatusOK, a.whole(a))
		return
	}
	a.begin()
	a.last(a)
}

// data sends v as a server-sent event; named says its type twice, as the APIs do
// whose events have one; line sends it as a line. A client that has gone shows in the
// request's context.
func (a *reply) data(v any) { a.send("data: ", v, "\n\n") }

func (a *reply) named(kind string, v map[string]any) {
	v["type"] = kind
	a.send("event: "+kind+"\ndata: ", v, "\n\n")
}

func (a *reply) line(v any) { a.send("", v, "\n") }

func (a *reply) send(before string, v any, after string) {
	_, _ = fmt.Fprintf(a.w, "%s%s%s", before, encodeJSON(v), after)
	a.flush()
}

func (a *reply) done() {
	_, _ = fmt.Fprint(a.w, "data: [DONE]\n\n")
	a.flush()
}

func (a *reply) flush() { _ = http.NewResponseController(a.w).Flush() }

// drawID draws the part of an answer's id that follows its prefix, 32 digits; ids need
// not repeat.
func drawID() string {
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(encodeJSON(v), '\n'))
}

// encodeJSON leaves <, > and & as they are, as the engines it stands in for do.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // only our own types come here
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
