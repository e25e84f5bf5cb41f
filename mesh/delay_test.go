package mesh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// delayed returns a connection whose writes are delayed and its other end.
func delayed(t *testing.T, delay, jitter time.Duration) (near *delayConn, far net.Conn) {
	network := memnet.New()
	l, err := network.Listen("b:1")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := network.Dial(t.Context(), "b:1")
	if err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	near = newDelayConn(inner, delay, jitter, &wg)
	t.Cleanup(func() {
		near.Close()
		far.Close()
		wg.Wait()
	})
	return near, far
}

// What is written arrives exactly the delay later, and answers take no longer than
// the other end makes them.
func TestDelayIsExact(t *testing.T) {
	const delay = 200 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		near, far := delayed(t, delay, 0)
		began, b := time.Now(), make([]byte, 5)
		near.Write([]byte("hello"))
		if took := time.Since(began); took != 0 {
			t.Errorf("Write took %v", took)
		}
		io.ReadFull(far, b)
		if took := time.Since(began); took != delay || string(b) != "hello" {
			t.Errorf("%q arrived after %v", b, took)
		}
		far.Write([]byte("again"))
		io.ReadFull(near, b)
		if took := time.Since(began); took != delay || string(b) != "again" {
			t.Errorf("%q was read after %v", b, took)
		}
	})
}

// Each message is late by the delay plus or minus at most the jitter, spread over
// that range, and none overtakes another. Where the jitter is the greater, none is early.
func TestJitterStaysInBounds(t *testing.T) {
	for _, delay := range []time.Duration{50 * time.Millisecond, 5 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			const jitter, count = 20 * time.Millisecond, 300
			near, far := delayed(t, delay, jitter)
			go func() {
				for i := range uint64(count) {
					near.Write(binary.BigEndian.AppendUint64(nil, i))
					near.Write(binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())))
					time.Sleep(100 * time.Millisecond) // no message is held up by the one before
				}
				near.Close()
			}()
			least, most := time.Hour, time.Duration(0)
			for want := range uint64(count) {
				b := make([]byte, 16)
				if _, err := io.ReadFull(far, b); err != nil || binary.BigEndian.Uint64(b) != want {
					t.Fatalf("message %d: %d, %v", want, binary.BigEndian.Uint64(b), err)
				}
				late := time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(b[8:]))))
				least, most = min(least, late), max(most, late)
			}
			io.ReadAll(far)
			if least < max(0, delay-jitter) || most > delay+jitter || most-least < jitter {
				t.Errorf("delays from %v to %v, want %v ± %v", least, most, delay, jitter)
			}
		})
	}
}

// A burst keeps its order under any jitter.
func TestJitterDoesNotReorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := delayed(t, 10*time.Millisecond, 10*time.Millisecond)
		want := make([]byte, 4000)
		for i := range want {
			want[i] = byte(i ^ i>>8)
		}
		go func() {
			for i := range want {
				near.Write(want[i : i+1])
			}
			near.Close()
		}()
		if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes came out of order, or %v", len(got), err)
		}
	})
}

// Close ends this end's reads at once, and the other end still gets what was under way.
func TestDelayedCloseDelivers(t *testing.T) {
	const delay = time.Second
	synctest.Test(t, func(t *testing.T) {
		near, far := delayed(t, delay, 0)
		began := time.Now()
		read := make(chan error)
		go func() {
			_, err := near.Read(make([]byte, 1))
			read <- err
		}()
		near.Write([]byte("last words"))
		near.Close()
		if err := <-read; !errors.Is(err, net.ErrClosed) || time.Since(began) != 0 {
			t.Errorf("Read ended with %v after %v", err, time.Since(began))
		}
		if _, err := near.Write(nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("wrote to a closed connection: %v", err)
		}
		got, err := io.ReadAll(far)
		if string(got) != "last words" || err != nil || time.Since(began) != delay {
			t.Errorf("%q, %v after %v", got, err, time.Since(began))
		}
	})
}

// A full pipe makes Write wait, and a deadline ends the wait. An end that never
// reads does not keep a closed connection for longer than linger.
func TestDelayedWritesPushBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := delayed(t, time.Millisecond, 0)
		near.SetWriteDeadline(time.Now().Add(time.Minute))
		began := time.Now()
		n, err := near.Write(make([]byte, 2*flightsMax*flightStep))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("wrote %d, %v after %v", n, err, time.Since(began))
		}
		if full := flightsMax * flightStep; n < full || n > full+128<<10 {
			t.Errorf("%d bytes under way, want about %d", n, full)
		}
		near.Close()
		time.Sleep(linger + time.Second)
		synctest.Wait()
		if got, _ := io.Copy(io.Discard, far); got > 128<<10 {
			t.Errorf("%d bytes came after all", got)
		}
	})
}
