package emulated

import (
	"net/http"
	"time"

	"github.com/hearsay-project/hearsay/engine/kvevents"
	"github.com/hearsay-project/hearsay/engine/openai"
	"github.com/hearsay-project/hearsay/prefix"
	"github.com/hearsay-project/hearsay/tokens"
)

// told is what there is to tell of a job's blocks once they are stored.
type told struct {
	chain prefix.Chain
	ids   []uint32
	scope prefix.Scope
}

// publish tells what has changed in the cache, in one batch, as vLLM does after each
// step. Those jobs had their first token just now whose blocks may have been stored.
// The engine's own names of blocks are those of its chains.
func (e *Engine) publish(now time.Time, firsts []uint64) {
	changes := e.model.Changes()
	if len(changes) == 0 {
		return
	}
	at := map[prefix.Hash]int{} // place in its chain
	of := map[prefix.Hash]told{}
	for _, id := range firsts {
		t := e.told[id]
		for i, h := range t.chain {
			at[h], of[h] = i, t
		}
	}
	var batch []kvevents.Event
	for _, c := range changes {
		last := len(batch) - 1
		if !c.Stored {
			if last < 0 || batch[last].Kind != kvevents.Removed {
				batch = append(batch, kvevents.Event{Kind: kvevents.Removed})
				last++
			}
			batch[last].Hashes = append(batch[last].Hashes, uint64(c.Block))
			continue
		}
		i, t := at[c.Block], of[c.Block]
		if i == 0 || last < 0 || batch[last].Kind != kvevents.Stored || batch[last].Hashes[len(batch[last].Hashes)-1] != uint64(t.chain[i-1]) {
			event := kvevents.Event{Kind: kvevents.Stored, BlockSize: e.cfg.BlockTokens, Adapter: t.scope.Adapter, Salt: t.scope.Salt}
			if event.HasParent = i > 0; event.HasParent {
				event.Parent = uint64(t.chain[i-1])
			}
			batch = append(batch, event)
			last++
		}
		s := &batch[last]
		s.Hashes = append(s.Hashes, uint64(c.Block))
		s.Tokens = append(s.Tokens, t.ids[i*e.cfg.BlockTokens:(i+1)*e.cfg.BlockTokens]...)
	}
	e.cfg.Publisher.Publish(kvevents.AppendBatch(nil, now, batch))
}

// Tokenize gives what read makes of the prompt or the messages.
func (e *Engine) Tokenize(c *openai.Call) (ids []int32, err error) {
	_, cut, err := e.read(asked(c))
	for _, id := range cut {
		ids = append(ids, int32(id))
	}
	return ids, err
}

// TokenTexts gives the texts of those tokens; null where they are numbers, or of one size.
func (e *Engine) TokenTexts(c *openai.Call) ([]string, error) {
	p, _, err := e.read(asked(c))
	if err != nil || e.cfg.TokenBytes > 0 {
		return nil, err
	}
	text := string(p.Text)
	if !c.Chat {
		var given []int32
		if text, given, err = c.Prompt(); err != nil || given != nil {
			return nil, err
		}
	}
	return tokens.CL100KPieces(text), nil
}

// asked is a call of /tokenize as one of the API that the prompt is of.
func asked(c *openai.Call) *openai.Call {
	as := *c
	if as.Path = "/v1/completions"; c.Chat {
		as.Path = "/v1/chat/completions"
	}
	return &as
}

// Detokenize is not to be had: not every token is a text's.
func (e *Engine) Detokenize([]int32) (string, error) {
	err := openai.BadRequest("tokens", "an emulated engine has no texts for tokens")
	err.Status = http.StatusNotImplemented
	return "", err
}

var _ openai.TextTokenizer = (*Engine)(nil)
