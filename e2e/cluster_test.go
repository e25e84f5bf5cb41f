// Package e2e drives a built hearsay program as its users do: real processes on
// loopback, other people's clients, engines that are killed. It is a module of its
// own, so that what only these tests need is no dependency of the product.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/e2e/process"
)

// program is the hearsay that all tests run.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hearsay-e2e-")
	if err != nil {
		panic(err)
	}
	if program, err = process.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// startTimeout is ample for processes that take a second.
const startTimeout = time.Minute

// startCluster runs nodes with these flags of serve, joined through the first, until
// the test ends, and returns their URLs once each has heard of all others. A node that does
// not end with 0 when it is asked to fails the test.
func startCluster(t *testing.T, nodes int, args ...string) (urls []string) {
	t.Helper()
	addrs, err := process.Ports(2 * nodes)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var started []*process.Server
	for i := range nodes {
		started = append(started, node(fmt.Sprint("n", i+1), addrs[2*i], addrs[2*i+1], addrs[1], args...))
	}
	start(t, started...)
	for _, n := range started {
		if err := n.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		waitForPeers(ctx, t, n.URL(), nodes-1)
		urls = append(urls, n.URL())
	}
	return urls
}

// node is a serve process of that name. One that is its own seed joins nobody.
func node(name, api, peer, seed string, args ...string) *process.Server {
	all := append([]string{
		"serve", "--until-stdin-ends", "--name", name, "--listen", api, "--peer-listen", peer,
		"--join", seed, "--poll", "100ms", "--log-level", "warn",
	}, args...)
	return &process.Server{Name: name, Addr: api, Ready: "/readyz", Program: program, Args: all}
}

// start runs servers until the test ends, and shows what they said if it failed.
func start(t *testing.T, servers ...*process.Server) {
	t.Helper()
	t.Cleanup(func() {
		var stopping sync.WaitGroup
		for _, s := range servers {
			stopping.Go(func() {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			})
		}
		stopping.Wait()
		for _, s := range servers {
			if said := fmt.Sprint(s.Log); t.Failed() && said != "" {
				t.Logf("%s said:\n%s", s.Name, said)
			}
		}
	})
	for _, s := range servers {
		s.Log = new(transcript)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}
}

// A transcript keeps what a process says, up to so much that a person may read it.
type transcript struct {
	mu   sync.Mutex
	said bytes.Buffer
}

const transcriptMax = 64 << 10

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said.Write(p[:min(len(p), transcriptMax-l.said.Len())])
	return len(p), nil
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.String()
}

// waitForPeers returns once the node at url may forward to so many peers.
func waitForPeers(ctx context.Context, t *testing.T, url string, peers int) {
	t.Helper()
	for {
		alive := 0
		if s, err := fetchStatus(ctx, url); err == nil {
			for _, p := range s.Peers {
				if p.State == "alive" && len(p.Models) > 0 {
					alive++
				}
			}
		}
		if alive == peers {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s knows %d peers, not %d", url, alive, peers)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// status is of /hearsay/v1/status what these tests read.
type status struct {
	Queue int `json:"queue"`
	Peers []struct {
		State  string   `json:"state"`
		Models []string `json:"models"`
	} `json:"peers"`
}

func fetchStatus(ctx context.Context, url string) (s status, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/hearsay/v1/status", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(resp.Body).Decode(&s)
	return s, err
}
