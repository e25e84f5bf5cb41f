package dialect

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A plan says where a body is to be changed so that it asks for the rest of an
// answer. The zero plan is for requests whose answer cannot be resumed.
type plan struct {
	dialect Dialect // Completion or Chat; Opaque if there is no way
	prompt  int     // where text goes on: before the prompt's closing quote or the messages' closing bracket
	first   bool    // there are no messages yet
	end     int     // the body's closing brace
	limits  []limit
}

// A limit is a max_tokens or max_completion_tokens.
type limit struct {
	at     Span
	tokens int
}

// Resumable says that an answer to the request that broke off can be had whole
// from another engine, byte for byte: decoding is greedy, the engine adds
// nothing of its own to the text, and it can be told to go on from a text. This is
// strict: a field that is not known to leave this as it is makes it false.
func (r Request) Resumable() bool { return r.resume.dialect != Opaque }

// Resume returns the body of a request for the rest of an answer that so far is
// text, of that many tokens: body, which r was read from, with the text after its
// prompt and the tokens off its limits. No other byte is changed.
//
// A completion's text goes to the end of its prompt. A chat's becomes a message
// of the assistant that the engine is told to finish, by the fields of vLLM and
// SGLang (continue_final_message, add_generation_prompt); an engine that does
// not know them would begin a new message, so ask this of no other. Nothing is
// left to ask for, and ok is false, when a limit is reached. It is false too when
// a chat's text begins or ends in white space, which chat templates trim, and when
// a character of the text is not whole.
//
// That the rest is the undisturbed run's takes one thing more, which only the
// engine can give: that it reads the text as the tokens that it was made of.
func (r Request) Resume(body []byte, text string, tokens int) (rest []byte, ok bool) {
	p := r.resume
	if p.dialect == Opaque || p.dialect == Chat && strings.TrimSpace(text) != text || strings.ContainsRune(text, utf8.RuneError) {
		return nil, false
	}
	if text == "" {
		return body, true
	}
	var edits []edit
	for _, l := range p.limits {
		if tokens >= l.tokens {
			return nil, false
		}
		edits = append(edits, edit{l.at, strconv.Itoa(l.tokens - tokens)})
	}
	quoted := string(appendQuoted(nil, text))
	if p.dialect == Completion {
		edits = append(edits, edit{Span{p.prompt, p.prompt}, quoted[1 : len(quoted)-1]})
		return splice(body, edits), true
	}
	message := `{"role":"assistant","content":` + quoted + `}`
	if !p.first {
		message = "," + message
	}
	edits = append(edits,
		edit{Span{p.prompt, p.prompt}, message},
		edit{Span{p.end, p.end}, `,"continue_final_message":true,"add_generation_prompt":false`})
	return splice(body, edits), true
}

// plan says how a request's answer could be resumed.
func (p *prompt) plan(d Dialect, f fields) plan {
	prompt := f.prompt
	kind := byte('"')
	if d == Chat {
		prompt, kind = f.messages, '['
	} else if d != Completion || p.null(f.maxTokens) {
		return plan{} // without max_tokens, completions end after what each engine finds fit
	}
	if p.kind(prompt) != kind || !p.equals(f.temperature, 0) {
		return plan{}
	}
	for key, v := range p.members(p.root()) {
		if !p.plain(string(key), v) {
			return plan{}
		}
	}
	way := plan{dialect: d, prompt: prompt.end - 1, end: p.root().end - 1}
	way.first = d == Chat && p.empty(prompt)
	for _, v := range []value{f.maxTokens, f.maxCompletionTokens} {
		if p.null(v) {
			continue
		}
		n, ok := p.integer(v)
		if !ok {
			return plan{}
		}
		way.limits = append(way.limits, limit{v.span(), n})
	}
	return way
}

// plain says whether a member of a request leaves its answer resumable: null
// does, and what the router sets itself, and what greedy decoding ignores, and
// the values of other fields that say that nothing is wanted.
func (p *prompt) plain(key string, v value) bool {
	switch key {
	case "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "stream", "stream_options",
		"top_p", "top_k", "min_p", "seed", "cache_salt", "user", "metadata", "priority":
		return true
	case "n", "best_of", "repetition_penalty":
		return p.null(v) || p.equals(v, 1)
	case "frequency_penalty", "presence_penalty", "min_tokens":
		return p.null(v) || p.equals(v, 0)
	case "echo", "stop", "stop_token_ids", "suffix", "tools", "logit_bias", "logprobs", "ignore_eos":
		return p.empty(v)
	}
	return p.null(v)
}

// equals says whether v is a number of this value.
func (p *prompt) equals(v value, want float64) bool {
	if !p.number(v) {
		return false
	}
	x, err := strconv.ParseFloat(string(p.raw(v)), 64)
	return err == nil && x == want
}

// An edit puts text in the place of a part of a body.
type edit struct {
	at   Span
	text string
}

// splice returns body with the edits made, which do not overlap.
func splice(body []byte, edits []edit) []byte {
	slices.SortFunc(edits, func(a, b edit) int { return a.at.From - b.at.From })
	var out []byte
	done := 0
	for _, e := range edits {
		out = append(append(out, body[done:e.at.From]...), e.text...)
		done = e.at.To
	}
	return append(out, body[done:]...)
}
