package kvevents

import (
	"context"
	"encoding/binary"
	"io"
	"log"
	"testing"

	"github.com/go-zeromq/zmq4"
)

func beSeq(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func quiet() zmq4.Option { return zmq4.WithLogger(log.New(io.Discard, "", 0)) }

// Sockets of another implementation, go-zeromq's, are followed: a PUB that binds and
// one that dials, with a ROUTER to replay from. (libzmq's are in e2e/.)
func TestFollowsAnotherImplementation(t *testing.T) {
	for _, binds := range []bool{true, false} {
		at := ports(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		router := zmq4.NewRouter(ctx, quiet())
		pub := zmq4.NewPub(ctx, quiet())
		if err := router.Listen("tcp://" + at[1]); err != nil {
			t.Fatal(err)
		}
		asked := make(chan []byte, 1)
		go func() {
			m, err := router.Recv()
			if err != nil || len(m.Frames) != 3 {
				return
			}
			asked <- m.Frames[2]
			for _, reply := range [][][]byte{{beSeq(0), batch(1)}, {beSeq(1), batch(2)}, {beSeq(endOfReplay), nil}} {
				if err := router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, reply[0], reply[1])); err != nil {
					return
				}
			}
		}()
		cfg := Config{Endpoint: "tcp://" + at[0], Replay: "tcp://" + at[1], Topic: "kv"}
		if binds {
			if err := pub.Listen("tcp://" + at[0]); err != nil {
				t.Fatal(err)
			}
		} else {
			cfg.Endpoint = "@" + cfg.Endpoint
		}
		_, j := follow(t, cfg)
		if !binds {
			if err := pub.Dial("tcp://" + at[0]); err != nil {
				t.Fatal(err)
			}
		}
		j.wants(t, 0, 1, 2)
		if from := <-asked; string(from) != string(beSeq(0)) {
			t.Errorf("asked for batches from %x on", from)
		}
		for len(pub.(zmq4.Topics).Topics()) == 0 { // it has not heard of the subscription
			continue
		}
		for _, topic := range []string{"other", "kv@host"} {
			if err := pub.SendMulti(zmq4.NewMsgFrom([]byte(topic), beSeq(2), batch(3))); err != nil {
				t.Fatal(err)
			}
		}
		j.wants(t, 0, 3)
		cancel()
		pub.Close()
		router.Close()
	}
}

// A subscriber of another implementation follows our publisher.
func TestAnotherImplementationFollows(t *testing.T) {
	at := ports(t, 1)[0]
	p := NewPublisher(PublisherConfig{Topic: "kv"})
	t.Cleanup(func() { p.Close() })
	p.Serve(listen(t, at))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sub := zmq4.NewSub(ctx, quiet())
	defer sub.Close()
	if err := sub.SetOption(zmq4.OptionSubscribe, ""); err != nil {
		t.Fatal(err)
	}
	if err := sub.Dial("tcp://" + at); err != nil {
		t.Fatal(err)
	}
	waitSubscribed(t, p)
	for i := range uint64(1000) {
		p.Publish(batch(int(i)))
		m, err := sub.Recv()
		if err != nil || len(m.Frames) != 3 || string(m.Frames[0]) != "kv" || string(m.Frames[1]) != string(beSeq(i)) || string(m.Frames[2]) != string(batch(int(i))) {
			t.Fatalf("batch %d: %q, %v", i, m.Frames, err)
		}
	}
}
