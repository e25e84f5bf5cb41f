package main

import (
	"net"
	"testing"
	"time"
)

// The engine says what the client expects of it, and the client tells a whole answer
// from one that is not: else nothing that is measured means anything.
func TestEngineAndClientAgree(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { _ = serveEngine(l, model, time.Microsecond) }()
	c, err := dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 { // on one connection
		if _, events, bytes, err := c.ask(request(7, false)); err != nil || events != 0 || bytes != len(answered(7)) {
			t.Errorf("whole: %d events, %d bytes, %v", events, bytes, err)
		}
		if _, events, bytes, err := c.ask(request(7, true)); err != nil || events != eventsOf(7) || bytes < 7*len(event) {
			t.Errorf("streamed: %d events, %d bytes, %v", events, bytes, err)
		}
	}
}

// An answer that breaks off, or is no 200, is an error.
func TestClientTakesNothingOnTrust(t *testing.T) {
	for name, said := range map[string]string{
		"status":     notFound,
		"no end":     streamHead + oneEvent,
		"cut chunk":  streamHead + oneEvent[:40],
		"cut length": whole("abc")[:len(whole("abc"))-1],
		"no answer":  "",
	} {
		ours, theirs := net.Pipe()
		go func() {
			buf := make([]byte, 64<<10)
			_, _ = theirs.Read(buf)
			_, _ = theirs.Write([]byte(said))
			theirs.Close()
		}()
		c := newConn(ours)
		if _, _, _, err := c.ask(request(1, true)); err == nil {
			t.Errorf("%s: taken for an answer", name)
		}
		c.Close()
	}
}
