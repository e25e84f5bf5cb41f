package cases

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// bytewise cuts s into single bytes.
func bytewise(s string) []string {
	all := make([]string, len(s))
	for i := range len(s) {
		all[i] = s[i : i+1]
	}
	return all
}

// G01: characters of several bytes survive any cut between them, as they are, and
// what a node reads in passing is not hurt either.
func TestG01CharactersAcrossChunks(t *testing.T) {
	s := Stream(bytewise(event("déjà vu, 東京 🗼") + event("Ω≈ç") + finish + usage + done)...)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.wantWhole(c.post(chatStream), s)
		for name, m := range c.members {
			if strings.ContainsRune(m.log.String(), '\uFFFD') {
				t.Errorf("%s spoilt a character in its log", name)
			}
		}
		if got := c.metrics(c.at)["hearsay_actual_cached_tokens_total"]; got != 4 {
			t.Errorf("%v cached tokens counted, want 4", got)
		}
	})
}

// G02: events that end in CRLF arrive when they leave, also when CR and LF come
// apart, and are read as others are.
func TestG02CRLF(t *testing.T) {
	crlf := func(s string) []string {
		s = strings.TrimSuffix(s, "\n\n")
		return []string{s + "\r", "\n\r", "\n"}
	}
	var pieces []string
	for _, e := range []string{event("alpha"), event("beta"), finish, usage, done} {
		pieces = append(pieces, crlf(e)...)
	}
	s := Drip(30*time.Millisecond, pieces...)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		r := c.post(chatStream)
		c.wantWhole(r, s)
		c.wantPrompt(r)
		if got := c.metrics(c.at)["hearsay_actual_cached_tokens_total"]; got != 4 {
			t.Errorf("%v cached tokens counted, want 4", got)
		}
	})
}

// wantPrompt sees that each piece came to the client at the time at which the
// engine wrote it. In virtual time a node itself takes none.
func (c *cluster) wantPrompt(r reply) {
	c.t.Helper()
	sent := c.served().asked()[0].Sent()
	if len(r.pieces) != len(sent) {
		c.t.Errorf("%d pieces came of the %d written", len(r.pieces), len(sent))
		return
	}
	for i, p := range r.pieces {
		if late := p.at.Sub(sent[i]); late != 0 {
			c.t.Errorf("piece %d came %v after it was written", i, late)
		}
	}
}

// G03: a line longer than what a node would hold of one is passed on whole, and
// what follows it is read.
func TestG03LongLine(t *testing.T) {
	s := Stream(event(strings.Repeat("a", 3<<20)), finish, usage, done)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.wantWhole(c.post(chatStream), s)
		if got := c.metrics(c.at)["hearsay_actual_cached_tokens_total"]; got != 4 {
			t.Errorf("%v cached tokens counted, want 4", got)
		}
	})
}

// G04: comments before the first token are passed on at once, as they are. The
// time to the first token ends with a token.
func TestG04Comments(t *testing.T) {
	s := Drip(time.Second, ": ping\n\n", ":\n\n", ": still working\n\n", event("hi"), finish+done)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		r := c.post(chatStream)
		c.wantWhole(r, s)
		c.wantPrompt(r)
		hop := map[string]string{"A": "forwarded", "B": "local"}[c.at]
		if got := c.metrics(c.at)[`hearsay_ttft_seconds_sum{hop="`+hop+`"}`]; got != 3 {
			t.Errorf("time to the first token %v s, want 3", got)
		}
	})
}

// G05: a stream may end without [DONE]. It ends then for the client too, nothing is
// made up, and it counts as a success.
func TestG05NoDone(t *testing.T) {
	s := Stream(event("hi"), finish)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		begun := time.Now()
		c.wantWhole(c.post(chatStream), s)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("ended after %v", took)
		}
		if n := c.requests(c.at, "ok"); n != 1 {
			t.Errorf("%d requests counted as ok", n)
		}
	})
}

// G06: when an engine, or the node before it, goes away in mid-stream, the client
// sees that the answer broke off: it has what came, nothing added, nothing again.
func TestG06BrokenOff(t *testing.T) {
	dying := Drip(100*time.Millisecond, event("one "), event("two "), `data: {"id":"chatcmpl-ca`)
	hour := Drip(time.Hour, event("one "), done)
	for name, what := range map[string]struct {
		script Script
		end    End
		kill   string
	}{
		"engine closes": {script: dying, end: Dropped},
		"engine resets": {script: dying, end: Broken},
		"node killed":   {script: hour, kill: "B"},
	} {
		t.Run(name, func(t *testing.T) {
			s := what.script
			s.End = what.end
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				if what.kill != "" {
					time.AfterFunc(time.Second, func() { c.kill(what.kill) })
				}
				r := c.post(chatStream)
				if r.err == nil || r.status != 200 {
					t.Errorf("%d and a whole answer %q", r.status, r.body)
				}
				if !strings.HasPrefix(s.Body(), string(r.body)) || !strings.HasPrefix(string(r.body), event("one ")) {
					t.Errorf("the client has %q, not the beginning of the answer", r.body)
				}
				if n := len(c.served().asked()); n != 1 {
					t.Errorf("the engine was asked %d times", n)
				}
			})
		})
	}
}

// G06: an answer that is no stream and breaks off is no answer: while the client has
// nothing of it, it gets an error, or another node's.
func TestG06BrokenWhole(t *testing.T) {
	big := `{"x":"` + strings.Repeat("y", 3<<20)
	for name, s := range map[string]Script{
		"short":       {Header: []string{"Content-Type: application/json", "Content-Length: 100"}, Framing: Bare, Steps: steps(0, []string{`{"x":`}), End: Dropped},
		"long":        {Header: []string{"Content-Type: application/json", "Content-Length: 9999999"}, Framing: Bare, Steps: steps(0, []string{big}), End: Dropped},
		"of no size":  {Header: []string{"Content-Type: application/json"}, Steps: steps(0, []string{`{"x":`}), End: Dropped},
		"no body yet": {Header: []string{"Content-Type: application/json"}, Steps: nil, End: Dropped},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				c.anyone = true // and all are alike
				switch r := c.post(chat); {
				case r.status == 200 && r.err == nil:
					t.Errorf("%q seems whole", excerpt(string(r.body)))
				case r.status != 200:
					wantError(t, r, 502, "engine_unavailable")
				case !strings.HasPrefix(s.Body(), string(r.body)):
					t.Errorf("the client has %q", excerpt(string(r.body)))
				}
			})
		})
	}
}

// G07: events reach the client one by one as they leave the engine, whatever
// parameters the content type has, and what the engine says to proxies is passed on.
func TestG07NoLumps(t *testing.T) {
	s := Drip(200*time.Millisecond, event("t0 "), event("t1 "), event("t2 "), event("t3 "), finish, done)
	s.Header = []string{"Content-Type: text/event-stream; charset=utf-8", "Cache-Control: no-cache", "X-Accel-Buffering: no"}
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		r := c.post(chatStream)
		c.wantWhole(r, s)
		c.wantPrompt(r)
		for _, line := range s.Header {
			if name, value, _ := strings.Cut(line, ": "); r.header.Get(name) != value {
				t.Errorf("%s: %q, want %q", name, r.header.Get(name), value)
			}
		}
	})
}

// G07: so do lines of JSON, in the dialect that streams unless it is told not to.
func TestG07NoLumpsOfLines(t *testing.T) {
	line := func(text string) string {
		return `{"model":"m-test","message":{"role":"assistant","content":"` + text + `"},"done":false}` + "\n"
	}
	s := Drip(200*time.Millisecond, line("a"), line("b")[:20], line("b")[20:], `{"model":"m-test","done":true,"prompt_eval_count":9,"eval_count":2}`+"\n")
	s.Header = []string{"Content-Type: application/x-ndjson"}
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		r := c.ask(t.Context(), http.MethodPost, "/api/chat", chat)
		c.wantWhole(r, s)
		c.wantPrompt(r)
	})
}

// G08: a compressed answer keeps its label, its length and its bytes. What a node
// cannot read it does not count. A client that does not ask for compression does
// not have its node ask for it.
func TestG08Compressed(t *testing.T) {
	for kind, plain := range map[string]string{"application/json": answer, "text/event-stream": event("hi") + finish + usage + done} {
		t.Run(kind, func(t *testing.T) {
			s := Script{Header: []string{"Content-Type: " + kind, "Content-Encoding: gzip", "Vary: Accept-Encoding"}, Framing: Length, Steps: steps(0, []string{zipped(plain)})}
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				r := c.post(chatStream, "Accept-Encoding: gzip")
				c.wantWhole(r, s)
				if r.header.Get("Content-Encoding") != "gzip" || r.header.Get("Content-Length") != fmt.Sprint(len(s.Body())) || r.header.Get("Vary") != "Accept-Encoding" {
					t.Errorf("header %v", r.header)
				}
				c.post(chatStream)
				asked := c.served().asked()
				if got := asked[0].Header.Get("Accept-Encoding"); got != "gzip" {
					t.Errorf("the engine was asked with Accept-Encoding %q", got)
				}
				if got, ok := asked[1].Header["Accept-Encoding"]; ok {
					t.Errorf("a node asked for %q by itself", got)
				}
				for _, series := range []string{"hearsay_prompt_tokens_total", "hearsay_expected_cached_tokens_total", "hearsay_actual_cached_tokens_total"} {
					// Each is right, or all are left out: the tokens are of two requests.
					if got, right := c.metrics(c.at)[series], map[string]float64{"hearsay_prompt_tokens_total": 18, "hearsay_actual_cached_tokens_total": 8}[series]; got != 0 && got != right {
						t.Errorf("%s is %v", series, got)
					}
				}
			})
		})
	}
}

func zipped(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, s)
	w.Close()
	return b.String()
}
