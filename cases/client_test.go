package cases

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// reply is an answer as its client has it.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error // the answer did not come, or broke off
	pieces []piece
}

// piece is what one read of the body gave.
type piece struct {
	at   time.Time
	data string
}

// node says who answered, hops over how many hops.
func (r reply) node() string { return r.header.Get("Hearsay-Node") }
func (r reply) hops() string { return r.header.Get("Hearsay-Hops") }

const chatPath = "/v1/chat/completions"

// chat is the body of a request that any case may send.
const chat = `{"model":"m-test","messages":[{"role":"user","content":"hello"}]}`

// chatStream is the same, streamed.
const chatStream = `{"model":"m-test","stream":true,"messages":[{"role":"user","content":"hello"}]}`

// ask sends a request to the node of the case, and reads the answer to its end.
func (c *cluster) ask(ctx context.Context, method, path, body string, header ...string) reply {
	c.t.Helper()
	return c.askAt(ctx, c.at, method, path, body, header...)
}

// post asks the node of the case for a chat completion.
func (c *cluster) post(body string, header ...string) reply {
	c.t.Helper()
	return c.ask(c.t.Context(), http.MethodPost, chatPath, body, header...)
}

// get asks a node of the cluster.
func (c *cluster) get(name, path string) reply {
	c.t.Helper()
	return c.askAt(c.t.Context(), name, http.MethodGet, path, "")
}

func (c *cluster) askAt(ctx context.Context, name, method, path, body string, header ...string) reply {
	c.t.Helper()
	return c.read(c.begin(ctx, name, method, path, body, header...))
}

// read takes in an answer to its end.
func (c *cluster) read(resp *http.Response, err error) reply {
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	r := reply{status: resp.StatusCode, header: resp.Header}
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			r.body = append(r.body, buf[:n]...)
			r.pieces = append(r.pieces, piece{time.Now(), string(buf[:n])})
		}
		if err == io.EOF {
			return r
		}
		if err != nil {
			r.err = err
			return r
		}
	}
}

// begin sends a request and returns when the header of the answer is there. The
// header's lines are "Name: value"; redirects are not followed.
func (c *cluster) begin(ctx context.Context, name, method, path, body string, header ...string) (*http.Response, error) {
	c.t.Helper()
	var content io.Reader // nil and not an empty one: no Content-Length
	if body != "" {
		content = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.members[name].api+path, content)
	if err != nil {
		c.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, line := range header {
		key, value, _ := strings.Cut(line, ": ")
		req.Header[http.CanonicalHeaderKey(key)] = append(req.Header[http.CanonicalHeaderKey(key)], value)
	}
	return c.client.RoundTrip(req)
}

// dial connects to the API of the node of the case.
func (c *cluster) dial() net.Conn {
	c.t.Helper()
	conn, err := c.wires.dialFrom(clients)(c.t.Context(), c.members[c.at].api)
	if err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// raw sends bytes to the node of the case and returns all that comes back.
func (c *cluster) raw(sent string) string {
	c.t.Helper()
	conn := c.dial()
	defer conn.Close()
	if _, err := io.WriteString(conn, sent); err != nil {
		c.t.Fatal(err)
	}
	got, _ := io.ReadAll(conn)
	return string(got)
}

// wantWhole sees that the answer is the script's, byte for byte, and B's.
func (c *cluster) wantWhole(r reply, s Script) {
	c.t.Helper()
	status := max(s.Status, 200)
	if r.err != nil || r.status != status {
		c.t.Errorf("%d, %v, want %d and a whole answer", r.status, r.err, status)
	}
	if string(r.body) != s.Body() {
		c.t.Errorf("the body is %s, want %s", excerpt(string(r.body)), excerpt(s.Body()))
	}
	hops := "1"
	if c.at == "B" {
		hops = "0"
	}
	if r.node() != "B" || r.hops() != hops {
		c.t.Errorf("served by %q after %q hops, want B and %s", r.node(), r.hops(), hops)
	}
}

// wantError sees that the node itself answered with an error in OpenAI's shape, and
// returns its message.
func wantError(t *testing.T, r reply, status int, code string) string {
	t.Helper()
	var e struct {
		Error map[string]any `json:"error"`
	}
	if err := json.Unmarshal(r.body, &e); err != nil {
		t.Errorf("%d %s is not an error as OpenAI writes it: %v", r.status, excerpt(string(r.body)), err)
		return ""
	}
	for _, field := range []string{"message", "type", "code", "param"} {
		if _, ok := e.Error[field]; !ok {
			t.Errorf("the error %s has no %s", r.body, field)
		}
	}
	if r.status != status || e.Error["code"] != code {
		t.Errorf("status %d, code %v, want %d %s", r.status, e.Error["code"], status, code)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	message, _ := e.Error["message"].(string)
	return message
}

func excerpt(s string) string {
	if len(s) > 300 {
		return s[:150] + " ... " + s[len(s)-150:]
	}
	return s
}

// event is one chunk of a chat completion's stream.
func event(delta string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m-test","choices":[{"index":0,"delta":{"content":` + quote(delta) + `},"finish_reason":null}]}` + "\n\n"
}

const (
	finish = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m-test","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m-test","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

// answer is a whole chat completion whose engine says what it did.
const answer = `{"id":"c","object":"chat.completion","created":1,"model":"m-test","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}
