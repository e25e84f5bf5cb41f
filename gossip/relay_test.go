package gossip_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"pgregory.net/rapid"
)

func memberNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	return names
}

// Both ends find each other neighbours, nobody has more than 14, everybody is reached
// within a few hops, and one that comes changes little.
func TestNeighbours(t *testing.T) {
	for _, n := range []int{1, 2, 3, 15, 65, 1000} {
		names := memberNames(n)
		near := map[string][]string{}
		for _, name := range names {
			near[name] = gossip.Neighbours(name, names)
			if len(near[name]) > 14 || len(near[name]) < min(n-1, 2) || slices.Contains(near[name], name) {
				t.Fatalf("of %d, %s has neighbours %v", n, name, near[name])
			}
		}
		hops := map[string]int{names[0]: 0}
		for queue := names[:1:1]; len(queue) > 0; queue = queue[1:] {
			for _, to := range near[queue[0]] {
				if !slices.Contains(near[to], queue[0]) {
					t.Fatalf("of %d, %s has %s as neighbour, not the other way", n, queue[0], to)
				}
				if _, ok := hops[to]; !ok {
					hops[to] = hops[queue[0]] + 1
					queue = append(queue, to)
				}
			}
		}
		most, changed := 0, 0
		for _, name := range names {
			most = max(most, hops[name])
			for _, to := range gossip.Neighbours(name, append(names, "newcomer")) {
				if !slices.Contains(near[name], to) {
					changed++
				}
			}
		}
		if len(hops) != n || most > 4 || changed > 14 {
			t.Errorf("of %d, %d are reached in %d hops, and a newcomer changes %d", n, len(hops), most, changed)
		}
	}
}

// A relaying node has a tree, a view and what it passes on.
type relaying struct {
	*author
	name  string
	view  *gossip.View
	relay gossip.Relay
}

func (n *relaying) hear(b []byte) {
	r, err := gossip.DecodeRumor(b)
	if err != nil {
		panic(err)
	}
	n.view.Hear(start, r)
	n.relay.Heard(r, b)
}

func (n *relaying) speak() {
	r := n.author.speak()
	r.Author = n.name
	if r.Change = n.journal.Since(r.Version - 1); r.Change != nil {
		n.relay.Heard(r, r.AppendBinary(nil))
	}
}

// pull takes from the author what n does not hold of its tree.
func (n *relaying) pull(from *relaying) {
	life, told := n.view.Told(from.name)
	if told == from.version && life == from.life || from.version == 0 {
		return
	}
	r := gossip.Rumor{Author: from.name, Life: from.life, Version: from.version, Every: poll, Tree: from.trees[[2]uint64{from.life, from.version}]}
	if life == from.life {
		r = from.since(r, told)
	}
	n.hear(r.AppendBinary(nil))
}

// exchange has n ask from, and returns what it is told.
func (n *relaying) exchange(from *relaying, salt uint64) [][]byte {
	d, err := gossip.DecodeDigest(n.relay.AppendDigest(nil, salt))
	if err != nil {
		panic(err)
	}
	told, _ := from.relay.Newer(d, 1<<20)
	return told
}

// mustHold checks that n holds what from told last.
func (n *relaying) mustHold(t *rapid.T, from *relaying) {
	life, told := n.view.Told(from.name)
	if life != from.life || told != from.version {
		t.Fatalf("%s holds %d/%d of %s, which is at %d/%d", n.name, life, told, from.name, from.life, from.version)
	}
	for _, s := range []string{"aaaaaaaa", "abababab", "babababa", "bbbbbbbb"} {
		if got, want := n.view.Match(from.name, chainOf(s)), from.trees[[2]uint64{life, told}].Match(chainOf(s)); got != want {
			t.Fatalf("to %s %s holds %d of %s, and does %d", n.name, from.name, got, s, want)
		}
	}
}

// However what is relayed is lost, doubled, reordered and told again later, all views
// hold in the end what the authors do: by relay alone where the last few changes lead
// there, and by what is then pulled where they do not.
func TestRelayConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*relaying
		for _, name := range memberNames(rapid.IntRange(2, 5).Draw(t, "nodes")) {
			n := &relaying{author: newAuthor(), name: name, view: gossip.NewView(gossip.Config{Self: name})}
			n.tree.Insert(chainOf("ab"), 10)
			n.speak()
			all = append(all, n)
		}
		node := func(t *rapid.T) *relaying { return all[rapid.IntRange(0, len(all)-1).Draw(t, "node")] }
		others := func(f func(n, from *relaying)) {
			for _, n := range all {
				for _, from := range all {
					if n != from {
						f(n, from)
					}
				}
			}
		}
		others(func(n, from *relaying) { n.pull(from) })
		var late [][]byte
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) { node(t).tree.Insert(chainOf(drawText(t, "text")), 10) },
			"prune":  func(t *rapid.T) { node(t).tree.Prune(chainOf(drawText(t, "text")), 1) },
			"speak":  func(t *rapid.T) { node(t).speak() },
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rarely") == 0 {
					n := node(t)
					n.tree.Clear()
					n.life, n.version = n.life+1, 0
					n.speak()
				}
			},
			"relay": func(t *rapid.T) {
				n, from := node(t), node(t)
				for _, b := range n.exchange(from, rapid.Uint64().Draw(t, "salt")) {
					switch rapid.IntRange(0, 3).Draw(t, "fate") {
					case 0: // lost
					case 1:
						late = append(late, b)
					default:
						n.hear(b)
					}
				}
			},
			"late": func(t *rapid.T) {
				if len(late) > 0 {
					node(t).hear(late[rapid.IntRange(0, len(late)-1).Draw(t, "which")])
				}
			},
		})
		for round := range uint64(len(all)) {
			others(func(n, from *relaying) {
				for _, b := range n.exchange(from, round) {
					n.hear(b)
				}
			})
		}
		others(func(n, from *relaying) { n.pull(from) })
		others(func(n, from *relaying) { n.mustHold(t, from) })
	})
}

// What is kept leads from any of the last versions to the latest in the fewest steps;
// a heartbeat takes the place of the one before; and it is bounded.
func TestRelayKeepsTheLastChanges(t *testing.T) {
	a, asker := &relaying{author: newAuthor(), name: "a"}, &relaying{name: "b"}
	a.tree = prefix.NewTree(1<<30, 1<<16)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 40 { // two heartbeats after each change
		a.tree.Insert(prefix.Chain{prefix.Hash(rng.Uint64())}, 16)
		for range 3 {
			a.speak()
		}
	}
	for behind, want := range map[uint64]int{0: 0, 1: 1, 2: 1, 3: 2, 6: 3, 30: 11, 100: 1} {
		at := a.version - behind
		asker.relay = gossip.Relay{}
		asker.relay.Heard(gossip.Rumor{Author: "a", Life: 1, Version: at}, nil)
		told := asker.exchange(a, 7)
		last := at
		for _, b := range told {
			r, err := gossip.DecodeRumor(b)
			if err != nil || behind < 100 && r.Change.Since > last || r.Version <= last {
				t.Fatalf("%d behind: from %d by the change since %d to %d, %v", behind, last, r.Change.Since, r.Version, err)
			}
			last = r.Version
		}
		if len(told) != want || last != a.version {
			t.Errorf("%d behind: %d changes, to version %d of %d, want %d", behind, len(told), last, a.version, want)
		}
	}
	if a.relay.Bytes() > 16*200 {
		t.Errorf("%d bytes are kept", a.relay.Bytes())
	}
	a.relay.Forget("a")
	if a.relay.Bytes() != 0 || !a.relay.News("a", 1, 1) {
		t.Error("something is left of who is forgotten")
	}
}

// A digest of a million authors is refused, and so is one that is cut short.
func TestDigestIsBounded(t *testing.T) {
	b := make([]byte, 8)
	for i := range uint32(1_000_000) {
		b = append(binary.LittleEndian.AppendUint32(b, i), 0, 1)
	}
	for _, bad := range [][]byte{b, b[:8+6*2049], b[:13], b[:7], nil, append(b[:8:8], 1, 2, 3, 4, 5, 0xff)} {
		if _, err := gossip.DecodeDigest(bad); err == nil {
			t.Errorf("a digest of %d bytes is read", len(bad))
		}
	}
}

// Whatever a digest says, the answer is bounded, and everything in it is kept.
func FuzzDecodeDigest(f *testing.F) {
	a := &relaying{author: newAuthor(), name: "a"}
	for range 20 {
		a.tree.Insert(chainOf("ab"), 10)
		a.speak()
	}
	f.Add(a.relay.AppendDigest(nil, 1))
	f.Add(make([]byte, 14))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := gossip.DecodeDigest(b)
		if err != nil {
			return
		}
		if all, size := a.relay.Newer(d, 100); len(all) > 16 || size > a.relay.Bytes() {
			t.Fatalf("%d rumors of %d bytes", len(all), size)
		}
	})
}

// Who is heard by relay may be silent for some intervals more.
func TestRelayedAuthorsAreSuspectedLater(t *testing.T) {
	v := gossip.NewView(gossip.Config{})
	v.Hear(start, gossip.Rumor{Author: "direct", Life: 1, Version: 1, Every: poll})
	v.Hear(start, gossip.Rumor{Author: "relayed", Life: 1, Version: 1, Every: poll, Relayed: true})
	for polls, want := range map[int][2]bool{3: {false, false}, 4: {true, false}, 10: {true, false}, 11: {true, true}} {
		now := start.Add(time.Duration(polls) * poll)
		if got := [2]bool{v.Suspected(now, "direct"), v.Suspected(now, "relayed")}; got != want {
			t.Errorf("after %d polls: %v, want %v", polls, got, want)
		}
	}
}

// A change that comes after the rumor that it was missing for, or the author's own
// word of the same version, mends the tree; the load stays that of the latest.
func TestAMissedChangeIsMadeUpFor(t *testing.T) {
	a, v := newAuthor(), gossip.NewView(gossip.Config{})
	v.Hear(start, a.speak())
	a.tree.Insert(chainOf("aaaa"), 10)
	missed := a.since(a.speak(), 1)
	a.tree.Insert(chainOf("bbbb"), 10)
	r := a.speak()
	next := a.since(r, 2)
	next.Queue = 5
	v.Hear(start, next)
	if _, told := v.Told("a"); told != 1 {
		t.Fatalf("the tree of version %d is held", told)
	}
	for _, late := range []gossip.Rumor{missed, r} {
		if v.Hear(start, late) {
			t.Error("what is late is taken for news")
		}
		if life, told := v.Told("a"); life != 1 || told != late.Version {
			t.Errorf("the tree of version %d is held, want %d", told, late.Version)
		}
	}
	if p := v.Peers(start)[0]; p.Version != 3 || p.Queue != 5 || v.Match("a", chainOf("bbbb")) != 4 || v.Match("a", chainOf("aaaa")) != 4 {
		t.Errorf("believed: %+v", p)
	}
	v.Hear(start, missed)
	if _, told := v.Told("a"); told != 3 {
		t.Errorf("an older rumor brings the tree back to %d", told)
	}
}
