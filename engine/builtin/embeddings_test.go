package builtin

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A text has one vector of length 1, however it and the vector are written; texts
// of the same words are nearer than others.
func TestEmbeddings(t *testing.T) {
	e, s := serve(t, Config{})
	embed := func(body string) (all [][]float32, tokens int) {
		status, _, answer := post(t, s, "/v1/embeddings", body)
		var got struct {
			Data []struct {
				Index     int
				Embedding json.RawMessage
			}
			Usage struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(answer), &got); err != nil || status != 200 {
			t.Fatalf("%s: %d %s", body, status, answer)
		}
		for i, d := range got.Data {
			var v []float32
			var packed []byte // encoding/json reads base64
			if json.Unmarshal(d.Embedding, &v) != nil {
				if err := json.Unmarshal(d.Embedding, &packed); err != nil {
					t.Fatal(err)
				}
				v = make([]float32, len(packed)/4)
				if _, err := binary.Decode(packed, binary.LittleEndian, v); err != nil {
					t.Fatal(err)
				}
			}
			if d.Index != i || math.Abs(dot(v, v)-1) > 1e-5 {
				t.Errorf("%s: index %d, length %g", body, d.Index, dot(v, v))
			}
			all = append(all, v)
		}
		return all, got.Usage.Prompt
	}
	ids := e.tok.prompt("the white whale")
	raw, _ := json.Marshal(ids)
	want, tokens := embed(`{"input":"the white whale"}`)
	for _, body := range []string{
		`{"input":["the white whale"]}`, `{"input":"the white whale","encoding_format":"base64"}`,
		fmt.Sprintf(`{"input":%s}`, raw), fmt.Sprintf(`{"input":[%s]}`, raw),
	} {
		if got, n := embed(body); !cmp.Equal(got, want) || n != tokens || n != len(ids) {
			t.Errorf("%s: another vector, of %d tokens", body, n)
		}
	}
	many, _ := embed(`{"input":["the white whale","the whale is white","Call 911!"]}`)
	if dot(many[0], many[1]) <= dot(many[0], many[2]) {
		t.Errorf("likeness %g of like texts, %g of others", dot(many[0], many[1]), dot(many[0], many[2]))
	}
	if short, _ := embed(`{"input":"the white whale","dimensions":8}`); len(short[0]) != 8 {
		t.Errorf("%d dimensions", len(short[0]))
	}
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func TestEmbeddingsRefuse(t *testing.T) {
	_, s := serve(t, Config{Context: 64})
	for _, c := range []struct{ body, param, code, message string }{
		{`{}`, "input", "", "must be a string"},
		{`{"input":[]}`, "input", "", "0 texts"},
		{`{"input":["a",""]}`, "input", "", "input[1] is empty"},
		{`{"input":[-1]}`, "input", "", "outside"},
		{`{"input":"` + strings.Repeat("whale ", 99) + `"}`, "input", "context_length_exceeded", "shorten"},
		{`{"input":"a","dimensions":99999}`, "dimensions", "", "may be 1 to"},
		{`{"input":"a","encoding_format":"hex"}`, "encoding_format", "", "float or base64"},
	} {
		status, _, answer := post(t, s, "/v1/embeddings", c.body)
		var got struct {
			Error struct{ Message, Param, Code string }
		}
		if err := json.Unmarshal([]byte(answer), &got); err != nil || status != 400 || got.Error.Param != c.param || got.Error.Code != c.code || !strings.Contains(got.Error.Message, c.message) {
			t.Errorf("%.60s: %d %s", c.body, status, answer)
		}
	}
}
