package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// publishing is an emulated engine that publishes in memory, and can be started anew.
type publishing struct {
	*foreignEngine
	network   *memnet.Network
	publisher *kvevents.Publisher
}

// newPublishing starts a node beside one, which is told nothing but events: of what
// the engine finds cached, and how much it holds, it hears nothing.
func newPublishing(t *testing.T, nodes int, change ...func(*emulated.Config)) (*publishing, *cluster) {
	p := &publishing{network: memnet.New()}
	change = append(change, func(c *emulated.Config) {
		c.Profile.CapacityTokens, c.TokenBytes = 2048, 0
		p.publish(t)
		c.Publisher = p.publisher
	})
	p.foreignEngine = newForeign(t, "", change...)
	c := newCluster(t, nodes, func(string) http.RoundTripper { return engine.Local{Handler: p} }, func(c *Config) {
		c.KVEvents = kvevents.Config{
			Endpoint: "tcp://engine:5557", Replay: "tcp://engine:5558",
			Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return p.network.Dial(ctx, addr) },
		}
	})
	t.Cleanup(func() { p.publisher.Close() })
	time.Sleep(5 * time.Second)
	return p, c
}

func (p *publishing) publish(t *testing.T) {
	t.Helper()
	p.publisher = kvevents.NewPublisher(kvevents.PublisherConfig{})
	for addr, serve := range map[string]func(net.Listener){"engine:5557": p.publisher.Serve, "engine:5558": p.publisher.ServeReplay} {
		l, err := p.network.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		serve(l)
	}
}

// promised is what the node promised for a prompt, and what was found.
func promised(t *testing.T, c *cluster, text string) (expected, found, tokens int) {
	t.Helper()
	r := c.do(t.Context(), "n1", http.MethodPost, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, text))
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	expected, _ = strconv.Atoi(r.header.Get(expectedHeader))
	for name, into := range map[string]*int{"cached_tokens": &found, "prompt_tokens": &tokens} {
		_, rest, _ := strings.Cut(string(r.body), `"`+name+`":`)
		_, _ = fmt.Sscan(rest, into)
	}
	time.Sleep(100 * time.Millisecond) // for its tokens
	return expected, found, tokens
}

// topicQuestion is one of a topic, with which all of its questions begin. Otherwise no
// two texts have anything in common.
func topicQuestion(topic, i int) string {
	words := func(seed string, n int) string {
		var b strings.Builder
		for k := range n {
			fmt.Fprintf(&b, "%x ", xxh3.HashString(fmt.Sprint(seed, k))>>44)
		}
		return b.String()
	}
	return words(fmt.Sprint("topic", topic), 60) + words(fmt.Sprint("question", i), 20)
}

// What the engine evicts is no longer promised, though the node was told that it holds
// far more, and what it holds is promised to the block of tokens: by its events alone.
func TestEventsKeepPromisesTrue(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, c := newPublishing(t, 1)
		var off, points, warm, evicted int
		const topics, rounds = 8, 20
		for i := range topics * rounds {
			topic := (i*i + i/7) % topics
			expected, found, tokens := promised(t, c, topicQuestion(topic, i))
			if tokens == 0 {
				t.Fatal("the engine does not tell what it found")
			}
			// The first time that a topic comes again it is known only roughly where it ends.
			if i >= 3*topics {
				points += 10000 * max(expected-found, found-expected) / tokens
				if warm++; max(expected-found, found-expected) > 16 {
					off++
				}
				if found == 0 {
					evicted++
				}
			}
		}
		s := c.nodes["n1"].Status().KVEvents
		t.Logf("promises differ by %.2f points, %d of %d by more than a block of tokens; %d were cold; %+v", float64(points)/100/float64(warm), off, warm, evicted, *s)
		if off > warm/50 || points/warm > 50 || evicted < 10 || s.Clears > 0 || s.Unlinked > 0 {
			t.Error("promises are not what the engine finds")
		}
	})
}

// An engine that has started anew has nothing: its publisher's next life says so
// before any request finds out.
func TestEventsTellOfARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, c := newPublishing(t, 1)
		for i := range 4 {
			promised(t, c, topicQuestion(1, i))
		}
		if expected, found, _ := promised(t, c, topicQuestion(1, 4)); expected != found || found == 0 {
			t.Fatalf("%d promised, %d found", expected, found)
		}
		p.publisher.Close()
		p.publish(t)
		p.config.Publisher = p.publisher
		p.start()
		time.Sleep(10 * time.Second)
		for i, want := range []bool{false, true, true} {
			expected, found, _ := promised(t, c, topicQuestion(1, 5+i))
			if (found > 0) != want || max(expected-found, found-expected) > 16 {
				t.Errorf("request %d after the restart: %d promised, %d found", i+1, expected, found)
			}
		}
	})
}
