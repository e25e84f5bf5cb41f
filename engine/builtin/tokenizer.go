package builtin

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Kinds of pieces, numbered as in tokenizer.ggml.token_type.
const (
	pieceNormal  = 1
	pieceUnknown = 2
	pieceControl = 3
	pieceUser    = 4
	pieceByte    = 6
)

// A tokenizer is a SentencePiece-style BPE with byte fallback: text starts as
// characters, the adjacent pair whose joined piece scores best (the leftmost of
// equals) is joined until none is left, and a character without a piece becomes
// its bytes. No piece of the shipped models spans a newline, so what follows
// one never changes the tokens before it.
type tokenizer struct {
	pieces        []string // with plain spaces; a byte piece holds its byte, a control piece nothing
	scores        []float32
	ids           map[string]int32 // of pieces that text may turn into
	bytes         [256]int32       // -1: no piece for this byte
	longest       int              // bytes in the longest piece of ids
	unk, bos, eos int32
	addBOS        bool // encode begins with bos
	addSpace      bool // and puts a space before the text
}

// newTokenizer takes over pieces.
func newTokenizer(pieces []string, scores []float32, kinds []int32, unk, bos, eos int) (*tokenizer, error) {
	switch {
	case len(pieces) == 0:
		return nil, errors.New("the tokenizer has no pieces")
	case len(scores) != len(pieces) || len(kinds) != len(pieces):
		return nil, fmt.Errorf("the tokenizer has %d pieces, %d scores and %d types", len(pieces), len(scores), len(kinds))
	}
	for _, id := range []int{unk, bos, eos} {
		if id < 0 || id >= len(pieces) {
			return nil, fmt.Errorf("special token %d is outside the vocabulary of %d", id, len(pieces))
		}
	}
	t := &tokenizer{
		pieces: pieces, scores: scores, ids: make(map[string]int32, len(pieces)),
		unk: int32(unk), bos: int32(bos), eos: int32(eos), addBOS: true, addSpace: true,
	}
	for b := range t.bytes {
		t.bytes[b] = -1
	}
	for i, p := range pieces {
		switch kinds[i] {
		case pieceNormal, pieceUser:
			if p == "" {
				continue
			}
			if _, twice := t.ids[p]; !twice {
				t.ids[p] = int32(i)
			}
			t.longest = max(t.longest, len(p))
		case pieceByte:
			var b byte
			if _, err := fmt.Sscanf(p, "<0x%02X>", &b); err != nil || len(p) != 6 {
				return nil, fmt.Errorf("byte piece %d reads %q, not <0xXX>", i, p)
			}
			t.bytes[b] = int32(i)
			t.pieces[i] = string([]byte{b})
		default:
			t.pieces[i] = ""
		}
	}
	return t, nil
}

// check refuses ids that are no tokens.
func (t *tokenizer) check(ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= len(t.pieces) {
			return fmt.Errorf("token %d is outside the vocabulary of %d", id, len(t.pieces))
		}
	}
	return nil
}

// prompt gives the tokens of a whole prompt: the beginning, a space, the text.
func (t *tokenizer) prompt(text string) []int32 {
	ids := []int32{}
	if t.addBOS {
		ids = append(ids, t.bos)
	}
	if t.addSpace && text != "" {
		text = " " + text
	}
	return t.encode(ids, text)
}

// text is the inverse of prompt for valid UTF-8.
func (t *tokenizer) text(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(t.pieces[id])
	}
	if s := b.String(); t.addSpace && (!t.addBOS || len(ids) > 0 && ids[0] == t.bos) {
		return strings.TrimPrefix(s, " ")
	}
	return b.String()
}

// stops says whether the model ends its text with id. Models of the llama2.c
// family begin the next document instead of ending this one.
func (t *tokenizer) stops(id int32) bool { return id == t.eos || id == t.bos }

// A symbol is a stretch of text in a doubly linked list.
type symbol struct {
	from, to   int // empty once joined to the symbol on its left
	prev, next int // -1: none
}

// A join is a candidate: two adjacent symbols that make a piece. It is stale
// once either has changed, which its size tells.
type join struct {
	score       float32
	left, right int
	size        int
}

func (a join) before(b join) bool {
	return a.score > b.score || a.score == b.score && a.left < b.left
}

// encode appends the tokens of text as it stands. It costs n log n: candidates
// wait in a heap, and a join brings at most two new ones.
func (t *tokenizer) encode(ids []int32, text string) []int32 {
	var s []symbol
	for at := 0; at < len(text); {
		_, n := utf8.DecodeRuneInString(text[at:])
		s = append(s, symbol{from: at, to: at + n, prev: len(s) - 1, next: len(s) + 1})
		at += n
	}
	if len(s) == 0 {
		return ids
	}
	s[len(s)-1].next = -1
	var q joins
	consider := func(left, right int) {
		if left < 0 || right < 0 || s[right].to-s[left].from > t.longest {
			return
		}
		if id, ok := t.ids[text[s[left].from:s[right].to]]; ok {
			q.push(join{score: t.scores[id], left: left, right: right, size: s[right].to - s[left].from})
		}
	}
	for i := 1; i < len(s); i++ {
		consider(i-1, i)
	}
	for len(q) > 0 {
		j := q.pop()
		l, r := &s[j.left], &s[j.right]
		if l.from == l.to || r.from == r.to || r.to-l.from != j.size {
			continue
		}
		l.to, l.next = r.to, r.next
		r.from = r.to
		if l.next >= 0 {
			s[l.next].prev = j.left
		}
		consider(l.prev, j.left)
		consider(j.left, l.next)
	}
	for i := 0; i >= 0; i = s[i].next {
		ids = t.appendPiece(ids, text[s[i].from:s[i].to])
	}
	return ids
}

// appendPiece appends the token of piece, or those of its bytes.
func (t *tokenizer) appendPiece(ids []int32, piece string) []int32 {
	if id, ok := t.ids[piece]; ok {
		return append(ids, id)
	}
	for _, b := range []byte(piece) {
		if t.bytes[b] < 0 {
			return append(ids, t.unk)
		}
	}
	for _, b := range []byte(piece) {
		ids = append(ids, t.bytes[b])
	}
	return ids
}

// joins is a binary heap with the best join first.
type joins []join

func (q *joins) push(j join) {
	h := append(*q, j)
	i := len(h) - 1
	for i > 0 && j.before(h[(i-1)/2]) {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = j
	*q = h
}

func (q *joins) pop() join {
	h := *q
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(last) {
			break
		}
		h[i] = h[child]
		i = child
	}
	if len(h) > 0 {
		h[i] = last
	}
	*q = h
	return top
}
