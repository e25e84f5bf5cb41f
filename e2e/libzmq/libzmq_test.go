// Package libzmq holds the follower of KV events to the library that engines publish
// them by: libzmq itself, in a process of its own, which binds and which dials, loses
// batches, floods, and is killed.
package libzmq

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/e2e/process"
	"github.com/hearsay-project/hearsay/engine/kvevents"
)

// build compiles the publisher, or skips.
func build(t *testing.T) (program string) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("there is no C compiler, which the publisher on libzmq needs")
	}
	if _, err := os.Stat("/usr/include/zmq.h"); err != nil {
		t.Skip("libzmq is not installed: on Debian, apt-get install libzmq3-dev")
	}
	program = filepath.Join(t.TempDir(), "publisher")
	if out, err := exec.Command("cc", "-O1", "-Wall", "-Werror", "-o", program, "testdata/publisher.c", "-lzmq").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// A publisher is a running one. Its fields are as its program says.
type publisher struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, program string, args ...string) *publisher {
	t.Helper()
	p := &publisher{cmd: exec.Command(program, args...)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if !p.out.Scan() || p.out.Text() != "ready" {
		t.Fatalf("the publisher says %q", p.out.Text())
	}
	return p
}

func (p *publisher) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// do has it do what a line says, and returns how many batches it has by then.
func (p *publisher) do(t *testing.T, format string, args ...any) (batches int64) {
	t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		t.Fatal(err)
	}
	if !p.out.Scan() {
		t.Fatal("the publisher has ended")
	}
	batches, err := strconv.ParseInt(p.out.Text(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return batches
}

// frame is a recorded batch, as hex.
func frame(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../engine/kvevents/testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		code, _, _ := strings.Cut(line, "#")
		b.WriteString(strings.TrimSpace(code))
	}
	return b.String()
}

// stores is a batch that stores one block of one token, which are both id.
func stores(id byte) string {
	batch := []byte{0x92, 0xc0, 0x91, 0x96, 0xab}
	batch = append(batch, "BlockStored"...)
	return hex.EncodeToString(append(batch, 0x91, id, 0xc0, 0x91, id, 1, 0xc0))
}

// follow follows an endpoint until the test ends.
func follow(t *testing.T, cfg kvevents.Config) (*kvevents.Follower, *kvevents.Cache) {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	cache := kvevents.NewCache(nil)
	f, err := kvevents.New(cfg, cache)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, cache
}

// until waits for a condition.
func until(t *testing.T, f *kvevents.Follower, what string, ok func(kvevents.Stats) bool) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); !ok(f.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("no %s: %+v", what, f.Stats())
		}
	}
}

func taken(n int64) func(kvevents.Stats) bool {
	return func(s kvevents.Stats) bool { return s.Batches >= n }
}

// holds counts which of the blocks from 1 to n are cached.
func holds(c *kvevents.Cache, n byte) (held int) {
	for id := byte(1); id <= n; id++ {
		held += c.Match(c.Names(kvevents.Space{}, []uint32{uint32(id)}))
	}
	return held
}

// Whichever side binds: what was published before is replayed, what is published comes
// once and in order, what was lost on the way is asked for, and a publisher that was
// killed and comes back empty leaves nothing behind.
func TestLibzmqIsFollowed(t *testing.T) {
	program := build(t)
	for _, mode := range []string{"bind", "connect"} {
		t.Run(mode, func(t *testing.T) {
			addrs, err := process.Ports(2)
			if err != nil {
				t.Fatal(err)
			}
			pub, replay := "tcp://"+addrs[0], "tcp://"+addrs[1]
			p := start(t, program, mode, pub, replay)
			p.do(t, "publish %s", stores(1))
			cfg := kvevents.Config{Endpoint: pub, Replay: replay, Topic: "kv"}
			if mode == "connect" {
				cfg.Endpoint = "@" + pub
			}
			f, cache := follow(t, cfg)
			until(t, f, "replay of what was before", taken(1))
			for id := byte(2); id <= 50; id++ {
				p.do(t, "publish %s", stores(id))
			}
			n := p.do(t, "publish %s", stores(51))
			until(t, f, "batch that was published", taken(n))
			p.do(t, "lose %s", stores(52))
			p.do(t, "lose %s", stores(53))
			time.Sleep(1100 * time.Millisecond) // a second replay so soon after the first is not asked for
			n = p.do(t, "publish %s", stores(54))
			until(t, f, "batch that was lost", taken(n))
			if s := f.Stats(); s.Batches != n || s.Clears != 0 || s.Gaps == 0 {
				t.Errorf("%d batches were published, and followed so: %+v", n, s)
			}
			if held := holds(cache, 54); held != 54 {
				t.Errorf("%d blocks of 54 are held", held)
			}

			p.kill()
			until(t, f, "end of the publisher", func(s kvevents.Stats) bool { return s.Connected == 0 })
			p = start(t, program, mode, pub, replay)
			for id := byte(101); id <= 110; id++ {
				p.do(t, "publish %s", stores(id))
			}
			// What was published between the replay and the subscription is lost, and the
			// next batch shows it.
			time.Sleep(1100 * time.Millisecond)
			p.do(t, "publish %s", stores(111))
			until(t, f, "batch of the next life", taken(n+11))
			if held := holds(cache, 111); held != 11 {
				t.Errorf("%d blocks are held of the 11 that the next life has: %+v", held, f.Stats())
			}
		})
	}
}

// Recorded batches of both engines and both shapes, by way of libzmq.
func TestRecordedFrames(t *testing.T) {
	program := build(t)
	addrs, err := process.Ports(2)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, program, "bind", "tcp://"+addrs[0], "tcp://"+addrs[1])
	for _, name := range []string{"vllm-map", "vllm-array", "sglang-array", "odd"} {
		p.do(t, "publish %s", frame(t, name))
	}
	f, cache := follow(t, kvevents.Config{Endpoint: "tcp://" + addrs[0], Replay: "tcp://" + addrs[1]})
	until(t, f, "frames", taken(4))
	// 1 + 3 - 1 + 3 - 1 + 2 blocks, and two kinds of events that are not known.
	if s, held := f.Stats(), cache.Stats(); s.Unreadable != 0 || s.Unknown != 2 || held.Blocks != 7 || held.Removed != 2 {
		t.Errorf("%+v, %+v", s, held)
	}
	n := p.do(t, "publish %s", frame(t, "vllm-array-full"))
	until(t, f, "last frame", taken(n))
	if held := cache.Stats(); held.Blocks != 0 {
		t.Errorf("%d blocks are held when all were cleared", held.Blocks)
	}
}

// A burst of as many batches as an engine makes in minutes is taken in without a gap.
func TestBurstLeavesNoGap(t *testing.T) {
	program := build(t)
	addrs, err := process.Ports(2)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, program, "bind", "tcp://"+addrs[0], "tcp://"+addrs[1])
	f, _ := follow(t, kvevents.Config{Endpoint: "tcp://" + addrs[0]})
	until(t, f, "first batch", func(s kvevents.Stats) bool {
		p.do(t, "publish %s", stores(1))
		return s.Batches > 0
	})
	begun := time.Now()
	before := f.Stats().Batches
	n := p.do(t, "repeat 50000 %s", frame(t, "vllm-map"))
	until(t, f, "burst", taken(before+50000))
	t.Logf("50000 batches in %v", time.Since(begun).Round(time.Millisecond))
	if s := f.Stats(); s.Gaps != 0 || s.Batches > n {
		t.Errorf("%+v", s)
	}
}
