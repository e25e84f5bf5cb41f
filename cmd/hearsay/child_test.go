package main

import (
	"strings"
	"testing"
)

// A demo shows requests, what went wrong, and who comes back, each in one line. The time
// to the first token is that of a stream.
func TestScreen(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out}
	say := func(line string) string {
		out.Reset()
		s.log("n1", []byte(line))
		return out.String()
	}
	joined := `{"level":"INFO","msg":"peer joined","peer":"n2"}`
	if got := say(joined); got != "" {
		t.Errorf("while all are being started: %q", got)
	}
	s.goOn()
	request := `{"level":"INFO","msg":"request","path":"/v1/completions","outcome":"ok","hop":"local","node":"n1","reason":"why","prompt_tokens":9,"total_ms":12.34`
	for line, want := range map[string]string{
		joined: "n1: peer joined n2\n",
		`{"level":"INFO","msg":"peer is back","peer":"n2"}`: "n1: peer is back n2\n",
		`{"level":"WARN","msg":"peer lost","peer":"n2"}`:    "n1: peer lost n2\n",
		`{"level":"INFO","msg":"the engine is ready"}`:      "",
		`{"level":"WARN","msg":"two nodes have one name","peer":"n2","err":"at 127.0.0.1:1 and at 127.0.0.1:2; give one another --name"}`: "n1: two nodes have one name n2 at 127.0.0.1:1 and at 127.0.0.1:2; give one another --name\n",
		request + `}`:               "n1     n1                9        0        0         -    12.3 ms  why\n",
		request + `,"ttft_ms":3.5}`: "n1     n1                9        0        0    3.5 ms    12.3 ms  why\n",
		"panic: oh":                 "n1: panic: oh\n",
	} {
		if got := say(line); got != want {
			t.Errorf("%s is shown as %q, want %q", line, got, want)
		}
	}
}
