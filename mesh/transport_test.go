package mesh

import (
	"encoding/binary"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

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

// A packet that is longer than any of memberlist's, or none of its own, is not taken.
func TestStrangePacketsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 2, nil)
		good := string(aliveMessage("n1", []byte{127, 0, 0, 1}, 7946, 1, 5, 2, 0, 0, 0))
		for packet, want := range map[string]int{
			good:       http.StatusNoContent,
			good + "x": http.StatusBadRequest,
			strings.Repeat(good, packetMax/len(good)+1): http.StatusBadRequest,
			"x": http.StatusBadRequest,
			"":  http.StatusBadRequest,
		} {
			req, _ := http.NewRequest(http.MethodPost, packetsPath, strings.NewReader(packet))
			resp, err := nodes[0].port.forward("n2", "127.0.0.2:7946", req)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Body.Close(); resp.StatusCode != want {
				t.Errorf("%d bytes: %s", len(packet), resp.Status)
			}
		}
		if got := nodes[1].Refused()[refusedMember]; got != 3 {
			t.Errorf("counted %d packets that are none, want 3", got)
		}
	})
}

// at is a node as memberlist names it to its transport.
func at(n *testNode) memberlist.Address { return memberlist.Address{Addr: n.Addr(), Name: n.name} }

// aliveMessage is what memberlist sends to say that a node is there. Versions are
// the least, the most and the one spoken, of its protocol and then its delegate's.
func aliveMessage(name string, ip []byte, port uint16, versions ...byte) []byte {
	b := []byte{4, 0x86} // alive; MessagePack, a map of six
	text := func(s string) { b = append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(s))), s...) }
	text("Incarnation")
	b = binary.BigEndian.AppendUint32(append(b, 0xce), 1)
	text("Node")
	text(name)
	text("Addr")
	text(string(ip))
	text("Port")
	b = binary.BigEndian.AppendUint16(append(b, 0xcd), port)
	text("Meta")
	b = append(b, 0xc0)
	text("Vsn")
	text(string(versions))
	return b
}

// A member that cannot be is not taken in, whoever speaks of it, and is warned of
// once; newcomers still join.
func TestImpossibleMembersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 2, nil)
		ip, good := []byte{127, 0, 0, 7}, []byte{1, 5, 2, 0, 0, 0}
		for _, message := range [][]byte{
			aliveMessage("\xff\xfe", ip, 1, good...),
			aliveMessage("", ip, 1, good...),
			aliveMessage("n7\nn8  alive", ip, 1, good...),
			aliveMessage("n7\x1b[2J", ip, 1, good...),
			aliveMessage(strings.Repeat("n", 129), ip, 1, good...),
			aliveMessage("n7", []byte{0, 0, 0, 0}, 1, good...),
			aliveMessage("n7", make([]byte, 16), 1, good...),
			aliveMessage("n7", []byte{224, 0, 0, 1}, 1, good...),
			aliveMessage("n7", []byte{1, 2, 3}, 1, good...),
			aliveMessage("n7", nil, 1, good...),
			aliveMessage("n7", ip, 1),
			aliveMessage("n7", ip, 1, 0, 0, 0, 0, 0, 0),
			aliveMessage("n7", ip, 1, 1, 5, 2),
			aliveMessage("n7", ip, 1, 1, 1, 1, 0, 0, 0),
			aliveMessage("n7", ip, 1, 3, 5, 3, 0, 0, 0),
			aliveMessage("n7", ip, 1, 1, 5, 2, 1, 1, 1),
			aliveMessage("n2", []byte{127, 0, 0, 2}, 7946, 1, 5, 2, 0, 9, 9),
		} {
			nodes[0].transport.send(message, at(nodes[1]))
			synctest.Wait()
			if peers := nodes[1].Peers(); len(peers) != 1 || peers[0].Name != "n1" {
				t.Fatalf("after %q the peers are %+v", message, peers)
			}
		}
		portless := &memberlist.Node{Name: "n7", Addr: ip, PMin: 1, PMax: 5, PCur: 2}
		if (&watcher{mesh: &Mesh{log: slog.New(slog.DiscardHandler)}}).NotifyAlive(portless) == nil { // as an exchange may hold; in a packet 0 stands for the own port
			t.Error("a member without a port is taken in")
		}
		if got := strings.Count(nodes[1].log(), "a member that cannot be"); got != 1 {
			t.Errorf("warned %d times, want once", got)
		}
		nodes = append(nodes, start(t, network, 3, []string{nodes[1].Addr()}, nil))
		eventually(t, 5*time.Second, "a newcomer joins", func() bool { return connected(nodes) })
		nodes[0].transport.send(aliveMessage("n7", ip, 1, good...), at(nodes[1]))
		synctest.Wait()
		if got := nodes[1].peer("n7").Addr; got != "127.0.0.7:1" {
			t.Errorf("a good member is at %q", got)
		}
	})
}
