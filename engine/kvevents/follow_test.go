package kvevents

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The other implementation leaves one for each of its PUB sockets.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// batch is a payload that stores one block of one token, of the id given.
func batch(id int) []byte {
	payload, _ := msgpack.Marshal([]any{1.0, []any{[]any{"BlockStored", []any{id}, nil, []any{id}, 1, nil}}})
	return payload
}

// A journal is a sink that notes what it is told: the ids of what is stored, -1 for a
// clearing.
type journal struct {
	mu   sync.Mutex
	told map[int][]int
	news chan struct{}
}

func newJournal() *journal { return &journal{told: map[int][]int{}, news: make(chan struct{}, 1)} }

func (j *journal) note(rank, what int) {
	j.mu.Lock()
	j.told[rank] = append(j.told[rank], what)
	j.mu.Unlock()
	select {
	case j.news <- struct{}{}:
	default:
	}
}

func (j *journal) Apply(rank int, events []Event) {
	for _, e := range events {
		if e.Kind == Stored {
			j.note(rank, int(e.Hashes[0]))
		}
	}
}

func (j *journal) Clear(rank int) { j.note(rank, -1) }

// wants waits until the rank was told just this since the last time.
func (j *journal) wants(t *testing.T, rank int, want ...int) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		j.mu.Lock()
		got := append([]int(nil), j.told[rank]...)
		j.mu.Unlock()
		if len(got) >= len(want) {
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("rank %d was told %v, want %v", rank, got, want)
				}
			}
			j.mu.Lock()
			j.told[rank] = j.told[rank][len(want):]
			j.mu.Unlock()
			return
		}
		select {
		case <-j.news:
		case <-late:
			t.Fatalf("rank %d was told %v, want %v", rank, got, want)
		}
	}
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	for range 1000 {
		if l, err := net.Listen("tcp", addr); err == nil {
			return l
		}
		time.Sleep(time.Millisecond) // its last owner is just closing it
	}
	t.Fatalf("%s is taken", addr)
	return nil
}

// publish starts a publisher at the listeners' addresses, and waits for a subscriber
// if follows.
func publish(t *testing.T, pub, replay string, keep int) *Publisher {
	t.Helper()
	p := NewPublisher(PublisherConfig{Keep: keep})
	t.Cleanup(func() { p.Close() })
	p.Serve(listen(t, pub))
	if replay != "" {
		p.ServeReplay(listen(t, replay))
	}
	return p
}

func waitSubscribed(t *testing.T, p *Publisher) {
	t.Helper()
	for late := time.Now().Add(20 * time.Second); p.Subscribers() == 0; {
		if time.Now().After(late) {
			t.Fatal("nobody subscribes")
		}
		time.Sleep(time.Millisecond)
	}
}

// follow runs a follower until the test ends.
func follow(t *testing.T, cfg Config, replayEvery ...time.Duration) (*Follower, *journal) {
	t.Helper()
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.NewTextHandler(io.Discard, nil)))
	j := newJournal()
	f, err := New(cfg, j)
	if err != nil {
		t.Fatal(err)
	}
	f.replayEvery = append(replayEvery, 0)[0]
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, j
}

// ports are n free addresses on loopback.
func ports(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		l := listen(t, "127.0.0.1:0")
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// What was published before anyone listened comes by replay, and then what is
// published, once each and in order.
func TestFollowerCatchesUp(t *testing.T) {
	at := ports(t, 2)
	p := publish(t, at[0], at[1], 0)
	for i := range 100 {
		p.Publish(batch(i))
	}
	f, j := follow(t, Config{Endpoint: "tcp://" + at[0], Replay: "tcp://" + at[1]})
	waitSubscribed(t, p)
	var want []int
	for i := range 3000 {
		if i >= 100 {
			p.Publish(batch(i))
		}
		want = append(want, i)
	}
	j.wants(t, 0, want...)
	if s := f.Stats(); s.Clears != 0 || s.Connected != 1 || s.Batches != 3000 {
		t.Errorf("%+v", s)
	}
}

// A publisher may dial where the follower has bound, by TCP or by a socket of the
// file system.
func TestFollowerBinds(t *testing.T) {
	tcp, unix := ports(t, 1)[0], filepath.Join(t.TempDir(), "kv")
	for _, tc := range []struct{ endpoint, network, addr string }{{"@tcp://" + tcp, "tcp", tcp}, {"@ipc://" + unix, "unix", unix}} {
		_, j := follow(t, Config{Endpoint: tc.endpoint})
		for life := range 2 {
			p := NewPublisher(PublisherConfig{})
			p.Dial(tc.network, tc.addr)
			waitSubscribed(t, p)
			p.Publish(batch(1))
			if life > 0 {
				j.wants(t, 0, -1)
			}
			p.Publish(batch(2))
			j.wants(t, 0, 1, 2)
			p.Close()
		}
	}
}

// Each rank has a port of its own and a sequence of its own.
func TestFollowerFollowsEveryRank(t *testing.T) {
	var first *net.TCPAddr
	var listeners []net.Listener
	for len(listeners) < 3 { // in a row
		l := listen(t, "127.0.0.1:0")
		first = l.Addr().(*net.TCPAddr)
		listeners = append(listeners, l)
		for i := 1; i < 3; i++ {
			next, err := net.ListenTCP("tcp", &net.TCPAddr{IP: first.IP, Port: first.Port + i})
			if err != nil {
				break
			}
			listeners = append(listeners, next)
		}
		if len(listeners) < 3 {
			for _, l := range listeners {
				l.Close()
			}
			listeners = nil
		}
	}
	var ranks []*Publisher
	for _, l := range listeners {
		p := NewPublisher(PublisherConfig{})
		defer p.Close()
		p.Serve(l)
		ranks = append(ranks, p)
	}
	_, j := follow(t, Config{Endpoint: "tcp://" + first.String(), Ranks: 3})
	for i, p := range ranks {
		waitSubscribed(t, p)
		for k := range i + 1 {
			p.Publish(batch(10*i + k))
		}
	}
	j.wants(t, 0, 0)
	j.wants(t, 1, 10, 11)
	j.wants(t, 2, 20, 21, 22)
}

// A gap is filled by replay where that can be; where it cannot, all that was known is
// dropped before what comes next counts.
func TestGapIsFilledOrClears(t *testing.T) {
	for _, tc := range []struct {
		name   string
		replay bool
		keep   int
		want   []int
	}{
		{"replay", true, 100, []int{1, 2, 3, 4, 5, 6}},
		{"replay that does not reach back", true, 2, []int{1, -1, 5, 6}},
		{"no replay", false, 100, []int{1, -1, 6}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at := ports(t, 2)
			p := publish(t, at[0], at[1], tc.keep)
			cfg := Config{Endpoint: "tcp://" + at[0]}
			if tc.replay {
				cfg.Replay = "tcp://" + at[1]
			}
			f, j := follow(t, cfg)
			waitSubscribed(t, p)
			p.Publish(batch(1))
			j.wants(t, 0, 1)
			p.lose(batch(2), batch(3), batch(4), batch(5))
			p.Publish(batch(6))
			j.wants(t, 0, tc.want[1:]...)
			if s := f.Stats(); s.Gaps != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A gap just after the beginning is filled; a second one soon after is not: what
// cannot keep up is not given more to do.
func TestReplaysAreRare(t *testing.T) {
	at := ports(t, 2)
	p := publish(t, at[0], at[1], 0)
	f, j := follow(t, Config{Endpoint: "tcp://" + at[0], Replay: "tcp://" + at[1]}, time.Hour)
	waitSubscribed(t, p)
	p.Publish(batch(0))
	j.wants(t, 0, 0)
	p.lose(batch(1))
	p.Publish(batch(2))
	j.wants(t, 0, 1, 2)
	p.lose(batch(3))
	p.Publish(batch(4))
	j.wants(t, 0, -1, 4)
	if s := f.Stats(); s.Replays != 2 || s.Gaps != 2 || s.Clears != 1 {
		t.Errorf("%+v", s)
	}
}

// A publisher that is born again counts from 0 again. What its former life had cached
// is gone, whether the new life has published less by now, as much, or more.
func TestRebirthClears(t *testing.T) {
	for _, replay := range []bool{true, false} {
		for before := range 3 {
			at := ports(t, 2)
			cfg := Config{Endpoint: "tcp://" + at[0]}
			if replay {
				cfg.Replay = "tcp://" + at[1]
			}
			p := publish(t, at[0], at[1], 0)
			_, j := follow(t, cfg)
			waitSubscribed(t, p)
			p.Publish(batch(1))
			p.Publish(batch(2))
			j.wants(t, 0, 1, 2)
			p.Close()

			p = NewPublisher(PublisherConfig{})
			t.Cleanup(func() { p.Close() })
			var want []int
			for i := range 2 * before { // before it can be found
				p.Publish(batch(11 + i))
				if replay {
					want = append(want, 11+i)
				}
			}
			if replay {
				p.ServeReplay(listen(t, at[1]))
			}
			p.Serve(listen(t, at[0]))
			waitSubscribed(t, p)
			p.Publish(batch(20))
			if !replay && before == 1 {
				// Two lives of two batches each: without a replay nothing tells them apart.
				j.wants(t, 0, 20)
				continue
			}
			j.wants(t, 0, append(append([]int{-1}, want...), 20)...)
		}
	}
}

// A connection that breaks while the engine lives on costs nothing.
func TestReconnectGoesOn(t *testing.T) {
	for _, replay := range []bool{true, false} {
		at := ports(t, 2)
		cfg := Config{Endpoint: "tcp://" + at[0]}
		if replay {
			cfg.Replay = "tcp://" + at[1]
		}
		p := publish(t, at[0], at[1], 0)
		f, j := follow(t, cfg)
		waitSubscribed(t, p)
		p.Publish(batch(1))
		j.wants(t, 0, 1)
		p.hangUp()
		waitSubscribed(t, p)
		p.Publish(batch(2))
		j.wants(t, 0, 2)
		if s := f.Stats(); s.Clears != 0 {
			t.Errorf("replay %v: %+v", replay, s)
		}
	}
}

// A batch that cannot be read may have removed anything. An event of a kind that is
// not known changes nothing.
func TestUnreadableBatchClears(t *testing.T) {
	at := ports(t, 1)[0]
	p := publish(t, at, "", 0)
	f, j := follow(t, Config{Endpoint: "tcp://" + at})
	waitSubscribed(t, p)
	p.Publish(batch(1))
	moved, _ := msgpack.Marshal([]any{1.0, []any{[]any{"BlockMoved", 1}, map[string]any{"type": "BlockPinned"}}})
	p.Publish(moved)
	p.Publish(batch(2))
	p.Publish([]byte("not msgpack"))
	p.Publish(batch(3))
	j.wants(t, 0, 1, 2, -1, 3)
	if s := f.Stats(); s.Unknown != 2 || s.Unreadable != 1 {
		t.Errorf("%+v", s)
	}
}

// A follower that is too slow for a flood holds nothing of it back: what it cannot
// take is lost at the publisher, seen as a gap, and clears. In the end it is right.
func TestFloodIsAGap(t *testing.T) {
	at := ports(t, 1)[0]
	p := NewPublisher(PublisherConfig{HighWater: 10})
	t.Cleanup(func() { p.Close() })
	p.Serve(listen(t, at))
	f, _ := follow(t, Config{Endpoint: "tcp://" + at})
	waitSubscribed(t, p)
	for i := range 50_000 {
		p.Publish(batch(i))
	}
	// What the flood left at the publisher goes before this.
	for f.Stats().Gaps == 0 {
		p.Publish(batch(99))
		time.Sleep(time.Millisecond)
	}
	if s := f.Stats(); s.Clears == 0 || s.Clears != s.Gaps {
		t.Errorf("%+v", s)
	}
}

// What connects and is no publisher is dropped: it stalls nothing for longer than a
// handshake may take, and allocates nothing for what it announces.
func TestGarbageIsDropped(t *testing.T) {
	at := ports(t, 1)[0]
	_, j := follow(t, Config{Endpoint: "@tcp://" + at})
	ready := append([]byte{flagCommand, 25}, "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...)
	for _, garbage := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + string(make([]byte, 100))),
		greeting,
		append(slices.Clone(greeting), flagCommand, 6, 5, 'R', 'E', 'A', 'D', 'Y'),
		append(slices.Clone(greeting), flagCommand, 8, 5, 'R', 'E', 'A', 'D', 'Y', 200, 1),
		append(slices.Clone(greeting), "\x04\x19\x05READY\x0bSocket-Type\x7f\xff\xff\xffPUB"...),
		append(slices.Clone(greeting), "\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"...),
		append(slices.Clone(greeting), 4, 0),
		append(slices.Clone(greeting), 6, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		append(append(slices.Clone(greeting), ready...), 2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		append(append(slices.Clone(greeting), ready...), 0, 3, 1, 2, 3),
	} {
		c, err := net.Dial("tcp", at)
		for err != nil { // not bound yet
			c, err = net.Dial("tcp", at)
		}
		if _, err := c.Write(garbage); err != nil {
			t.Log(err)
		}
		c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
	p := NewPublisher(PublisherConfig{})
	t.Cleanup(func() { p.Close() })
	p.Dial("tcp", at)
	waitSubscribed(t, p)
	p.Publish(batch(1))
	j.wants(t, 0, 1)
}

// What an operator gets wrong is told at once, all of it.
func TestEndpoints(t *testing.T) {
	for endpoint, want := range map[string]place{
		"tcp://127.0.0.1:5557":  {"tcp", "127.0.0.1:5557", false},
		"tcp://[::1]:5557":      {"tcp", "[::1]:5557", false},
		"tcp://*:5557":          {"tcp", ":5557", true},
		"@tcp://127.0.0.1:5557": {"tcp", "127.0.0.1:5557", true},
		"ipc:///run/kv":         {"unix", "/run/kv", false},
		"@ipc:///run/kv":        {"unix", "/run/kv", true},
	} {
		if got, err := parse(endpoint); got != want || err != nil {
			t.Errorf("%s: %+v, %v", endpoint, got, err)
		}
		if err := (Config{Endpoint: endpoint}).Validate(); err != nil {
			t.Error(err)
		}
	}
	if err := (Config{Endpoint: "tcp://h:65533", Replay: "tcp://h:65530", Ranks: 3}).Validate(); err != nil {
		t.Error(err)
	}
	for _, c := range []Config{
		{},
		{Endpoint: "127.0.0.1:5557"},
		{Endpoint: "tcp://127.0.0.1"},
		{Endpoint: "tcp://:5557"},
		{Endpoint: "tcp://h:0"},
		{Endpoint: "udp://h:1"},
		{Endpoint: "tcp://h:1", Replay: "tcp://*:2"},
		{Endpoint: "tcp://h:1", Ranks: 65},
		{Endpoint: "ipc:///run/kv", Ranks: 2},
		{Endpoint: "tcp://h:65535", Ranks: 2},
		{Endpoint: "tcp://h:1", Replay: "tcp://h:65534", Ranks: 3},
		{Endpoint: "tcp://h:5557", Replay: "tcp://h:5558", Ranks: 2},
		{Endpoint: "tcp://h:5557", Replay: "tcp://h:5557"},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v passes", c)
		}
	}
}
