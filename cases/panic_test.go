package cases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/daemon"
)

// tripping is an engine that panics with the request's own text.
type tripping struct{}

func (tripping) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost {
		return nil, fmt.Errorf("no such page: %s", r.URL.Path)
	}
	body := make([]byte, 1<<10)
	n, _ := r.Body.Read(body)
	panic(fmt.Errorf("CANARY %s %v", body[:n], r.Header))
}

// G83, G85: a panic that holds a client's text does not show it, and leaves nothing in
// flight.
func TestG83CanariesInAPanic(t *testing.T) {
	eachWay(t, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.anyone, c.panics = true, true
		r := c.post(strings.Replace(chat, "hello", "CANARY", 1), "Authorization: Bearer CANARY")
		if strings.Contains(string(r.body), "CANARY") {
			t.Errorf("the client is told %s", r.body)
		}
		c.gossip()
		for at, m := range c.members {
			if log := m.log.String(); strings.Contains(log, "CANARY") {
				t.Errorf("%s logs it: %s", at, log)
			}
		}
	}, func(c *daemon.Config) { c.Engine = tripping{} })
}
