package emulated

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/engine"
)

const ms = time.Millisecond

// quick is a profile whose times are easy to add up.
var quick = emulate.Profile{
	Name: "quick", Base: 100 * ms, PerToken: ms, Decode: 10 * ms, MaxBatch: 8, CapacityTokens: 1 << 20,
}

// open starts an engine whose tokens are four bytes each, unless change says otherwise.
func open(t *testing.T, change ...func(*Config)) *Engine {
	t.Helper()
	c := Config{Profile: quick, TokenBytes: 4}
	for _, f := range change {
		f(&c)
	}
	e, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// prompt is n tokens of a text that no other name shares.
func prompt(name string, n int) string {
	text := strings.Repeat(name+" ", n*4/(len(name)+1)+1)
	return text[:n*4]
}

func post(ctx context.Context, e *Engine, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return engine.Local{Handler: e}.RoundTrip(req)
}

// complete asks for output tokens after a prompt, streamed, and reports what came
// and how long it took.
func complete(t *testing.T, e *Engine, prompt string, output int) (text string, usage dialect.Usage, took time.Duration) {
	t.Helper()
	start := time.Now()
	resp, err := post(t.Context(), e, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"stream":true}`, prompt, output))
	if err != nil {
		t.Error(err)
		return "", dialect.Usage{}, 0
	}
	defer resp.Body.Close()
	scanner := newScanner(resp)
	if _, err := io.Copy(scanner, resp.Body); err != nil || resp.StatusCode != http.StatusOK || !scanner.Ended() {
		t.Errorf("status %d, ended %v, %v", resp.StatusCode, scanner.Ended(), err)
	}
	text, _ = scanner.Text()
	usage, _ = scanner.Usage()
	return text, usage, time.Since(start)
}

// Alone on the engine a request takes Base + PerToken for each token that is not
// cached + Decode for each output token after the first, all of it scaled.
func TestTimeIsTheProfiles(t *testing.T) {
	for _, scale := range []float64{1, 0.05, 2} {
		synctest.Test(t, func(t *testing.T) {
			e := open(t, func(c *Config) { c.TimeScale = scale })
			p := prompt("law", 100)
			for _, tc := range []struct{ output, cached int }{{1, 0}, {1, 96}, {5, 96}} {
				_, usage, took := complete(t, e, p, tc.output)
				profile := quick.Base + quick.PerToken*time.Duration(100-tc.cached) + quick.Decode*time.Duration(tc.output-1)
				want := time.Duration(float64(profile) * scale)
				if took != want || usage.Prompt != 100 || usage.Cached != tc.cached {
					t.Errorf("scale %g, %d tokens: %v and %+v; want %v and %d cached", scale, tc.output, took, usage, want, tc.cached)
				}
			}
		})
	}
}

// Each token of a stream comes when the model has it.
func TestTokensComeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t)
		start := time.Now()
		resp, err := post(t.Context(), e, "/v1/chat/completions",
			`{"messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var times []time.Duration
		buf := make([]byte, 4096)
		for {
			n, err := resp.Body.Read(buf)
			if n > 0 && strings.Contains(string(buf[:n]), `"content":"`) && !strings.Contains(string(buf[:n]), `"role"`) {
				times = append(times, time.Since(start))
			}
			if err != nil {
				break
			}
		}
		first := quick.Base + 2*quick.PerToken // \x1e user \x1f hi: 8 bytes
		want := []time.Duration{first, first + quick.Decode, first + 2*quick.Decode}
		if fmt.Sprint(times) != fmt.Sprint(want) {
			t.Errorf("tokens at %v, want %v", times, want)
		}
	})
}

// Prefills go one after the other, in the order in which requests came, and the
// second finds what the first has computed.
func TestConcurrentRequestsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t)
		done := make(chan string)
		for i := range 3 {
			time.Sleep(ms)
			go func() {
				_, usage, took := complete(t, e, prompt("law", 64), 1)
				done <- fmt.Sprint(i, " cached ", usage.Cached, " in ", took+time.Duration(i)*ms)
			}()
		}
		for i, want := range []string{"0 cached 0 in 164ms", "1 cached 63 in 265ms", "2 cached 63 in 366ms"} {
			if got := <-done; got != want {
				t.Errorf("answer %d: %s, want %s", i, got, want)
			}
		}
		if e.Queue() != 0 {
			t.Errorf("%d are left in the queue", e.Queue())
		}
	})
}

// A client that leaves frees its place at once: those behind it move up.
func TestClientThatLeavesIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := post(ctx, e, "/v1/completions", `{"prompt":"`+prompt("slow", 10_000)+`"}`)
			left <- err
		}()
		synctest.Wait()
		time.Sleep(50 * ms)
		time.AfterFunc(50*ms, cancel)
		_, _, took := complete(t, e, prompt("law", 10), 1)
		if want := 50*ms + quick.Base + 10*quick.PerToken; took != want {
			t.Errorf("the request behind took %v, want %v", took, want)
		}
		if err := <-left; err == nil {
			t.Error("the request that was cancelled has an answer")
		}
		if e.Queue() != 0 {
			t.Errorf("%d are left in the queue", e.Queue())
		}
	})
}

// A client that leaves in the midst of its answer, streamed or not, frees its place
// in the batch and its room in the cache.
func TestClientThatLeavesMidwayFreesItsPlace(t *testing.T) {
	for _, stream := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e := open(t, func(c *Config) { c.Profile.MaxBatch = 1 })
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				resp, err := post(ctx, e, "/v1/completions", fmt.Sprintf(`{"prompt":"a text","max_tokens":100000,"stream":%v}`, stream))
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if err == nil {
					t.Error("the answer that was cancelled is whole")
				}
			}()
			time.AfterFunc(time.Second, cancel)
			synctest.Wait()
			_, _, took := complete(t, e, prompt("law", 10), 1)
			if want := time.Second + quick.Base + 10*quick.PerToken; took != want {
				t.Errorf("stream %v: the request behind took %v, want %v", stream, took, want)
			}
			<-left
			if e.Queue() != 0 {
				t.Errorf("stream %v: %d are left in the queue", stream, e.Queue())
			}
		})
	}
}

// A stop string ends the answer, in text and in time, streamed or not, wherever
// tokens cut it.
func TestStopStrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t)
		p := prompt("law", 40)
		full, _, _ := complete(t, e, p, 20)
		at := len(strings.Join(strings.Fields(full)[:6], " ")) - 2 // two bytes before the 7th word's space
		stop := full[at : at+5]
		at = strings.Index(full, stop)
		tokens := len(strings.Fields(full[:at+len(stop)]))
		for _, stream := range []bool{true, false} {
			start := time.Now()
			resp, err := post(t.Context(), e, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":20,"stop":["nowhere",%q],"stream":%v,"stream_options":{"include_usage":true}}`, p, stop, stream))
			if err != nil {
				t.Fatal(err)
			}
			scanner := newScanner(resp)
			body, err := io.ReadAll(io.TeeReader(resp.Body, scanner))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			text, _ := scanner.Text()
			usage, _ := scanner.Usage()
			took := quick.Base + 8*quick.PerToken + time.Duration(tokens-1)*quick.Decode // 32 of 40 are cached
			if text != full[:at] || usage.Completion != tokens || time.Since(start) != took || !strings.Contains(string(body), `"finish_reason":"stop"`) {
				t.Errorf("stream %v, stop %q: %q, %+v in %v; want %q, %d tokens in %v", stream, stop, text, usage, time.Since(start), full[:at], tokens, took)
			}
		}
	})
}

// Nothing waits without bound: beyond a full batch and the queue comes 429.
func TestFullQueueRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, func(c *Config) { c.Profile.MaxBatch, c.QueueMax = 2, 3 })
		done := make(chan struct{})
		for i := range 5 {
			go func() {
				complete(t, e, prompt(fmt.Sprint("topic", i), 32), 1)
				done <- struct{}{}
			}()
		}
		synctest.Wait()
		resp, err := post(t.Context(), e, "/v1/completions", `{"prompt":"one more"}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
			t.Errorf("status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		for range 5 {
			<-done
		}
	})
}

// Close ends every request: before its first token with 503, after it by cutting
// the stream.
func TestCloseEndsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t)
		streaming, err := post(t.Context(), e, "/v1/completions", `{"prompt":"a text","max_tokens":1000,"stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer streaming.Body.Close()
		waiting := make(chan int)
		go func() {
			resp, err := post(t.Context(), e, "/v1/completions", `{"prompt":"`+prompt("slow", 10_000)+`"}`)
			if err != nil {
				t.Error(err)
				waiting <- 0
				return
			}
			resp.Body.Close()
			waiting <- resp.StatusCode
		}()
		time.AfterFunc(time.Second, func() { e.Close() })
		if _, err := io.Copy(io.Discard, streaming.Body); err == nil {
			t.Error("the stream ended as if it were whole")
		}
		if status := <-waiting; status != http.StatusServiceUnavailable {
			t.Errorf("status %d for what had not begun", status)
		}
		resp, err := post(t.Context(), e, "/v1/completions", `{"prompt":"late"}`)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("status %d after Close", resp.StatusCode)
		}
	})
}

// An answer depends on the prompt alone: cold or warm, streamed or not.
func TestAnswersAreTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, other := open(t), open(t, func(c *Config) { c.BlockTokens = 1 })
		p := prompt("law", 40)
		cold, _, _ := complete(t, e, p, 20)
		warm, _, _ := complete(t, e, p, 20)
		elsewhere, _, _ := complete(t, other, p, 20)
		resp, err := post(t.Context(), e, "/v1/completions", fmt.Sprintf(`{"prompt":[%q],"max_tokens":20}`, p))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var whole struct {
			Choices []struct{ Text string }
			Usage   map[string]any
		}
		if err := json.NewDecoder(resp.Body).Decode(&whole); err != nil {
			t.Fatal(err)
		}
		if whole.Choices[0].Text != cold || warm != cold || elsewhere != cold || len(strings.Fields(cold)) != 20 {
			t.Errorf("answers differ:\n%s\n%s\n%s\n%s", cold, warm, elsewhere, whole.Choices[0].Text)
		}
		if got := fmt.Sprint(whole.Usage); got != "map[completion_tokens:20 prompt_tokens:40 prompt_tokens_details:map[cached_tokens:32] total_tokens:60]" {
			t.Errorf("usage %s", got)
		}
		if got := resp.Header.Get(dialect.CachedTokensHeader); got != "32" {
			t.Errorf("header says %s cached", got)
		}
	})
}

// What differs between two requests beside the text makes them different entries.
func TestSaltSeparatesCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t)
		for _, tc := range []struct {
			fields, cached string
		}{
			{``, "0"},
			{``, "96"}, // 6 blocks of 16
			{`,"model":"emulated-quick"`, "96"},
			{`,"cache_salt":"tenant"`, "0"},
			{`,"cache_salt":"tenant"`, "96"},
		} {
			resp, err := post(t.Context(), e, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1%s}`, prompt("law", 100), tc.fields))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.Header.Get(dialect.CachedTokensHeader); got != tc.cached {
				t.Errorf("%q: %s cached, want %s", tc.fields, got, tc.cached)
			}
		}
	})
}

// A client's mistake gets a status and a sentence.
func TestMistakesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, func(c *Config) { c.Profile.CapacityTokens = 100 })
		for _, tc := range []struct {
			path, body string
			status     int
			param      any
		}{
			{"/v1/completions", `{`, 400, nil},
			{"/v1/completions", `{}`, 400, "prompt"},
			{"/v1/completions", `{"prompt":{}}`, 400, "prompt"},
			{"/v1/completions", `{"prompt":["a","b"]}`, 400, "prompt"},
			{"/v1/completions", `{"prompt":"a","n":2}`, 400, "n"},
			{"/v1/completions", `{"prompt":"a","max_tokens":0}`, 400, "max_tokens"},
			{"/v1/completions", `{"prompt":"a","stream":"yes"}`, 400, "stream"},
			{"/v1/completions", `{"prompt":"a","stream_options":{"include_usage":1}}`, 400, "stream_options.include_usage"},
			{"/v1/completions", `{"prompt":"a","model":"gpt"}`, 404, "model"},
			{"/v1/completions", `{"prompt":[1,-2]}`, 400, "prompt"},
			{"/v1/completions", `{"prompt":[1,1e99]}`, 400, "prompt"},
			{"/v1/completions", `{"prompt":[[1],[2]]}`, 400, "prompt"},
			{"/v1/completions", `{"prompt":"a","max_tokens":1000000000}`, 400, "prompt"},
			{"/v1/completions", `{"prompt":"a","max_tokens":1e99}`, 400, "max_tokens"},
			{"/v1/completions", `{"prompt":"a","temperature":-1}`, 400, "temperature"},
			{"/v1/completions", `{"prompt":"a","stop":[""]}`, 400, "stop"},
			{"/v1/completions", `{"prompt":"` + prompt("law", 100) + `"}`, 400, "prompt"},
			{"/v1/chat/completions", `{"messages":"hi"}`, 400, "messages"},
			{"/v1/chat/completions", `{"messages":[]}`, 400, "messages"},
			{"/v1/chat/completions", `{"messages":[5]}`, 400, "messages"},
			{"/v1/chat/completions", `{"messages":[null]}`, 400, "messages[0].role"},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"},{"role":"king"}]}`, 400, "messages[1].role"},
			{"/v1/models", `{}`, 405, nil},
			{"/v1/rerank", `{}`, 404, nil},
			{"/rerank", `{"prompt":"a"}`, 404, nil},
		} {
			resp, err := post(t.Context(), e, tc.path, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			var answer struct{ Error map[string]any }
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
				t.Errorf("%s: %v", tc.body, err)
			}
			resp.Body.Close()
			if resp.StatusCode != tc.status || answer.Error["param"] != tc.param || answer.Error["message"] == "" {
				t.Errorf("%s %.60s: status %d, %v; want %d and param %v", tc.path, tc.body, resp.StatusCode, answer.Error, tc.status, tc.param)
			}
		}
	})
}

// Open says everything that is wrong with a configuration.
func TestConfigIsChecked(t *testing.T) {
	_, err := Open(Config{BlockTokens: -1, TimeScale: -1, TokenBytes: 0.5, QueueMax: -1})
	for _, want := range []string{"MaxBatch", "blocks of -1", "time scale", "bytes to a token", "QueueMax"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not speak of %s", err, want)
		}
	}
}

// Two prompts share blocks exactly as far as they share tokens, at any block size.
func TestBlocksFollowTokens(t *testing.T) {
	a := make([]uint32, 100)
	b := append([]uint32(nil), a...)
	b[50] = 1
	for _, size := range []int{1, 5, 16, 17, 64} {
		x, y := name(1, a, size), name(1, b, size)
		if len(x) != 100/size || len(y) != len(x) {
			t.Errorf("blocks of %d: %d and %d, want %d", size, len(x), len(y), 100/size)
		}
		for i := range x {
			if same := i < 50/size; (x[i] == y[i]) != same {
				t.Errorf("blocks of %d: block %d is the same: %v", size, i, !same)
			}
		}
	}
	if len(name(1, nil, 16)) != 0 {
		t.Error("no tokens have a block")
	}
}

// Token ids are tokens as they stand; text is cut as cl100k_base cuts it.
func TestTokensAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t, func(c *Config) { c.TokenBytes = 0 })
		for body, want := range map[string]string{
			`{"prompt":[1,2,3]}`:                          "3",
			`{"prompt":"Hearsay can be wrong about it."}`: "9",
		} {
			resp, err := post(t.Context(), e, "/v1/completions", body)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.Header.Get(dialect.PromptTokensHeader); got != want {
				t.Errorf("%s has %s tokens, want %s", body, got, want)
			}
		}
	})
}

// newScanner reads the answer to a request.
func newScanner(resp *http.Response) *dialect.Scanner {
	at, _ := dialect.Lookup(resp.Request.URL.Path)
	return dialect.NewScanner(at, resp.Header.Get)
}
