package e2e

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

const (
	model = "hearsay-tiny"
	story = "In the beginning God created the heaven and the earth. And the earth was without form, and void; " +
		"and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters."
)

func client(url string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

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

// The OpenAI project's own client gets the same answer from every node,
// streaming and not, and is told what was cached.
func TestOpenAIClient(t *testing.T) {
	urls := startDemo(t, 4, "--policy", "longest")
	ctx := t.Context()
	var want string
	for i, url := range urls {
		c := client(url)
		var raw *http.Response
		answer, err := c.Chat.Completions.New(ctx, question("Who moved upon the waters?", 24), option.WithResponseInto(&raw))
		if err != nil {
			t.Fatal(err)
		}
		text := answer.Choices[0].Message.Content
		if want == "" {
			want = text
		}
		if text != want || text == "" {
			t.Errorf("%s answers %q, the first node %q", url, text, want)
		}
		usage := answer.Usage
		if usage.CompletionTokens == 0 || usage.TotalTokens != usage.PromptTokens+usage.CompletionTokens {
			t.Errorf("%s: usage %+v", url, usage)
		}
		if raw.Header.Get("Hearsay-Node") == "" || raw.Header.Get("Hearsay-Reason") == "" || raw.Header.Get("Hearsay-Hops") == "" {
			t.Errorf("%s: headers %v", url, raw.Header)
		}
		if i > 0 && raw.Header.Get("Hearsay-Node") == "n1" && usage.PromptTokensDetails.CachedTokens == 0 {
			t.Errorf("%s was forwarded to n1 and found nothing cached", url)
		}
		if streamed, usage := stream(t, c); streamed != want || usage.PromptTokens != answer.Usage.PromptTokens || usage.PromptTokensDetails.CachedTokens == 0 {
			t.Errorf("%s streams %q with usage %+v", url, streamed, usage)
		}
	}
}

func stream(t *testing.T, c openai.Client) (string, openai.CompletionUsage) {
	t.Helper()
	params := question("Who moved upon the waters?", 24)
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	chunks := c.Chat.Completions.NewStreaming(t.Context(), params)
	var text strings.Builder
	var usage openai.CompletionUsage
	for chunks.Next() {
		chunk := chunks.Current()
		if len(chunk.Choices) > 0 {
			text.WriteString(chunk.Choices[0].Delta.Content)
		}
		if chunk.Usage.PromptTokens > 0 {
			usage = chunk.Usage
		}
	}
	if err := chunks.Err(); err != nil {
		t.Error(err)
	}
	return text.String(), usage
}

// The other endpoints and the errors are what the client expects.
func TestOpenAIClientSurface(t *testing.T) {
	c := client(startDemo(t, 1)[0])
	ctx := t.Context()
	models, err := c.Models.List(ctx)
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != model {
		t.Errorf("models %+v, %v", models, err)
	}
	completion, err := c.Completions.New(ctx, openai.CompletionNewParams{
		Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Call me Ishmael.")},
		MaxTokens: openai.Int(8), Temperature: openai.Float(0),
	})
	if err != nil || !strings.HasPrefix(completion.Choices[0].Text, " All these are the") {
		t.Errorf("completion %+v, %v", completion, err)
	}
	for _, bad := range []struct {
		params openai.ChatCompletionNewParams
		status int
		code   string
	}{
		{openai.ChatCompletionNewParams{Model: "no-such-model", Messages: question("x", 1).Messages}, http.StatusNotFound, "model_not_found"},
		{question(strings.Repeat(story, 400), 1), http.StatusBadRequest, "context_length_exceeded"},
	} {
		_, err := c.Chat.Completions.New(ctx, bad.params)
		var api *openai.Error
		if !errors.As(err, &api) || api.StatusCode != bad.status || api.Code != bad.code || api.Message == "" {
			t.Errorf("want %d %s, got %v", bad.status, bad.code, err)
		}
	}
	gone, cancel := context.WithCancel(ctx)
	chunks := c.Chat.Completions.NewStreaming(gone, question("Go on.", 2000))
	chunks.Next()
	cancel()
	for chunks.Next() {
	}
	if chunks.Err() == nil {
		t.Error("a cancelled stream ended as if it were whole")
	}
}
