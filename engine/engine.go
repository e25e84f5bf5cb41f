// Package engine is the way to the LLM server beside a node: over HTTP (Remote) or
// in this process (Local), an http.RoundTripper in either case, so that it makes no
// difference to a request which of them, or a peer, answers it.
//
// The bytes of a request and of its answer are never rewritten here.
package engine

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Remote is an engine that speaks the OpenAI API at a base URL.
type Remote struct {
	// Dial connects to the engine, nil by TCP. It is to be set before the first request.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	base      *url.URL
	transport *http.Transport
}

// OpenRemote returns the engine at base, such as http://127.0.0.1:30000. It
// does not connect yet: an engine that starts after its node is normal.
func OpenRemote(base string) (*Remote, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("engine %q is not a URL such as http://127.0.0.1:30000", base)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("engine %q has more than a base URL, which is not sent: leave out user, query and fragment, and give a key with --engine-key", u.Redacted())
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1") // as in the base URLs of OpenAI's clients
	u.Path = cmp.Or(u.Path, "/")                                       // or JoinPath makes relative paths
	e := &Remote{base: u}
	e.transport = &http.Transport{
		Proxy:               nil, // an engine is beside its node
		DialContext:         e.dial,
		ForceAttemptHTTP2:   true, // by ALPN, as without a DialContext
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 5 * time.Second,
	}
	return e, nil
}

// dialTimeout is enough for a lost packet to be sent again.
const dialTimeout = 2 * time.Second

func (e *Remote) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if e.Dial != nil {
		return e.Dial(ctx, addr)
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, addr)
}

// RoundTrip sends req to the engine; of its URL only path and query count. The
// wait for an answer has no limit of its own, since a long prefill looks like
// silence: the request's context ends it.
func (e *Remote) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.WithContext(req.Context()) // a round tripper leaves its request alone
	out.URL = e.base.JoinPath(req.URL.EscapedPath())
	out.URL.RawQuery, out.URL.ForceQuery = req.URL.RawQuery, req.URL.ForceQuery
	out.Host = ""
	return e.transport.RoundTrip(out)
}

// Close drops the idle connections.
func (e *Remote) Close() error {
	e.transport.CloseIdleConnections()
	return nil
}

// Local is an engine that runs in this process as an http.Handler.
type Local struct{ Handler http.Handler }

// RoundTrip serves req by the handler, in a goroutine that ends before Close
// of the answer's body returns.
func (e Local) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	pr, pw := io.Pipe()
	answer := &pipeWriter{header: http.Header{}, body: pw, started: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				pw.CloseWithError(fmt.Errorf("engine: %v", p))
			}
			answer.WriteHeader(http.StatusOK)
			pw.CloseWithError(ctx.Err()) // an answer that was cancelled is not taken for whole
		}()
		if req.Body != nil {
			defer req.Body.Close()
		}
		e.Handler.ServeHTTP(answer, req.WithContext(ctx))
	}()
	stop := func() {
		cancel()
		pr.CloseWithError(context.Canceled)
		<-done
	}
	select {
	case <-answer.started:
	case <-ctx.Done():
		stop()
		return nil, ctx.Err()
	}
	length := int64(-1)
	if n := answer.sent.Get("Content-Length"); n != "" {
		if _, err := fmt.Sscan(n, &length); err != nil {
			length = -1
		}
	}
	return &http.Response{
		Status: fmt.Sprint(answer.status, " ", http.StatusText(answer.status)), StatusCode: answer.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: answer.sent, ContentLength: length, Request: req,
		Body: &pipeBody{PipeReader: pr, stop: stop},
	}, nil
}

// pipeWriter is the http.ResponseWriter of a Local engine. Like net/http's, it
// is for the handler's goroutine alone.
type pipeWriter struct {
	header  http.Header
	sent    http.Header // the headers as they were when the answer began
	status  int
	started chan struct{}
	body    *io.PipeWriter
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	if w.sent != nil || (status >= 100 && status < 200) {
		return
	}
	w.status, w.sent = status, w.header.Clone()
	close(w.started)
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush has nothing to do but begin the answer: a pipe holds nothing back.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }

type pipeBody struct {
	*io.PipeReader
	stop func()
}

func (b *pipeBody) Close() error {
	b.stop()
	return nil
}
