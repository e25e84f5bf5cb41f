// Package e2e drives a built hearsay binary as its users do: real processes on
// loopback, real clients. It is a module of its own, so that what only these
// tests need is no dependency of the product.
package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hearsay-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "hearsay")
	build := exec.Command("go", "build", "-o", binary, "./cmd/hearsay")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build hearsay: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// startDemo runs `hearsay demo` until the test ends and returns the API
// addresses of its nodes.
func startDemo(t *testing.T, nodes int, args ...string) []string {
	t.Helper()
	api, peers := freePorts(t, nodes), freePorts(t, nodes)
	cmd := exec.Command(binary, append([]string{
		"demo", "--nodes", fmt.Sprint(nodes), "--requests", "0",
		"--port", fmt.Sprint(api), "--peer-port", fmt.Sprint(peers),
	}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("demo ended with %v", err)
		}
	})
	ready := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "entry") {
				close(ready)
			}
		}
	}()
	select {
	case <-ready:
	case <-time.After(60 * time.Second):
		t.Fatal("the demo did not say that it is ready")
	}
	var urls []string
	for i := range nodes {
		urls = append(urls, fmt.Sprintf("http://127.0.0.1:%d", api+i))
	}
	return urls
}

// freePorts finds n free ports in a row on loopback.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		base := first.Addr().(*net.TCPAddr).Port
		held := []net.Listener{first}
		for i := 1; i < n; i++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+i))
			if err != nil {
				break
			}
			held = append(held, l)
		}
		for _, l := range held {
			l.Close()
		}
		if len(held) == n {
			return base
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}
