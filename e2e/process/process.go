// Package process runs servers as child processes on loopback and says what they
// cost: hearsay as its users run it, and what it is measured beside.
//
// A Server may be stopped, killed and started again at the same address. One that
// the parent leaves behind, however the parent ends, sees its standard input end;
// hearsay takes that for a reason to go.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Build builds the program hearsay of the module above in dir and returns its path.
func Build(dir string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "hearsay")
	build := exec.Command("go", "build", "-o", program, "./cmd/hearsay")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build hearsay: %w\n%s", err, out)
	}
	return program, nil
}

// moduleRoot finds the folder that holds e2e/ and cmd/hearsay, at or above this one.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "hearsay")); err == nil {
			return dir, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return "", errors.New("build hearsay: run this in a checkout of it")
		}
		dir = above
	}
}

// Ports finds n free ports on loopback, as addresses, below those that Linux gives to
// outgoing connections: one that a Server leaves for a while is free when it returns.
func Ports(n int) ([]string, error) {
	const first, end = 12_000, 32_000
	var addrs []string
	for range 100 * n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(end-first)))
		if err != nil {
			continue
		}
		defer l.Close() // no port is found twice
		if addrs = append(addrs, l.Addr().String()); len(addrs) == n {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports on loopback from %d to %d", n, first, end)
}

// A Server is a program that serves HTTP. Its exported fields are set before Start.
// It is for one goroutine at a time.
type Server struct {
	Name    string
	Addr    string // host:port at which it serves
	Ready   string // path that answers 200 once it serves
	Program string
	Args    []string
	Env     []string  // added to the parent's
	Log     io.Writer // its standard output and error; nil: dropped

	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed once it was waited for
}

// URL is the base of its paths.
func (s *Server) URL() string { return "http://" + s.Addr }

// Start runs the program. It does not wait until it serves.
func (s *Server) Start() (err error) {
	cmd := exec.Command(s.Program, s.Args...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.Stdout, cmd.Stderr = s.Log, s.Log
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	return nil
}

// Wait waits until the server answers at Ready, or has ended, or ctx is done.
func (s *Server) Wait(ctx context.Context) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		resp, err := client.Get(s.URL() + s.Ready)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-s.ended:
			return fmt.Errorf("%s ended: %s", s.Name, s.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", s.Name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// PID is that of the process started last.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Kill ends the process as a crash of the machine would, and waits for its end.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
	s.stdin.Close()
}

// stopTimeout is more than a drain takes by default.
const stopTimeout = 40 * time.Second

// Stop asks the process to end and waits for it. The error says that it did not end, or
// ended with another code than 0. One that was never started, or was killed, is no error.
func (s *Server) Stop() error {
	if s.cmd == nil {
		return nil
	}
	defer s.stdin.Close()
	select {
	case <-s.ended:
		return nil
	default:
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(stopTimeout):
		s.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", s.Name, stopTimeout)
	}
	if state := s.cmd.ProcessState; !state.Success() {
		return fmt.Errorf("%s ended: %s", s.Name, strings.TrimSpace(state.String()))
	}
	return nil
}
