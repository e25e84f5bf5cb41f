package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

const (
	model = "hearsay-tiny"
	story = "In the beginning God created the heaven and the earth. And the earth was without form, and void; " +
		"and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters."
)

func client(url string, more ...option.RequestOption) *openai.Client {
	c := openai.NewClient(append([]option.RequestOption{option.WithBaseURL(url + "/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0)}, more...)...)
	return &c
}

// question is a chat with a system prompt, answered greedily.
func question(text string, tokens int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model,
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage(strings.Repeat(story, 3)), openai.UserMessage(text),
		},
		MaxTokens:   openai.Int(tokens),
		Temperature: openai.Float(0),
	}
}

// order is a chat with the scripted engine.
func order(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: scriptedModel, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
}

// The OpenAI project's own client for Go gets from four nodes what it gets from one:
// the same answers, and the same errors of the types that it knows, by whichever policy.
func TestOpenAIClient(t *testing.T) {
	scriptedURL := startScripted(t)
	told := map[string]any{}
	for _, cluster := range []struct {
		nodes  int
		policy string
	}{{1, "economic"}, {4, "economic"}, {4, "longest"}} {
		nodes := cluster.nodes
		t.Run(fmt.Sprint(nodes, " ", cluster.policy), func(t *testing.T) {
			own := startCluster(t, nodes, "--policy", cluster.policy)
			scripts := startCluster(t, nodes, "--policy", cluster.policy, "--engine", scriptedURL)
			for _, c := range []struct {
				name string
				urls []string
				ask  func(t *testing.T, urls []string, url string) (result any)
			}{
				{"models", own, askModels},
				{"chat", own, askChat},
				{"completions", own, askCompletion},
				{"responses", own, askResponse},
				{"embeddings", own, askEmbeddings},
				{"structured output", scripts, askStructured},
				{"tools", scripts, askTools},
				{"images", scripts, askImages},
				{"errors", own, askWrong},
				{"trouble", scripts, askTrouble},
				{"abort", own, abort},
			} {
				t.Run(c.name, func(t *testing.T) {
					for _, url := range c.urls {
						result := c.ask(t, c.urls, url)
						if first, ok := told[c.name]; ok && !reflect.DeepEqual(result, first) {
							t.Errorf("%s of %d says\n%v\nand the first of all said\n%v", url, nodes, result, first)
						} else if !ok {
							told[c.name] = result
						}
					}
				})
			}
		})
	}
}

func askModels(t *testing.T, _ []string, url string) any {
	models, err := client(url).Models.List(t.Context())
	if err != nil || len(models.Data) != 1 {
		t.Fatalf("models %+v, %v", models, err)
	}
	return models.Data[0].ID
}

// said is what of an answer does not depend on what was asked before.
type said struct {
	text, finish       string
	prompt, completion int64
}

// askChat asks twice, whole and streamed, and is told who served it.
func askChat(t *testing.T, urls []string, url string) any {
	c := client(url)
	var raw *http.Response
	answer, err := c.Chat.Completions.New(t.Context(), question("Who moved upon the waters?", 24), option.WithResponseInto(&raw))
	if err != nil {
		t.Fatal(err)
	}
	whole := said{answer.Choices[0].Message.Content, answer.Choices[0].FinishReason, answer.Usage.PromptTokens, answer.Usage.CompletionTokens}
	if whole.text == "" || whole.completion == 0 || answer.Usage.TotalTokens != whole.prompt+whole.completion {
		t.Errorf("%+v with usage %+v", whole, answer.Usage)
	}
	for _, name := range []string{"Hearsay-Node", "Hearsay-Reason", "Hearsay-Hops", "X-Request-Id"} {
		if raw.Header.Get(name) == "" {
			t.Errorf("no %s in %v", name, raw.Header)
		}
	}
	if url != urls[0] && raw.Header.Get("Hearsay-Node") == "n1" && answer.Usage.PromptTokensDetails.CachedTokens == 0 {
		t.Errorf("%s forwarded to n1 and found nothing cached", url)
	}
	if got := stream(t, c, question("Who moved upon the waters?", 24)); got != whole {
		t.Errorf("%s streams %+v, not %+v", url, got, whole)
	}
	return whole
}

func stream(t *testing.T, c *openai.Client, params openai.ChatCompletionNewParams) said {
	t.Helper()
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	chunks := c.Chat.Completions.NewStreaming(t.Context(), params)
	var whole openai.ChatCompletionAccumulator
	for chunks.Next() {
		if !whole.AddChunk(chunks.Current()) {
			t.Errorf("a chunk of another answer: %s", chunks.Current().RawJSON())
		}
	}
	if err := chunks.Err(); err != nil {
		t.Error(err)
	}
	return said{whole.Choices[0].Message.Content, whole.Choices[0].FinishReason, whole.Usage.PromptTokens, whole.Usage.CompletionTokens}
}

func askCompletion(t *testing.T, _ []string, url string) any {
	c := client(url)
	params := openai.CompletionNewParams{
		Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Call me Ishmael.")},
		MaxTokens: openai.Int(8), Temperature: openai.Float(0),
	}
	answer, err := c.Completions.New(t.Context(), params)
	if err != nil || !strings.HasPrefix(answer.Choices[0].Text, " All these are the") {
		t.Fatalf("completion %+v, %v", answer, err)
	}
	var text strings.Builder
	chunks := c.Completions.NewStreaming(t.Context(), params)
	for chunks.Next() {
		if choices := chunks.Current().Choices; len(choices) > 0 {
			text.WriteString(choices[0].Text)
		}
	}
	if err := chunks.Err(); err != nil || text.String() != answer.Choices[0].Text {
		t.Errorf("streamed %q, %v", text.String(), err)
	}
	return answer.Choices[0].Text
}

func askResponse(t *testing.T, _ []string, url string) any {
	c := client(url)
	params := responses.ResponseNewParams{
		Model: model, Instructions: openai.String(story), MaxOutputTokens: openai.Int(16), Temperature: openai.Float(0),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Who moved upon the waters?")},
	}
	whole, err := c.Responses.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	var last responses.ResponseStreamEventUnion
	events := c.Responses.NewStreaming(t.Context(), params)
	for events.Next() {
		last = events.Current()
		text.WriteString(last.Delta)
	}
	if err := events.Err(); err != nil || text.String() != whole.OutputText() || last.Response.OutputText() != text.String() || text.Len() == 0 {
		t.Errorf("whole %q, streamed %q, last %q, %v", whole.OutputText(), text.String(), last.Response.OutputText(), err)
	}
	return text.String()
}

func askEmbeddings(t *testing.T, _ []string, url string) any {
	answer, err := client(url).Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"the sea", "the whale"}},
	})
	if err != nil || len(answer.Data) != 2 || len(answer.Data[0].Embedding) == 0 {
		t.Fatalf("embeddings %+v, %v", answer, err)
	}
	return []any{answer.Data[0].Embedding, answer.Data[1].Embedding, answer.Usage.PromptTokens}
}

var weather = map[string]any{
	"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}, "additionalProperties": false,
}

func askStructured(t *testing.T, _ []string, url string) any {
	params := order("json")
	params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "weather", Strict: openai.Bool(true), Schema: weather},
	}
	var got struct {
		City    string
		Degrees int
	}
	text := stream(t, client(url), params).text
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Error(err)
	}
	return got
}

func askTools(t *testing.T, _ []string, url string) any {
	params := order("tool")
	params.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather", Parameters: weather, Strict: openai.Bool(true)}),
	}
	c := client(url)
	answer, err := c.Chat.Completions.New(t.Context(), params)
	if err != nil || len(answer.Choices[0].Message.ToolCalls) != 1 {
		t.Fatalf("%+v, %v", answer, err)
	}
	call := answer.Choices[0].Message.ToolCalls[0].Function
	chunks := c.Chat.Completions.NewStreaming(t.Context(), params)
	var whole openai.ChatCompletionAccumulator
	for chunks.Next() {
		whole.AddChunk(chunks.Current())
		if streamed, done := whole.JustFinishedToolCall(); done && (streamed.Name != call.Name || streamed.Arguments != call.Arguments) {
			t.Errorf("streamed %+v, whole %+v", streamed, call)
		}
	}
	if err := chunks.Err(); err != nil || whole.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("streamed %+v, %v", whole, err)
	}
	return []string{call.Name, call.Arguments}
}

// askImages sees that an engine gets what a client sent, byte for byte.
func askImages(t *testing.T, _ []string, url string) any {
	picture := "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\n"))
	params := order("")
	params.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
		openai.TextContentPart("é </script> echo"),
		openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: picture, Detail: "low"}),
	})}
	var sent []byte
	answer, err := client(url).Chat.Completions.New(t.Context(), params, option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		if sent, err = io.ReadAll(body); err != nil {
			return nil, err
		}
		return next(r)
	}))
	if err != nil || len(sent) == 0 || answer.Choices[0].Message.Content != string(sent) {
		t.Fatalf("sent %q, and %+v came of it, %v", sent, answer, err)
	}
	return string(sent)
}

// fails returns status, code and message of the error that the client makes of it.
func fails(t *testing.T, err error) [3]string {
	t.Helper()
	var api *openai.Error
	if !errors.As(err, &api) {
		t.Fatalf("no error of the API: %v", err)
	}
	return [3]string{strconv.Itoa(api.StatusCode), api.Code, api.Message}
}

func askWrong(t *testing.T, _ []string, url string) any {
	c := client(url)
	var told [][3]string
	for _, params := range []openai.ChatCompletionNewParams{
		{Model: "gpt-none", Messages: question("x", 1).Messages},
		question(strings.Repeat(story, 400), 1),
		question("x", 0),
	} {
		_, err := c.Chat.Completions.New(t.Context(), params)
		told = append(told, fails(t, err))
	}
	if told[0][0] != "404" || told[0][1] != "model_not_found" || told[1][0] != "400" || told[1][1] != "context_length_exceeded" || told[2][0] != "400" {
		t.Errorf("told %v", told)
	}
	return told
}

var names = 0

// askTrouble sees 429, 500 and a broken stream as they are, and the client served that
// waits as it is told.
func askTrouble(t *testing.T, _ []string, url string) any {
	names++
	ctx := t.Context()
	_, busy := client(url).Chat.Completions.New(ctx, order(fmt.Sprint("busy go-first-", names)))
	_, failing := client(url).Chat.Completions.New(ctx, order("fail"))
	patient, err := client(url, option.WithMaxRetries(2)).Chat.Completions.New(ctx, order(fmt.Sprint("busy go-then-", names)))
	if err != nil || patient.Choices[0].Message.Content != fmt.Sprint("served go-then-", names) {
		t.Errorf("waited and got %+v, %v", patient, err)
	}
	var text strings.Builder
	chunks := client(url).Chat.Completions.NewStreaming(ctx, order("break"))
	for chunks.Next() {
		text.WriteString(chunks.Current().Choices[0].Delta.Content)
	}
	if chunks.Err() == nil {
		t.Errorf("%q, broken off, ended as if it were whole", text.String())
	}
	told := [][3]string{fails(t, busy), fails(t, failing), {text.String()}}
	if told[0][0] != "429" || told[1][0] != "500" {
		t.Errorf("told %v", told)
	}
	return told
}

// abort leaves in mid-stream, and the engine is free.
func abort(t *testing.T, urls []string, url string) any {
	before := cancelled(t, urls)
	gone, cancel := context.WithCancel(t.Context())
	chunks := client(url).Chat.Completions.NewStreaming(gone, question("Go on.", 6000))
	chunks.Next()
	cancel()
	for chunks.Next() {
	}
	if chunks.Err() == nil {
		t.Error("a cancelled stream ended as if it were whole")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		busy := 0
		for _, url := range urls {
			s, err := fetchStatus(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			busy += s.Queue
		}
		switch counted := cancelled(t, urls); {
		case busy == 0 && counted == before+1:
			return nil
		case time.Now().After(deadline):
			t.Fatalf("%d requests at the engines, %d cancelled, where the only client has left", busy, counted-before)
		}
	}
}

var cancelledLine = regexp.MustCompile(`(?m)^hearsay_requests_total\{hop="(?:local|forwarded)",outcome="cancelled"\} (\d+)`)

// cancelled counts the requests of which the nodes that were asked say that their client left.
func cancelled(t *testing.T, urls []string) (total int) {
	t.Helper()
	for _, url := range urls {
		resp, err := http.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range cancelledLine.FindAllSubmatch(text, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			total += n
		}
	}
	return total
}

// A client with a wrong key is told so, and one with the right key served.
func TestOpenAIClientKeys(t *testing.T) {
	url := startCluster(t, 1, "--api-keys", keyFile(t))[0]
	_, err := client(url).Models.List(t.Context())
	if told := fails(t, err); told[0] != "401" || told[1] != "invalid_api_key" {
		t.Errorf("told %v", told)
	}
	if _, err := client(url, option.WithAPIKey(apiKey)).Chat.Completions.New(t.Context(), question("Who?", 1)); err != nil {
		t.Error(err)
	}
}

// A node that is full says so at once, and serves the client that asks again when told.
func TestOpenAIClientFullNode(t *testing.T) {
	url := startCluster(t, 1, "--in-flight-max", "1", "--engine", startScripted(t))[0]
	gone, cancel := context.WithCancel(t.Context())
	occupied := client(url).Chat.Completions.NewStreaming(gone, order("endless full"))
	if !occupied.Next() {
		t.Fatal(occupied.Err())
	}
	_, err := client(url).Chat.Completions.New(t.Context(), order("echo"))
	if told := fails(t, err); told[0] != "429" || told[1] != "queue_full" {
		t.Errorf("told %v", told)
	}
	tries := 0
	leaves := option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(r)
		if tries++; tries == 1 {
			if resp == nil || resp.Header.Get("Retry-After") == "" {
				t.Errorf("no Retry-After in %+v, %v", resp, err)
			}
			cancel()
			occupied.Close()
		}
		return resp, err
	})
	if _, err := client(url, option.WithMaxRetries(2), leaves).Chat.Completions.New(t.Context(), order("echo")); err != nil || tries < 2 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
