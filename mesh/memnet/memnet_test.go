package memnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pipe connects host a to host b.
func pipe(t *testing.T, n *Network) (a, b net.Conn) {
	t.Helper()
	l, err := n.Listen("b:1")
	if err != nil {
		t.Fatal(err)
	}
	if a, err = n.DialFrom("a")(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
		l.Close()
	})
	return a, b
}

// Both directions are buffered up to a bound, and an end is an end only when all is read.
func TestConnIsBufferedAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pipe(t, New())
		a.SetWriteDeadline(time.Now().Add(time.Minute))
		n, err := a.Write(make([]byte, 2*bufferMax))
		if n != bufferMax || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d, %v, want %d and a timeout", n, err, bufferMax)
		}
		b.Write([]byte("hello"))
		a.Close()
		if got, err := io.ReadAll(b); len(got) != bufferMax || err != nil {
			t.Errorf("read %d, %v", len(got), err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("wrote to a closed end: %v", err)
		}
	})
}

// Who closes a connection that lingers for no time resets it: the other end loses
// what it has not read. Either way both ends count until each is closed.
func TestLingerResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a, b := pipe(t, n)
		if err := a.(interface{ SetLinger(int) error }).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		a.Write([]byte("lost"))
		if open := n.Conns(); open != 2 {
			t.Errorf("%d ends are open, want 2", open)
		}
		a.Close()
		if _, err := b.Read(make([]byte, 4)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read %v, want a reset", err)
		}
		if _, err := b.Write([]byte("x")); err == nil {
			t.Error("wrote to a connection that was reset")
		}
		b.Close()
		if open := n.Conns(); open != 0 {
			t.Errorf("%d ends are open, want none", open)
		}
	})
}

// A listener that closes refuses those who wait for its backlog, and resets those in
// it; nothing of either is left.
func TestCloseEndsTheBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		l, err := n.Listen("b:1")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		for range backlogMax + 10 {
			go func() {
				conn, err := n.DialFrom("a")(t.Context(), "b:1")
				if err == nil {
					_, err = conn.Read(make([]byte, 1))
					conn.Close()
				}
				ended <- err
			}()
		}
		synctest.Wait()
		l.Close()
		refused := 0
		for range backlogMax + 10 {
			switch err := <-ended; {
			case errors.Is(err, syscall.ECONNREFUSED):
				refused++
			case !errors.Is(err, syscall.ECONNRESET):
				t.Errorf("%v, want a refusal or a reset", err)
			}
		}
		if open := n.Conns(); refused != 10 || open != 0 {
			t.Errorf("%d refused, want 10; %d ends are open", refused, open)
		}
	})
}

// A read deadline ends a waiting read when it is due, and one in the past at
// once; both look like a socket's timeout, and reading goes on after.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pipe(t, New())
		for _, wait := range []time.Duration{time.Second, -time.Second} {
			began := time.Now()
			a.SetDeadline(began.Add(wait))
			_, err := a.Read(make([]byte, 1))
			timeout, ok := err.(net.Error)
			if !ok || !timeout.Timeout() || time.Since(began) != max(0, wait) {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		a.SetDeadline(time.Time{})
		b.Write([]byte("x"))
		if n, err := a.Read(make([]byte, 9)); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
	})
}

// What crosses a cut is held, dials included, and comes through when it heals;
// hosts on one side still talk.
func TestCutHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := New()
		a, b := pipe(t, network)
		network.Cut("a:99", "c")
		a.Write([]byte("late"))
		b.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := b.Read(make([]byte, 9)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read across the cut: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := network.DialFrom("a")(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dialled across the cut: %v", err)
		}
		l, _ := network.Listen("c:1")
		defer l.Close()
		beside, err := network.DialFrom("a")(t.Context(), "c:1")
		if err != nil {
			t.Fatal(err)
		}
		defer beside.Close()
		network.Heal()
		b.SetReadDeadline(time.Time{})
		got := make([]byte, 4)
		if _, err := io.ReadFull(b, got); string(got) != "late" {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

// A killed host's connections are reset both ways, what was in them is gone, and it
// is refused until it listens again.
func TestKillResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := New()
		a, b := pipe(t, network)
		a.Write([]byte("lost"))
		reading := make(chan error)
		go func() {
			_, err := a.Read(make([]byte, 1))
			reading <- err
		}()
		synctest.Wait()
		network.Kill("b")
		if err := <-reading; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the other end read %v", err)
		}
		if _, err := b.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the killed end read %v", err)
		}
		if _, err := network.Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialled the dead: %v", err)
		}
		if _, err := network.Listen("b:1"); err != nil {
			t.Errorf("listen again: %v", err)
		}
		if _, err := network.Dial(t.Context(), "b:1"); err != nil {
			t.Errorf("dial again: %v", err)
		}
	})
}

// net/http runs on it, HTTP/1.1 and HTTP/2 alike, with bodies larger than any buffer.
func TestHTTP(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		synctest.Test(t, func(t *testing.T) {
			network := New()
			l, err := network.Listen("b:80")
			if err != nil {
				t.Fatal(err)
			}
			protocols := new(http.Protocols)
			protocols.SetHTTP1(proto == "HTTP/1.1")
			protocols.SetUnencryptedHTTP2(proto == "HTTP/2.0")
			server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				w.Write([]byte(r.Proto))
				w.Write(body)
			})}
			go server.Serve(l)
			dial := network.DialFrom("a")
			client := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) }}
			body := bytes.Repeat([]byte("0123456789"), bufferMax)
			resp, err := (&http.Client{Transport: client}).Post("http://b/", "", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			if !strings.HasPrefix(string(got), proto) || !bytes.HasSuffix(got, body) || err != nil {
				t.Errorf("%s: %d bytes, %v", proto, len(got), err)
			}
			resp.Body.Close()
			client.CloseIdleConnections()
			server.Close()
		})
	}
}
