// Package cases holds hearsay to failures that users of comparable programs have
// reported; docs/failures.md is the list of them. Its tests run real daemons in
// virtual time, or on loopback, beside an Engine, a server that answers as its
// Script says, byte by byte and breath by breath. Each case is served both by the
// node that is asked and over a hop, and afterwards nothing may be left behind: no
// request in flight, no goroutine, no connection.
package cases

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Engine is an LLM server that does as it is told. It speaks HTTP/1.1 on bare
// connections, so that it can break any rule of it, and keeps what it is asked.
type Engine struct {
	// Answer says how to answer a request whose body has come.
	Answer func(*Request) Script

	// IdleClose ends a connection on which that long no request comes; 0: never.
	IdleClose time.Duration

	running sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	opened   int // connections
	requests []*Request
}

// Request is a request as it came in.
type Request struct {
	Conn    int    // on which connection, from 1
	Line    string // the request line
	Head    []byte // all up to the body
	Header  http.Header
	Body    []byte // without chunk framing
	Chunked bool

	gone chan struct{} // closed when the connection ends

	mu   sync.Mutex
	sent []time.Time // when each step was written
	over bool        // answered, or given up by the engine
	left time.Time
}

// Path returns the path and query of the request line, as they were written.
func (r *Request) Path() string { return strings.Fields(r.Line + " - -")[1] }

// Left returns when the caller went away before its answer was over, or zero.
func (r *Request) Left() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// end notes that the answer is over, and in left, if not nil, when that was.
func (r *Request) end(left *time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left != nil && !r.over {
		*left = time.Now()
	}
	r.over = true
}

// Sent returns when each step of the answer so far was written.
func (r *Request) Sent() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Time(nil), r.sent...)
}

// Serve answers on l, which it owns, until Close. An engine that was closed may
// serve again, as one that restarts.
func (e *Engine) Serve(l net.Listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listener = l
	if e.conns == nil {
		e.conns = map[net.Conn]bool{}
	}
	e.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			e.accept(conn)
		}
	})
}

func (e *Engine) accept(conn net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opened++
	e.conns[conn] = true
	number := e.opened
	e.running.Go(func() {
		c := &exchange{engine: e, conn: conn, in: bufio.NewReader(conn), number: number}
		for c.next() {
		}
		conn.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.conns, conn)
	})
}

// Close ends the engine as SIGKILL does, and waits for what it was doing.
func (e *Engine) Close() {
	e.mu.Lock()
	if e.listener != nil {
		e.listener.Close()
	}
	for conn := range e.conns {
		reset(conn)
	}
	e.mu.Unlock()
	e.running.Wait()
}

// Requests returns what was asked so far, in order of arrival.
func (e *Engine) Requests() []*Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Request(nil), e.requests...)
}

// Opened returns how many connections were ever made to the engine.
func (e *Engine) Opened() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.opened
}

// reset closes conn in the way that loses what is unread.
func reset(conn net.Conn) {
	if c, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
	conn.Close()
}

// exchange is one connection of an engine.
type exchange struct {
	engine *Engine
	conn   net.Conn
	in     *bufio.Reader
	number int
}

// next takes one request and answers it; it says whether another may come.
func (c *exchange) next() bool {
	r, err := c.read()
	if err != nil {
		return false
	}
	e := c.engine
	e.mu.Lock()
	e.requests = append(e.requests, r)
	e.mu.Unlock()

	// While it answers, an engine sees its caller leave. What comes instead is
	// the next request, or nothing for too long.
	waiting := make(chan error, 1)
	go func() {
		_, err := c.in.Peek(1)
		if err != nil {
			r.end(&r.left)
			close(r.gone)
		}
		waiting <- err
	}()
	again := e.Answer(r).play(c.conn, r)
	r.end(nil)
	if !again {
		c.conn.Close()
	}
	var idle <-chan time.Time
	e.mu.Lock()
	if e.IdleClose > 0 {
		idle = time.After(e.IdleClose)
	}
	e.mu.Unlock()
	select {
	case err = <-waiting:
	case <-idle:
		c.conn.Close()
		err = <-waiting
	}
	return again && err == nil
}

// read takes in a request, its body framed either way.
func (c *exchange) read() (*Request, error) {
	r := &Request{Conn: c.number, gone: make(chan struct{})}
	for !bytes.HasSuffix(r.Head, []byte("\r\n\r\n")) {
		line, err := c.in.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		r.Head = append(r.Head, line...)
	}
	line, fields, _ := strings.Cut(string(r.Head), "\r\n")
	header, err := textproto.NewReader(bufio.NewReader(strings.NewReader(fields))).ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	r.Line, r.Header = line, http.Header(header)
	r.Chunked = strings.EqualFold(r.Header.Get("Transfer-Encoding"), "chunked")
	if r.Header.Get("Expect") != "" {
		_, _ = io.WriteString(c.conn, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	if !r.Chunked {
		length, _ := strconv.Atoi(r.Header.Get("Content-Length"))
		r.Body = make([]byte, length)
		_, err = io.ReadFull(c.in, r.Body)
		return r, err
	}
	for {
		size, err := c.in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(strings.TrimSpace(size), 16, 31)
		if err != nil {
			return nil, fmt.Errorf("chunk size %q: %w", size, err)
		}
		chunk := make([]byte, n+2)
		if _, err = io.ReadFull(c.in, chunk); err != nil {
			return nil, err
		}
		if n == 0 {
			return r, nil
		}
		if !bytes.HasSuffix(chunk, []byte("\r\n")) {
			return nil, errors.New("a chunk is longer than it says")
		}
		r.Body = append(r.Body, chunk[:n]...)
	}
}
