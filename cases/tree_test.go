package cases

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
)

// G52: a prompt of megabytes is served and found again, and a long chain of prompts,
// each a block longer than the one before, costs no stack, to match or to evict.
func TestG52LongPrompts(t *testing.T) {
	s := JSON(200, silent)
	t.Run("served", func(t *testing.T) {
		body := long("law", 1<<16, "") // 4 MiB
		byPrefix(t, func(t *testing.T, c *cluster) {
			c.served().set(always(s))
			c.warm(chatPath, body)
			c.wantPredicted("again", chatPath, body, 1<<16-1, 1<<16+9)
		})
	})
	t.Run("evicted", func(t *testing.T) {
		const blocks = 2000
		text := []byte(strings.Repeat("0123456789abcdef", (blocks+1)*prefix.BlockBytes/16))
		for i := range blocks { // no two blocks alike
			copy(text[i*prefix.BlockBytes:], fmt.Sprintf("%08d", i))
		}
		tree := prefix.NewTree(blocks*16, blocks*2)
		for i := range blocks {
			tree.Insert(prefix.NewChain(1, text[:(i+1)*prefix.BlockBytes]), (i+1)*16)
		}
		whole := prefix.NewChain(1, text)
		if n := tree.Match(whole); n != blocks {
			t.Errorf("%d blocks match, want %d", n, blocks)
		}
		tree.SetMaxTokens(10 * 16)
		if n := tree.Match(whole); n != 10 || tree.Len() != 10 {
			t.Errorf("%d blocks match of %d, want 10", n, tree.Len())
		}
		tree.SetMaxTokens(1)
		if tree.Len() > 0 {
			t.Errorf("%d blocks are left", tree.Len())
		}
	})
}

// G53: what counts is a prefix: to know the middle of a prompt is worth nothing.
func TestG53PrefixNotPiece(t *testing.T) {
	first, second := strings.Repeat("What a day. ", 50), strings.Repeat("Not bad. ", 50)
	ask := func(prompt string) string { return `{"model":"m-test","prompt":` + quote(prompt) + `}` }
	const path = "/v1/completions"
	virtual(t, 3, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
		c.askAt(t.Context(), "B", http.MethodPost, path, ask(first))
		c.askAt(t.Context(), "C", http.MethodPost, path, ask(second))
		c.gossip()
		r := c.askAt(t.Context(), "A", http.MethodPost, path, ask(second+first))
		if r.node() != "C" || r.predicted() != len(second)/prefix.BlockBytes {
			t.Errorf("served by %s, %d blocks are thought to be cached, want C and %d", r.node(), r.predicted(), len(second)/prefix.BlockBytes)
		}
	}, policy(t, "longest"))
}

// G54: texts are named by their bytes and counted in tokens, as many bytes to one as
// the engine's own count shows, so that scripts do not differ in what they are worth.
func TestG54Units(t *testing.T) {
	ascii, chinese := strings.Repeat("what a fine day it is ", 100), strings.Repeat("今天天气真好，", 100)
	for script, c := range map[string]struct {
		text   string
		tokens int
	}{"ASCII": {ascii, 600}, "Chinese": {chinese, 600}} {
		t.Run(script, func(t *testing.T) {
			body := `{"model":"m-test","prompt":` + quote(c.text) + `}`
			s := JSON(200, fmt.Sprintf(`{"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`, c.tokens))
			virtual(t, 2, always(s), func(t *testing.T, cl *cluster) {
				cl.warm("/v1/completions", body)
				if got := cl.members["B"].daemon.Status().TreeTokens; got < c.tokens*9/10 || got > c.tokens+1 {
					t.Errorf("the tree stands for %d tokens, the engine said %d", got, c.tokens)
				}
				r := cl.askAt(t.Context(), "B", http.MethodPost, "/v1/completions", body)
				if r.predicted()*tokensPerBlock < c.tokens*8/10 || r.predicted()*tokensPerBlock > c.tokens {
					t.Errorf("%s tokens are expected of %d", r.header.Get("Hearsay-Expected-Tokens"), c.tokens)
				}
			}, policy(t, "longest"))
		})
	}
	t.Run("inside a character", func(t *testing.T) {
		// é and è differ in their second byte, which here begins a block.
		head := strings.Repeat("x", 10*prefix.BlockBytes-1)
		for _, offset := range []int{0, 1} {
			byPrefix(t, func(t *testing.T, c *cluster) {
				ask := func(letter string) string {
					return `{"model":"m-test","prompt":` + quote(head[offset:]+letter+strings.Repeat("y", 200)) + `}`
				}
				c.warm("/v1/completions", ask("é"))
				c.wantPredicted("another letter", "/v1/completions", ask("è"), 9, 10)
			})
		}
	})
}

// G55: what is done under a node's lock does not grow with what peers say: a rumor of
// any size is taken over whole, not copied in.
func TestG55RumorsHoldUpNobody(t *testing.T) {
	rng := rand.New(rand.NewPCG(55, 0))
	now := time.Unix(1, 0)
	const blocks = 1 << 17
	text := make([]byte, blocks*prefix.BlockBytes)
	for i := 0; i < len(text); i += 64 {
		copy(text[i:], fmt.Sprintf("%d", i))
	}
	chain := prefix.NewChain(1, text)
	peer := node.New(node.Config{Name: "peer", Life: 1, Rand: rng})
	peer.Served(now, node.Request{Model: "m", Chain: chain, Bytes: len(text)}, "peer", node.Outcome{})
	spoken := peer.Speak(now)
	heard, err := gossip.DecodeRumor(spoken.AppendBinary(nil)) // outside of the lock
	if err != nil {
		t.Fatal(err)
	}
	n := node.New(node.Config{Name: "n", Life: 1, Rand: rng})
	if cost := testing.AllocsPerRun(100, func() { heard.Version++; n.Hear(now, heard) }); cost > 10 {
		t.Errorf("to hear of %d blocks takes %v allocations", blocks, cost)
	}
	req := node.Request{Model: "m", Chain: chain, Bytes: len(text)}
	if cost := testing.AllocsPerRun(100, func() { n.Route(now, req) }); cost > 20 {
		t.Errorf("to route among such peers takes %v allocations", cost)
	}
}
