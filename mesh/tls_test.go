package mesh

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/cert"
	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// authority is a CA that signs certificates into files.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	ca   string // its own file

	serial int64 // of the last certificate
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "peers"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: long(-1), NotAfter: long(1),
	}
	der := a.sign(a.cert, a)
	a.ca = a.file("ca.pem", "CERTIFICATE", der)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// long is a time well before or after now, on the wall's clock and on a bubble's.
func long(direction int) time.Time { return time.Now().AddDate(direction*60, 0, 0) }

// sign makes a key for owner and a certificate for it.
func (a *authority) sign(c *x509.Certificate, owner *authority) []byte {
	a.t.Helper()
	var err error
	if owner.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &owner.key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func (a *authority) file(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// issue writes a node's certificate and key, good for the given usages only.
func (a *authority) issue(name string, until time.Time, usage ...x509.ExtKeyUsage) cert.Files {
	a.t.Helper()
	owner := &authority{}
	a.serial++
	der := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name}, NotBefore: long(-1), NotAfter: until, ExtKeyUsage: usage,
	}, owner)
	secret, err := x509.MarshalECPrivateKey(owner.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert.Files{Cert: a.file(name+".pem", "CERTIFICATE", der), Key: a.file(name+".key", "EC PRIVATE KEY", secret), CA: a.ca}
}

func (a *authority) identity(name string, usage ...x509.ExtKeyUsage) *cert.Identity {
	a.t.Helper()
	return a.open(a.issue(name, long(1), usage...))
}

func (a *authority) open(f cert.Files) *cert.Identity {
	a.t.Helper()
	id, err := cert.Open(f, "")
	if err != nil {
		a.t.Fatal(err)
	}
	return id
}

// Nodes whose certificates one CA signed for their names are peers, whichever usage
// they name; forwards go over HTTP/2 as without TLS.
func TestMutualTLS(t *testing.T) {
	ca := newAuthority(t)
	identities := map[string]*cert.Identity{
		"n1": ca.identity("n1", x509.ExtKeyUsageServerAuth),
		"n2": ca.identity("n2", x509.ExtKeyUsageClientAuth),
		"n3": ca.identity("n3"),
	}
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 3, func(c *Config) {
			c.Identity, c.LinkDelay = identities[c.Name], 50*time.Millisecond
			c.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
		})
		nodes[2].say(1)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if got := nodes[0].versions("n3"); len(got) != 1 {
			t.Errorf("n1 heard %v", got)
		}
		for _, to := range []string{"n2", "n3"} {
			if got, err := nodes[0].get(to, ""); got != "HTTP/2.0" {
				t.Errorf("forwarded by %s: %v", got, err)
			}
		}
		if err := nodes[1].Leave(context.Background()); err != nil {
			t.Error(err)
		}
		for _, n := range nodes {
			if refused := n.Refused(); len(refused) > 0 {
				t.Errorf("%s refused %v", n.name, refused)
			}
		}
	})
}

// get forwards a request to a peer, as a forward of the node called hop if not empty.
func (n *testNode) get(peer, hop string) (string, error) {
	req, _ := http.NewRequest(http.MethodGet, "/", nil)
	if hop != "" {
		req.Header.Set(headerHop, hop)
	}
	resp, err := n.RoundTrip(peer, req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// A stranger is a dialler with whatever it has to show.
func stranger(t *testing.T, network *memnet.Network, show *tls.Config) func(u upgrade) error {
	return func(u upgrade) error {
		conn, err := network.DialFrom("127.0.0.9")(t.Context(), seed[0])
		if err != nil {
			return err
		}
		defer conn.Close()
		if show != nil {
			conn = tls.Client(conn, show)
		}
		conn.SetDeadline(time.Now().Add(connectWait))
		p := dialler(t, network, "n9")
		_, _, _, err = p.ask(t.Context(), conn, seed[0], u, "", nil)
		return err
	}
}

// Who shows a certificate of another authority, none, one that has ended, one that is
// revoked, or speaks no TLS, is refused, at any rate of trying; it is counted under
// its reason, and one line a minute says so.
func TestStrangersAreRefused(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	files := ca.issue("n1", long(1))
	files.Revoked = filepath.Join(t.TempDir(), "revoked")
	if err := os.WriteFile(files.Revoked, []byte("name n8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	home := ca.open(files)
	show := func(f cert.Files) *tls.Config {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
	}
	old := &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	for reason, client := range map[string]*tls.Config{
		cert.Foreign: show(foreign.issue("n9", long(1))), cert.Expired: show(ca.issue("n7", time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))),
		cert.Revoked: show(ca.issue("n8", long(1))), cert.None: {InsecureSkipVerify: true}, refusedPlaintext: nil, refusedHandshake: old,
	} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			node := start(t, network, 1, nil, func(c *Config) { c.Identity = home })
			try := stranger(t, network, client)
			for i := range 100 {
				err := try([]upgrade{upgradeRumors, upgradeStreams}[i%2])
				if err == nil {
					t.Fatalf("%s: upgraded", reason)
				}
				if i == 0 {
					t.Logf("%s: %v", reason, err)
				}
				time.Sleep(time.Second / 5)
			}
			time.Sleep(time.Minute)
			if len(node.Peers()) > 0 {
				t.Errorf("%s: peers %v", reason, node.Peers())
			}
			if refused := node.Refused(); refused[reason] != 100 || len(refused) != 1 {
				t.Errorf("refused %v, want 100 for %s", refused, reason)
			}
			if got := strings.Count(node.log(), "level=WARN"); got != 1 {
				t.Errorf("%s: said %d times in a minute, want once:\n%s", reason, got, node.log())
			}
		})
	}
}

// Nodes with certificates and without tell each other apart in one sentence each.
func TestPlaintextAndTLSDoNotMix(t *testing.T) {
	home := newAuthority(t).identity("n1")
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		start(t, network, 1, nil, func(c *Config) { c.Identity = home })
		plain := start(t, network, 2, seed, nil)
		secure := start(t, network, 3, []string{"127.0.0.2:7946"}, func(c *Config) { c.Name, c.Identity = "n1", home })
		time.Sleep(time.Minute)
		for n, want := range map[*testNode]string{
			plain:  "n1 speaks TLS here; give --peer-cert, --peer-key and --peer-ca to all nodes or to none",
			secure: "it speaks no TLS here",
		} {
			if log := n.log(); !strings.Contains(log, want) || len(n.Peers()) > 0 {
				t.Errorf("%q is not said:\n%s", want, log)
			}
		}
	})
}

// A node is who its certificate says: it opens under no other name, no stream and no
// forward of another's is taken from it, and none meant for another is sent to it.
func TestNamesAreThoseOfCertificates(t *testing.T) {
	ca := newAuthority(t)
	identities := map[string]*cert.Identity{"n1": ca.identity("n1"), "n2": ca.identity("n2"), "n3": ca.identity("n3")}
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		listener, _ := network.Listen("127.0.0.7:7946")
		if _, err := Open(Config{Name: "n7", Listener: listener, Dial: network.Dial, Identity: identities["n1"]}); err == nil {
			t.Error("a node opened under another name than its certificate's")
		}
		nodes := startAll(t, network, 3, func(c *Config) {
			c.Identity = identities[c.Name]
			c.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		})
		p := dialler(t, network, "n1")
		p.cert = identities["n3"]
		if _, _, _, err := p.upgrade(t.Context(), nodes[1].Addr(), upgradeRumors, "n2", nil); err == nil || !strings.Contains(err.Error(), "refused with 403: it calls itself n1, and its certificate is for n3") {
			t.Errorf("n3 came in as n1: %v", err)
		}
		if _, _, _, err := p.upgrade(t.Context(), nodes[0].Addr(), upgradeStreams, "n2", nil); err == nil || !strings.Contains(err.Error(), "its certificate is that of \"n1\", not of n2") {
			t.Errorf("n1 was taken for n2: %v", err)
		}
		if got, err := nodes[0].get("n2", "n3"); !strings.Contains(got, "it forwards for n3, and its certificate is for another") {
			t.Errorf("n2 took a forward of n1 as one of n3: %q, %v", got, err)
		}
		if got, err := nodes[0].get("n2", "n1"); got != "" || err != nil {
			t.Errorf("n2 refused a forward: %q, %v", got, err)
		}
		req, _ := http.NewRequest(http.MethodGet, "/", nil)
		if _, err := nodes[0].port.forward("n2", nodes[2].Addr(), req); err == nil || !strings.Contains(err.Error(), "is that of \"n3\", not of n2") {
			t.Errorf("a forward for n2 went to n3: %v", err)
		}
		if got := nodes[1].Refused()[cert.Misfit]; got != 2 {
			t.Errorf("n2 counted %d wrong names", got)
		}
	})
}

// A certificate that is renewed, by a new authority too, and one that is revoked,
// count without a restart: within moments the revoked is cut off and stays so.
func TestCertificatesRotate(t *testing.T) {
	ca, next := newAuthority(t), newAuthority(t)
	list := filepath.Join(t.TempDir(), "revoked")
	if err := os.WriteFile(list, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	files := map[string]cert.Files{}
	for _, name := range []string{"n1", "n2", "n3"} {
		f := ca.issue(name, long(1))
		f.CA, f.Revoked = ca.file(name+"-ca.pem", "CERTIFICATE", ca.cert.Raw), list
		files[name] = f
	}
	copyTo := func(to string, from ...string) {
		var all []byte
		for _, name := range from {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		if err := os.WriteFile(to, all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	renewed := map[string]cert.Files{"n1": next.issue("n1", long(1)), "n2": next.issue("n2", long(1)), "n3": next.issue("n3", long(1))}
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := startAll(t, network, 3, func(c *Config) { c.Identity = ca.open(files[c.Name]) })
		for _, f := range files {
			copyTo(f.CA, ca.ca, next.ca)
		}
		time.Sleep(2 * rereadEvery)
		for name, f := range files {
			copyTo(f.Cert, renewed[name].Cert)
			time.Sleep(2 * rereadEvery) // a mismatch of the two for a while
			copyTo(f.Key, renewed[name].Key)
			time.Sleep(2 * rereadEvery)
		}
		for _, n := range nodes {
			if slices.Contains(n.saw(), "lost") || !connected(nodes) || strings.Count(n.log(), "level=WARN") != 1 {
				t.Errorf("%s saw %v:\n%s", n.name, n.saw(), n.log())
			}
		}
		for _, f := range files { // whoever still shows an old one is no peer
			copyTo(f.CA, next.ca)
		}
		time.Sleep(2 * rereadEvery)
		eventually(t, time.Minute, "all show the new ones", func() bool { return connected(nodes) })
		if err := os.WriteFile(list, []byte("name n3\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rereadEvery + time.Second)
		if nodes[0].linked("n3") || nodes[1].linked("n3") {
			t.Error("a revoked peer has a stream")
		}
		eventually(t, time.Minute, "n3 is dead for the others", func() bool {
			return nodes[0].peer("n3").State == StateDead && nodes[1].peer("n3").State == StateDead
		})
		time.Sleep(10 * time.Minute)
		if nodes[0].peer("n3").State != StateDead || !nodes[0].linked("n2") || nodes[0].Refused()[cert.Revoked] == 0 {
			t.Errorf("n1 sees %+v and refused %v", nodes[0].Peers(), nodes[0].Refused())
		}
		if got := strings.Count(nodes[0].log(), "level=WARN"); got > 20 {
			t.Errorf("warned %d times in ten minutes", got)
		}
	})
}

// A certificate that ends while its node runs is warned of before, not at each look, and
// parts it from the others at its end; a renewed one brings it back.
func TestCertificateEnds(t *testing.T) {
	ca := newAuthority(t)
	files := map[string]cert.Files{"n1": ca.issue("n1", long(1)), "n2": ca.issue("n2", time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC))}
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 2, func(c *Config) { c.Identity = ca.open(files[c.Name]) })
		time.Sleep(9 * time.Minute)
		if got := strings.Count(nodes[1].log(), "certificate ends soon"); got != 1 || !connected(nodes) {
			t.Errorf("warned %d times in nine minutes", got)
		}
		time.Sleep(time.Minute + rereadEvery)
		if nodes[0].linked("n2") || nodes[0].Refused()[cert.Expired] == 0 {
			t.Errorf("n1 still has a stream with it, and refused %v", nodes[0].Refused())
		}
		renewed := ca.issue("n2", long(1)) // over the old
		if renewed != files["n2"] {
			t.Fatal("not in the same place")
		}
		eventually(t, time.Minute, "they are connected", func() bool { return connected(nodes) })
	})
}

// What a stranger costs who shows a certificate of another authority: both ends of the
// handshake, of which the server's is about half.
func BenchmarkStranger(b *testing.B) {
	home, foreign := newAuthority(b), newAuthority(b)
	p := newPort(&port{name: "n1", cert: home.identity("n1"), log: slog.New(slog.DiscardHandler), wg: new(sync.WaitGroup), ctx: b.Context()})
	client := foreign.identity("n2").Client("")
	client.VerifyConnection = nil
	for b.Loop() {
		near, far := net.Pipe()
		go func() {
			c := tls.Client(near, client)
			_ = c.Handshake()
			_, _ = c.Read(make([]byte, 1))
			near.Close()
		}()
		c := p.admit(far, true)
		if _, err := p.shake(c); err == nil {
			b.Fatal("let in")
		}
		c.Close()
		clear(p.strangers)
	}
}
