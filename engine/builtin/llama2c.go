package builtin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// loadLlama2c reads the first ("legacy", version 0) checkpoint format of llama2.c's
// export.py: seven int32 (width, hidden width, layers, heads, key/value heads,
// vocabulary, context; a negative vocabulary means a classifier of its own), then
// float32 tensors kind by kind. Base and epsilon are not in it; they are Llama 2's.
func loadLlama2c(r io.ReaderAt, size int64, tok *tokenizer) (*model, error) {
	var head [28]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return nil, errTruncated
	}
	field := func(i int) int { return int(int32(binary.LittleEndian.Uint32(head[4*i:]))) }
	if field(0) == 0x616b3432 {
		return nil, fmt.Errorf("llama2.c format version %d; version 0 is supported", field(1))
	}
	s := shape{
		dim: field(0), hidden: field(1), layers: field(2), heads: field(3), kvHeads: field(4),
		vocab: max(field(5), -field(5)), context: field(6), theta: 10000, eps: 1e-5,
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("neither GGUF nor llama2.c: %w", err)
	}
	if s.vocab != len(tok.pieces) {
		return nil, fmt.Errorf("a vocabulary of %d with a tokenizer of %d pieces", s.vocab, len(tok.pieces))
	}
	at, end := map[string]int64{}, int64(len(head))
	place := func(name string, rows, cols int) {
		at[name] = end
		end += 4 * int64(rows) * int64(cols)
	}
	each := func(name string, rows, cols int) {
		for i := range s.layers {
			place(fmt.Sprintf("blk.%d.%s.weight", i, name), rows, cols)
		}
	}
	if int64(s.layers)*int64(s.dim) > size { // before the map grows
		return nil, errTruncated
	}
	place("token_embd.weight", s.vocab, s.dim)
	each("attn_norm", 1, s.dim)
	each("attn_q", s.dim, s.dim)
	each("attn_k", s.kvDim(), s.dim)
	each("attn_v", s.kvDim(), s.dim)
	each("attn_output", s.dim, s.dim)
	each("ffn_norm", 1, s.dim)
	each("ffn_gate", s.hidden, s.dim)
	each("ffn_down", s.dim, s.hidden)
	each("ffn_up", s.hidden, s.dim)
	place("output_norm.weight", 1, s.dim)
	end += 4 * int64(s.context) * int64(s.headDim()) // RoPE tables, which llama2.c skips too
	if field(5) < 0 {
		place("output.weight", s.vocab, s.dim)
	}
	if end != size {
		return nil, fmt.Errorf("%d bytes where the header calls for %d: %w", size, end, errTruncated)
	}
	return newModel(s, func(name string, rows, cols int) ([]float32, error) {
		offset, ok := at[name]
		if !ok {
			return nil, nil
		}
		raw := make([]byte, 4*rows*cols)
		if _, err := r.ReadAt(raw, offset); err != nil && err != io.EOF {
			return nil, fmt.Errorf("read tensor %s: %w", name, err)
		}
		return float32s(raw), nil
	})
}

// parseLlama2cTokenizer reads llama2.c's tokenizer.bin: a uint32 with the longest
// piece, then per piece a float32 score, a uint32 length and the bytes. The ids
// are Llama 2's: 0 unknown, 1 begin, 2 end, 3 to 258 the bytes.
func parseLlama2cTokenizer(raw []byte) (*tokenizer, error) {
	const firstPiece = 259
	if len(raw) < 4 {
		return nil, errTruncated
	}
	var pieces []string
	var scores []float32
	var kinds []int32
	for raw = raw[4:]; len(raw) > 0; {
		if len(raw) < 8 {
			return nil, errTruncated
		}
		score, n := math.Float32frombits(binary.LittleEndian.Uint32(raw)), uint64(binary.LittleEndian.Uint32(raw[4:]))
		if raw = raw[8:]; n > uint64(len(raw)) {
			return nil, errTruncated
		}
		kind := int32(pieceNormal)
		switch i := len(pieces); {
		case i == 0:
			kind = pieceUnknown
		case i < 3:
			kind = pieceControl
		case i < firstPiece:
			kind = pieceByte
		}
		pieces, scores, kinds = append(pieces, string(raw[:n])), append(scores, score), append(kinds, kind)
		raw = raw[n:]
	}
	if len(pieces) < firstPiece {
		return nil, errors.New("fewer pieces than a Llama 2 tokenizer has")
	}
	return newTokenizer(pieces, scores, kinds, 0, 1, 2)
}
