package kvevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
)

// A Sink is told what the engine of a rank has stored and evicted. Calls for one
// rank come one after the other, those for several at once.
type Sink interface {
	// Apply takes in the events of a batch, which it must not keep.
	Apply(rank int, events []Event)
	// Clear drops what is known of the rank: it has been lost track of.
	Clear(rank int)
}

// A Follower follows an engine's events. Use New, then Run.
type Follower struct {
	cfg    Config
	pub    place
	replay place // "" is its network where there is none
	sink   Sink
	log    *slog.Logger

	replayEvery time.Duration // least time between two replays of a rank on one connection

	mu    sync.Mutex
	stats Stats
}

// New returns a follower that tells sink. It does not connect yet.
func New(cfg Config, sink Sink) (*Follower, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Ranks = cmp.Or(cfg.Ranks, 1)
	f := &Follower{cfg: cfg, sink: sink, log: cmp.Or(cfg.Log, slog.Default()), replayEvery: replayEvery}
	f.pub, _ = parse(cfg.Endpoint)
	if cfg.Replay != "" {
		f.replay, _ = parse(cfg.Replay)
	}
	return f, nil
}

// Stats returns what has been counted.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

func (f *Follower) count(book func(*Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	book(&f.stats)
}

// Run follows until ctx is done, and returns after its goroutines, one for each
// rank. A publisher that is not there, or no longer, is waited for. An error of Run
// is that of an endpoint that cannot be bound.
func (f *Follower) Run(ctx context.Context) error {
	ranks, ctx := errgroup.WithContext(ctx)
	for rank := range f.cfg.Ranks {
		ranks.Go(func() error { return f.follow(ctx, rank) })
	}
	return ranks.Wait()
}

// A publisher that comes back is found within retryMax.
const (
	retryMin = 100 * time.Millisecond
	retryMax = 2 * time.Second
)

// remedyEndpoint is for an endpoint where no publisher is. An engine that only starts
// later needs none.
const remedyEndpoint = "give as --kv-events the endpoint of the engine's --kv-events-config"

func (f *Follower) follow(ctx context.Context, rank int) error {
	s := &stream{f: f, rank: rank, said: map[string]saying{}}
	at := f.pub.rank(rank)
	if at.bind {
		return f.accept(ctx, at, s)
	}
	for wait := retryMin; ctx.Err() == nil; wait = min(2*wait, retryMax) {
		z, err := dialer(f.cfg.Dial).dial(ctx, at, socketSub)
		if err == nil {
			if f.attend(ctx, s, z) {
				wait = retryMin
			}
		} else if ctx.Err() == nil {
			s.say(slog.LevelInfo, "no KV events yet", "endpoint", at.addr, "err", err, "remedy", remedyEndpoint)
		}
		pause(ctx, wait)
	}
	return nil
}

// accept takes one publisher at a time: others wait to be accepted until it leaves.
func (f *Follower) accept(ctx context.Context, at place, s *stream) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, at.network, at.addr)
	if err != nil {
		return fmt.Errorf("bind the KV events endpoint: %w", err)
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for ctx.Err() == nil {
		c, err := l.Accept()
		if err == nil {
			var z *conn
			if z, err = open(c, socketSub); err == nil {
				f.attend(ctx, s, z)
				continue
			}
		}
		if ctx.Err() == nil {
			s.say(slog.LevelInfo, "no KV events from a connection", "endpoint", at.addr, "err", err, "remedy", remedyEndpoint)
		}
		pause(ctx, retryMin)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// attend follows one publisher to its end, and says whether it published.
func (f *Follower) attend(ctx context.Context, s *stream, z *conn) bool {
	defer z.Close()
	defer context.AfterFunc(ctx, func() { z.Close() })()
	f.count(func(s *Stats) { s.Connected++ })
	defer f.count(func(s *Stats) { s.Connected-- })
	before := s.taken
	err := s.attend(ctx, z)
	published := s.taken > before
	if ctx.Err() == nil {
		s.say(slog.LevelInfo, "KV events broke off", "err", err)
	}
	return published
}

// A stream is what one rank publishes, over all its connections and lives.
type stream struct {
	f       *Follower
	rank    int
	decoder Decoder

	known bool   // something was taken in
	next  uint64 // sequence number that is due
	last  uint64 // hash of the payload before it: what shows that a replay is of the same life

	taken int      // batches
	live  uint64   // last one published on this connection, plus one
	came  []uint64 // hashes of the payloads before next that came by replay, and may come by the socket too
	asked time.Time

	said map[string]saying // by what is said, and the reason
}

// cameMax is more than a publisher keeps.
const cameMax = 1 << 14

// A saying is a line of the log.
type saying struct {
	at     time.Time
	unsaid int // times since
}

// sayEvery is how often the same is said: a publisher can give cause for it thousands
// of times a second.
const sayEvery = time.Minute

// say logs what there is to say of this rank, and how often it was left unsaid.
func (s *stream) say(level slog.Level, what string, args ...any) {
	key := what
	if len(args) > 1 && args[0] == "reason" {
		key += fmt.Sprint(args[1])
	}
	last, now := s.said[key], time.Now()
	if !last.at.IsZero() && now.Sub(last.at) < sayEvery {
		last.unsaid++
		s.said[key] = last
		return
	}
	args = append([]any{"rank", s.rank}, args...)
	if last.unsaid > 0 {
		args = append(args, "unsaid", last.unsaid)
	}
	s.said[key] = saying{at: now}
	s.f.log.Log(context.Background(), level, what, args...)
}

// Who cannot keep up with a publisher cannot keep up by asking it for more.
const replayEvery = time.Second

func (s *stream) attend(ctx context.Context, z *conn) error {
	if err := z.send(append([]byte{1}, s.f.cfg.Topic...)); err != nil {
		return err
	}
	s.live, s.came = 0, nil
	// What was published before, and in between.
	if err := s.resync(ctx); err != nil {
		s.say(slog.LevelWarn, "KV events cannot be replayed", "err", err)
	}
	for {
		frames, err := z.receive()
		if err != nil {
			return err
		}
		seq, payload, err := batchFrames(frames)
		if err != nil {
			return err
		}
		s.take(ctx, seq, payload)
	}
}

// take takes in a batch from the socket. Nothing is queued: while a batch is taken
// in the next ones wait at the publisher, which beyond its high-water mark drops
// them, and that is a gap.
func (s *stream) take(ctx context.Context, seq uint64, payload []byte) {
	reborn := seq < s.live // a publisher counts up
	s.live = seq + 1
	switch {
	case reborn, s.known && seq < s.next && len(s.came) == 0:
		s.lost("the engine's sequence began anew")
	case s.known && seq < s.next:
		if s.replayed(seq, payload) {
			return
		}
		s.lost("the replay is not of what the engine publishes")
	case s.known && seq > s.next:
		s.f.count(func(s *Stats) { s.Gaps++ })
		if err := s.resync(ctx); err != nil {
			s.say(slog.LevelWarn, "KV events cannot be replayed", "err", err)
		}
		switch {
		case s.known && seq < s.next && s.replayed(seq, payload):
			return
		case s.known && seq != s.next:
			s.lost("a gap in its sequence")
		}
	}
	s.came = nil
	s.apply(seq, payload)
}

// replayed says whether a batch from before the next one is what came by replay under
// its number. If not, the replay is of another publisher.
func (s *stream) replayed(seq uint64, payload []byte) bool {
	back := s.next - seq
	return back <= uint64(len(s.came)) && s.came[uint64(len(s.came))-back] == xxh3.Hash(payload)
}

// replay takes in a batch of a replay.
func (s *stream) replay(seq uint64, payload []byte) {
	if len(s.came) == cameMax {
		s.came = append(s.came[:0], s.came[cameMax/2:]...)
	}
	s.apply(seq, payload)
	s.came = append(s.came, s.last)
}

// errOtherLife ends a replay that does not go on from what was taken in last.
var errOtherLife = errors.New("the replay does not go on from the last batch")

var errReplayBack = errors.New("the replay's sequence goes back: give as --kv-events-replay the endpoint of the same publisher")

// resync catches up by replay, where there is one and it is time. It asks for the
// last batch too: only where that is the same is what follows of the same life.
// Where it is not, what was known is dropped and everything asked for that the
// engine still has.
func (s *stream) resync(ctx context.Context) error {
	if s.f.replay.network == "" {
		return nil
	}
	if s.live > 0 { // not at the beginning, which leaves a gap where it overtakes the subscription
		if since := time.Since(s.asked); since < s.f.replayEvery {
			return fmt.Errorf("asked for already, %v ago", since)
		}
		defer func() { s.asked = time.Now() }()
	}
	at := s.f.replay.rank(s.rank)
	s.f.count(func(s *Stats) { s.Replays++ })
	if s.known && s.next > 0 {
		same := false
		err := dialer(s.f.cfg.Dial).replay(ctx, at, s.next-1, func(seq uint64, payload []byte) error {
			switch {
			case same && seq == s.next:
				s.replay(seq, payload)
			case !same && seq == s.next-1 && xxh3.Hash(payload) == s.last:
				same, s.came = true, []uint64{s.last}
			default:
				return errOtherLife
			}
			return nil
		})
		if err != nil && !errors.Is(err, errOtherLife) {
			return err
		}
		if same && err == nil {
			return nil
		}
		s.lost("what was missed is no longer to be had")
	}
	err := dialer(s.f.cfg.Dial).replay(ctx, at, 0, func(seq uint64, payload []byte) error {
		switch {
		case s.known && seq < s.next:
			return errReplayBack
		case s.known && seq > s.next:
			s.lost("a gap in the replay")
		}
		s.replay(seq, payload)
		return nil
	})
	s.known = s.known || err == nil // or there is nothing to know
	return err
}

// apply takes in a batch whatever its number.
func (s *stream) apply(seq uint64, payload []byte) {
	s.known, s.next, s.last = true, seq+1, xxh3.Hash(payload)
	s.taken++
	events, err := s.decoder.Decode(payload)
	unknown := 0
	for i := range events {
		if events[i].Kind == Unknown {
			unknown++
		}
	}
	s.f.count(func(s *Stats) {
		s.Batches++
		s.Unknown += int64(unknown)
		if err != nil {
			s.Unreadable++
		}
	})
	if err != nil {
		s.say(slog.LevelWarn, "KV events are not as vLLM and SGLang write them", "err", err)
		s.clear("a batch that cannot be read")
		return
	}
	s.f.sink.Apply(s.rank, events)
}

// lost begins anew with the next batch.
func (s *stream) lost(why string) {
	s.known, s.next, s.came = false, 0, nil
	s.clear(why)
}

func (s *stream) clear(why string) {
	s.f.count(func(s *Stats) { s.Clears++ })
	s.say(slog.LevelWarn, "what was known of the engine's cache is dropped", "reason", why)
	s.f.sink.Clear(s.rank)
}
