package node

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/route"
)

// A bench drives a node that learns beside one emulated engine, in virtual time,
// with prompts like MMLU's: one of the topics' 30 blocks of examples and 3 blocks of
// a question of their own.
type bench struct {
	*Node
	engine *emulate.Engine
	now    time.Time
	id     uint64
	rng    *rand.Rand
}

const exampleBlocks, questionBlocks = 30, 3

func newBench(holds, told int) *bench {
	return &bench{
		Node: New(Config{
			Name: "n1", Life: 1, Policy: route.Local{}, Rand: rand.New(rand.NewPCG(1, 2)),
			CapacityTokens: told, LearnCapacity: true,
		}),
		now: start, rng: rand.New(rand.NewPCG(1, 2)),
		engine: emulate.New(emulate.Profile{Name: "test", MaxBatch: 1, CapacityTokens: holds}, blockTokens),
	}
}

// prompt is the next question of a topic.
func (b *bench) prompt(topic int) Request {
	b.id++
	var c prefix.Chain
	for i := range exampleBlocks + questionBlocks {
		h := prefix.Hash(topic+1)<<32 | prefix.Hash(i)
		if i >= exampleBlocks {
			h |= prefix.Hash(b.id) << 40
		}
		c = append(c, h*0x9e3779b97f4a7c15)
	}
	return Request{Model: "m", Chain: c, Bytes: len(c) * prefix.BlockBytes}
}

// run has the engine compute a prompt and returns the tokens it found.
func (b *bench) run(req Request) (cached int) {
	b.engine.Submit(b.now, emulate.Job{ID: b.id, Chain: req.Chain, Tokens: len(req.Chain) * blockTokens})
	for {
		at, busy := b.engine.Next()
		if !busy {
			return cached
		}
		b.now = at
		for _, e := range b.engine.Step(at) {
			cached = e.Cached
		}
	}
}

// ask sends the node a question and returns what it promised and what was found, in tokens.
func (b *bench) ask(topic int) (promised, cached int) {
	req := b.prompt(topic)
	d := b.Route(b.now, req)
	cached = b.run(req)
	b.Served(b.now, req, "n1", Outcome{
		Known: true, PromptTokens: len(req.Chain) * blockTokens, CachedTokens: cached, Promised: d.Match,
		Chain: req.Chain, Tokens: len(req.Chain) * blockTokens,
	})
	return d.Expected, cached
}

// askAny asks n questions of topics by chance and returns the mean error of the
// promises in points of prompt tokens.
func (b *bench) askAny(n, topics int) (off float64) {
	for range n {
		promised, cached := b.ask(b.rng.IntN(topics))
		off += math.Abs(float64(promised-cached)) / ((exampleBlocks + questionBlocks) * blockTokens) * 100
	}
	return off / float64(n)
}

// Whatever a node was told of its engine's cache, after some questions its promises
// are true within 3 points, and its idea of the capacity is near.
func TestLearnsTheCapacity(t *testing.T) {
	const holds, topics = 10_000, 40 // 19,200 tokens of examples
	for _, told := range []int{holds / 8, holds / 2, holds, 2 * holds, 8 * holds, 0} {
		b := newBench(holds, told)
		first, then := b.askAny(300, topics), b.askAny(1000, topics)
		learnt := b.Status(b.now).CapacityLearnt
		t.Logf("told %d: off by %.2f points in the first 300 requests, then %.2f; learnt %d", told, first, then, learnt)
		if then > 3 || math.Abs(float64(learnt-holds)) > holds/10 {
			t.Errorf("told %d: promises are off by %.2f points, the capacity by %d tokens", told, then, learnt-holds)
		}
	}
}

// Where everything fits there is nothing to learn, and nothing is.
func TestKeepsTheCapacityWhileNothingSpeaksAgainstIt(t *testing.T) {
	b := newBench(50_000, 60_000)
	b.askAny(1000, 20)
	if s := b.Status(b.now); s.CapacityLearnt != 60_000 || s.Losses != 0 {
		t.Errorf("learnt %d, %d losses", s.CapacityLearnt, s.Losses)
	}
}

// After a restart that nobody tells of, no prefix is promised wrongly more than
// once, all of them together no more than some, and the capacity is what it was.
func TestRecoversFromARestart(t *testing.T) {
	const topics = 15
	b := newBench(10_000, 10_000)
	b.askAny(300, topics)
	b.engine.Restart()
	wrong := 0
	broken := map[int]int{}
	for range 100 {
		topic := b.rng.IntN(topics)
		if promised, cached := b.ask(topic); promised > cached+2*blockTokens {
			broken[topic]++
			wrong++
		}
	}
	for topic, times := range broken {
		if times > 1 {
			t.Errorf("topic %d was promised wrongly %d times", topic, times)
		}
	}
	if s := b.Status(b.now); wrong > coldLimit || s.CapacityLearnt != 10_000 || s.Losses != 1 {
		t.Errorf("%d promises were wrong; learnt %d, %d losses", wrong, s.CapacityLearnt, s.Losses)
	}
}

// Other clients fill the cache behind the node's back, more and less of it: promises
// follow what is left for it.
func TestFollowsACacheThatOthersFillToo(t *testing.T) {
	const holds, topics = 10_000, 40
	b := newBench(holds, holds)
	for _, foreign := range []float64{0, 1, 4, 0.3, 0} { // requests of others to one of ours
		mixed := func(n int) (off float64) {
			owed := 0.0
			for range n {
				off += b.askAny(1, topics)
				for owed += foreign; owed >= 1; owed-- {
					b.run(b.prompt(1000 + b.rng.IntN(1000)))
				}
			}
			return off / float64(n)
		}
		mixed(400)
		off := mixed(600)
		t.Logf("%.1f requests of others to one: off by %.2f points; learnt %d", foreign, off, b.Status(b.now).CapacityLearnt)
		if off > 3 {
			t.Errorf("%.1f requests of others to one: promises are off by %.2f points", foreign, off)
		}
	}
}

// Reuse distances are those of a plain list, whole and thinned out.
func TestReuseDistances(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, blocks := range []int{500, 20_000} {
		s := newStack(1 << 20)
		var list []prefix.Hash
		for range 12_000 {
			h := prefix.Hash(rng.IntN(blocks) + 1)
			for i := range list { // the newest stands first
				if list[i] == h {
					list = append(list[:i], list[i+1:]...)
					break
				}
			}
			list = append([]prefix.Hash{h}, list...)
			s.touch(prefix.Chain{h}, 16, 0)
		}
		within := 0.0
		if blocks > sampledMax {
			within = 0.05 // one part in sqrt(sampledMax / 2), three times
		}
		for i := 0; i < len(list); i += 7 {
			want := 16 * float64(i+1)
			d, known := s.distance(list[i])
			if !known && within == 0 || known && math.Abs(d-want) > within*want+within*16*4000 {
				t.Fatalf("of %d blocks: the %dth has distance %.0f, want %.0f", blocks, i, d, want)
			}
		}
		if len(s.index) > sampledMax || len(s.slots) > 2*sampledMax {
			t.Errorf("it keeps %d blocks in %d slots", len(s.index), len(s.slots))
		}
	}
}

// A chain longer than the stack does not break it.
func TestStackOfAVeryLongChain(t *testing.T) {
	s := newStack(1 << 20)
	long := make(prefix.Chain, 1<<17)
	for i := range long {
		long[i] = prefix.Hash(i + 1)
	}
	for range 3 {
		s.touch(long, 16*len(long), 0)
	}
	if got := s.tokens(); math.Abs(got/(16*float64(len(long)))-1) > 0.1 || len(s.index) > sampledMax {
		t.Errorf("%d blocks of %.0f tokens, want %d tokens", len(s.index), got, 16*len(long))
	}
}

// BenchmarkLearn tells what learning costs a request of 33 blocks.
func BenchmarkLearn(b *testing.B) {
	x := newBench(200_000, 200_000)
	x.askAny(2000, 400)
	req := x.prompt(1)
	out := Outcome{Known: true, PromptTokens: 33 * blockTokens, CachedTokens: 30 * blockTokens, Promised: 30}
	for b.Loop() {
		x.gauge.served(req, out, req.Chain, out.PromptTokens)
	}
}
