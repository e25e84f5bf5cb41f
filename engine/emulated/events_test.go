package emulated

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/engine/kvevents"
)

// What an engine publishes of its cache is what it then finds there: a follower that
// is told nothing else knows to the token what each request will find cached, while
// prompts come and go. It names them by the engine's own tokenizer.
func TestPublishedEventsAreTheCache(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := kvevents.NewPublisher(kvevents.PublisherConfig{})
	t.Cleanup(func() { p.Close() })
	p.Serve(l)
	e := open(t, func(c *Config) {
		c.Publisher, c.TokenBytes, c.TimeScale = p, 0, 0.001
		c.Profile.CapacityTokens = 1024 // five prompts
	})
	cache := kvevents.NewCache(nil)
	f, err := kvevents.New(kvevents.Config{Endpoint: "tcp://" + l.Addr().String(), Log: slog.New(slog.DiscardHandler)}, cache)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for p.Subscribers() == 0 {
		time.Sleep(time.Millisecond)
	}
	hits := 0
	for i := range 100 {
		text := prompt(fmt.Sprint("topic ", i*i%8), 300) + fmt.Sprint("question ", i)
		resp, err := post(t.Context(), e, "/tokenize", fmt.Sprintf(`{"prompt":%q}`, text))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		var said struct{ Tokens []uint32 }
		if err := json.Unmarshal(body, &said); err != nil || len(said.Tokens) == 0 {
			t.Fatalf("%s, %v", body, err)
		}
		want := cache.Match(cache.Names(kvevents.Space{}, said.Tokens)) * 16
		_, usage, _ := complete(t, e, text, 1)
		if usage.Prompt != len(said.Tokens) || usage.Cached != min(want, usage.Prompt-1) {
			t.Fatalf("request %d: %d of %d tokens are cached; by its events %d of %d", i, usage.Cached, usage.Prompt, want, len(said.Tokens))
		}
		hits += usage.Cached
		last := p.Publish(kvevents.AppendBatch(nil, time.Time{}, nil))
		for f.Stats().Batches <= int64(last) {
			time.Sleep(time.Millisecond)
		}
	}
	if s := cache.Stats(); hits == 0 || s.Removed == 0 || s.Orphans > 0 {
		t.Errorf("%d tokens were found cached, %+v: nothing was tried", hits, s)
	}
}

// Token ids are never negative, though text is cut by size alone.
func TestTokensOfSizedText(t *testing.T) {
	e := open(t)
	resp, err := post(t.Context(), e, "/tokenize", fmt.Sprintf(`{"prompt":%q}`, prompt("law", 100)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var said struct{ Tokens []uint32 }
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || len(said.Tokens) != 100 {
		t.Errorf("%d tokens, %v", len(said.Tokens), err)
	}
}
