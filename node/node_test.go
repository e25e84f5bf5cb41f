package node_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// What a node has served and told is where its peers send the next request.
func TestAPrefixServedIsFollowed(t *testing.T) {
	start := time.Unix(1000, 0)
	text := make([]byte, 640)
	req := node.Request{Model: "m", Chain: prefix.NewChain(prefix.Key("k").Root(prefix.Scope{Model: "m"}), text), Bytes: len(text)}
	newNode := func(name string) *node.Node {
		return node.New(node.Config{Name: name, Life: 1, Policy: route.Longest{}, Rand: rand.New(rand.NewPCG(1, 2))})
	}
	a, b := newNode("a"), newNode("b")
	a.Served(start, req, "a", node.Outcome{Known: true, PromptTokens: 160})
	if !b.Hear(start, a.Speak(start)) {
		t.Fatal("b did not hear a")
	}
	d := b.Route(start, req)
	if d.Node != "a" || d.Self || d.Match != 10 || d.Expected != 160 || d.Reason != "longest match=10 at a (here 0)" {
		t.Errorf("b routes to %+v", d)
	}
	if d = b.Route(start, req, "a", "b"); !d.Self {
		t.Errorf("with all tried, b routes to %+v", d)
	}
}
