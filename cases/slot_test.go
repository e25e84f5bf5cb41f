package cases

import (
	"testing"

	"github.com/hearsay-project/hearsay/daemon"
)

// G59: a place at the engine is free again when a client has its answer: who asks one
// thing after the other is never one too many.
func TestG59OneAfterTheOther(t *testing.T) {
	eachWay(t, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		for range 200 {
			c.wantWhole(c.post(chat), JSON(200, answer))
		}
	}, func(c *daemon.Config) { c.InFlightMax = 1 })
}
