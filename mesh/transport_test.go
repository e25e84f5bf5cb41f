package mesh

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// Packets to a peer that does not answer hold up nobody: so many are on their way
// at most, and each is given up in time.
func TestPacketsAreBestEffort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		node := startAll(t, network, 2, nil)[0]
		network.Cut("127.0.0.2")
		began := time.Now()
		for range 2 * packetsMax {
			if _, err := node.transport.WriteTo([]byte("packet"), "127.0.0.2:7946"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 0 || node.transport.sending.TryAcquire(1) {
			t.Errorf("took %v, or not all are on their way", took)
		}
		time.Sleep(connectWait + time.Second)
		const most = packetsMax * 9 / 10 // memberlist sends its own meanwhile
		if !node.transport.sending.TryAcquire(most) {
			t.Fatal("they still are")
		}
		node.transport.sending.Release(most)
		network.Heal()
	})
}

// A packet longer than any of memberlist's is not read to its end.
func TestLongPacketIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := startAll(t, memnet.New(), 2, nil)[0]
		for length, want := range map[int]int{packetMax: http.StatusNoContent, packetMax + 1: http.StatusBadRequest} {
			req, _ := http.NewRequest(http.MethodPost, packetsPath, strings.NewReader(strings.Repeat("x", length)))
			resp, err := node.port.forward("127.0.0.2:7946", req)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Body.Close(); resp.StatusCode != want {
				t.Errorf("%d bytes: %s", length, resp.Status)
			}
		}
	})
}
