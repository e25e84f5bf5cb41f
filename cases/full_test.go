package cases

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
)

// G59: what is more than all nodes may take on is refused at once, with a time to come
// back.
func TestG59FullNodes(t *testing.T) {
	slow := JSON(200, answer)
	slow.Silence = 30 * time.Second
	virtual(t, 2, always(slow), func(t *testing.T, c *cluster) {
		answers := make(chan reply)
		begun := time.Now()
		for i := range 100 {
			go func() { answers <- c.askAt(t.Context(), nodeNames[i%2], http.MethodPost, chatPath, chat) }()
		}
		took := map[int]int{}
		for range 100 {
			r := <-answers
			took[r.status]++
			if r.status == 200 {
				continue
			}
			wantError(t, r, 429, "queue_full")
			if r.header.Get("Retry-After") == "" || time.Since(begun) > time.Second {
				t.Errorf("refused after %v with %v", time.Since(begun), r.header)
			}
		}
		if took[200] != 8 {
			t.Errorf("answered %v, want 8 times 200", took)
		}
	}, func(c *daemon.Config) { c.InFlightMax = 4 })
}

// G61: what no node has room for is refused at once: no client waits behind others.
func TestG61RefusedAtOnce(t *testing.T) {
	virtual(t, 2, always(Script{End: Stuck}), func(t *testing.T, c *cluster) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 200 {
			go c.askAt(ctx, "A", http.MethodPost, chatPath, chat)
		}
		synctest.Wait()
		begun := time.Now()
		wantError(t, c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat), 429, "queue_full")
		if took := time.Since(begun); took > 0 {
			t.Errorf("refused after %v", took)
		}
	}, policy(t, "local"), func(c *daemon.Config) { c.InFlightMax = 2 })
}
