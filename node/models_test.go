package node

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

func TestServes(t *testing.T) {
	for _, test := range []struct {
		models []string
		model  string
		want   bool
	}{
		{nil, "m", true},
		{[]string{"m"}, "", true},
		{[]string{"m"}, "m", true},
		{[]string{"m"}, "M", false},
		{[]string{"m"}, "m-2", false},
		{[]string{"m", "m-2"}, "m-2", true},
		{[]string{"m:latest"}, "m", true},
		{[]string{"m:7b"}, "m", false},
		{[]string{"m"}, "m:adapter", true},
		{[]string{"m"}, "n:adapter", false},
		{[]string{"m", AnyModel}, "whatever", true},
	} {
		if got := serves(test.models, test.model); got != test.want {
			t.Errorf("serves(%q, %q) = %v", test.models, test.model, got)
		}
	}
}

// A request goes to nodes that serve its model and can, whatever they have cached
// and whatever the policy.
func TestRouteFollowsTheModel(t *testing.T) {
	for _, policy := range []route.Policy{route.Local{}, route.Longest{}, route.LongestPushback{}} {
		a := New(Config{Name: "a", Life: 1, Policy: policy, Rand: rand.New(rand.NewPCG(1, 2))})
		a.SetModels([]string{"m"})
		req := request("0123456789")
		for _, r := range []gossip.Rumor{
			{Author: "b", Models: []string{"m"}, Tree: treeOf(req)},
			{Author: "c", Models: []string{"m-2"}, Pause: time.Second},
			{Author: "d", Models: []string{"m-2", "m-3"}, Down: true, Tree: treeOf(req)},
		} {
			r.Life, r.Version, r.Every = 1, 1, time.Second
			a.Hear(start, r)
		}
		for _, test := range []struct {
			model, want string
			serves      bool
		}{
			{"m-2", "c", true},
			{"m-3", "a", true}, // d does, and is down: that is not to be unknown
			{"m-4", "a", false},
		} {
			req.Model = test.model
			if d := a.Route(start, req); d.Node != test.want {
				t.Errorf("%s: %s goes to %s: %s", policy.Name(), test.model, d.Node, d.Reason)
			}
			if got := a.Serves(start, test.model); got != test.serves {
				t.Errorf("%s: Serves(%s) = %v", policy.Name(), test.model, got)
			}
		}
		req.Model = "m"
		a.SetDown(true)
		if d := a.Route(start, req); d.Node != "b" {
			t.Errorf("%s: with its engine down a keeps a request: %s", policy.Name(), d.Reason)
		}
		if d := a.Route(start, req, "b"); d.Node != "a" {
			t.Errorf("%s: nobody is left, and it goes to %s", policy.Name(), d.Node)
		}
		if r := a.Speak(start); !r.Down || len(r.Models) != 1 {
			t.Errorf("%s: a says %+v", policy.Name(), r)
		}
	}
}

// What an engine says of when to come back is obeyed, its own and a peer's.
func TestBusy(t *testing.T) {
	a, b := newNode("a"), newNode("b")
	a.cfg.Policy = route.LongestPushback{}
	req := request("0123456789")
	b.Served(start, req, "b", served(req, 0, 0))
	a.Hear(start, b.Speak(start))
	a.Busy(start, "b", time.Minute)
	if d := a.Route(start, req); d.Node != "a" {
		t.Errorf("sent to a busy peer: %s", d.Reason)
	}
	a.Busy(start, "a", 7*time.Second)
	if r := a.Speak(start); r.Pause != 7*time.Second {
		t.Errorf("a asks for a pause of %v", r.Pause)
	}
	a.Hear(start, b.Speak(start))
	if d := a.Route(start, req); d.Node != "b" {
		t.Errorf("after a rumor without a pause: %s", d.Reason)
	}
}

func treeOf(req Request) *prefix.Snapshot {
	tree := prefix.NewTree(1<<20, 1<<10)
	tree.Insert(req.Chain, len(req.Chain)*blockTokens)
	return tree.Snapshot()
}
