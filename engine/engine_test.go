package engine

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Query", r.URL.RawQuery)
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("GET /path/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.RequestURI())
	})
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/panic", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begun")
		panic("broken handler")
	})
	return mux
}

// remoteAt serves h and returns the way to it.
func remoteAt(t *testing.T, path string, h http.Handler) *Remote {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handler that panics
	server.Start()
	remote, err := OpenRemote(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		remote.Close()
		server.Close()
	})
	return remote
}

// Both ways to an engine keep the same promises.
func TestEngines(t *testing.T) {
	for name, e := range map[string]http.RoundTripper{
		"remote":         remoteAt(t, "/base", http.StripPrefix("/base", handler())),
		"remote at root": remoteAt(t, "", handler()),
		"local":          Local{Handler: handler()},
	} {
		t.Run(name, func(t *testing.T) {
			post, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine/echo?a=b%2Fc", strings.NewReader("as it is"))
			resp, err := e.RoundTrip(post)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusTeapot || string(body) != "as it is" || resp.Header.Get("X-Query") != "a=b%2Fc" {
				t.Errorf("status %d, body %q, headers %v, err %v", resp.StatusCode, body, resp.Header, err)
			}

			encoded, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine/path/a%2Fb?c=d", nil)
			if resp, err = e.RoundTrip(encoded); err != nil {
				t.Fatal(err)
			}
			body, _ = io.ReadAll(resp.Body)
			resp.Body.Close()
			if want := "/path/a%2Fb?c=d"; !strings.HasSuffix(string(body), want) || encoded.URL.Host != "engine" {
				t.Errorf("asked for %s, want %s; the request now reads %s", body, want, encoded.URL)
			}

			ctx, cancel := context.WithCancel(t.Context())
			wait, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/wait", nil)
			if resp, err = e.RoundTrip(wait); err != nil {
				t.Fatal(err)
			}
			cancel()
			if _, err = io.ReadAll(resp.Body); err == nil {
				t.Error("a cancelled answer ended as if it were whole")
			}
			resp.Body.Close()

			broken, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://engine/panic", nil)
			if resp, err = e.RoundTrip(broken); err != nil {
				return // the remote's server may cut the connection before the headers
			}
			if _, err = io.ReadAll(resp.Body); err == nil {
				t.Error("an answer cut off by a panic ended as if it were whole")
			}
			resp.Body.Close()
		})
	}
}

// Leaving before the answer begins ends the handler too (goleak watches).
func TestLocalCancelledBeforeTheAnswer(t *testing.T) {
	e := Local{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/", nil)
	if _, err := e.RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Errorf("err %v", err)
	}
}

func TestOpenRemoteRefuses(t *testing.T) {
	for _, base := range []string{"", "localhost:1", "ftp://x", "http://", "buitlin"} {
		if _, err := OpenRemote(base); err == nil || !strings.Contains(err.Error(), "is not a URL such as") {
			t.Errorf("%q: %v", base, err)
		}
	}
	for _, base := range []string{"http://me:secret@localhost:1", "http://localhost:1?key=secret"} {
		if _, err := OpenRemote(base); err == nil || !strings.Contains(err.Error(), "--engine-key") || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%q: %v", base, err)
		}
	}
}
