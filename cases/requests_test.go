package cases

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// picture is a request with an image of so many bytes in it.
func picture(size int) string {
	data := base64.StdEncoding.EncodeToString(append([]byte("\x89PNG"), make([]byte, size)...))
	return `{"model":"m-test","messages":[{"role":"user","content":[{"type":"text","text":"describe"},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + data + `"}}]}]}`
}

// G20: large bodies pass whole by default. One byte above a limit that is set is an
// error which names the limit; the engine sees nothing of it, and the log tells.
func TestG20LargeBodies(t *testing.T) {
	s := JSON(200, answer)
	t.Run("default", func(t *testing.T) {
		eachWay(t, always(s), func(t *testing.T, c *cluster) {
			body := picture(8 << 20)
			c.wantWhole(c.post(body), s)
			if got := c.served().asked()[0].Body; sha256.Sum256(got) != sha256.Sum256([]byte(body)) {
				t.Errorf("the engine got %d bytes that are not the %d sent", len(got), len(body))
			}
		})
	})
	const limit = 1 << 20
	t.Run("limit", func(t *testing.T) {
		eachWay(t, always(s), func(t *testing.T, c *cluster) {
			body := strings.Replace(chat, "hello", strings.Repeat("x", limit-len(chat)+len("hello")), 1)
			c.wantWhole(c.post(body), s)
			for framing, r := range map[string]reply{"length": c.post(body + " "), "chunked": c.chunked(body + " ")} {
				if message := wantError(t, r, 413, "request_too_large"); !strings.Contains(message, fmt.Sprint(limit)) {
					t.Errorf("%s: the message %q does not name the limit", framing, message)
				}
			}
			if n := len(c.served().asked()); n != 1 {
				t.Errorf("the engine was asked %d times", n)
			}
			if log := c.members[c.at].log.String(); strings.Count(log, "status=413") != 2 {
				t.Errorf("the log does not tell: %s", log)
			}
		}, func(c *daemon.Config) { c.BodyMax = limit })
	})
}

// chunked posts a body of unknown length.
func (c *cluster) chunked(body string) reply {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://"+c.members[c.at].api+chatPath, io.MultiReader(strings.NewReader(body)))
	if err != nil {
		c.t.Fatal(err)
	}
	return c.read(c.client.RoundTrip(req))
}

const smuggled = "GET /v1/smuggled HTTP/1.1\r\nHost: node\r\n\r\n"

// G21: a request whose framing two readers could read in two ways is refused, and
// with it all that follows on its connection.
func TestG21TwoFramings(t *testing.T) {
	const post = "POST " + chatPath + " HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
	for name, sent := range map[string]string{
		"two lengths":              "Content-Length: 2\r\nContent-Length: 60\r\n\r\n{}",
		"length with a sign":       "Content-Length: +2\r\n\r\n{}",
		"two codings":              "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"unknown coding":           "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"coding twice":             "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"space before the colon":   "Content-Length : 2\r\n\r\n{}",
		"chunk size with a prefix": "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
		"chunk longer than said":   "Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
		"line break in a value":    "X-A: 1\rContent-Length: 60\r\nContent-Length: 2\r\n\r\n{}",
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
				got := c.raw(post + sent + smuggled)
				if !strings.HasPrefix(got, "HTTP/1.1 400 ") && !strings.HasPrefix(got, "HTTP/1.1 501 ") || strings.Count(got, "HTTP/1.1 ") != 1 {
					t.Errorf("answered %q, want 400 or 501 and an end", got)
				}
				if n := len(c.served().asked()); n > 0 {
					t.Errorf("the engine was asked %d times: %q", n, c.served().asked()[0].Line)
				}
			})
		})
	}
}

// G21: with both a length and chunks, a request is refused, or chunks it is, as RFC
// 9112 (section 6.3) wants it: what follows them is the client's own next request
// and nobody's body. An engine never sees both.
func TestG21LengthAndChunks(t *testing.T) {
	for name, fields := range map[string]string{
		"length first": "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
		"chunks first": "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
				c.anyone = true
				conn := c.dial()
				defer conn.Close()
				body := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(chat), chat)
				_, _ = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"+fields+"\r\n"+body+smuggled)
				time.Sleep(time.Second)
				for _, m := range c.members {
					for _, r := range m.engine.asked() {
						if r.Chunked && r.Header["Content-Length"] != nil || len(r.Body) > 0 && string(r.Body) != chat {
							t.Errorf("an engine got %s%s", r.Head, r.Body)
						}
					}
				}
			})
		})
	}
}

// G23: a slash too many in a path is never answered by a redirect, which would lose
// the body. Either the request is served, or it is told that there is nothing.
func TestG23Slashes(t *testing.T) {
	for _, path := range []string{"//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/", "/v1/./chat/completions", "/v1/x/../chat/completions"} {
		t.Run(path, func(t *testing.T) {
			eachWay(t, always(JSON(404, `{"detail":"Not Found"}`)), func(t *testing.T, c *cluster) {
				c.anyone = true // what has no prompt is not sent on
				got := c.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", path, len(chat), chat))
				if !strings.HasPrefix(got, "HTTP/1.1 404 ") {
					t.Errorf("answered %q", excerpt(got))
				}
			})
		})
	}
}

// G24: a client that waits to be told to send its body is told at once; one that
// does not wait is served too. The engine gets one body.
func TestG24Expect(t *testing.T) {
	s := JSON(200, answer)
	for name, patience := range map[string]time.Duration{"waits": 0, "sends anyway": time.Second} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				conn := c.dial()
				defer conn.Close()
				begun := time.Now()
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n", chatPath, len(chat))
				in := bufio.NewReader(conn)
				time.Sleep(patience)
				if line, _ := in.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" || time.Since(begun) != patience {
					t.Errorf("told %q after %v", line, time.Since(begun))
				}
				_, _ = in.ReadString('\n')
				_, _ = io.WriteString(conn, chat)
				rest, _ := io.ReadAll(in)
				if got := string(rest); !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, answer) || strings.Count(got, "HTTP/1.1 ") != 1 {
					t.Errorf("answered %q", excerpt(got))
				}
				c.wantAsked(chat)
			})
		})
	}
}
