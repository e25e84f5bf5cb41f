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
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// authority is a CA that signs certificates into files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	ca   string // its own file
}

func newAuthority(t *testing.T) *authority {
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
func (a *authority) issue(name string, until time.Time, usage ...x509.ExtKeyUsage) (cert, key string) {
	a.t.Helper()
	owner := &authority{}
	der := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: long(-1), NotAfter: until, ExtKeyUsage: usage,
	}, owner)
	secret, err := x509.MarshalECPrivateKey(owner.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.file(name+".pem", "CERTIFICATE", der), a.file(name+".key", "EC PRIVATE KEY", secret)
}

func (a *authority) config(name string, usage ...x509.ExtKeyUsage) *tls.Config {
	a.t.Helper()
	cert, key := a.issue(name, long(1), usage...)
	c, err := LoadTLS(cert, key, a.ca)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// Nodes whose certificates one CA signed are peers, whatever the certificates call
// themselves and whichever usage they name; forwards go over HTTP/2 as without TLS.
func TestMutualTLS(t *testing.T) {
	ca := newAuthority(t)
	configs := map[string]*tls.Config{
		"n1": ca.config("one", x509.ExtKeyUsageServerAuth),
		"n2": ca.config("two", x509.ExtKeyUsageClientAuth),
		"n3": ca.config("three"),
	}
	synctest.Test(t, func(t *testing.T) {
		nodes := startAll(t, memnet.New(), 3, func(c *Config) {
			c.TLS, c.LinkDelay = configs[c.Name], 50*time.Millisecond
			c.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
		})
		nodes[2].say(1)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if got := nodes[0].versions("n3"); len(got) != 1 {
			t.Errorf("n1 heard %v", got)
		}
		for _, to := range []string{"n2", "n3"} {
			req, _ := http.NewRequest(http.MethodGet, "/", nil)
			resp, err := nodes[0].RoundTrip(to, req)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(got) != "HTTP/2.0" {
				t.Errorf("forwarded by %s", got)
			}
		}
		if err := nodes[1].Leave(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// A foreign certificate, none at all, an expired one and plain text are refused,
// at any rate of trying, and of the refusals one a minute is logged.
func TestStrangersAreRefused(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	home, stranger := ca.config("home"), foreign.config("stranger")
	trusting := stranger.Clone() // believes in anyone
	trusting.VerifyConnection = nil
	nobody := trusting.Clone()
	nobody.Certificates = nil
	for name, client := range map[string]*tls.Config{"foreign": trusting, "unknowing": stranger, "none": nobody, "plain": nil} {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New()
			node := start(t, network, 1, nil, func(c *Config) { c.TLS = home })
			intruder := start(t, network, 2, seed, func(c *Config) { c.TLS = client })
			for _, u := range []upgrade{upgradeRumors, upgradeStreams} {
				conn, err := intruder.port.upgrade(t.Context(), seed[0], u, "")
				if err == nil {
					t.Errorf("%s: upgraded to %s", name, u.token)
					conn.Close()
				}
			}
			for range 100 {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, packetsPath, strings.NewReader("packet"))
				if _, err := intruder.port.forward(seed[0], req); err == nil {
					t.Errorf("%s: a packet was taken", name)
				}
			}
			time.Sleep(time.Minute)
			if len(node.Peers()) > 0 || len(intruder.Peers()) > 0 {
				t.Errorf("%s: peers %v, %v", name, node.Peers(), intruder.Peers())
			}
			if got := strings.Count(node.log(), `level=WARN msg="http: TLS handshake error`); got < 1 || got > 2 {
				t.Errorf("%s: said %d times in a minute, want once a minute", name, got)
			}
		})
	}
}

// Each mistake with the files is one sentence that names the flag.
func TestLoadTLSSaysWhichFlag(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	cert, key := ca.issue("n1", long(1))
	otherCert, otherKey := foreign.issue("n2", long(1))
	oldCert, oldKey := ca.issue("n3", time.Now().Add(-time.Hour))
	for _, c := range []struct{ cert, key, ca, want string }{
		{"", key, ca.ca, "--peer-cert is missing"},
		{cert, key, "", "--peer-ca is missing"},
		{cert + "x", key, ca.ca, "do not go together: open " + cert + "x"},
		{cert, key + "x", ca.ca, "do not go together: open " + key + "x"},
		{cert, key, ca.ca + "x", "--peer-ca: open "},
		{cert, otherKey, ca.ca, "do not go together"},
		{cert, key, key, "holds no PEM certificate"},
		{otherCert, otherKey, ca.ca, "peers would refuse it: x509: certificate signed by unknown authority"},
		{oldCert, oldKey, ca.ca, "has expired"},
	} {
		if _, err := LoadTLS(c.cert, c.key, c.ca); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
