package dialect

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/hearsay-project/hearsay/prefix"
)

// field reads one of the field failures' inputs.
func field(t *testing.T, name string) []byte {
	t.Helper()
	body, err := os.ReadFile("../../shared/cases/" + name)
	if err != nil {
		t.Skipf("no ../shared/cases/%s beside the repository", name)
	}
	return body
}

// match returns how many bytes, in whole blocks, a has in common with b.
func match(t *testing.T, a, b string) (bytes int) {
	t.Helper()
	var chains [2]prefix.Chain
	for i, name := range []string{a, b} {
		path := chat
		if name[:3] == "G28" {
			path = completion
		} else if name[:3] == "G42" {
			path = "/v1/messages"
		}
		r := mustRead(t, path, string(field(t, name)))
		chains[i] = prefix.NewChain(prefix.Key("k").Root(r.Scope), r.Text)
	}
	n := 0
	for n < min(len(chains[0]), len(chains[1])) && chains[0][n] == chains[1][n] {
		n++
	}
	return n * prefix.BlockBytes
}

// The requests that made other routers fail are read as they should be.
func TestFieldRequests(t *testing.T) {
	for _, test := range []struct {
		a, b     string
		from, to int // what they have in common
	}{
		{"G25-image-a.json", "G25-image-a.json", 256, 1 << 20},
		{"G27-tools-a.json", "G27-tools-a.json", 256, 1 << 20},
		{"G27-tools-a.json", "G27-tools-b.json", 0, 0},
		{"G27-tools-a.json", "G27-tools-none.json", 0, 0},
		{"G36-same-text-raw.json", "G36-same-text-escaped.json", 512, 1 << 20},
		{"G38-base.json", "G38-lora-a.json", 0, 0},
		{"G38-lora-a.json", "G38-lora-b.json", 0, 0},
		{"G38-base.json", "G38-base.json", 512, 1 << 20},
		{"G42-anthropic.json", "G42-anthropic.json", 512, 1 << 20},
	} {
		if got := match(t, test.a, test.b); got < test.from || got > test.to {
			t.Errorf("%s and %s have %d bytes in common, want %d to %d", test.a, test.b, got, test.from, test.to)
		}
	}
	a := mustRead(t, chat, string(field(t, "G25-image-a.json")))
	if got, most := match(t, "G25-image-a.json", "G25-image-b.json"), bytes.LastIndex(a.Text, []byte("\x1euser\x1f\x1f"))+len("_user_"); got > most || got < most-prefix.BlockBytes {
		t.Errorf("pictures apart have %d bytes in common, the picture begins at %d", got, most)
	}
	for _, name := range []string{"G26-null-content.json", "G26-missing-content.json", "G29-null-params.json", "G32-bigint.json", "G34-escapes.json", "G83-canary.json"} {
		if r := mustRead(t, chat, string(field(t, name))); len(r.Text) == 0 || r.Stream {
			t.Errorf("%s reads %q, streams: %v", name, r.Text, r.Stream)
		}
	}
	if _, err := Read(endpoint(t, chat), field(t, "G33-duplicate-model.json")); !errors.Is(err, ErrDuplicateModel) {
		t.Errorf("two models: %v", err)
	}
	if _, err := Read(endpoint(t, chat), field(t, "G35-deep.json")); !errors.Is(err, ErrDepth) {
		t.Errorf("deep: %v", err)
	}
}

// The answers that made other routers fail are read as they should be.
func TestFieldAnswers(t *testing.T) {
	for name, want := range map[string]seen{
		"G02-crlf-split":   {text: "alphabeta", ended: true},
		"G04-comments":     {text: "hi", ended: true},
		"G14-usage-chunk":  {text: "hi", ended: true, usage: Usage{9, 1, 0}, known: true},
		"G31-two-choices":  {text: "A1 A2", ended: true},
		"G42-anthropic":    {text: "hi", ended: true, usage: Usage{9, 1, 0}},
		"G43-context-400":  {},
		"G05-no-done":      {},
		"G08-gzip-json":    {},
		"G03-long-line":    {ended: true},
		"G01-utf8-split":   {ended: true},
		"G64-idle-close":   {},
		"G59-engine-429":   {},
		"G65-slow-prefill": {text: "at last", ended: true},
	} {
		var script struct {
			Headers [][2]string
			Steps   []struct {
				Text   string
				B64    string
				Repeat int
			}
		}
		if err := json.Unmarshal(field(t, name+".engine.json"), &script); err != nil {
			t.Fatal(err)
		}
		path := chat
		if name == "G42-anthropic" {
			path = "/v1/messages"
		}
		var headers []string
		for _, h := range script.Headers {
			headers = append(headers, h[0], h[1])
		}
		s := scanner(t, path, headers...)
		for _, step := range script.Steps {
			raw, _ := base64.StdEncoding.DecodeString(step.B64)
			raw = append(raw, step.Text...)
			for range max(1, step.Repeat) {
				_, _ = s.Write(raw)
			}
		}
		got := look(s)
		if want.text != "" && got.text != want.text || want.ended != got.ended || want.known != got.known || got.usage != want.usage {
			t.Errorf("%s: saw %+v, want %+v", name, got, want)
		}
	}
}
