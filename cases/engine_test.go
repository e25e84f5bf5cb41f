package cases

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// exchanged sends bytes to an engine of this script on a connection of its own and
// returns what comes back, and how that ended.
func exchanged(t *testing.T, e *Engine, sent string) (got string, end error) {
	t.Helper()
	n := memnet.New()
	l, err := n.Listen("e:1")
	if err != nil {
		t.Fatal(err)
	}
	e.Serve(l)
	defer e.Close()
	conn, err := n.Dial(t.Context(), "e:1")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, sent)
	_ = conn.SetReadDeadline(time.Now().Add(time.Hour))
	b, err := io.ReadAll(conn)
	return string(b), err
}

// An engine writes what its script says and nothing else, ends as it says, and keeps
// the request as it came.
func TestEngineFollowsItsScript(t *testing.T) {
	const post = "POST /x?a=%2F HTTP/1.1\r\nhost: e\r\nx-odd:  a \r\ncontent-length: 2\r\n\r\n{}"
	const chunks = "HTTP/1.1 200 OK\r\nX-Raw: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n"
	cut := Script{Header: []string{"X-Raw: 1"}, Steps: []Step{{Data: "a"}, {Pause: time.Minute, Data: "bc"}}}
	for name, c := range map[string]struct {
		script Script
		end    End
		want   string
		err    string
		took   time.Duration
	}{
		"chunks":        {cut, Whole, chunks + "0\r\n\r\n", "", 2 * time.Minute}, // until it is idle
		"dropped":       {cut, Dropped, chunks, "", time.Minute},
		"stuck":         {cut, Stuck, chunks, "timeout", time.Hour},
		"length":        {JSON(500, "{}"), Whole, "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "", time.Minute},
		"until it ends": {Script{Framing: UntilClose, Steps: steps(0, []string{"x"})}, Whole, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nx", "", 0},
		"no answer":     {Script{}, Stuck, "", "timeout", time.Hour},
		"reset":         {Script{}, Broken, "", "reset", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.script.End = c.end
				e := &Engine{Answer: always(c.script), IdleClose: time.Minute}
				begun := time.Now()
				got, err := exchanged(t, e, post)
				if got != c.want || time.Since(begun) != c.took {
					t.Errorf("answered %q after %v, want %q after %v", got, time.Since(begun), c.want, c.took)
				}
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("ended with %v, want %q", err, c.err)
				}
				r := e.Requests()[0]
				if r.Line != "POST /x?a=%2F HTTP/1.1" || r.Path() != "/x?a=%2F" || string(r.Body) != "{}" || !strings.HasPrefix(post, string(r.Head)) {
					t.Errorf("kept %q %q", r.Head, r.Body)
				}
			})
		})
	}
}

// An engine sees when its caller leaves, and takes the next request on the same
// connection when its caller stays.
func TestEngineSeesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		l, _ := n.Listen("e:1")
		e := &Engine{Answer: func(r *Request) Script {
			s := JSON(200, string(r.Body))
			if r.Chunked {
				s.Silence = time.Hour
			}
			return s
		}}
		e.Serve(l)
		defer e.Close()
		conn, _ := n.Dial(t.Context(), "e:1")
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		time.Sleep(time.Second)
		conn.Close()
		time.Sleep(time.Second)
		r := e.Requests()
		if len(r) != 2 || r[1].Conn != 1 || string(r[1].Body) != "{}" || !r[0].Left().IsZero() || time.Since(r[1].Left()) != time.Second {
			t.Errorf("saw %+v", r)
		}
	})
}
