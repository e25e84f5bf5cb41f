package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// How a request of a soak ended.
const (
	answered    = "answered right"
	leftEarly   = "aborted by the client"
	refused     = "refused: 429, 502 or 503"
	brokenOff   = "broken off visibly, right up to there"
	unreachable = "lost with the node that was asked"
	failed      = "WRONG"

	resumed = "streams resumed on another node" // counted beside
)

// A verdict says how one request ended, and what was wrong with that.
type verdict struct {
	at      time.Duration // since the soak began
	asked   string
	how     string
	resumed bool
	wrong   string // "" where all is well
}

// soakRequestTimeout is more than any answer takes.
const soakRequestTimeout = 60 * time.Second

// An ask is a request of the load.
type ask struct {
	chat, stream bool
	fields       map[string]any
}

func (a ask) path() string {
	if a.chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func (a ask) body(stream bool) []byte {
	a.fields["stream"] = stream
	delete(a.fields, "stream_options")
	if stream {
		a.fields["stream_options"] = map[string]any{"include_usage": true}
	}
	b, _ := json.Marshal(a.fields)
	return b
}

// A soakClient asks one thing after another, at any node.
type soakClient struct {
	*soak
	rand *rand.Rand
	http *http.Client
}

func newSoakClient(s *soak, number uint64) *soakClient {
	return &soakClient{soak: s, rand: rand.New(rand.NewPCG(*soakSeed, number)), http: &http.Client{Transport: &http.Transport{}}}
}

func (c *soakClient) run(ctx context.Context, results chan<- verdict) {
	defer c.http.CloseIdleConnections()
	for ctx.Err() == nil {
		results <- c.ask(c.draw())
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(c.rand.IntN(50)) * time.Millisecond):
		}
	}
}

// draw makes up a request: of a chat or a text, short or long, with a beginning that
// others share. Most are one of some hundred, of which what is right is asked once.
func (c *soakClient) draw() ask {
	a := ask{chat: c.rand.IntN(2) == 0, stream: c.rand.IntN(3) > 0, fields: map[string]any{"model": model, "temperature": 0}}
	topic, question := c.rand.IntN(16), c.rand.IntN(16)
	shared := prose(rand.New(rand.NewPCG(*soakSeed, uint64(topic))), []int{20, 60, 120, 300}[topic%4])
	own := prose(rand.New(rand.NewPCG(*soakSeed, 100+uint64(question))), 8)
	if c.rand.IntN(20) == 0 {
		own = prose(c.rand, 8) // never asked before
	}
	a.fields["max_tokens"] = []int{1, 8, 24, 96}[question%4]
	if question%8 == 5 {
		a.fields["temperature"], a.fields["seed"] = 0.8, 7 // never to be resumed
	}
	if !a.chat {
		a.fields["prompt"] = shared + own
		return a
	}
	a.fields["messages"] = []any{
		map[string]any{"role": "system", "content": shared}, map[string]any{"role": "user", "content": own},
	}
	return a
}

var vocabulary = strings.Fields(story)

func prose(r *rand.Rand, words int) string {
	var b strings.Builder
	for range words {
		b.WriteString(vocabulary[r.IntN(len(vocabulary))] + " ")
	}
	return b.String()
}

// ask sees a request to its end and judges it. One in ten is left early.
func (c *soakClient) ask(a ask) verdict {
	n := c.nodes[c.rand.IntN(len(c.nodes))]
	v := verdict{at: c.since(), asked: fmt.Sprintf("%s at %s, stream %t", a.path(), n.Name, a.stream)}
	leave := soakRequestTimeout
	if c.rand.IntN(10) == 0 {
		leave = time.Duration(c.rand.IntN(150)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), leave)
	defer cancel()
	said := c.hear(ctx, n.URL()+a.path(), a)
	v.resumed = said.resumed
	v.how, v.wrong = c.judge(a, n.Name, v.at, said, leave < soakRequestTimeout && ctx.Err() != nil)
	if v.wrong != "" {
		v.how = failed
	}
	return v
}

// An utterance is what a client was told.
type utterance struct {
	status  int
	header  http.Header
	text    string
	whole   bool   // it ended as the API says that an answer ends
	body    string // of an error
	resumed bool
	err     error
}

func (c *soakClient) hear(ctx context.Context, url string, a ask) (u utterance) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(a.body(a.stream)))
	if err != nil {
		return utterance{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return utterance{err: err}
	}
	defer resp.Body.Close()
	u.status, u.header = resp.StatusCode, resp.Header
	switch {
	case resp.StatusCode != http.StatusOK:
		var body []byte
		body, u.err = io.ReadAll(resp.Body)
		u.body = string(body)
	case a.stream:
		u.text, u.whole, u.err = readStream(resp.Body)
		u.resumed = resp.Trailer.Get("Hearsay-Resumed") != ""
	default:
		u.text, u.err = readWhole(resp.Body)
		u.whole = u.err == nil
	}
	return u
}

// choice is what chat and completions have in common.
type choice struct {
	Text           string
	Message, Delta struct{ Content string }
}

func (c choice) text() string { return c.Text + c.Message.Content + c.Delta.Content }

func readWhole(body io.Reader) (string, error) {
	var answer struct{ Choices []choice }
	all, err := io.ReadAll(body)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(all, &answer); err != nil || len(answer.Choices) != 1 {
		return "", fmt.Errorf("not an answer: %q, %w", all, err)
	}
	return answer.Choices[0].text(), nil
}

// errMalformed is a stream that no broken connection explains.
var errMalformed = errors.New("malformed stream")

func readStream(body io.Reader) (text string, whole bool, err error) {
	var b strings.Builder
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF && line == "" {
			return b.String(), whole, nil
		}
		if err != nil {
			return b.String(), whole, err
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		switch {
		case !ok:
			continue
		case whole:
			return b.String(), true, fmt.Errorf("%w: %q after [DONE]", errMalformed, line)
		case data == "[DONE]":
			whole = true
			continue
		}
		var chunk struct{ Choices []choice }
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return b.String(), false, fmt.Errorf("%w: %q", errMalformed, data)
		}
		for _, c := range chunk.Choices {
			b.WriteString(c.text())
		}
	}
}

// judge says how the request ended, and what is wrong with that, if anything.
func (c *soakClient) judge(a ask, node string, from time.Duration, u utterance, left bool) (how, wrong string) {
	expected, err := c.right.answer(a)
	if err != nil {
		return failed, fmt.Sprintf("the undisturbed engine: %v", err)
	}
	now := c.since()
	disturbed := c.log.during("", from, now)
	switch {
	case errors.Is(u.err, errMalformed):
		return failed, u.err.Error()
	case u.status == http.StatusOK && u.whole && u.err == nil:
		if u.text != expected {
			return failed, fmt.Sprintf("said %q, and %q is right", u.text, expected)
		}
		return answered, ""
	case !strings.HasPrefix(expected, u.text):
		return failed, fmt.Sprintf("began %q, and %q is right", u.text, expected)
	case left:
		return leftEarly, ""
	case u.status == 0 || u.status == http.StatusOK && u.err != nil:
		if c.log.during(node, from, now) {
			return unreachable, ""
		}
		if u.status == http.StatusOK && a.stream && disturbed {
			return brokenOff, ""
		}
		return failed, fmt.Sprintf("no answer: %v", u.err)
	case u.status == http.StatusOK:
		return failed, fmt.Sprintf("%q ends as if it were whole", u.text)
	}
	if why := improper(u); why != "" {
		return failed, fmt.Sprintf("%d %q %s", u.status, u.body, why)
	}
	if !disturbed {
		return failed, fmt.Sprintf("%d %q though all is well", u.status, u.body)
	}
	return refused, ""
}

// improper says what is wrong with a refusal.
func improper(u utterance) string {
	var body struct {
		Error struct{ Message, Type string }
	}
	switch u.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if u.header.Get("Retry-After") == "" {
			return "has no Retry-After"
		}
	case http.StatusBadGateway:
	default:
		return "is no refusal"
	}
	if err := json.Unmarshal([]byte(u.body), &body); err != nil || body.Error.Message == "" || body.Error.Type == "" {
		return "is no error of the API"
	}
	return ""
}

// An oracle knows what an undisturbed engine answers.
type oracle struct {
	url   string
	known sync.Map // of bodies, as func() (string, error)
}

func (o *oracle) answer(a ask) (string, error) {
	body := a.body(false)
	once, _ := o.known.LoadOrStore(a.path()+string(body), sync.OnceValues(func() (string, error) {
		resp, err := http.Post(o.url+a.path(), "application/json", bytes.NewReader(body))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		return readWhole(resp.Body)
	}))
	return once.(func() (string, error))()
}
