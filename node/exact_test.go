package node

import (
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

// What the engine tells that it has evicted is no longer promised, nor what followed
// it, in any prompt; what came before it is.
func TestEvictedBlocksLeaveTheTree(t *testing.T) {
	n := newNode("n1")
	now := time.Unix(0, 0)
	shared := strings.Repeat("a", 4*prefix.BlockBytes)
	var requests []Request
	for _, end := range []string{"b", "c"} {
		text := shared + strings.Repeat(end, 2*prefix.BlockBytes)
		req := Request{Chain: prefix.NewChain(1, []byte(text)), Bytes: len(text)}
		n.Served(now, req, "n1", Outcome{})
		requests = append(requests, req)
	}
	for _, step := range []struct {
		evicted []prefix.Hash
		want    [2]int
	}{
		{nil, [2]int{6, 6}},
		{[]prefix.Hash{99}, [2]int{6, 6}},
		{[]prefix.Hash{requests[0].Chain[5], requests[0].Chain[5]}, [2]int{5, 6}},
		{[]prefix.Hash{requests[1].Chain[2]}, [2]int{2, 2}},
	} {
		n.Evicted(step.evicted)
		for i, req := range requests {
			if got := n.Stay(req, "").Match; got != step.want[i] {
				t.Errorf("after %v: %d blocks of prompt %d, want %d", step.evicted, got, i, step.want[i])
			}
		}
	}
}
