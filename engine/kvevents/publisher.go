package kvevents

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
)

// A Publisher publishes batches as the engines' own does (ZmqEventPublisher in vLLM's
// and SGLang's kv_events.py): numbered from 0, to all who subscribe, and again to who
// asks for what he missed. What a subscriber is too slow for is dropped. Use Listen or
// Connect. It is what an engine of this project publishes by.
type Publisher struct {
	cfg     PublisherConfig
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	next    uint64
	history []message // the last Keep
	peers   map[*peer]struct{}
}

// PublisherConfig says how a Publisher publishes; zero fields take their default.
type PublisherConfig struct {
	Topic     string
	Keep      int // batches kept for a replay; default 10,000
	HighWater int // batches that wait for one subscriber; default 100,000
}

type message struct {
	seq     uint64
	payload []byte
}

// peer is a subscriber.
type peer struct {
	conn  *conn
	queue chan message
}

// NewPublisher returns a publisher without sockets. The caller must Close it.
func NewPublisher(cfg PublisherConfig) *Publisher {
	cfg.Keep, cfg.HighWater = cmp.Or(cfg.Keep, 10_000), cmp.Or(cfg.HighWater, 100_000)
	p := &Publisher{cfg: cfg, peers: map[*peer]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Publish returns the publisher that a follower with cfg would follow: of one rank, on
// the other side of its endpoints. The caller must Close it.
func Publish(cfg Config) (*Publisher, error) {
	if cfg.Ranks > 1 {
		return nil, errors.New("only one rank can be published")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := NewPublisher(PublisherConfig{Topic: cfg.Topic})
	for _, side := range []struct {
		endpoint string
		serve    func(net.Listener)
	}{{cfg.Endpoint, p.Serve}, {cfg.Replay, p.ServeReplay}} {
		at, _ := parse(side.endpoint) // it is valid, or empty
		switch {
		case side.endpoint == "":
		case at.bind:
			p.Dial(at.network, at.addr)
		default:
			l, err := net.Listen(at.network, at.addr)
			if err != nil {
				return nil, errors.Join(err, p.Close())
			}
			side.serve(l)
		}
	}
	return p, nil
}

// Close ends the publisher's sockets and waits for its goroutines.
func (p *Publisher) Close() error {
	p.cancel()
	p.running.Wait()
	return nil
}

// Serve lets subscribers come in at l, which the publisher closes.
func (p *Publisher) Serve(l net.Listener) { p.serve(l, socketPub, p.publishTo) }

// ServeReplay answers at l, which the publisher closes, who asks for batches again.
func (p *Publisher) ServeReplay(l net.Listener) { p.serve(l, socketRouter, p.replayTo) }

// Dial publishes to the subscriber that has bound addr, for as long as it is there,
// and again when it is back.
func (p *Publisher) Dial(network, addr string) {
	p.running.Go(func() {
		for p.ctx.Err() == nil {
			if z, err := dialer(nil).dial(p.ctx, place{network: network, addr: addr}, socketPub); err == nil {
				p.attend(z, p.publishTo)
			}
			pause(p.ctx, retryMin)
		}
	})
}

func (p *Publisher) serve(l net.Listener, kind string, attend func(*conn)) {
	p.running.Go(func() {
		defer l.Close()
		defer context.AfterFunc(p.ctx, func() { l.Close() })()
		for {
			c, err := l.Accept()
			if p.ctx.Err() != nil || err != nil {
				return
			}
			p.running.Go(func() {
				if z, err := open(c, kind); err == nil {
					p.attend(z, attend)
				}
			})
		}
	})
}

func (p *Publisher) attend(z *conn, attend func(*conn)) {
	defer z.Close()
	defer context.AfterFunc(p.ctx, func() { z.Close() })()
	attend(z)
}

// Publish sends a batch and returns its number. It keeps the payload.
func (p *Publisher) Publish(payload []byte) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := message{p.next, payload}
	p.next++
	if p.history = append(p.history, m); len(p.history) >= 2*p.cfg.Keep {
		p.history = append([]message(nil), p.history[len(p.history)-p.cfg.Keep:]...)
	}
	for peer := range p.peers {
		select {
		case peer.queue <- m:
		default: // its high-water mark
		}
	}
	return m.seq
}

// Subscribers is how many there are.
func (p *Publisher) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.peers)
}

// publishTo sends one subscriber what is published from now on. Of what a subscriber
// may say, only that it subscribes counts, whatever the topic.
func (p *Publisher) publishTo(z *conn) {
	for {
		if frames, err := z.receive(); err != nil {
			return
		} else if len(frames) == 1 && len(frames[0]) > 0 && frames[0][0] == 1 {
			break
		}
	}
	peer := &peer{conn: z, queue: make(chan message, p.cfg.HighWater)}
	p.mu.Lock()
	p.peers[peer] = struct{}{}
	p.mu.Unlock()
	gone := make(chan struct{})
	p.running.Go(func() {
		defer close(gone)
		for {
			if _, err := z.receive(); err != nil {
				return
			}
		}
	})
	defer func() {
		p.mu.Lock()
		delete(p.peers, peer)
		p.mu.Unlock()
	}()
	for {
		select {
		case m := <-peer.queue:
			if z.send([]byte(p.cfg.Topic), binary.BigEndian.AppendUint64(nil, m.seq), m.payload) != nil {
				return
			}
		case <-gone:
			return
		}
	}
}

// replayTo answers [empty, first number] with the batches kept from there on, and an
// end of its own.
func (p *Publisher) replayTo(z *conn) {
	for {
		frames, err := z.receive()
		if err != nil || len(frames) != 2 || len(frames[1]) != 8 {
			return
		}
		from := binary.BigEndian.Uint64(frames[1])
		p.mu.Lock()
		kept := p.history[max(0, len(p.history)-p.cfg.Keep):]
		p.mu.Unlock()
		for _, m := range append(kept[:len(kept):len(kept)], message{endOfReplay, nil}) {
			if m.seq < from {
				continue
			}
			if z.send(nil, binary.BigEndian.AppendUint64(nil, m.seq), m.payload) != nil {
				return
			}
		}
	}
}
