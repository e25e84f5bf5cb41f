package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// The scripted engine speaks just enough HTTP/1.1, on bare connections, to cost a
// tenth of what net/http does: it must not be what is measured. A request is answered
// at once with as many tokens as its max_tokens; a streamed one with the first at
// once and another each pace, each in a chunk and a write of its own.
const (
	model = "m"

	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	usage      = `"usage":{"prompt_tokens":400,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":384}}`
	event      = `data: {"id":"c-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
)

var (
	notFound = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
	oneEvent = chunk(event)
)

func whole(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func chunk(data string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(data), data) }

// answered is a whole answer of so many tokens.
func answered(tokens int) string {
	return fmt.Sprintf(`{"id":"c-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],`+usage+`}`,
		strings.Repeat(" word", tokens), tokens, 400+tokens)
}

// streamEnd ends a stream of so many tokens: its usage, [DONE] and the last chunk.
func streamEnd(tokens int) string {
	return chunk(fmt.Sprintf(`data: {"id":"c-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],`+usage+"}\n\n", tokens, 400+tokens)) +
		chunk("data: [DONE]\n\n") + "0\r\n\r\n"
}

// serveEngine answers on l, as an engine of that model, until l is closed.
func serveEngine(l net.Listener, model string, pace time.Duration) error {
	models := whole(fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","created":1700000000,"owned_by":"e2e"}]}`, model))
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			in := bufio.NewReaderSize(conn, 16<<10)
			for {
				path, body, err := readRequest(in)
				if err != nil || answer(conn, models, path, body, pace) != nil {
					return
				}
			}
		}()
	}
}

// readRequest reads a request whose body, if it has one, has a Content-Length.
func readRequest(in *bufio.Reader) (path string, body []byte, err error) {
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", nil, err
		}
		name, value, isField := bytes.Cut(line, []byte(":"))
		switch {
		case first:
			path = string(bytes.Fields(line)[1])
		case isField && bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return "", nil, err
			}
		case len(bytes.TrimSpace(line)) == 0:
			body = make([]byte, length)
			_, err = io.ReadFull(in, body)
			return path, body, err
		}
	}
}

func answer(w io.Writer, models, path string, body []byte, pace time.Duration) error {
	switch path {
	case "/v1/models":
		_, err := io.WriteString(w, models)
		return err
	case "/v1/chat/completions":
	default:
		_, err := io.WriteString(w, notFound)
		return err
	}
	tokens := maxTokens(body)
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		_, err := io.WriteString(w, whole(answered(tokens)))
		return err
	}
	if _, err := io.WriteString(w, streamHead+oneEvent); err != nil {
		return err
	}
	for range tokens - 1 {
		time.Sleep(pace)
		if _, err := io.WriteString(w, oneEvent); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, streamEnd(tokens))
	return err
}

// maxTokens finds the field of that name; 1 where there is none.
func maxTokens(body []byte) int {
	_, after, _ := bytes.Cut(body, []byte(`"max_tokens":`))
	n := 0
	for _, c := range after {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int(c-'0')
	}
	return max(n, 1)
}
