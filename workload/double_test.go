package workload

import (
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A double is a node that speaks the OpenAI stream, with a real LRU cache of
// prompts and one engine that prefills one request after another. A token is
// four bytes; each that is not cached takes a millisecond, and so does each of
// the output.
type double struct {
	name     string
	capacity int // prompts kept
	// misbehave takes over the answer to a request if it returns true.
	misbehave func(n int, w http.ResponseWriter, r *http.Request) bool

	engine chan struct{} // holds one token; a mutex would stop virtual time
	mu     sync.Mutex
	recent *list.List // of prompts, newest first
	asked  []asked
	now    int // requests under way
	most   int
}

// asked is a request as it came.
type asked struct {
	at     time.Time
	path   string
	prompt string
	body   map[string]any
	cached int
	tokens int
}

const bytesPerToken = 4

func newDouble(name string) *double {
	return &double{name: name, capacity: 100, engine: make(chan struct{}, 1), recent: list.New()}
}

// use finds the longest cached prefix of prompt in tokens, and keeps prompt.
func (d *double) use(prompt string) (cached int) {
	for e := d.recent.Front(); e != nil; e = e.Next() {
		old, n := e.Value.(string), 0
		for n < min(len(old), len(prompt)) && old[n] == prompt[n] {
			n++
		}
		cached = max(cached, n/bytesPerToken)
	}
	d.recent.PushFront(prompt)
	if d.recent.Len() > d.capacity {
		d.recent.Remove(d.recent.Back())
	}
	return cached
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"tiny"},{"id":"other"}]}`)
		case "/hearsay/v1/status":
			io.WriteString(w, `{"policy":"longest","poll_ms":500,"link_delay_ms":"two","peers":[{}]}`)
		}
		return
	}
	q := asked{at: time.Now(), path: r.URL.Path}
	raw, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(raw, &q.body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q.prompt = fmt.Sprint(q.body["prompt"], q.body["messages"])
	q.tokens = len(q.prompt) / bytesPerToken
	d.mu.Lock()
	q.cached = d.use(q.prompt)
	d.asked = append(d.asked, q)
	n := len(d.asked) - 1
	d.now++
	d.most = max(d.most, d.now)
	d.mu.Unlock()
	defer func() { d.mu.Lock(); d.now--; d.mu.Unlock() }()
	if d.misbehave == nil || !d.misbehave(n, w, r) {
		d.answer(w, r, q)
	}
}

// answer streams one token of output, as a completion or as a chat.
func (d *double) answer(w http.ResponseWriter, r *http.Request, q asked) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Hearsay-Node", d.name)
	h.Set("Hearsay-Hops", "0")
	h.Set("Hearsay-Expected-Tokens", fmt.Sprint(q.tokens+1)) // an estimate above what there is
	chat := q.path == "/v1/chat/completions"
	if chat {
		event(w, `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	}
	d.engine <- struct{}{}
	defer func() { <-d.engine }()
	select {
	case <-time.After(time.Duration(q.tokens-q.cached) * time.Millisecond):
	case <-r.Context().Done():
		return
	}
	if chat {
		event(w, `{"choices":[{"index":0,"delta":{"content":" B"},"finish_reason":null}]}`)
	} else {
		event(w, `{"choices":[{"index":0,"text":" B","finish_reason":null}]}`)
	}
	time.Sleep(time.Millisecond)
	event(w, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, q.tokens, q.cached))
	event(w, "[DONE]")
}

func event(w http.ResponseWriter, data string) {
	fmt.Fprintf(w, "data: %s\n\n", data)
	w.(http.Flusher).Flush()
}

// A network connects clients to servers in memory. Use serve to fill it.
type network map[string]listener

// serve runs handlers as http://n0, http://n1, ... until the test ends, and
// returns their URLs. It must be called in the test's bubble.
func (n network) serve(t *testing.T, handlers ...http.Handler) (urls []string) {
	t.Helper()
	for i, h := range handlers {
		l := listener{make(chan net.Conn), make(chan struct{}), new(sync.Once)}
		host := fmt.Sprintf("n%d", i)
		n[host+":80"] = l
		urls = append(urls, "http://"+host)
		server := &http.Server{Handler: h}
		go server.Serve(l)
		t.Cleanup(func() { server.Close() })
	}
	return urls
}

func (n network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	l, ok := n[address]
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   *sync.Once
}

func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l listener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l listener) Addr() net.Addr { return &net.TCPAddr{} }
