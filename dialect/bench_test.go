package dialect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// long is a chat of 549 KB, of which a tenth of the lines end in an escape.
func long() []byte {
	line := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 22)
	var b strings.Builder
	b.WriteString(`{"model":"m","temperature":0.5,"messages":[{"role":"system","content":"Be brief."}`)
	for turn := 0; b.Len() < 549_000; turn++ {
		fmt.Fprintf(&b, `,{"role":"user","content":"%d %s\n"},{"role":"assistant","content":[{"type":"text","text":"%s"}]}`, turn, line, line)
	}
	return []byte(b.String() + `]}`)
}

func BenchmarkRead(b *testing.B) {
	body := long()
	e := endpoint(b, chat)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(e, body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEncodingJSON is what Read takes the place of: the least that
// encoding/json must do to find the messages.
func BenchmarkEncodingJSON(b *testing.B) {
	body := long()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var r struct {
			Model    string
			Messages []struct {
				Role    string
				Content json.RawMessage
			}
		}
		if err := json.Unmarshal(body, &r); err != nil {
			b.Fatal(err)
		}
	}
}
