package cases

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/prefix"
)

// Types of frames, as docs/protocol.md has them, and one that there is not yet.
const (
	rumorFrame  = 1
	futureFrame = 99
)

func frame(kind byte, payload []byte) []byte {
	return append(append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), kind), payload...)
}

// rumorOfA is what A might say next, with a queue to be told by.
func (c *cluster) rumorOfA(queue int) gossip.Rumor {
	return gossip.Rumor{
		Author: "A", Life: lifeOfA, Version: c.members["A"].daemon.Status().Version + 2, Every: 500 * time.Millisecond,
		Queue: queue, Tree: prefix.NewTree(1, 1).Snapshot(),
	}
}

const lifeOfA = 1000

func fixedLife(c *daemon.Config) {
	if c.Node.Name == "A" {
		c.Node.Life = lifeOfA
	}
}

// feign opens a rumor stream to B as A would, says the given bytes and hangs up. B
// then knows A by what was said, until A has dialled anew.
func (c *cluster) feign(said ...[]byte) {
	c.t.Helper()
	conn, err := c.network().DialFrom(hostOf("A"))(c.t.Context(), c.members["B"].peer)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "GET /hearsay/v1/rumors HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: hearsay-rumor/1\r\nHearsay-From: A\r\nHearsay-To: B\r\nHearsay-Addr: %s\r\n\r\n", c.members["B"].peer, c.members["A"].peer)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		c.t.Fatalf("B does not upgrade: %v %v", resp, err)
	}
	for _, b := range said {
		_, _ = conn.Write(b)
	}
	time.Sleep(time.Millisecond)
}

// G78: of a newer node, what is not known is skipped and what is known counts. A
// rumor in another format is refused in a sentence with both formats. Requests go on
// being served whatever is made of rumors.
func TestG78Versions(t *testing.T) {
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.feign(frame(futureFrame, []byte("what is this?")), frame(rumorFrame, c.rumorOfA(77).AppendBinary(nil)))
		if q := c.believed("A", "B").Queue; q != 77 {
			t.Errorf("after a frame that B does not know: A's queue is %d for B, want 77", q)
		}
		c.gossip()
		c.settle()
		other := c.rumorOfA(78).AppendBinary(nil)
		other[0]++
		c.feign(frame(rumorFrame, other))
		if q := c.believed("A", "B").Queue; q == 78 {
			t.Error("B reads a rumor of another format")
		}
		if log := c.members["B"].log.String(); !strings.Contains(log, fmt.Sprintf("format %d", other[0])) {
			t.Errorf("B does not say why: %s", log)
		}
		c.gossip()
		c.settle()
		for _, at := range []string{"A", "B"} {
			if r := c.askAt(t.Context(), at, http.MethodPost, chatPath, chat); r.status != 200 || r.node() == at {
				t.Errorf("asked at %s: %d from %q", at, r.status, r.node())
			}
		}
	}, fixedLife, func(c *daemon.Config) {
		c.Node.Policy = toward(map[string]string{"A": "B", "B": "A"}[c.Node.Name])
	})
}

// G77: half a rumor, an old one and one that lies about its size leave the last good
// one as it is.
func TestG77BadRumors(t *testing.T) {
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		whole := frame(rumorFrame, c.rumorOfA(77).AppendBinary(nil))
		old := c.rumorOfA(78)
		old.Version = 1
		lying := binary.BigEndian.AppendUint32(nil, 1<<31)
		for name, bad := range map[string][]byte{
			"half": whole[:len(whole)/2], "old": frame(rumorFrame, old.AppendBinary(nil)), "huge": append(lying, rumorFrame, 1, 2, 3),
			"empty": frame(rumorFrame, nil), "a stranger's": frame(rumorFrame, gossip.Rumor{Author: "C", Life: 1, Version: 1 << 40, Queue: 79, Tree: old.Tree}.AppendBinary(nil)),
		} {
			c.feign(bad)
			if q := c.believed("A", "B").Queue; q != 0 {
				t.Errorf("%s: A's queue is %d for B", name, q)
			}
			if c.believed("C", "B").Name != "" {
				t.Errorf("%s: B knows C", name)
			}
			c.gossip()
			c.settle()
		}
	}, fixedLife)
}
