package emulated

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/hearsay-project/hearsay/dialect"
)

// A request that comes again is found cached in every API, by what a router reads
// in the answer; Ollama's is told by the header.
func TestEveryAPITellsWhatWasCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := open(t)
		for path, body := range map[string]string{
			"/v1/responses": `{"instructions":"Be brief.","input":%q,"max_output_tokens":2,"stream":%v}`,
			"/v1/messages":  `{"system":"Answer.","messages":[{"role":"user","content":%q}],"max_tokens":2,"stream":%v}`,
			"/generate":     `{"text":%q,"sampling_params":{"max_new_tokens":2},"stream":%v}`,
			"/completion":   `{"prompt":%q,"n_predict":2,"stream":%v}`,
			"/api/chat":     `{"messages":[{"role":"user","content":%q}],"options":{"num_predict":2},"stream":%v}`,
			"/api/generate": `{"system":"Go on.","prompt":%q,"options":{"num_predict":2},"stream":%v}`,
		} {
			at, _ := dialect.Lookup(path)
			for i, stream := range []bool{false, true, false} {
				resp, err := post(t.Context(), e, path, fmt.Sprintf(body, prompt(path, 40), stream))
				if err != nil {
					t.Fatal(err)
				}
				scan := dialect.NewScanner(at, resp.Header.Get)
				_, err = io.Copy(scan, resp.Body)
				_ = resp.Body.Close()
				u, known := scan.Usage()
				if err != nil || resp.StatusCode != 200 || !known || u.Completion != 2 || u.Prompt < 40 || (i > 0) != (u.Cached >= 32) {
					t.Errorf("%s, request %d: %d %+v %v, %v", path, i, resp.StatusCode, u, known, err)
				}
			}
		}
	})
}

// An embedding depends on its input alone.
func TestEmbeddingsAreTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers []string
		for _, input := range []string{`"a whale"`, `["a whale"]`, `"a sail"`} {
			resp, err := post(t.Context(), open(t), "/v1/embeddings", `{"input":`+input+`}`)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%d %s, %v", resp.StatusCode, body, err)
			}
			answers = append(answers, string(body))
		}
		if answers[0] != answers[1] || answers[0] == answers[2] {
			t.Errorf("answers %q", answers)
		}
	})
}
