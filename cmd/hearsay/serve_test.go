package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/engine/builtin"
	"github.com/hearsay-project/hearsay/node"
)

// authority signs peers' certificates.
type authority struct{ dir string }

func newAuthority(t *testing.T) authority {
	a := authority{t.TempDir()}
	a.make(t, "ca", "--days", "3650")
	return a
}

// make has the program make a certificate, and returns what it says.
func (a authority) make(t *testing.T, args ...string) string {
	t.Helper()
	out, err := program(t, append([]string{"cert"}, append(args, "--dir", a.dir)...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("cert %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// flags of a node that shows a certificate of this authority.
func (a authority) flags(name string) []string {
	return []string{
		"--peer-cert", filepath.Join(a.dir, name+".pem"), "--peer-key", filepath.Join(a.dir, name+".key"),
		"--peer-ca", filepath.Join(a.dir, "ca.pem"),
	}
}

// startServe runs one node until the test ends and returns its API's URL.
func startServe(t *testing.T, name string, peers int, args ...string) string {
	t.Helper()
	api := freePorts(t, 1)
	cmd := program(t, append([]string{
		"serve", "--name", name, "--listen", loopback(api), "--peer-listen", loopback(peers), "--policy", "longest", "--poll", "50ms",
	}, args...)...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopServe(t, cmd, &log) })
	return "http://" + loopback(api)
}

func stopServe(t *testing.T, cmd *exec.Cmd, log *bytes.Buffer) {
	_ = cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil || t.Failed() {
		t.Errorf("%v ended with %v:\n%s", cmd.Args, err, log)
	}
}

// believes waits until a node believes what it should of a peer.
func believes(ctx context.Context, url, peer string, what func(daemon.PeerStatus) bool) bool {
	for ctx.Err() == nil {
		if s, err := fetchStatus(ctx, url); err == nil {
			for _, p := range s.Peers {
				if p.Name == peer && what(p) {
					return true
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

func alive(p daemon.PeerStatus) bool     { return p.State == string(node.Alive) }
func hasCached(p daemon.PeerStatus) bool { return p.TreeBlocks > 0 }

// Nodes started by hand with certificates find each other and forward; one with
// a certificate of another authority is not let in, and serves alone.
func TestServeWithCertificates(t *testing.T) {
	ours, foreign := newAuthority(t), newAuthority(t)
	for _, name := range []string{"a", "b"} {
		ours.make(t, "node", name)
	}
	foreign.make(t, "node", "x")
	e, err := builtin.Open(builtin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	behind := httptest.NewServer(e) // a real engine behind a URL
	defer behind.Close()

	seed := freePorts(t, 1)
	a := startServe(t, "a", seed, append(ours.flags("a"), "--engine", behind.URL)...)
	b := startServe(t, "b", freePorts(t, 1), append(ours.flags("b"), "--join", loopback(seed))...)
	x := startServe(t, "x", freePorts(t, 1), append(foreign.flags("x"), "--join", loopback(seed))...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if !believes(ctx, a, "b", alive) || !believes(ctx, b, "a", alive) {
		t.Fatal("the nodes did not find each other")
	}
	list := questions(t, 6)
	if err := ask(a, list[0]); err != nil {
		t.Error(err)
	}
	if !believes(ctx, b, "a", hasCached) {
		t.Fatal("b did not hear what a has cached")
	}
	if err := ask(b, list[5]); err != nil { // of the same topic
		t.Error(err)
	}
	if !believes(ctx, b, "a", func(daemon.PeerStatus) bool { // what was learnt is booked after the answer has gone out
		s, err := fetchStatus(ctx, b)
		return err == nil && s.There.Requests == 1 && s.There.CachedTokens > 0
	}) {
		t.Error("b found nothing cached at a")
	}
	if err := ask(x, list[0]); err != nil {
		t.Errorf("the stranger does not serve alone: %v", err)
	}
	if s, err := fetchStatus(ctx, x); err != nil || len(s.Peers) != 0 {
		t.Errorf("the stranger was let in: %+v, %v", s.Peers, err)
	}
	table, err := program(t, "status", "--node", b).Output()
	for _, want := range []string{"policy longest", "served by peers for this node", "rumor age", "round trip", "\na  ", "alive"} {
		if err != nil || !strings.Contains(string(table), want) {
			t.Errorf("status does not show %q: %v\n%s", want, err, table)
		}
	}
}
