package dialect

import "bytes"

// The readers take one JSON value of an answer, a piece of a stream or the whole
// of it, and say whether it is part of an answer (a ping is not).

// openAI reads chat completions and completions, as all engines write them.
// llama.cpp says in timings what its cache gave.
func (s *Scanner) openAI(v value) bool {
	d := &s.doc
	for key, m := range d.members(v) {
		switch string(key) {
		case "choices":
			for c := range d.elements(m) {
				s.choice(c)
			}
		case "usage":
			s.tokens(m, "prompt_tokens", "completion_tokens", "prompt_tokens_details")
		case "timings":
			s.timings(m)
		}
	}
	return true
}

// choice reads a choice if it is the first, the one that a conversation goes on
// from.
func (s *Scanner) choice(v value) {
	d := &s.doc
	var index, holder, said value
	for key, m := range d.members(v) {
		switch string(key) {
		case "index":
			index = m
		case "delta", "message":
			holder = m
		case "text":
			said = m
		}
	}
	if n, ok := d.integer(index); ok && n != 0 {
		return
	}
	if content := d.member(holder, "content"); content.given() {
		said = content
	}
	s.add(said)
}

// tokens reads a usage object by the names of its fields.
func (s *Scanner) tokens(v value, prompt, completion, details string) {
	d := &s.doc
	u, known := Usage{}, false
	for key, m := range d.members(v) {
		switch string(key) {
		case prompt:
			u.Prompt, _ = d.integer(m)
		case completion:
			u.Completion, _ = d.integer(m)
		case details:
			u.Cached, known = d.integer(d.member(m, "cached_tokens"))
		}
	}
	if u.Prompt == 0 {
		return
	}
	s.usage.Prompt, s.usage.Completion = u.Prompt, u.Completion
	if known {
		s.usage.Cached, s.known = u.Cached, true
	}
}

// timings reads those of llama.cpp (result_timings in tools/server): cache_n
// tokens of the prompt were in the cache and prompt_n were not. What a usage
// says goes before.
func (s *Scanner) timings(v value) {
	d := &s.doc
	var cached, computed int
	var ok1, ok2 bool
	for key, m := range d.members(v) {
		switch string(key) {
		case "cache_n":
			cached, ok1 = d.integer(m)
		case "prompt_n":
			computed, ok2 = d.integer(m)
		}
	}
	if ok1 && ok2 && !s.known {
		s.usage.Prompt, s.usage.Cached, s.known = cached+computed, cached, true
	}
}

// responses reads OpenAI responses: events named in their type, of which the
// last holds the whole response.
func (s *Scanner) responses(v value) bool {
	d := &s.doc
	var kind, delta, response, output, usage value
	for key, m := range d.members(v) {
		switch string(key) {
		case "type":
			kind = m
		case "delta":
			delta = m
		case "response":
			response = m
		case "output":
			output = m
		case "usage":
			usage = m
		}
	}
	if s.framing == whole {
		for item := range d.elements(output) {
			s.item(item)
		}
		s.usageOf(usage)
		return true
	}
	switch string(d.str(kind)) {
	case "response.output_text.delta":
		s.add(delta)
	case "response.completed", "response.incomplete", "response.failed":
		s.ended = true
		s.usageOf(d.member(response, "usage"))
	}
	return true
}

func (s *Scanner) usageOf(v value) {
	s.tokens(v, "input_tokens", "output_tokens", "input_tokens_details")
}

// item reads an item of a response's output: of a message, its texts.
func (s *Scanner) item(v value) {
	for part := range s.doc.elements(s.doc.member(v, "content")) {
		s.part(part, "output_text")
	}
}

// part reads a part of a message of this type.
func (s *Scanner) part(v value, kind string) {
	if string(s.doc.str(s.doc.member(v, "type"))) == kind {
		s.add(s.doc.member(v, "text"))
	}
}

// messages reads Anthropic messages. Of the prompt, input_tokens are those that
// were neither read from the cache nor, where that is told apart, written to it.
// vLLM and Ollama, which tell nothing of their cache there, count all of them.
func (s *Scanner) messages(v value) bool {
	d := &s.doc
	var kind, message, delta, content, usage value
	for key, m := range d.members(v) {
		switch string(key) {
		case "type":
			kind = m
		case "message":
			message = m
		case "delta":
			delta = m
		case "content":
			content = m
		case "usage":
			usage = m
		}
	}
	switch string(d.str(kind)) {
	case "ping":
		return false
	case "message_start":
		s.anthropicUsage(d.member(message, "usage"))
	case "content_block_delta":
		s.add(d.member(delta, "text"))
	case "message_stop":
		s.ended = true
	case "message": // not streamed
		for part := range d.elements(content) {
			s.part(part, "text")
		}
	}
	if usage.given() {
		s.anthropicUsage(usage)
	}
	return true
}

func (s *Scanner) anthropicUsage(v value) {
	d := &s.doc
	input, read, written := -1, -1, 0
	for key, m := range d.members(v) {
		n, ok := d.integer(m)
		if !ok {
			continue
		}
		switch string(key) {
		case "input_tokens":
			input = n
		case "cache_read_input_tokens":
			read = n
		case "cache_creation_input_tokens":
			written = n
		case "output_tokens":
			s.usage.Completion = n
		}
	}
	if input >= 0 && input+max(read, 0)+written > 0 { // a message_delta may leave the prompt out, or give it as 0
		s.usage.Prompt = input + max(read, 0) + written
		if read >= 0 {
			s.usage.Cached, s.known = read, true
		}
	}
}

// sglang reads SGLang's own answers (srt/managers/tokenizer_manager.py): the
// text is all of it so far, or, with --incremental-streaming-output, what is new.
func (s *Scanner) sglang(v value) bool {
	d := &s.doc
	var index, text, info value
	for key, m := range d.members(v) {
		switch string(key) {
		case "index":
			index = m
		case "text":
			text = m
		case "meta_info":
			info = m
		}
	}
	if n, ok := d.integer(index); ok && n != 0 {
		return true
	}
	if bytes.HasPrefix(d.str(text), s.text) {
		s.text = s.text[:0]
	}
	s.add(text)
	for key, m := range d.members(info) {
		n, ok := d.integer(m)
		if !ok {
			continue
		}
		switch string(key) {
		case "prompt_tokens":
			s.usage.Prompt = n
		case "completion_tokens":
			s.usage.Completion = n
		case "cached_tokens":
			s.usage.Cached, s.known = n, true
		}
	}
	return true
}

// llama reads llama.cpp's own answers (server_task_result_cmpl_final in
// tools/server/server-task.cpp). tokens_evaluated is the whole prompt, and
// tokens_cached what the cache holds afterwards, the answer included: what it
// gave is in timings.
func (s *Scanner) llama(v value) bool {
	d := &s.doc
	var index, content, timings value
	for key, m := range d.members(v) {
		switch string(key) {
		case "index":
			index = m
		case "content":
			content = m
		case "timings":
			timings = m
		}
	}
	if n, ok := d.integer(index); ok && n != 0 {
		return true
	}
	s.add(content)
	if timings.given() {
		s.timings(timings)
	}
	for key, m := range d.members(v) {
		n, ok := d.integer(m)
		switch string(key) {
		case "tokens_evaluated":
			if ok {
				s.usage.Prompt = n
			}
		case "tokens_predicted":
			s.usage.Completion = n
		case "stop":
			s.ended = s.ended || d.kind(m) == 't'
		}
	}
	return true
}

// ollama reads Ollama's own answers. prompt_eval_count is the whole prompt since
// its runner is llama-server, and what was not cached before; what was cached is
// not told.
func (s *Scanner) ollama(v value) bool {
	d := &s.doc
	for key, m := range d.members(v) {
		n, _ := d.integer(m)
		switch string(key) {
		case "response":
			s.add(m)
		case "message":
			s.add(d.member(m, "content"))
		case "prompt_eval_count":
			s.usage.Prompt = n
		case "eval_count":
			s.usage.Completion = n
		case "done":
			s.ended = s.ended || d.kind(m) == 't'
		}
	}
	return true
}
