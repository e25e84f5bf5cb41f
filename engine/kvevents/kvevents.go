// Package kvevents follows what an engine says of its own KV cache: the events that
// vLLM and SGLang publish over ZeroMQ as they store and evict blocks of tokens.
//
// A Follower subscribes to the publisher of each data-parallel rank, in the order
// of its sequence numbers. What was missed is asked for again from the publisher's
// replay socket; where that cannot be had, what was known is dropped, so that a
// Cache never holds what the engine may have evicted unheard. A Cache names the
// blocks by their tokens, since an engine's own hashes are salted and of its own
// making. A Memo remembers which blocks of a prompt's text those tokens cover, which
// is how a node, whose names are names of text, is told of an eviction.
//
// The wire is that of vllm/distributed/kv_events.py (vLLM 0.8 to 0.29) and of
// sglang/srt/disaggregation/kv_events.py, in both shapes; see Decoder.
package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
)

// A Config says where an engine publishes.
type Config struct {
	// Endpoint is that of rank 0, such as tcp://127.0.0.1:5557 or ipc:///run/kv:
	// the publisher binds it and the follower dials. Where the publisher dials, as
	// vLLM does if its endpoint names a host, the follower is the one to bind:
	// written with a * for the host, as ZeroMQ does, or with an @ before it, as
	// CZMQ does: @tcp://127.0.0.1:5557. Required.
	Endpoint string

	// Replay is rank 0's replay socket (replay_endpoint of the engine's
	// --kv-events-config), empty for none: then every gap clears the cache.
	Replay string

	Ranks int    // data-parallel ranks, each on the port after the one before, up to MaxRanks; default 1
	Topic string // prefix of the topics to follow; empty: all
	Log   *slog.Logger

	// Dial connects to an engine's endpoints, nil by package net.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// MaxRanks bounds the ranks of one engine.
const MaxRanks = 64

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var problems []error
	var at [2]place
	for i, e := range []struct{ what, endpoint string }{{"KV events", c.Endpoint}, {"KV replay", c.Replay}} {
		if e.endpoint == "" && i == 1 {
			continue
		}
		var err error
		at[i], err = parse(e.endpoint)
		_, first := at[i].split()
		switch last := first + c.Ranks - 1; {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s endpoint %w", e.what, err))
		case at[i].bind && i == 1:
			problems = append(problems, fmt.Errorf("KV replay endpoint %q: give the engine's host, since the engine binds it", e.endpoint))
		case c.Ranks > 1 && at[i].network != "tcp":
			problems = append(problems, fmt.Errorf("%s endpoint %q: several ranks need a tcp:// endpoint, whose port they count up", e.what, e.endpoint))
		case c.Ranks <= MaxRanks && last > math.MaxUint16:
			problems = append(problems, fmt.Errorf("%s endpoint %q: %d ranks take the ports up to %d, which there is none of; choose a lower first port", e.what, e.endpoint, c.Ranks, last))
		}
	}
	if c.Ranks < 0 || c.Ranks > MaxRanks {
		problems = append(problems, fmt.Errorf("%d ranks: choose 1 to %d", c.Ranks, MaxRanks))
	} else if apart := max(c.Ranks, 1); at[0].meets(at[1], apart) {
		problems = append(problems, fmt.Errorf("KV events endpoint %q and KV replay endpoint %q: some rank's ports are the same; have the engine use first ports at least %d apart",
			c.Endpoint, c.Replay, apart))
	}
	return errors.Join(problems...)
}

// meets says whether p and q, of TCP on one host, are less than so many ports apart.
func (p place) meets(q place, apart int) bool {
	host, port := p.split()
	otherHost, other := q.split()
	return port > 0 && other > 0 && host == otherHost && max(port-other, other-port) < apart
}

// split is the host and port of a place, of TCP.
func (p place) split() (host string, port int) {
	if p.network != "tcp" {
		return "", 0
	}
	host, text, _ := net.SplitHostPort(p.addr)
	port, _ = strconv.Atoi(text)
	return host, port
}

// place is an endpoint as package net wants it.
type place struct {
	network, addr string
	bind          bool
}

func parse(endpoint string) (place, error) {
	rest, bind := strings.CutPrefix(endpoint, "@")
	scheme, addr, ok := strings.Cut(rest, "://")
	switch {
	case !ok || addr == "":
	case scheme == "ipc":
		return place{"unix", addr, bind}, nil
	case scheme == "tcp":
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			break
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			break
		}
		if host == "*" {
			host, bind = "", true
		}
		if host == "" && !bind {
			break
		}
		return place{"tcp", net.JoinHostPort(host, port), bind}, nil
	}
	return place{}, fmt.Errorf("%q is none such as tcp://127.0.0.1:5557 or ipc:///run/kv", endpoint)
}

// rank is the place of a later rank: vLLM and SGLang add it to the port
// (offset_endpoint_port).
func (p place) rank(n int) place {
	if p.network != "tcp" || n == 0 {
		return p
	}
	host, first := p.split()
	p.addr = net.JoinHostPort(host, strconv.Itoa(first+n))
	return p
}

// Stats says how following goes. All but Connected only grow.
type Stats struct {
	Connected  int64 // ranks with a publisher
	Batches    int64 // taken in
	Unknown    int64 // events of a kind that is not known, skipped
	Unreadable int64 // batches that are not what they should be; each clears its rank
	Gaps       int64 // batches were missing
	Replays    int64 // times that the publisher was asked for what is missing
	Clears     int64 // times that what was known of a rank was dropped, but for those that the engine told
}
