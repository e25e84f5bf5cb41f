package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
)

// An Embedder is an Engine that gives texts a vector each.
type Embedder interface {
	// Embed gives the vector of a text, or of token ids if there are any, and counts
	// their tokens. Its length is not 1 yet, and the caller may change it.
	Embed(text string, ids []int32) (vector []float32, tokens int, err error)
}

// maxInputs is how many inputs one request for embeddings may have, as with OpenAI.
const maxInputs = 2048

// An embeddingInput is an input of a request for embeddings: a text, or token ids.
type embeddingInput struct {
	text string
	ids  []int32
}

// embed answers with vectors of length 1, as numbers or, as OpenAI's own clients
// ask by default, as base64 of little-endian float32. One that is to have fewer
// dimensions is cut off, which is what OpenAI's API calls shortening.
func embed(model string, engine Embedder) handler {
	return func(w http.ResponseWriter, r *http.Request, c *Call) error {
		format, dimensions := "float", 0
		if err := c.Fields.Get("encoding_format", &format, "float or base64"); err != nil {
			return err
		}
		if err := c.Fields.Get("dimensions", &dimensions, "an integer"); err != nil {
			return err
		}
		if format != "float" && format != "base64" {
			return BadRequest("encoding_format", "encoding_format is %q, and may be float or base64", format)
		}
		inputs, err := readInputs(c.Fields["input"])
		if err != nil {
			return err
		}
		data, total := make([]any, len(inputs)), 0
		for i, in := range inputs {
			if err := r.Context().Err(); err != nil {
				return err
			}
			v, tokens, err := engine.Embed(in.text, in.ids)
			if err != nil {
				return err
			}
			if dimensions < 0 || dimensions > len(v) {
				return BadRequest("dimensions", "dimensions is %d, and may be 1 to %d", dimensions, len(v))
			}
			if dimensions > 0 {
				v = v[:dimensions]
			}
			normalise(v)
			total += tokens
			data[i] = map[string]any{"object": "embedding", "index": i, "embedding": vectorIn(format, v)}
		}
		writeJSON(w, http.StatusOK, map[string]any{
			"object": "list", "data": data, "model": model, "usage": map[string]any{"prompt_tokens": total, "total_tokens": total},
		})
		return nil
	}
}

// readInputs takes a text, a list of texts, token ids, or a list of lists of those.
func readInputs(raw json.RawMessage) (inputs []embeddingInput, err error) {
	var one *string
	var texts []string
	var ids []int32
	var lists [][]int32
	switch {
	case json.Unmarshal(raw, &one) == nil && one != nil:
		inputs = []embeddingInput{{text: *one}}
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		inputs = []embeddingInput{{ids: ids}}
	case json.Unmarshal(raw, &texts) == nil:
		for _, t := range texts {
			inputs = append(inputs, embeddingInput{text: t})
		}
	case json.Unmarshal(raw, &lists) == nil:
		for _, l := range lists {
			inputs = append(inputs, embeddingInput{ids: l})
		}
	default:
		return nil, BadRequest("input", "input must be a string, a list of strings, a list of token ids, or a list of such lists")
	}
	if len(inputs) == 0 || len(inputs) > maxInputs {
		return nil, BadRequest("input", "input has %d texts, and may have 1 to %d", len(inputs), maxInputs)
	}
	for i, in := range inputs {
		if in.text == "" && len(in.ids) == 0 {
			return nil, BadRequest("input", "input[%d] is empty", i)
		}
	}
	return inputs, nil
}

// normalise makes v of length 1, if it has any.
func normalise(v []float32) {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / math.Sqrt(sum))
	}
}

func vectorIn(format string, v []float32) any {
	if format == "float" {
		return v
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
