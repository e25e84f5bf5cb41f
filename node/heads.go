package node

import "github.com/hearsay-project/hearsay/prefix"

// heads learn how many bytes make a token for prompts that begin alike, which is
// closer than for all of a model's: code, prose and tables of one model differ by a
// third. A prompt's rate is that of the longest of its heads that is known. Names of
// heads tell models apart.
//
// Two generations bound them: when the young one is full, the old one goes, and with
// it what was not used since.
type heads struct{ young, old map[prefix.Hash]rate }

const headsMax = 2048 // of a generation; some 100 KiB

// headDepths are the blocks of a head: of 256 bytes prompts of one kind have the same,
// of 4 KiB those of one conversation.
var headDepths = [...]int{64, 16, 4}

func (h *heads) bytesPerToken(c prefix.Chain) (rate float64, known bool) {
	for _, depth := range headDepths {
		if depth > len(c) {
			continue
		}
		if r, ok := h.at(c[depth-1]); ok {
			return r.bytes / r.tokens, true
		}
	}
	return 0, false
}

func (h *heads) at(head prefix.Hash) (r rate, known bool) {
	if r, known = h.young[head]; !known {
		r, known = h.old[head]
	}
	return r, known
}

func (h *heads) learn(c prefix.Chain, bytes, tokens int) {
	if bytes <= 0 || tokens <= 0 || bytes > tokens*maxBytesPerToken {
		return
	}
	for _, depth := range headDepths {
		if depth > len(c) {
			continue
		}
		r, _ := h.at(c[depth-1])
		r.add(bytes, tokens)
		if len(h.young) >= headsMax || h.young == nil {
			h.young, h.old = map[prefix.Hash]rate{}, h.young
		}
		h.young[c[depth-1]] = r
	}
}

// tokens estimates the tokens of the first bytes of req's text.
func (n *Node) tokens(req Request, bytes int) int {
	if rate, known := n.heads.bytesPerToken(req.Chain); known {
		return int(float64(bytes) / rate)
	}
	return n.models.tokens(req.Model, bytes)
}

// share is what the first blocks are of a prompt's text, 0 to 1.
func (r Request) share(blocks int) float64 {
	if r.Bytes <= 0 {
		return 0
	}
	return float64(min(blocks*prefix.BlockBytes, r.Bytes)) / float64(r.Bytes)
}
