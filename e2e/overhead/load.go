package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// request is what every client sends: a chat with a system prompt of some 400
// tokens, as agents do.
func request(tokens int, stream bool) []byte {
	options := ""
	if stream {
		options = `,"stream":true,"stream_options":{"include_usage":true}`
	}
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"system","content":%q},{"role":"user","content":"Go on."}],"max_tokens":%d%s}`,
		model, strings.Repeat("You are a careful assistant who answers in few words. ", 36), tokens, options)
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: e2e\r\nAccept: application/json\r\n"+
		"Content-Type: application/json\r\nAuthorization: Bearer none\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// A conn is a kept connection of a client that reads answers and takes nothing on
// trust: an answer that is not whole is an error.
type conn struct {
	net.Conn
	in *bufio.Reader
}

func dial(addr string) (*conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

func newConn(c net.Conn) *conn { return &conn{c, bufio.NewReaderSize(c, 16<<10)} }

// ask sends a request and reads its answer to the end. ttft is the time to the first
// byte of the body; events counts those of a stream, [DONE] among them.
func (c *conn) ask(request []byte) (ttft time.Duration, events, bytes int, err error) {
	begun := time.Now()
	if _, err = c.Write(request); err != nil {
		return 0, 0, 0, err
	}
	length, err := c.head()
	if err != nil {
		return 0, 0, 0, err
	}
	if _, err = c.in.Peek(1); err != nil {
		return 0, 0, 0, err
	}
	ttft = time.Since(begun)
	if length >= 0 {
		n, err := c.in.Discard(length)
		return ttft, 0, n, err
	}
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return ttft, events, bytes, err
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(line)), 16, 32)
		if err != nil {
			return ttft, events, bytes, err
		}
		n, err := c.data(int(size))
		if err != nil {
			return ttft, events, bytes, err
		}
		if events, bytes = events+n, bytes+int(size); size == 0 {
			return ttft, events, bytes, nil
		}
	}
}

// head reads status and header; length is -1 for a chunked body.
func (c *conn) head() (length int, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return 0, fmt.Errorf("answered %q", bytes.TrimSpace(line))
	}
	for length = -1; ; {
		line, err = c.in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			return length, nil
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		}
	}
}

// data reads a chunk's data and the line's end after it, and counts the events that
// end in it: each has two line feeds, and none within.
func (c *conn) data(size int) (events int, err error) {
	feeds := 0
	for left := size; left > 0; {
		if _, err := c.in.Peek(1); err != nil {
			return 0, err
		}
		piece, _ := c.in.Peek(min(left, c.in.Buffered()))
		feeds += bytes.Count(piece, []byte("\n"))
		left -= len(piece)
		_, _ = c.in.Discard(len(piece))
	}
	end := make([]byte, 2)
	if _, err := io.ReadFull(c.in, end); err != nil || string(end) != "\r\n" {
		return 0, errors.Join(err, fmt.Errorf("a chunk ends in %q", end))
	}
	return feeds / 2, nil
}

// outcome is what clients saw of one load.
type outcome struct {
	answers, events int
	ttfts           []time.Duration
	err             error // the first one
}

// load has so many clients ask addr, each again as soon as it has its answer, for that
// period; answers that are under way at its end are waited for and count. Clients
// begin spread over the time stagger, so that they do not go in step.
func load(addr string, clients int, request []byte, events int, stagger, period time.Duration) (all outcome) {
	var mu sync.Mutex
	var running sync.WaitGroup
	end := time.Now().Add(period)
	for i := range clients {
		running.Go(func() {
			time.Sleep(stagger * time.Duration(i) / time.Duration(clients))
			one := client(addr, request, events, end)
			mu.Lock()
			defer mu.Unlock()
			all.answers += one.answers
			all.events += one.events
			all.ttfts = append(all.ttfts, one.ttfts...)
			if all.err == nil {
				all.err = one.err
			}
		})
	}
	running.Wait()
	return all
}

func client(addr string, request []byte, events int, end time.Time) (o outcome) {
	c, err := dial(addr)
	if err != nil {
		return outcome{err: err}
	}
	defer c.Close()
	for time.Now().Before(end) {
		ttft, n, _, err := c.ask(request)
		if err == nil && n != events {
			err = fmt.Errorf("an answer of %d events, want %d", n, events)
		}
		if err != nil {
			o.err = err
			return o
		}
		o.answers++
		o.events += n
		o.ttfts = append(o.ttfts, ttft)
	}
	return o
}
