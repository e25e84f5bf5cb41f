package main

import (
	"errors"
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
	refused := "hearsay: unknown flag"
	if got := say(refused); got != "n1: "+refused+"\n" {
		t.Errorf("the first node says %q", got)
	}
	s.log("n2", []byte(refused))
	s.ended("n1", 7, errors.New("exit status 2"))
	s.ended("n2", 8, errors.New("exit status 2"))
	if got := out.String(); strings.Count(got, refused) != 1 || strings.Contains(got, "n2") || s.speaker("n2") != "n1" {
		t.Errorf("the first does not speak for the others: %q", got)
	}
	out.Reset()
	s.log("n3", []byte("hearsay: its port is in use"))
	s.ended("n3", 9, errors.New("exit status 2"))
	if got, want := out.String(), "n3: hearsay: its port is in use\nn3 (pid 9) ended: exit status 2\n"; got != want || s.speaker("n3") != "n3" {
		t.Errorf("who has a word of its own says %q, by %s", got, s.speaker("n3"))
	}
	s.goOn()
	request := `{"level":"INFO","msg":"request","path":"/v1/completions","outcome":"ok","hop":"local","node":"n1","reason":"why","prompt_tokens":9,"total_ms":12.34`
	for line, want := range map[string]string{
		joined: "n1: peer joined n2\n",
		`{"level":"INFO","msg":"peer is back","peer":"n2"}`:                                                                               "n1: peer is back n2\n",
		`{"level":"WARN","msg":"peer lost","peer":"n2"}`:                                                                                  "n1: peer lost n2\n",
		`{"level":"INFO","msg":"the engine is ready"}`:                                                                                    "",
		`{"level":"WARN","msg":"the engine is not ready","state":"down","err":"connection refused\nby both"}`:                             "n1: the engine is not ready: connection refused by both\n",
		`{"level":"WARN","msg":"two nodes have one name","peer":"n2","err":"at 127.0.0.1:1 and at 127.0.0.1:2; give one another --name"}`: "n1: two nodes have one name n2: at 127.0.0.1:1 and at 127.0.0.1:2; give one another --name\n",
		request + `}`:               "n1     n1                9        0        0         -    12.3 ms  why\n",
		request + `,"ttft_ms":3.5}`: "n1     n1                9        0        0    3.5 ms    12.3 ms  why\n",
		"panic: oh":                 "n1: panic: oh\n",
		`{"msg":"request","path":"/v1/completions","outcome":"refused","node":"n1","reason":"queue_full"}`: "n1     n1         refused: queue_full\n",
		`{"msg":"request","path":"/v1/completions","outcome":"rejected","node":"n2","status":400}`:         "n1     n2         rejected by the engine with status 400\n",
		`{"msg":"request","path":"/v1/completions","outcome":"broken","node":"n2","reason":"why"}`:         "n1     n2         broken\n",
	} {
		if got := say(line); got != want {
			t.Errorf("%s is shown as %q, want %q", line, got, want)
		}
	}
}
