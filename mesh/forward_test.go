package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// forwards opens n1 and n2; n2 serves handler, and the returned function asks it.
func forwards(t *testing.T, network *memnet.Network, handler http.HandlerFunc, change func(*Config)) (ask func(ctx context.Context, path, body string) (*http.Response, error)) {
	nodes := startAll(t, network, 2, func(c *Config) {
		c.Handler = handler
		if change != nil {
			change(c)
		}
	})
	return func(ctx context.Context, path, body string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return nodes[0].RoundTrip("n2", req)
	}
}

// Path, query, header and body arrive as they were, many at once, over HTTP/2.
func TestForwardsArriveWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := forwards(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			fmt.Fprint(w, r.Proto, " ", r.URL.RequestURI(), " ", len(body), " ", r.Header["Accept-Encoding"], err)
		}, nil)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				resp, err := ask(t.Context(), fmt.Sprintf("http://anything/v1/chat?n=%d", i), strings.Repeat("x", i<<12))
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				if want := fmt.Sprintf("HTTP/2.0 /v1/chat?n=%d %d [] <nil>", i, i<<12); string(got) != want || err != nil {
					t.Errorf("got %q, %v; want %q", got, err, want)
				}
			})
		}
		wg.Wait()
	})
}

// Any header that fits the API's 64 KiB can be forwarded, be it the shortest
// fields there are, which weigh a dozen times more in HTTP/2.
func TestForwardOfManyTinyHeaders(t *testing.T) {
	const fields = 64 << 10 / len("a:\n")
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 2, func(c *Config) {
			c.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, len(r.Header["A"])) })
		})
		req, _ := http.NewRequest(http.MethodGet, "/", nil)
		req.Header["A"] = make([]string, fields)
		resp, err := nodes[0].RoundTrip("n2", req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, err := io.ReadAll(resp.Body); string(got) != strconv.Itoa(fields) || err != nil {
			t.Errorf("of %d fields %.99s came: %v", fields, got, err)
		}
	})
}

// A stream reaches the asker piece by piece, each one way's delay after it was written.
func TestForwardStreams(t *testing.T) {
	const delay = 30 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		ask := forwards(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
			for i := range 5 {
				fmt.Fprintf(w, "%d %d\n", i, time.Now().UnixNano())
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}, func(c *Config) { c.LinkDelay = delay })
		resp, err := ask(t.Context(), "/", "")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for want := range 5 {
			var i int
			var sent int64
			if _, err := fmt.Fscanln(resp.Body, &i, &sent); err != nil || i != want {
				t.Fatalf("piece %d: got %d, %v", want, i, err)
			}
			if late := time.Since(time.Unix(0, sent)); late != delay {
				t.Errorf("piece %d took %v, want %v", i, late, delay)
			}
		}
	})
}

// Who stops listening stops the work at the other end, before the header and after it.
func TestForwardCancelPropagates(t *testing.T) {
	for _, header := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			began, stopped := make(chan bool), make(chan error, 1)
			ask := forwards(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
				if header {
					w.(http.Flusher).Flush()
				}
				close(began)
				<-r.Context().Done()
				stopped <- r.Context().Err()
			}, nil)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-began
				synctest.Wait()
				cancel()
			}()
			if resp, err := ask(ctx, "/", ""); err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if !errors.Is(err, context.Canceled) {
					t.Errorf("the body ended with %v", err)
				}
			}
			synctest.Wait()
			select {
			case <-stopped:
			default:
				t.Error("the peer goes on working")
			}
		})
	}
}

// A peer that dies in mid-stream breaks the stream: an error, never an end. So
// does one that lost its power, which no packet announces.
func TestForwardToDyingPeerBreaks(t *testing.T) {
	for name, fault := range map[string]func(*memnet.Network){
		"killed": func(n *memnet.Network) { n.Kill("127.0.0.2") },
		"silent": func(n *memnet.Network) { n.Cut("127.0.0.2") },
	} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			ask := forwards(t, network, func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "half")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}, nil)
			resp, err := ask(t.Context(), "/", "")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			io.ReadFull(resp.Body, make([]byte, 4))
			fault(network)
			began := time.Now()
			if n, err := io.ReadFull(resp.Body, make([]byte, 1)); err == nil || err == io.EOF || time.Since(began) > 2*silenceMax {
				t.Errorf("%s: read %d bytes and %v after %v", name, n, err, time.Since(began))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began = time.Now()
			if _, err := ask(ctx, "/", ""); err == nil || time.Since(began) > connectWait {
				t.Errorf("%s: asked again: %v after %v", name, err, time.Since(began))
			}
			network.Heal()
		})
	}
}

// A redirect is the asker's to judge, an unknown peer an error, and the body is
// closed whatever happens.
func TestForwardIsOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 2, func(c *Config) {
			c.Handler = http.RedirectHandler("/elsewhere", http.StatusFound)
		})
		for _, peer := range []string{"n2", "nobody"} {
			body := &closing{Reader: strings.NewReader("x")}
			req, _ := http.NewRequest(http.MethodPost, "/", body)
			resp, err := nodes[0].RoundTrip(peer, req)
			switch {
			case peer == "nobody" && (err == nil || err.Error() != "nobody is no member of this mesh"):
				t.Errorf("unknown peer: %v", err)
			case peer == "n2" && (err != nil || resp.StatusCode != http.StatusFound):
				t.Errorf("redirect: %v, %v", resp, err)
			case err == nil:
				resp.Body.Close()
			}
			synctest.Wait()
			if !body.closed {
				t.Errorf("%s: the body is open", peer)
			}
		}
	})
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// A peer that loses its power while it is answered stops the work for it.
func TestForwardForTheDeadStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, began := memnet.New(), make(chan bool)
		var worked time.Duration
		done := make(chan bool)
		ask := forwards(t, network, func(w http.ResponseWriter, r *http.Request) {
			close(began)
			start := time.Now()
			<-r.Context().Done()
			worked = time.Since(start)
			close(done)
		}, nil)
		go ask(t.Context(), "/", "")
		<-began
		network.Cut("127.0.0.1")
		<-done
		if worked > 2*silenceMax {
			t.Errorf("worked %v for nobody", worked)
		}
		network.Heal()
	})
}

// An answer that nobody reads, and a body that no handler reads, hold up no other forward.
func TestSlowForwardHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan bool)
		ask := forwards(t, memnet.New(), func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/flood":
				w.Write(make([]byte, 32<<20))
			case "/deaf":
				<-release
			default:
				io.Copy(w, r.Body)
			}
		}, nil)
		for range 3 {
			flood, err := ask(t.Context(), "/flood", "")
			if err != nil {
				t.Fatal(err)
			}
			defer flood.Body.Close()
			go ask(t.Context(), "/deaf", strings.Repeat("x", 8<<20))
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := ask(ctx, "/", strings.Repeat("y", 100<<10))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); len(got) != 100<<10 || err != nil {
			t.Errorf("echoed %d bytes, %v", len(got), err)
		}
		resp.Body.Close()
		close(release)
	})
}

// Leave lets forwards end, both those served here and those made from here, and
// takes no new ones.
func TestLeaveLetsForwardsEnd(t *testing.T) {
	const long = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 3, func(c *Config) {
			c.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				time.Sleep(long)
				io.WriteString(w, "done")
			})
		})
		began := time.Now()
		ask := func(from, to int) (string, error) {
			req, _ := http.NewRequest(http.MethodGet, "/", nil)
			resp, err := nodes[from].RoundTrip(nodes[to].name, req)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return string(body), err
		}
		var wg sync.WaitGroup
		for _, pair := range [][2]int{{0, 1}, {1, 2}} {
			wg.Go(func() {
				if got, err := ask(pair[0], pair[1]); got != "done" || err != nil {
					t.Errorf("%v: got %q, %v", pair, got, err)
				}
			})
		}
		synctest.Wait()
		if err := nodes[1].Leave(t.Context()); err != nil || time.Since(began) < long || time.Since(began) > long+2*time.Second {
			t.Errorf("Leave took %v: %v", time.Since(began), err)
		}
		if got, err := ask(0, 1); err == nil {
			t.Errorf("a forward to the leaver was answered %q", got)
		}
		wg.Wait()
	})
}
