package builtin

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The same weights as llama2.c's float32 file continue the golden prompts too.
func TestGoldenLlama2c(t *testing.T) {
	m, tok, name, err := loadModel(sharedFile(t, "tiny/model.bin"), "")
	if err != nil {
		t.Fatal(err)
	}
	if name != "model" || m.context != 2048 {
		t.Errorf("name %q, context %d", name, m.context)
	}
	checkGolden(t, m, tok)
}

// Quantised, they score the golden texts nearly alike. (Which of two near-equal
// tokens is ahead may change: on the fifth prompt the two best lie 0.016 apart.)
func TestGoldenQ8(t *testing.T) {
	m, _, _, err := loadModel(sharedFile(t, "tiny/model-q8_0.gguf"), "")
	if err != nil {
		t.Fatal(err)
	}
	whole, _ := tiny(t)
	for _, g := range goldens(t) {
		tokens := slices.Concat(g.promptTokens, g.answer)
		got, want := make([]float32, m.vocab), make([]float32, m.vocab)
		pages, wholePages := blankPages(m, len(tokens)), blankPages(m, len(tokens))
		for i := range tokens {
			m.forward(&scratch{}, []run{{tokens: tokens[i:][:1], pos: i, pages: pages, logits: got}})
			whole.forward(&scratch{}, []run{{tokens: tokens[i:][:1], pos: i, pages: wholePages, logits: want}})
			for id := range got {
				if diff := math.Abs(float64(got[id] - want[id])); diff > 0.5 {
					t.Fatalf("%q, position %d: token %d scores %g, and %g unquantised", g.prompt, i, id, got[id], want[id])
				}
			}
		}
	}
}

// A model of others' making says what its authors' program says, from both formats.
func TestStoriesModel(t *testing.T) {
	const want = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball."
	for file, tokenizer := range map[string]string{"stories260K.bin": "tok512.bin", "stories260K.gguf": ""} {
		t.Run(file, func(t *testing.T) {
			if tokenizer != "" {
				tokenizer = sharedFile(t, tokenizer)
			}
			m, tok, name, err := loadModel(sharedFile(t, file), tokenizer)
			if err != nil {
				t.Fatal(err)
			}
			prompt := tok.prompt("Once upon a time")
			text := tok.text(append(prompt, greedy(m, prompt, 80)...))
			if !strings.HasPrefix(text, want) || name != "stories260K" || m.context != 512 {
				t.Errorf("%s, context %d: %q", name, m.context, text)
			}
		})
	}
}

// A float16 widens exactly.
func TestFloat16(t *testing.T) {
	for h, want := range map[uint16]float32{
		0x0000: 0, 0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0400: 1.0 / (1 << 14), 0x0001: 1.0 / (1 << 24), 0x83ff: -1023.0 / (1 << 24), 0x3555: 0.333251953125,
	} {
		if got := float16(h); got != want {
			t.Errorf("%#04x: %g, want %g", h, got, want)
		}
	}
	if !math.IsInf(float64(float16(0xfc00)), -1) || !math.IsNaN(float64(float16(0x7e00))) || !math.Signbit(float64(float16(0x8000))) {
		t.Error("an infinity, NaN or zero is wrong")
	}
}

// A ggufWriter makes small GGUF files for tests.
type ggufWriter struct {
	meta, tensors, data bytes.Buffer
	values, count       uint64
}

func put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		switch v := v.(type) {
		case string:
			put(b, uint64(len(v)))
			b.WriteString(v)
		case []string:
			put(b, uint32(ggufString), uint64(len(v)))
			for _, s := range v {
				put(b, s)
			}
		default:
			if err := binary.Write(b, binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
	}
}

func (g *ggufWriter) set(key string, kind uint32, v ...any) {
	g.values++
	put(&g.meta, key, kind)
	put(&g.meta, v...)
}

func (g *ggufWriter) tensor(name string, kind uint32, data []byte, dims ...uint64) {
	g.count++
	put(&g.tensors, name, uint32(len(dims)), dims, kind, uint64(g.data.Len()))
	g.data.Write(data)
	g.data.Write(make([]byte, (32-len(data)%32)%32))
}

func (g *ggufWriter) file(version uint32) []byte {
	var b bytes.Buffer
	b.WriteString("GGUF")
	put(&b, version, g.count, g.values)
	b.Write(g.meta.Bytes())
	b.Write(g.tensors.Bytes())
	b.Write(make([]byte, (32-b.Len()%32)%32))
	b.Write(g.data.Bytes())
	return b.Bytes()
}

// smallGGUF is a whole model of width 4, with one tensor of each readable type.
func smallGGUF(change func(*ggufWriter)) []byte {
	g := &ggufWriter{}
	pieces, vocab := []string{"<unk>", "<s>", "</s>", "a", "\u2581"}, uint64(5)
	g.set("general.architecture", ggufString, "llama")
	for key, v := range map[string]uint32{
		"embedding_length": 32, "feed_forward_length": 32, "block_count": 1, "context_length": 64, "attention.head_count": 2,
	} {
		g.set("llama."+key, ggufUint32, v)
	}
	g.set("tokenizer.ggml.model", ggufString, "llama")
	g.set("tokenizer.ggml.tokens", ggufArray, pieces)
	g.set("tokenizer.ggml.scores", ggufArray, uint32(ggufFloat32), vocab, make([]float32, vocab))
	g.set("tokenizer.ggml.token_type", ggufArray, uint32(ggufInt32), vocab, []int32{2, 3, 3, 1, 1})
	f32 := func(n int) []byte { return make([]byte, 4*n) }
	g.tensor("token_embd.weight", tensorF32, f32(32*5), 32, 5)
	g.tensor("output_norm.weight", tensorF32, f32(32), 32)
	for _, name := range []string{"attn_norm", "ffn_norm"} {
		g.tensor("blk.0."+name+".weight", tensorF32, f32(32), 32)
	}
	for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
		g.tensor("blk.0."+name+".weight", tensorQ8_0, make([]byte, 34*32), 32, 32)
	}
	for _, name := range []string{"ffn_gate", "ffn_up", "ffn_down"} {
		g.tensor("blk.0."+name+".weight", tensorF16, make([]byte, 2*32*32), 32, 32)
	}
	if change != nil {
		change(g)
	}
	return g.file(3)
}

// Files that cannot be served give one sentence that says what was found.
func TestRefusedFiles(t *testing.T) {
	small := smallGGUF(nil)
	if _, _, err := loadGGUF(bytes.NewReader(small), int64(len(small))); err != nil {
		t.Fatalf("the whole file: %v", err)
	}
	with := func(change func(*ggufWriter)) []byte { return smallGGUF(change) }
	header := func(fields ...int32) []byte {
		var b bytes.Buffer
		put(&b, fields)
		return append(b.Bytes(), make([]byte, 100)...)
	}
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"cut in the data":    {small[:len(small)-100], "reaches beyond the end"},
		"cut in the header":  {small[:200], "cut short or corrupt"},
		"empty":              {nil, "cut short"},
		"other version":      {slices.Concat([]byte("GGUF"), []byte{0, 0, 0, 3}, make([]byte, 100)), "GGUF version 50331648; versions 2 and 3"},
		"other architecture": {with(func(g *ggufWriter) { g.set("general.architecture", ggufString, "qwen3") }), `architecture "qwen3"; llama is supported`},
		"other tokenizer":    {with(func(g *ggufWriter) { g.set("tokenizer.ggml.model", ggufString, "gpt2") }), `tokenizer "gpt2"; llama`},
		"other quantisation": {with(func(g *ggufWriter) { g.tensor("x", 12, make([]byte, 32), 32) }), "tensor x is Q4_K; F32, F16 and Q8_0 are supported"},
		"unknown tensor":     {with(func(g *ggufWriter) { g.tensor("blk.0.attn_q.bias", tensorF32, make([]byte, 32*4), 32) }), "tensor blk.0.attn_q.bias has no place"},
		"other rope":         {with(func(g *ggufWriter) { g.set("llama.rope.scaling.type", ggufString, "yarn") }), `RoPE scaling "yarn"`},
		"other shape":        {with(func(g *ggufWriter) { g.set("llama.feed_forward_length", ggufUint32, uint32(64)) }), "has the shape [32 32] where the metadata calls for [32 64]"},
		"missing layer":      {with(func(g *ggufWriter) { g.set("llama.block_count", ggufUint32, uint32(2)) }), "tensor blk.1.attn_norm.weight is missing"},
		"uneven heads":       {with(func(g *ggufWriter) { g.set("llama.attention.head_count", ggufUint32, uint32(3)) }), "3 heads do not share a width of 32"},
		"huge array":         {with(func(g *ggufWriter) { g.set("x", ggufArray, uint32(ggufUint64), uint64(1)<<60) }), "cut short or corrupt"},
		"not a model":        {header(1, 2, 3), "neither GGUF nor llama2.c: a head count of 0 makes no sense"},
		"llama2.c cut":       {header(64, 128, 2, 4, 4, 259, 64), "128 bytes where the header calls for"},
		"llama2.c version 1": {header(0x616b3432, 1), "llama2.c format version 1; version 0 is supported"},
		"other vocabulary":   {header(64, 128, 2, 4, 4, 999, 64), "a vocabulary of 999 with a tokenizer of 259 pieces"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "broken.model")
			if err := os.WriteFile(path, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			var tokenizer bytes.Buffer
			put(&tokenizer, uint32(6))
			for i := range 259 {
				put(&tokenizer, float32(0), uint32(6), []byte("<0x"+strings.ToUpper(string("0123456789abcdef"[max(i-3, 0)>>4])+string("0123456789abcdef"[max(i-3, 0)&15]))+">"))
			}
			if err := os.WriteFile(filepath.Join(dir, "tokenizer.bin"), tokenizer.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(Config{Model: path})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want a sentence with the path and %q", err, test.want)
			}
		})
	}
}

// What an operator may get wrong is answered with the remedy.
func TestRefusedConfigs(t *testing.T) {
	for want, c := range map[string]Config{
		"KVTokens is 3; give at least 16":                  {KVTokens: 3},
		"MaxBatch is -1":                                   {MaxBatch: -1},
		"context of 9000 tokens: the model hearsay-tiny":   {Context: 9000},
		"write random:DIMxLAYERS":                          {Model: "random:512x8 "},
		"DIM x DIM x LAYERS up to 134217728":               {Model: "random:8192x128"},
		"no such file":                                     {Model: "absent.gguf"},
		"not a file":                                       {Model: "tiny"},
		"llama2.c's tokenizer tiny/tokenizer.bin":          {Model: "tiny/SOURCE.txt"},
		"has its tokenizer inside; leave x.bin out":        {Model: "tiny/model-f16.gguf", Tokenizer: "x.bin"},
		"context of 4000 tokens: the model model-f16":      {Model: "tiny/model-f16.gguf", Context: 4000},
		"tokenizer tiny/golden.txt: the file is cut short": {Model: "tiny/SOURCE.txt", Tokenizer: "tiny/golden.txt"},
	} {
		if e, err := Open(c); err == nil {
			e.Close()
			t.Errorf("%+v was accepted", c)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %q does not say %q", c, err, want)
		}
	}
}

// A random model is the same each time, and of the size asked for.
func TestRandomModel(t *testing.T) {
	a, _, name, err := loadModel("random:192x2", "")
	if err != nil {
		t.Fatal(err)
	}
	b, _, _, _ := loadModel("random:192x2", "")
	if a.headDim() != 64 || a.hidden != 512 || len(a.layer) != 2 || name != "random-192x2" {
		t.Errorf("%s: %+v", name, a.shape)
	}
	prompt := []int32{1, 300, 301}
	if x, y := greedy(a, prompt, 20), greedy(b, prompt, 20); !slices.Equal(x, y) {
		t.Errorf("two of them answer %v and %v", x, y)
	}
}

// No file makes the parser fail otherwise than with an error, or take more
// memory than a few times its size.
func FuzzGGUF(f *testing.F) {
	small := smallGGUF(nil)
	f.Add(small)
	f.Add(small[:len(small)/2])
	f.Add(smallGGUF(func(g *ggufWriter) { g.set("x", ggufArray, uint32(ggufString), uint64(1)<<62) }))
	f.Add(smallGGUF(func(g *ggufWriter) { g.tensor("x", tensorF32, nil, 1<<31-1, 1<<31-1, 1<<31-1) }))
	f.Add(smallGGUF(func(g *ggufWriter) { g.set("general.alignment", ggufUint32, uint32(0)) }))
	f.Add([]byte("GGUF\x02\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, file []byte) {
		m, tok, err := loadGGUF(bytes.NewReader(file), int64(len(file)))
		if err == nil {
			greedy(m, tok.prompt("a a"), 2)
		}
	})
}
