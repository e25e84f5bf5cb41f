package kvevents

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// A record is a log that a test reads while it is written.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Split(strings.TrimSpace(r.text.String()), "\n")
}

func (r *record) log() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

// However often a publisher gives cause for a complaint, the log has it once a minute:
// batches that cannot be read, gaps, a sequence that goes back.
func TestTroubleIsSaidSeldom(t *testing.T) {
	at := ports(t, 1)[0]
	p := publish(t, at, "", 0)
	var r record
	f, _ := follow(t, Config{Endpoint: "tcp://" + at, Log: r.log()})
	waitSubscribed(t, p)
	for i := range 300 {
		p.Publish([]byte("not msgpack"))
		p.lose(batch(i))
	}
	for f.Stats().Batches < 300 {
		time.Sleep(time.Millisecond)
	}
	if lines, s := r.lines(), f.Stats(); len(lines) != 3 || s.Clears < 500 {
		t.Errorf("%d lines of %+v:\n%s", len(lines), s, strings.Join(lines[:min(len(lines), 10)], "\n"))
	}
}

// An endpoint where no publisher is, but something else or nothing, is told to the
// operator, with what to give in its place.
func TestWrongEndpointIsTold(t *testing.T) {
	other := listen(t, "127.0.0.1:0")
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 64)))
			c.Close()
		}
	}()
	for _, addr := range []string{other.Addr().String(), ports(t, 1)[0]} {
		var r record
		follow(t, Config{Endpoint: "tcp://" + addr, Log: r.log()})
		for late := time.Now().Add(20 * time.Second); !strings.Contains(strings.Join(r.lines(), ""), "give as --kv-events"); time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("nothing is told of %s", addr)
			}
		}
	}
}

// A replay of another publisher does not silence this one, whether its numbers are
// higher or the same.
func TestReplayOfAnotherPublisher(t *testing.T) {
	for name, others := range map[string]int{"higher": 50, "the same": 3} {
		t.Run(name, func(t *testing.T) {
			at := ports(t, 3)
			p := publish(t, at[0], "", 0)
			other := publish(t, at[1], at[2], 10)
			for i := range others {
				other.Publish(batch(100 + i))
			}
			f, j := follow(t, Config{Endpoint: "tcp://" + at[0], Replay: "tcp://" + at[2]}, time.Hour)
			waitSubscribed(t, p)
			for f.Stats().Replays == 0 || f.Stats().Batches < int64(min(others, 10)) {
				time.Sleep(time.Millisecond)
			}
			var want []int
			for i := max(0, others-10); i < others; i++ {
				want = append(want, 100+i)
			}
			j.wants(t, 0, want...)
			for i := range 3 {
				p.Publish(batch(i))
			}
			j.wants(t, 0, -1, 0, 1, 2)
		})
	}
}
