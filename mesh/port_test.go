package mesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without certificates the port opens on loopback alone, unless told otherwise,
// and every mistake is one sentence with its remedy.
func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		addr   string
		change func(*Config)
		want   string // empty: it opens
	}{
		{"127.0.0.1:7946", nil, ""},
		{"[::1]:7946", nil, ""},
		{"127.0.0.1:7946", func(c *Config) { c.Name = "two words" }, "give another with --name"},
		{"127.0.0.1:7946", func(c *Config) { c.Name = strings.Repeat("n", 129) }, "give another with --name"},
		{"0.0.0.0:7946", nil, "peer port 0.0.0.0:7946 is not loopback and has no certificates; give --peer-cert, --peer-key and --peer-ca, or --insecure-peers to accept anyone"},
		{"10.0.0.1:7946", nil, "is not loopback"},
		{"10.0.0.1:7946", func(c *Config) { c.Insecure = true }, ""},
		{"0.0.0.0:7946", func(c *Config) { c.Insecure = true }, "peers cannot dial 0.0.0.0:7946; give --advertise HOST:PORT"},
		{"0.0.0.0:7946", func(c *Config) { c.Insecure, c.Advertise = true, "10.0.0.1:7946" }, ""},
		{"[::]:7946", func(c *Config) { c.Insecure = true }, "peers cannot dial [::]:7946; give --advertise HOST:PORT"},
		{"[fe80::1]:7946", func(c *Config) { c.Insecure = true }, "peers cannot dial [fe80::1]:7946; give --advertise HOST:PORT"},
		{"[fd00::1]:7946", func(c *Config) { c.Insecure = true }, ""},
		{"0.0.0.0:7946", func(c *Config) { c.Insecure, c.Advertise = true, "10.0.0.1" }, "--advertise 10.0.0.1 is not HOST:PORT"},
		{"0.0.0.0:7946", func(c *Config) { c.Insecure, c.Advertise = true, "10.0.0.1:0" }, "has no port"},
		{"127.0.0.1:7946", join("foo"), "--join foo is neither HOST:PORT nor dns:NAME:PORT"},
		{"127.0.0.1:7946", join("127.0.0.1"), "--join 127.0.0.1 is neither"},
		{"127.0.0.1:7946", join("dns:foo"), "--join dns:foo is neither"},
		{"127.0.0.1:7946", join(""), "--join  is neither"},
		{"127.0.0.1:7946", join(":7946"), "--join :7946 is neither"},
		{"127.0.0.1:7946", join("::1"), "--join ::1 is neither"},
		{"127.0.0.1:7946", join("foo:bar"), "--join foo:bar is neither"},
		{"127.0.0.1:7946", join("127.0.0.2:0"), "--join 127.0.0.2:0 is neither"},
		{"127.0.0.1:7946", join("127.0.0.2:65536"), "--join 127.0.0.2:65536 is neither"},
		{"127.0.0.1:7946", join("dns:127.0.0.2:65535"), ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			listener, err := network.Listen(c.addr)
			if err != nil {
				t.Fatal(err)
			}
			cfg := Config{Name: "n1", Listener: listener, Dial: network.Dial}
			if c.change != nil {
				c.change(&cfg)
			}
			m, err := Open(cfg)
			if err == nil {
				defer m.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.addr, err, c.want)
			}
			if err != nil {
				if _, err := network.Listen(c.addr); err != nil {
					t.Errorf("%s: the listener is still open", c.addr)
				}
			}
		})
	}
}

func join(seed string) func(*Config) {
	return func(c *Config) { c.Join = []string{"127.0.0.1:7946", seed} }
}

// The wrong version, the wrong name and a stranger's chatter are refused with a
// sentence to both ends.
func TestUpgradesAreRefusedWithASentence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		node := start(t, network, 5, nil, nil)
		const addr = "127.0.0.5:7946"
		for _, c := range []struct {
			from, to string
			u        upgrade
			want     string
		}{
			{"n4", "n6", upgradeRumors, "refused with 421: this is n5, not n6; is --advertise of one of them wrong?"},
			{"n5", "n5", upgradeRumors, "refused with 409: two nodes are called n5; give one another --name"},
			{"n6", "n5", upgradeRumors, "refused with 400: n5 dials n6"},
			{"n4", "n5", upgradeRumors, "refused with 503: n5 has not heard of n4 yet"},
			{"n4", "", upgrade{upgradeStreams.path, "hearsay-stream", 2, 3}, "refused with 426: n5 speaks hearsay-stream/1, not hearsay-stream/3, hearsay-stream/2; upgrade nodes one version at a time"},
			{"n4", "", upgrade{packetsPath, "hearsay-packet", 1, 1}, "refused with 505"},
			{"n4", "", upgrade{"/v1/chat", "chat", 1, 1}, "refused with 505"},
		} {
			p := dialler(t, network, c.from)
			conn, _, _, err := p.upgrade(t.Context(), addr, c.u, c.to, nil)
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s to %s: got %v, want %q", c.from, c.to, err, c.want)
			}
		}
		if log := node.log(); strings.Count(log, "peer refused") != 4 {
			t.Errorf("logged\n%s", log)
		}
	})
}

// Names that a stranger makes up do not fill the log.
func TestMadeUpNamesAreNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		node := start(t, network, 5, nil, nil)
		for i := range 3000 {
			if _, _, _, err := dialler(t, network, fmt.Sprint("m", i)).upgrade(t.Context(), node.Addr(), upgradeRumors, "n7", nil); err == nil {
				t.Fatal("upgraded")
			}
		}
		if got := strings.Count(node.log(), "level=WARN"); got != 10 || node.Refused()[refusedName] != 3000 {
			t.Errorf("warned %d times, counted %v", got, node.Refused())
		}
	})
}

// dialler is the dialling half of a port that belongs to no mesh.
func dialler(t *testing.T, network *memnet.Network, name string) *port {
	m := &Mesh{}
	p := newPort(&port{name: name, raw: network.Dial, wg: &m.wg, ctx: t.Context(), log: slog.New(slog.DiscardHandler)})
	t.Cleanup(p.shut)
	return p
}

// Who connects and says nothing, or never ends its header, is cut off; so is all
// that comes when the port is full.
func TestIdlersAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		node := start(t, network, 1, nil, nil)
		idle := make([]net.Conn, connsMax+10)
		for i := range idle {
			conn, err := network.Dial(t.Context(), seed[0])
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			idle[i] = conn
			if i%2 == 0 {
				io.WriteString(conn, "GET / HTTP/1.1\r\nX: ")
			}
			if i%64 == 0 {
				synctest.Wait() // let it accept
			}
		}
		synctest.Wait()
		for _, conn := range idle[connsMax:] {
			conn.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a connection beyond the limit is open")
			}
		}
		if got := strings.Count(node.log(), `level=WARN msg="peer port is full`); got != 1 {
			t.Errorf("said %d times that the port is full, want once", got)
		}
		time.Sleep(headerWait)
		synctest.Wait()
		for i, conn := range idle {
			conn.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := io.ReadAll(conn); err != nil {
				t.Fatalf("connection %d is still open: %v", i, err)
			}
		}
		conn, err := network.Dial(t.Context(), seed[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: n1\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusHTTPVersionNotSupported {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}

// On real sockets, IPv4 and IPv6, with port 0 and a seed by name: join, rumor,
// forward, leave.
func TestLoopback(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		t.Run(host, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			joined, heard, left := make(chan string, 9), make(chan uint64, 9), make(chan string, 9)
			var nodes []*Mesh
			for _, name := range []string{"a", "b"} {
				l, err := net.Listen("tcp", host+":0")
				if err != nil && host == "[::1]" {
					t.Skipf("no IPv6 here: %v", err)
				}
				if err != nil {
					t.Fatal(err)
				}
				cfg := Config{
					Name: name, Listener: l,
					Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }),
					OnJoin:  func(string) { joined <- name }, OnLeave: func(string, bool) { left <- name },
					OnRumor: func(r gossip.Rumor) { heard <- r.Version },
				}
				if len(nodes) > 0 {
					_, port, _ := net.SplitHostPort(nodes[0].Addr())
					cfg.Join = []string{"dns:localhost:" + port, nodes[0].Addr()}
				}
				m, err := Open(cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				nodes = append(nodes, m)
			}
			receive(ctx, t, joined)
			receive(ctx, t, joined)
			nodes[1].Broadcast(gossip.Rumor{Author: "b", Life: 1, Version: 7, Every: time.Second})
			if v := receive(ctx, t, heard); v != 7 {
				t.Errorf("heard version %d", v)
			}
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			resp, err := nodes[0].RoundTrip("b", req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got, _ := io.ReadAll(resp.Body); string(got) != "HTTP/2.0" {
				t.Errorf("forwarded by %q", got)
			}
			if err := nodes[1].Leave(ctx); err != nil {
				t.Error(err)
			}
			if who := receive(ctx, t, left); who != "a" {
				t.Errorf("%s saw a leave", who)
			}
		})
	}
}

func receive[T any](ctx context.Context, t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-ctx.Done():
		t.Fatal("nothing came within a minute")
	}
	return v
}
