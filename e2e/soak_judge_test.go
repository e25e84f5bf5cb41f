package e2e

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// The judge of a soak lets nothing pass that is not right, and blames nothing on an
// outage that was elsewhere or over.
func TestSoakJudge(t *testing.T) {
	a := ask{stream: true, fields: map[string]any{"prompt": "a"}}
	refusal := `{"error":{"message":"m","type":"server_error"}}`
	after := http.Header{"Retry-After": {"1"}}
	down := []*outage{{name: "n3", from: time.Second, to: 2 * time.Second}}
	long := []*outage{{name: "n3", from: -time.Hour, to: -time.Minute}}
	for name, c := range map[string]struct {
		node    string
		said    utterance
		left    bool
		outages []*outage
		want    string
	}{
		"right":                          {"n1", utterance{status: 200, text: "abc", whole: true}, false, nil, answered},
		"wrong":                          {"n1", utterance{status: 200, text: "abd", whole: true}, false, down, failed},
		"too short":                      {"n1", utterance{status: 200, text: "ab", whole: true}, false, down, failed},
		"a fake end":                     {"n1", utterance{status: 200, text: "ab"}, false, down, failed},
		"broken off":                     {"n1", utterance{status: 200, text: "ab", err: io.ErrUnexpectedEOF}, false, down, brokenOff},
		"broken off, but wrong":          {"n1", utterance{status: 200, text: "ax", err: io.ErrUnexpectedEOF}, false, down, failed},
		"broken off for no reason":       {"n1", utterance{status: 200, text: "ab", err: io.ErrUnexpectedEOF}, false, long, failed},
		"malformed":                      {"n1", utterance{status: 200, text: "ab", err: errMalformed}, false, down, failed},
		"left":                           {"n1", utterance{status: 200, text: "ab", err: errors.New("gone")}, true, nil, leftEarly},
		"left, but wrong":                {"n1", utterance{status: 200, text: "x", err: errors.New("gone")}, true, nil, failed},
		"refused":                        {"n1", utterance{status: 503, header: after, body: refusal}, false, down, refused},
		"refused for no reason":          {"n1", utterance{status: 503, header: after, body: refusal}, false, nil, failed},
		"refused without when to retry":  {"n1", utterance{status: 429, body: refusal}, false, down, failed},
		"refused in bare words":          {"n1", utterance{status: 502, body: "bad gateway"}, false, down, failed},
		"an error that is no refusal":    {"n1", utterance{status: 500, body: refusal}, false, down, failed},
		"no answer":                      {"n1", utterance{err: io.EOF}, false, down, failed},
		"no answer by one that was down": {"n3", utterance{err: io.EOF}, false, down, unreachable},
	} {
		right := &oracle{}
		right.known.Store(a.path()+string(a.body(false)), sync.OnceValues(func() (string, error) { return "abc", nil }))
		client := &soakClient{soak: &soak{right: right, log: &outages{list: c.outages}, begun: time.Now().Add(-time.Second)}}
		if how, why := client.judge(a, c.node, 0, c.said, c.left); how != c.want {
			t.Errorf("%s: %s %s, want %s", name, how, why, c.want)
		}
	}
}

// A stream is whole if it says so at its end, and nowhere else.
func TestSoakReadsStreams(t *testing.T) {
	const piece = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	for name, c := range map[string]struct {
		stream string
		text   string
		whole  bool
		err    error
	}{
		"whole":         {piece + piece + `data: {"choices":[],"usage":{}}` + "\n\ndata: [DONE]\n\n", "aa", true, nil},
		"no end":        {piece, "a", false, nil},
		"half an event": {piece + piece[:20], "a", false, io.EOF},
		"not JSON":      {piece + "data: x\n\n", "a", false, errMalformed},
		"two answers":   {piece + "data: [DONE]\n\n" + piece, "a", true, errMalformed},
	} {
		text, whole, err := readStream(strings.NewReader(c.stream))
		if text != c.text || whole != c.whole || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, whole %t, %v", name, text, whole, err)
		}
	}
}
