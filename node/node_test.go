package node

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
	"pgregory.net/rapid"
)

func newNode(name string) *Node {
	return New(Config{Name: name, Life: 1, Policy: route.Longest{}, Rand: rand.New(rand.NewPCG(1, 2))})
}

// served is the outcome of a prompt of whole blocks of which so many were cached.
func served(req Request, promised, cached int) Outcome {
	return Outcome{Known: true, PromptTokens: len(req.Chain) * blockTokens, CachedTokens: cached * blockTokens, Promised: promised}
}

// What a node has served and told is where its peers send the next request.
func TestAPrefixServedIsFollowed(t *testing.T) {
	a, b := newNode("a"), newNode("b")
	req := request("0123456789")
	a.Served(start, req, "a", served(req, 0, 0))
	if !b.Hear(start, a.Speak(start)) {
		t.Fatal("b did not hear a")
	}
	want := Decision{Node: "a", Match: 10, Expected: 160, Reason: "longest match=10 at a (here 0)"}
	if d := b.Route(start, req); d != want {
		t.Errorf("b decides %+v, want %+v", d, want)
	}
	want = Decision{Node: "b", Self: true, Reason: "longest match=0 here"}
	if d := b.Route(start, req, "a"); d != want {
		t.Errorf("with a tried b decides %+v, want %+v", d, want)
	}
	want = Decision{Node: "b", Self: true, Reason: "no other node is left"}
	if d := b.Route(start, req, "a", "b"); d != want {
		t.Errorf("with all tried b decides %+v, want %+v", d, want)
	}
}

// A node whose own engine has failed looks elsewhere, also for what nobody has
// cached, and asks its peers to send it nothing.
func TestOwnEngineFails(t *testing.T) {
	a, b := newNode("a"), newNode("b")
	a.Hear(start, b.Speak(start))
	req := request("0123456789")
	want := Decision{Node: "b", Reason: "longest match=0 at b (not here)"}
	if d := a.Route(start, req, "a"); d != want {
		t.Errorf("a decides %+v, want %+v", d, want)
	}
	a.Failed(start, "a")
	if r := a.Speak(start); r.Pause <= 0 {
		t.Errorf("a asks for no pause: %+v", r)
	}
}

// The text's last block may be cut short, but no more is promised than there is.
func TestExpectedStaysWithinThePrompt(t *testing.T) {
	a := newNode("a")
	req := request("ab")
	a.Served(start, req, "a", served(req, 0, 0))
	if req.Bytes = 100; a.Route(start, req).Expected != 25 {
		t.Errorf("of 100 bytes %d tokens are expected", a.Route(start, req).Expected)
	}
}

func TestValidateReportsEveryProblem(t *testing.T) {
	good := Config{Name: "a", Life: 1, Rand: rand.New(rand.NewPCG(1, 2))}
	if err := good.Validate(); err != nil {
		t.Errorf("the least that is needed: %v", err)
	}
	for _, poll := range []time.Duration{MinPoll, MaxPoll} {
		if good.Poll = poll; good.Validate() != nil {
			t.Errorf("poll %v: %v", poll, good.Validate())
		}
	}
	err := Config{
		Name: strings.Repeat("n", 129), Poll: time.Millisecond, SuspectAfter: -1, CapacityTokens: -1,
		MaxBlocks: 1 << 21, QueueThreshold: -1, PauseFor: 2 * time.Hour, BytesPerToken: 100,
	}.Validate()
	if err == nil {
		t.Fatal("no problem found")
	}
	for i, field := range []string{"Name", "Life", "Rand", "Poll", "SuspectAfter", "CapacityTokens", "MaxBlocks", "QueueThreshold", "PauseFor", "BytesPerToken"} {
		if lines := strings.Split(err.Error(), "\n"); i >= len(lines) || !strings.HasPrefix(lines[i], field) {
			t.Errorf("%s is not reported in\n%v", field, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New takes what Validate refuses")
		}
	}()
	New(Config{})
}

// A hit clearly below what was promised prunes the tree to what the engine holds; a
// page, a block and the last token are no reason to, nor is uneven text.
func TestTreeIsCorrectedByTheEngine(t *testing.T) {
	long := strings.Repeat("a", 20)
	for _, test := range []struct {
		name            string
		promised, found int // in tokens found
		known           bool
		want            int // blocks of a branch off the prompt at block 20
	}{
		{"all there", 20, 320, true, 21},
		{"the last token is computed again", 20, 319, true, 21},
		{"a page short", 20, 288, true, 21},
		{"an eighth short", 20, 250, true, 21},
		{"half gone", 20, 160, true, 12},
		{"half gone, within a block", 20, 170, true, 12},
		{"all gone", 20, 0, true, 2},
		{"all gone, reported below nothing", 20, -1, true, 2},
		{"nobody knows", 20, 0, false, 21},
		{"nothing was promised", 0, 0, true, 21},
		{"promised more than asked", 99, 160, true, 12},
	} {
		n := newNode("a")
		branch, req := request(long+"b"), request(long+"c")
		n.Served(start, branch, "a", served(branch, 0, 0))
		n.Served(start, req, "a", Outcome{Known: test.known, PromptTokens: 21 * 16, CachedTokens: test.found, Promised: test.promised})
		if got := n.tree.Match(req.Chain); got != 21 {
			t.Errorf("%s: what was just computed matches %d", test.name, got)
		}
		// The prompt itself is back; of the branch only its own block tells.
		got := n.tree.Match(branch.Chain)
		if want := map[bool]int{true: 21, false: 20}[test.want == 21]; got != want {
			t.Errorf("%s: the branch matches %d, want %d", test.name, got, want)
		}
		if keep, short := shortfall(req, Outcome{Known: test.known, PromptTokens: 21 * 16, CachedTokens: test.found, Promised: test.promised}); short != (test.want < 21) || short && keep != test.want {
			t.Errorf("%s: keep %d, short %v", test.name, keep, short)
		}
	}
}

// Prompts may have their first block in common and differ in their engine's first
// page: that nothing was found of one says nothing of the others.
func TestBrokenPromiseLeavesOtherPromptsAlone(t *testing.T) {
	n := newNode("a")
	gone, other := request("x"+strings.Repeat("a", 20)), request("x"+strings.Repeat("b", 20))
	n.Served(start, other, "a", served(other, 0, 0))
	n.Served(start, gone, "a", served(gone, 0, 0))
	n.Served(start, gone, "a", served(gone, 21, 0))
	if got := n.tree.Match(other.Chain); got != 21 {
		t.Errorf("of the other prompt %d blocks are left, want 21", got)
	}
}

// Prompts that begin alike have one rate of bytes per token, whatever the model's is.
func TestPromptsThatBeginAlikeHaveTheirOwnRate(t *testing.T) {
	n := newNode("a")
	dense, plain := request(strings.Repeat("d", 20)), request(strings.Repeat("p", 20))
	for range 10 {
		n.Served(start, plain, "a", Outcome{PromptTokens: plain.Bytes / 4})
	}
	n.Served(start, dense, "a", Outcome{PromptTokens: dense.Bytes / 2})
	longer := request(strings.Repeat("d", 20) + "more")
	if got := n.Route(start, longer).Expected; got != dense.Bytes/2 {
		t.Errorf("%d tokens are expected, want %d", got, dense.Bytes/2)
	}
	if got := n.tokens(request("new"), 400); got < 95 || got > 130 {
		t.Errorf("a prompt of no known kind has %d tokens in 400 bytes", got)
	}
	for i := range 3 * headsMax {
		n.heads.learn(prefix.Chain{1, 2, 3, prefix.Hash(i)}, 4, 1)
	}
	if held := len(n.heads.young) + len(n.heads.old); held > 2*headsMax {
		t.Errorf("%d heads are held", held)
	}
}

// Completions are cached like prompts, and their tokens count.
func TestCompletionsAreInserted(t *testing.T) {
	a := newNode("a")
	req, whole := request("ab"), request("abcd")
	out := served(req, 0, 0)
	out.Chain = whole.Chain
	a.Served(start, req, "a", out)
	if s := a.Status(start); s.TreeBlocks != 4 || s.TreeTokens != 64 {
		t.Errorf("%d blocks, %d tokens", s.TreeBlocks, s.TreeTokens)
	}
	a.Cleared()
	out.Tokens = 40
	a.Served(start, req, "a", out)
	if s := a.Status(start); s.TreeBlocks != 4 || s.TreeTokens != 40 {
		t.Errorf("by the engine's word %d blocks, %d tokens", s.TreeBlocks, s.TreeTokens)
	}
	a.Cleared()
	a.Served(start, req, "a", Outcome{})
	if s := a.Status(start); s.TreeBlocks != 2 || s.TreeTokens != 32 {
		t.Errorf("of a silent engine %d blocks, %d tokens", s.TreeBlocks, s.TreeTokens)
	}
}

// A prompt is known to be cached from its first token on.
func TestPrefilledIsCached(t *testing.T) {
	a := newNode("a")
	req := request("abc")
	a.Prefilled(start, req, nil)
	if d := a.Stay(req, "why"); d.Match != 3 || d.Expected != 48 || d.Reason != "why" || !d.Self {
		t.Errorf("%+v", d)
	}
}

func TestCapacityFollowsTheEngine(t *testing.T) {
	a := newNode("a")
	for i := range 100 {
		req := request(fmt.Sprintf("%02d", i))
		a.Served(start, req, "a", served(req, 0, 0))
	}
	a.SetCapacity(10 * blockTokens)
	if s := a.Status(start); s.TreeTokens != 160 || s.CapacityTokens != 160 {
		t.Errorf("holds %d of %d tokens", s.TreeTokens, s.CapacityTokens)
	}
	a.SetCapacity(0)
	for i := range 100 {
		req := request(fmt.Sprintf("%02d", i))
		a.Served(start, req, "a", served(req, 0, 0))
	}
	if s := a.Status(start); s.TreeBlocks != 110 || s.CapacityTokens != 0 {
		t.Errorf("without a limit it holds %d blocks", s.TreeBlocks)
	}
}

// Bytes per token are learnt for each model, from big prompts more than from small
// ones, and follow a model's text as it changes.
func TestBytesPerTokenAreLearnt(t *testing.T) {
	r := rates{preset: 4}
	if r.tokens("m", 400) != 100 {
		t.Errorf("before anything is known: %d", r.tokens("m", 400))
	}
	for range 100 {
		r.learn("m", 30_000, 10_000)
	}
	r.learn("m", 10, 40) // mostly chat template
	r.learn("m", 0, 5)
	r.learn("m", 5, 0)
	r.learn("m", 1_000_000, 10) // cut off by the engine
	if got := r.bytesPerToken("m"); got < 2.99 || got > 3 {
		t.Errorf("learnt %v", got)
	}
	if r.tokens("other", 400) != 100 {
		t.Error("one model's rate is another's")
	}
	for range 100 { // eight times the window
		r.learn("m", 20_000, 10_000)
	}
	if got := r.bytesPerToken("m"); got < 2 || got > 2.01 {
		t.Errorf("after a change it is %v", got)
	}
	for i := range 3 * maxModels {
		if _, ok := r.models["m"]; !ok || len(r.models) > maxModels {
			t.Fatalf("%d models are remembered, the one in use: %v", len(r.models), ok)
		}
		r.learn("m", 30, 10)
		r.learn(fmt.Sprint(i), 30, 10)
	}
}

// Pauses of peers end at different times at different nodes, none early.
func TestPausesSpread(t *testing.T) {
	ends := map[time.Duration]bool{}
	for i := range 20 {
		n := New(Config{Name: "a", Life: 1, Rand: rand.New(rand.NewPCG(uint64(i), 2))})
		n.Hear(start, gossip.Rumor{Author: "b", Life: 1, Version: 1, Every: poll, Pause: time.Second})
		p := n.Status(start).Peers[0]
		if p.State != Paused || p.PauseLeft < time.Second || p.PauseLeft > 1250*time.Millisecond {
			t.Errorf("%s for %v", p.State, p.PauseLeft)
		}
		ends[p.PauseLeft] = true
	}
	if len(ends) < 15 {
		t.Errorf("20 nodes come back at %d moments", len(ends))
	}
}

// An answer that comes after all is as good a sign of life as a rumor.
func TestALateAnswerEndsDoubt(t *testing.T) {
	n := newNode("a")
	n.Hear(start, gossip.Rumor{Author: "b", Life: 1, Version: 1, Every: poll})
	req := request("ab")
	n.Failed(start, "b")
	n.Served(start, req, "b", served(req, 0, 0))
	if d := n.Route(start, req); d.Node != "b" {
		t.Errorf("%+v", d)
	}
}

func TestStatusTellsWhatIsBelieved(t *testing.T) {
	n := newNode("a")
	req := request("abcd")
	tree := prefix.NewTree(100, 100)
	tree.Insert(req.Chain[:2], 32)
	for _, name := range []string{"suspect", "doubtful", "hot", "fine"} {
		r := gossip.Rumor{Author: name, Life: 7, Version: 3, Every: poll, Queue: 1, Tokens: tree.Tokens(), Tree: tree.Snapshot()}
		now := start.Add(2 * time.Second)
		if name == "suspect" {
			now = start
		}
		if name == "hot" {
			r.Pause = time.Hour
		}
		n.Hear(now, r)
	}
	now := start.Add(2 * time.Second)
	n.Failed(now, "doubtful")
	n.Served(now, req, "fine", served(req, 2, 2))
	n.Served(now, req, "a", served(req, 0, 0))
	n.Served(now, req, "a", Outcome{Promised: 4})
	n.Queued(now, 9)
	n.Queued(now, 10)
	n.Speak(now)
	now = now.Add(100 * time.Millisecond)

	got := n.Status(now)
	for i := range got.Peers {
		got.Peers[i].PauseLeft = 0 // by chance
	}
	peer := func(name string, state State) PeerStatus {
		return PeerStatus{Name: name, State: state, Life: 7, Version: 3, RumorAge: 100 * time.Millisecond, TreeBlocks: 2, TreeTokens: 32, Queue: 1}
	}
	want := Status{
		Name: "a", Life: 1, Version: 1, Policy: "longest", Poll: poll, Queue: 10, PausedFor: 900 * time.Millisecond, Pauses: 1,
		TreeBlocks: 4, TreeTokens: 64, BytesPerToken: map[string]float64{"m": 4},
		Here:  Totals{Requests: 2, Reported: 1, PromptTokens: 64},
		There: Totals{Requests: 1, Reported: 1, PromptTokens: 64, PredictedTokens: 32, CachedTokens: 32},
		Peers: []PeerStatus{peer("doubtful", Doubted), peer("fine", Alive), peer("hot", Paused), peer("suspect", Suspected)},
	}
	want.Peers[0].Failures = 1
	want.Peers[1].Credits = 2
	want.Peers[3].RumorAge += 2 * time.Second
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	n.Forget("fine")
	if len(n.Status(now).Peers) != 3 {
		t.Error("who has left is still there")
	}
}

// The same calls give the same answers.
func TestNodeIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 40).Draw(t, "steps")
		var histories [2]string
		for i := range histories {
			c := newCluster(t, 4, Config{CapacityTokens: 30 * blockTokens})
			for j, step := range steps {
				a := c.ask(fmt.Sprintf("n%d", j%4+1), []string{"law1", "law2", "art1", "art"}[step])
				histories[i] += fmt.Sprintln(a)
				c.node("n2").Queued(c.now, j)
				c.pass(poll / 3)
			}
			for _, m := range c.members {
				histories[i] += fmt.Sprintf("%x", m.Speak(c.now).AppendBinary(nil))
			}
		}
		if histories[0] != histories[1] {
			t.Fatalf("%s\n%s", histories[0], histories[1])
		}
	})
}

// One operation routes a prompt of 100 blocks; each peer holds 10,000, a third of
// them the half of it.
func BenchmarkRoute(b *testing.B) {
	for _, nodes := range []int{4, 64} {
		b.Run(fmt.Sprintf("%dnodes", nodes), func(b *testing.B) {
			n := New(Config{Name: "self", Life: 1, Rand: rand.New(rand.NewPCG(1, 2))})
			text := make([]byte, 100*prefix.BlockBytes)
			req := Request{Model: "m", Chain: prefix.NewChain(1, text), Bytes: len(text)}
			for i := range nodes - 1 {
				tree := prefix.NewTree(1<<30, 10_000)
				if i%3 == 0 {
					tree.Insert(req.Chain[:50], 800)
				}
				for j := 0; tree.Len() < 9000; j++ {
					copy(text, fmt.Sprintf("%d/%d", i, j))
					tree.Insert(prefix.NewChain(1, text), 1600)
				}
				n.Hear(start, gossip.Rumor{Author: fmt.Sprintf("n%02d", i), Life: 1, Version: 1, Every: poll, Tree: tree.Snapshot()})
			}
			b.ReportAllocs()
			for b.Loop() {
				n.Route(start, req)
			}
		})
	}
}

// Of a model of which no answer has told yet a node takes its tokens for as long as a
// peer's are that serves nothing else; then its own.
func TestPeersTellHowLongTokensAre(t *testing.T) {
	n := newNode("a")
	req := Request{Model: "m", Chain: prefix.Chain{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, Bytes: 10 * prefix.BlockBytes}
	for i, step := range []struct {
		models         []string
		blocks, tokens int
		want           int // for the 640 bytes of the prompt
	}{
		{nil, 10, 320, 160}, // who tells no model tells nothing: four bytes a token
		{[]string{"m", "other"}, 10, 320, 160},
		{[]string{"m"}, 7, 320, 160}, // too little
		{[]string{"m"}, 10, 0, 160},
		{[]string{"m"}, 10, 1, 160}, // no tokenizer's
		{[]string{"m"}, 10, 673, 160},
		{[]string{"other"}, 10, 160, 160},
		{[]string{"m"}, 10, 336, 320}, // of 672 bytes, the prompt's tail among them
	} {
		tree := prefix.NewTree(1000, 1000)
		tree.Insert(req.Chain[:step.blocks], step.tokens)
		n.Hear(start, gossip.Rumor{Author: "b", Life: 1, Version: uint64(i + 1), Every: time.Second, Models: step.models, Tokens: step.tokens, Tree: tree.Snapshot()})
		if got := n.tokens(req, req.Bytes); got != step.want {
			t.Errorf("%+v: %d tokens", step, got)
		}
	}
	n.Served(start, req, "a", Outcome{Known: true, PromptTokens: 64, Promised: 10})
	if got := n.tokens(Request{Model: "m", Bytes: 640}, 640); got != 64 {
		t.Errorf("%d tokens, want as many as the engine has told", got)
	}
	if got := n.here.PredictedTokens; got != 64 {
		t.Errorf("%d tokens were promised of a prompt of 64", got)
	}
}
