package workload

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Limits on what a node may make the generator hold, in bytes.
const (
	maxEvent  = 4 << 20 // one line of a stream
	maxAnswer = 1 << 20 // an answer that is no stream
)

// probeTimeout bounds each question asked of a target before the run.
const probeTimeout = 10 * time.Second

// A sample is what one answer told.
type sample struct {
	latency, ttft time.Duration
	node          string // Hearsay-Node, "" if not given
	hops          int    // Hearsay-Hops, -1 if not given
	expected      int    // Hearsay-Expected-Tokens, -1 if not given
	prompt        int    // tokens of the prompt by usage, -1 if not given
	cached        int    // of these, from the cache, -1 if not given
}

// A failure is why a request was not answered: its kind is counted, its cause
// shown once.
type failure struct {
	kind  string
	cause error
}

// The kinds of failure besides "status NNN".
const (
	timedOut    = "timeout"
	refused     = "refused"         // the connection was
	broken      = "connection"      // no answer came, for another reason
	truncated   = "truncated"       // the stream ended before data: [DONE]
	malformed   = "malformed"       // the stream held what is no completion
	inBandError = "error in stream" // the stream said that it failed
)

// ask sends one request and reads its whole answer.
func (g *generator) ask(ctx context.Context, target string, r Request, due time.Time) (sample, *failure) {
	path, body := g.encode(r)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target+path, bytes.NewReader(body))
	if err != nil {
		panic(fmt.Sprintf("workload: %v", err)) // Validate has parsed the target
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := g.client.Do(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return sample{}, &failure{timedOut, err}
	case errors.Is(err, syscall.ECONNREFUSED):
		return sample{}, &failure{refused, err}
	case err != nil:
		return sample{}, &failure{broken, err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return sample{}, &failure{fmt.Sprintf("status %d", resp.StatusCode), errors.New(errorMessage(text))}
	}
	s := sample{
		node:     resp.Header.Get("Hearsay-Node"),
		hops:     count(resp.Header.Get("Hearsay-Hops")),
		expected: count(resp.Header.Get("Hearsay-Expected-Tokens")),
		prompt:   -1, cached: -1,
	}
	failed := s.readStream(resp.Body, due)
	return s, failed
}

// encode builds path and body. A prompt becomes a completion, messages a chat;
// decoding is greedy and streamed, and the stream ends with the usage.
func (g *generator) encode(r Request) (path string, body []byte) {
	fields := map[string]any{
		"model": g.Model, "max_tokens": cmp.Or(g.MaxTokens, r.Output, 1), "temperature": 0,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	}
	path = "/v1/completions"
	switch {
	case r.Tokens != nil:
		fields["prompt"] = r.Tokens
	case r.Chat == nil:
		fields["prompt"] = r.Prompt
	default:
		path = "/v1/chat/completions"
		for key, value := range r.Chat {
			fields[key] = value
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(fields); err != nil {
		panic(fmt.Sprintf("workload: encode a request: %v", err)) // all of it was decoded from JSON or is plain
	}
	return path, b.Bytes()
}

// A chunk is one event of a completion's or a chat's stream.
type chunk struct {
	Choices []choice
	Usage   *struct {
		PromptTokens        int `json:"prompt_tokens"`
		PromptTokensDetails *struct {
			CachedTokens *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error json.RawMessage
}

type choice struct {
	Delta *struct {
		Role      string
		Content   string
		ToolCalls []json.RawMessage `json:"tool_calls"`
	}
	FinishReason *string `json:"finish_reason"`
}

// produced says whether c shows that the model has answered. The delta with
// which a chat names its role and nothing else does not: servers send it
// before the prefill as well as after.
func (c choice) produced() bool {
	d := c.Delta
	return d == nil || d.Role == "" || d.Content != "" || len(d.ToolCalls) > 0 || c.FinishReason != nil
}

// readStream reads server-sent events to the end of the body and books the
// times since due.
func (s *sample) readStream(body io.Reader, due time.Time) *failure {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	begun, done := false, false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok || done {
			continue
		}
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			done = true
			continue
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return &failure{malformed, err}
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return &failure{inBandError, errors.New(errorMessage(data))}
		}
		if !begun && len(c.Choices) > 0 && c.Choices[0].produced() {
			begun, s.ttft = true, time.Since(due)
		}
		if c.Usage != nil {
			s.prompt = c.Usage.PromptTokens
			if d := c.Usage.PromptTokensDetails; d != nil && d.CachedTokens != nil {
				s.cached = *d.CachedTokens
			}
		}
	}
	s.latency = time.Since(due)
	switch err := lines.Err(); {
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{timedOut, err}
	case errors.Is(err, bufio.ErrTooLong):
		return &failure{malformed, fmt.Errorf("an event is longer than %d MiB", maxEvent>>20)}
	case err != nil:
		return &failure{truncated, err}
	case !done:
		return &failure{truncated, errors.New("the stream ended without data: [DONE]")}
	case !begun:
		return &failure{malformed, errors.New("the stream held no choice")}
	}
	return nil
}

// errorMessage finds the message in an OpenAI error, or gives the text as it is.
func errorMessage(body []byte) string {
	var e struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return strings.TrimSpace(string(body))
}

// count reads a number that cannot be negative, or gives -1.
func count(header string) int {
	n, err := strconv.Atoi(header)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// A status is what a hearsay node says of how it routes. Another server says
// nothing, and a field that is not of its type counts as not given.
type status struct {
	policy              string
	pollMS, linkDelayMS *float64
}

func parseStatus(body []byte) status {
	var fields map[string]any
	_ = json.Unmarshal(body, &fields)
	policy, _ := fields["policy"].(string)
	number := func(key string) *float64 {
		if n, ok := fields[key].(float64); ok {
			return &n
		}
		return nil
	}
	return status{policy, number("poll_ms"), number("link_delay_ms")}
}

// probe makes sure that every target answers, and asks the first for the model
// and for how it routes.
func (g *generator) probe(ctx context.Context) (status, error) {
	for i, target := range g.Targets {
		body, err := g.get(ctx, target+"/v1/models")
		var answered httpStatus
		switch {
		case errors.As(err, &answered) && (i > 0 || g.Model != ""):
			continue // it is there, and its list is not needed
		case errors.As(err, &answered):
			return status{}, fmt.Errorf("%s lists no models: %w; name one with --model", target, err)
		case ctx.Err() != nil:
			return status{}, ctx.Err()
		case err != nil:
			return status{}, fmt.Errorf("cannot reach %s: %w; start a node there (hearsay demo, hearsay serve) or name another with --target", target, err)
		}
		if g.Model != "" {
			continue
		}
		var models struct {
			Data []struct{ ID string }
		}
		if err := json.Unmarshal(body, &models); err != nil || len(models.Data) == 0 || models.Data[0].ID == "" {
			return status{}, fmt.Errorf("%s lists no models; name one with --model", target)
		}
		g.Model = models.Data[0].ID
	}
	body, _ := g.get(ctx, g.Targets[0]+"/hearsay/v1/status")
	return parseStatus(body), nil
}

// httpStatus is an answer other than 200.
type httpStatus string

func (s httpStatus) Error() string { return string(s) }

func (g *generator) get(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := g.client.Do(req)
	if asked := (*url.Error)(nil); errors.As(err, &asked) {
		return nil, asked.Err // the caller names the target
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode != http.StatusOK {
		return nil, httpStatus(resp.Status)
	}
	return body, err
}
