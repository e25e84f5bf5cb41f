package cases

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/prefix"
)

// silent is an answer that says nothing of tokens, so that a node counts them by
// its own reckoning: tokensPerBlock for each block.
const (
	silent         = `{"id":"c","object":"chat.completion","created":1,"model":"m-test","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}`
	tokensPerBlock = prefix.BlockBytes / 4
)

// predicted returns how many leading blocks of the prompt were thought to be cached.
func (r reply) predicted() int {
	n, _ := strconv.Atoi(r.header.Get("Hearsay-Expected-Tokens"))
	return n / tokensPerBlock
}

// warm has B serve a request, and the others hear of it.
func (c *cluster) warm(path, body string) {
	c.t.Helper()
	if r := c.askAt(c.t.Context(), "B", http.MethodPost, path, body); r.status != 200 || r.node() != "B" {
		c.t.Fatalf("B answers %d: %s", r.status, r.body)
	}
	c.gossip()
}

// byPrefix runs f with two nodes that send requests where their prompt is cached.
func byPrefix(t *testing.T, f func(t *testing.T, c *cluster)) {
	t.Helper()
	virtual(t, 2, always(JSON(200, silent)), f, policy(t, "longest"))
}

// wantPredicted asks A and sees how much is thought to be cached, and so where it goes.
func (c *cluster) wantPredicted(what, path, body string, least, most int) {
	c.t.Helper()
	r := c.askAt(c.t.Context(), "A", http.MethodPost, path, body)
	if r.status != 200 || r.predicted() < least || r.predicted() > most {
		c.t.Errorf("%s: %d, %d blocks are thought to be cached, want %d to %d", what, r.status, r.predicted(), least, most)
	}
	if want := map[bool]string{true: "B", false: "A"}[r.predicted() > 0]; r.node() != want {
		c.t.Errorf("%s: served by %s, want %s", what, r.node(), want)
	}
}

// G25: a request with another picture shares what stands before the picture, no
// more. Nothing of a picture is gossiped but its name.
func TestG25AnotherPicture(t *testing.T) {
	ask := func(image string) string {
		return fmt.Sprintf(`{"model":"m-test","messages":[{"role":"system","content":%s},{"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":%s}]}]}`,
			quote(strings.Repeat("You describe pictures. ", 40)), image, quote(strings.Repeat("Be brief. ", 50)))
	}
	a, b := ask(strings.Repeat("QUFB", 200)), ask(strings.Repeat("QkJC", 200))
	system := 40 * len("You describe pictures. ") / prefix.BlockBytes
	byPrefix(t, func(t *testing.T, c *cluster) {
		c.warm(chatPath, a)
		c.wantPredicted("another picture", chatPath, b, system, system+2)
		c.wantPredicted("the same picture", chatPath, a, system+8, 100)
	})
}

// G26: what is null stays null, what is absent stays absent, and the text that there
// is routes the request.
func TestG26NoContent(t *testing.T) {
	tail := `"tool_calls":[{"id":"call_1","type":"function","function":{"name":"clock","arguments":"{\"tz\": \"UTC\"}"}}]},{"role":"tool","tool_call_id":"call_1","content":"12:00"}]}`
	head := `{"model":"m-test","messages":[{"role":"user","content":` + quote(strings.Repeat("What time is it? ", 40)) + `},{"role":"assistant",`
	s := JSON(200, silent)
	for name, body := range map[string]string{"null": head + `"content":null,` + tail, "absent": head + tail} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				c.wantWhole(c.post(body), s)
				c.wantAsked(body)
			})
			byPrefix(t, func(t *testing.T, c *cluster) {
				c.warm(chatPath, body)
				c.wantPredicted(name, chatPath, body, 10, 100)
			})
		})
	}
}

// G27: tools come first in an engine's prompt, so with other tools nothing is
// shared. What is not part of the prompt changes nothing.
func TestG27Tools(t *testing.T) {
	ask := func(tools, more string) string {
		if tools != "" {
			tools = `"tools":[{"type":"function","function":{"name":"` + tools + `","description":"finds","parameters":{"type":"object","properties":{"q":{"type":"string"}}}}}],`
		}
		return `{"model":"m-test",` + tools + more + `"messages":[{"role":"system","content":` + quote(strings.Repeat("You are careful. ", 80)) + `}]}`
	}
	byPrefix(t, func(t *testing.T, c *cluster) {
		c.warm(chatPath, ask("alpha", ""))
		c.wantPredicted("other tools", chatPath, ask("beta", ""), 0, 0)
		c.wantPredicted("no tools", chatPath, ask("", ""), 0, 0)
		whole := len(strings.Repeat("You are careful. ", 80)) / prefix.BlockBytes
		c.wantPredicted("the same", chatPath, ask("alpha", ""), whole, whole+4)
		c.wantPredicted("other parameters", chatPath, ask("alpha", `"max_tokens":3,"temperature":0.5,"stream":false,"user":"u","metadata":{"k":"v"},"seed":1,`), whole, whole+4)
	})
}

// G28: a prompt of token ids, of several texts or of several lists of ids is served
// as it is, and found again.
func TestG28PromptShapes(t *testing.T) {
	const path = "/v1/completions"
	ids := strings.TrimSuffix(strings.Repeat("1,15043,3186,29991,", 40), ",")
	text := quote(strings.Repeat("first prompt ", 30))
	s := JSON(200, silent)
	for name, prompt := range map[string]string{
		"token ids": "[" + ids + "]", "texts": "[" + text + "," + text + "]", "lists of token ids": "[[" + ids + "],[1,2,9]]",
		"one text": text, "empty list": "[]", "short": "[1]", "number": "7", "null": "null", "mixed": `["a",[1,2],3]`,
	} {
		body := `{"model":"m-test","prompt":` + prompt + `,"max_tokens":1}`
		t.Run(name, func(t *testing.T) {
			eachWay(t, always(s), func(t *testing.T, c *cluster) {
				c.anyone = true // what is nothing to route by is served where it came in
				r := c.ask(t.Context(), http.MethodPost, path, body)
				if r.status != 200 || string(r.body) != silent {
					t.Errorf("%d %s", r.status, r.body)
				}
				if got := string(c.members[r.node()].engine.asked()[0].Body); got != body {
					t.Errorf("the engine got %s", got)
				}
			})
			if len(prompt) < 100 {
				return
			}
			byPrefix(t, func(t *testing.T, c *cluster) {
				c.warm(path, body)
				c.wantPredicted(name, path, body, 5, 100)
				c.wantPredicted("another", path, strings.NewReplacer("15043", "15044", "first", "other").Replace(body), 0, 0)
			})
		})
	}
}

// G29: a field that is null counts as absent, for the node too: the answer is whole.
func TestG29Nulls(t *testing.T) {
	const body = `{"model":"m-test","messages":[{"role":"user","content":"hello"}],"temperature":null,"max_tokens":null,"stop":null,"stream":null,"tools":null,"stream_options":null,"user":null,"logit_bias":null}`
	s := JSON(200, answer)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		r := c.post(body)
		c.wantWhole(r, s)
		c.wantAsked(body)
		if got := r.header.Get("Content-Length"); got != strconv.Itoa(len(answer)) {
			t.Errorf("content length %q, want %d", got, len(answer))
		}
	})
}

// G30: each turn of a conversation is found where the turn before was served,
// wherever it comes in, and all that went before is thought to be cached.
func TestG30NextTurn(t *testing.T) {
	said := strings.Repeat("I see what you mean. ", 20)
	reply := func(r *Request) Script {
		text := fmt.Sprintf(`{"id":"c","object":"chat.completion","created":1,"model":"m-test","choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":0}}`,
			quote(said), len(r.Body)/4, len(said)/4)
		return JSON(200, text)
	}
	virtual(t, 3, reply, func(t *testing.T, c *cluster) {
		messages := `{"role":"system","content":` + quote(strings.Repeat("You listen. ", 40)) + `}`
		before, home := 0, ""
		for turn := range 10 {
			messages += fmt.Sprintf(`,{"role":"user","content":%s}`, quote(fmt.Sprintf("Turn %d. %s", turn, strings.Repeat("And then? ", 20))))
			at := string(rune('A' + (turn*2)%3))
			r := c.askAt(t.Context(), at, http.MethodPost, chatPath, `{"model":"m-test","messages":[`+messages+`]}`)
			switch {
			case turn == 0:
				home = r.node()
			case r.node() != home:
				t.Errorf("turn %d was served by %s, not by %s", turn, r.node(), home)
			case r.predicted() < before:
				t.Errorf("turn %d: %d blocks are thought to be cached, want at least the %d of all that went before", turn, r.predicted(), before)
			}
			messages += `,{"role":"assistant","content":` + quote(said) + `}`
			// Roles and separators are part of a prompt; some 30 bytes each go for the JSON.
			before = (len(messages) - (2*turn+3)*40) / prefix.BlockBytes
			c.gossip()
		}
	}, policy(t, "longest"))
}

// G31: a stream of several choices goes on until it ends, not until the first of
// them does.
func TestG31SeveralChoices(t *testing.T) {
	choice := func(index int, text, reason string) string {
		return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m-test","choices":[{"index":%d,"delta":{"content":%s},"finish_reason":%s}]}`+"\n\n", index, quote(text), reason)
	}
	s := Stream(choice(0, "A1 ", "null"), choice(1, "B1 ", "null"), choice(1, "B2", `"stop"`), choice(0, "A2 ", "null"), choice(0, "A3", `"stop"`), done)
	eachWay(t, always(s), func(t *testing.T, c *cluster) {
		c.wantWhole(c.post(strings.Replace(chatStream, "{", `{"n":2,`, 1)), s)
	})
}
