// Package cert makes and reads the certificates by which nodes know each other.
//
// Whoever shows a certificate that the cluster's authority signed is a peer, whether
// it dials or is dialled, and is whom the certificate names: its DNS names and its
// common name are names of nodes. Hosts are not compared, for peers find each other
// by gossip under addresses that no certificate could foresee, and clientAuth and
// serverAuth are both accepted, for every node is both. TLS 1.3 only.
//
// An Identity is read from files and read again when they change, so a renewed
// certificate, a second authority or a revocation takes no restart.
package cert

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Files are PEM files, named by --peer-cert, --peer-key and --peer-ca, and the list
// of --peer-revoked, which may be none.
type Files struct{ Cert, Key, CA, Revoked string }

// Identity is what one node shows its peers and whom it trusts. Its methods may be
// called from anywhere.
type Identity struct {
	files Files
	name  string
	held  atomic.Pointer[held]
}

// held is what the files said when they were last read well.
type held struct {
	own     tls.Certificate
	leaf    *x509.Certificate
	roots   *x509.CertPool
	revoked revocations
	sum     [sha256.Size]byte // of the files
}

// Open reads the identity of the node called name; an empty one stands for the only
// name that the certificate bears. Errors name the flag to be mended.
func Open(f Files, name string) (*Identity, error) {
	for _, file := range []struct{ flag, name string }{{"cert", f.Cert}, {"key", f.Key}, {"ca", f.CA}} {
		if file.name == "" {
			return nil, fmt.Errorf("--peer-%s is missing: give --peer-cert, --peer-key and --peer-ca together", file.flag)
		}
	}
	text, err := f.read()
	if err != nil {
		return nil, err
	}
	h, err := f.parse(text)
	if err != nil {
		return nil, err
	}
	switch names := Names(h.leaf); {
	case len(names) == 0:
		return nil, fmt.Errorf("--peer-cert %s names no node; make one with `hearsay cert node NAME`", f.Cert)
	case name == "" && len(names) > 1:
		return nil, fmt.Errorf("--peer-cert %s is for %s; say with --name which of them this node is", f.Cert, strings.Join(names, ", "))
	case name == "":
		name = names[0]
	}
	if err := f.bears(h, name); err != nil {
		return nil, err
	}
	id := &Identity{files: f, name: name}
	id.held.Store(h)
	return id, nil
}

// Name is the node's.
func (id *Identity) Name() string { return id.name }

// Expires is when the node's own certificate ends.
func (id *Identity) Expires() time.Time { return id.held.Load().leaf.NotAfter }

// Reread looks at the files again and reports whether anything has changed. After an
// error, which may pass where files are replaced one by one, what was read before
// stays in force. It costs a read of each file.
func (id *Identity) Reread() (changed bool, err error) {
	text, err := id.files.read()
	if err != nil {
		return false, err
	}
	if text.sum() == id.held.Load().sum {
		return false, nil
	}
	h, err := id.files.parse(text)
	if err == nil {
		err = id.files.bears(h, id.name)
	}
	if err != nil {
		return false, err
	}
	id.held.Store(h)
	return true, nil
}

// Server is the configuration of the side that is dialled, Client that of the side
// that dials the node called name; empty is any. Each call makes a new one, which is
// its user's to change.
func (id *Identity) Server(protocols ...string) *tls.Config { return id.config("", protocols) }

// Client is described at Server.
func (id *Identity) Client(name string, protocols ...string) *tls.Config {
	return id.config(name, protocols)
}

func (id *Identity) config(name string, protocols []string) *tls.Config {
	own := func() (*tls.Certificate, error) { return &id.held.Load().own, nil }
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protocols,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		SessionTicketsDisabled: true, // each handshake is checked against what is revoked now
		// The standard checks would compare host names and demand one key usage per
		// direction. VerifyConnection runs in their place in both directions, and
		// refuses who shows no certificate too.
		ClientAuth:         tls.RequestClientCert,
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return id.Check(s.PeerCertificates, name) },
	}
}

// The reasons of a Refusal.
const (
	None    = "no_certificate"
	Foreign = "foreign"
	Expired = "expired"
	Revoked = "revoked"
	Misfit  = "wrong_name"
)

// Reasons are all of them.
var Reasons = []string{None, Foreign, Expired, Revoked, Misfit}

// A Refusal is why somebody is no peer.
type Refusal struct {
	Reason string // one of Reasons
	Err    error
}

func (r *Refusal) Error() string { return r.Err.Error() }

func (r *Refusal) Unwrap() error { return r.Err }

// Check returns a *Refusal unless chain, a peer's certificate and what may stand
// between it and the authority, is that of a peer now. Where name is not empty, it
// has to be the peer of that name.
func (id *Identity) Check(chain []*x509.Certificate, name string) error {
	h := id.held.Load()
	if len(chain) == 0 {
		return &Refusal{None, errors.New("it shows no certificate")}
	}
	if err := verify(chain, h.roots); err != nil {
		reason := Foreign
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
			reason = Expired
		}
		return &Refusal{reason, fmt.Errorf("the certificate of %s does not hold: %w", called(chain[0]), err)}
	}
	if h.revoked.hold(chain) {
		return &Refusal{Revoked, fmt.Errorf("the certificate of %s, serial %s, is revoked", called(chain[0]), Serial(chain[0]))}
	}
	if name != "" && !Bears(chain[0], name) {
		return &Refusal{Misfit, fmt.Errorf("its certificate is that of %s, not of %s", called(chain[0]), name)}
	}
	return nil
}

// Sign signs a message with the node's key, for Verify.
func (id *Identity) Sign(message []byte) ([]byte, error) {
	signer, ok := id.held.Load().own.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	switch signer.Public().(type) {
	case ed25519.PublicKey:
		return signer.Sign(rand.Reader, message, crypto.Hash(0))
	case *rsa.PublicKey:
		sum := sha256.Sum256(message)
		return signer.Sign(rand.Reader, sum[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256})
	default:
		sum := sha256.Sum256(message)
		return signer.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
}

// Verify says whether the holder of c has signed message: by ECDSA or RSA-PSS, both
// with SHA-256, or Ed25519, whichever c's key is for. On P-256 it takes some 60
// microseconds. Whether c holds is for Check to say.
func Verify(c *x509.Certificate, message, signature []byte) bool {
	algorithm := x509.ECDSAWithSHA256
	switch c.PublicKeyAlgorithm {
	case x509.Ed25519:
		algorithm = x509.PureEd25519
	case x509.RSA:
		algorithm = x509.SHA256WithRSAPSS
	}
	return c.CheckSignature(algorithm, message, signature) == nil
}

// Names are those of the nodes that the holder of c may be.
func Names(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	if cn := c.Subject.CommonName; cn != "" && !slices.Contains(names, cn) {
		names = append(names, cn)
	}
	return names
}

// Bears says whether name is among the names of c.
func Bears(c *x509.Certificate, name string) bool {
	return name == c.Subject.CommonName || slices.Contains(c.DNSNames, name)
}

// Serial is the certificate's number as a list of revocations has it.
func Serial(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

// called is what a stranger calls itself, bounded for the log.
func called(c *x509.Certificate) string {
	names := strings.Join(Names(c), ", ")
	if names == "" {
		return "nobody"
	}
	if len(names) > 128 {
		names = strings.ToValidUTF8(names[:128], "") + "..."
	}
	return fmt.Sprintf("%q", names)
}

// texts are the contents of the files.
type texts struct{ cert, key, ca, revoked []byte }

func (t texts) sum() [sha256.Size]byte {
	return sha256.Sum256(bytes.Join([][]byte{t.cert, t.key, t.ca, t.revoked}, []byte{0}))
}

func (f Files) read() (t texts, err error) {
	for _, file := range []struct {
		flag, name string
		to         *[]byte
	}{{"cert", f.Cert, &t.cert}, {"key", f.Key, &t.key}, {"ca", f.CA, &t.ca}, {"revoked", f.Revoked, &t.revoked}} {
		if file.name == "" {
			continue
		}
		if *file.to, err = os.ReadFile(file.name); err != nil {
			return t, fmt.Errorf("--peer-%s: %w", file.flag, err)
		}
	}
	return t, nil
}

func (f Files) parse(t texts) (*held, error) {
	h := &held{roots: x509.NewCertPool(), sum: t.sum()}
	var err error
	if h.own, err = tls.X509KeyPair(t.cert, t.key); err != nil {
		return nil, fmt.Errorf("--peer-cert %s and --peer-key %s do not go together: %w", f.Cert, f.Key, err)
	}
	if !h.roots.AppendCertsFromPEM(t.ca) {
		return nil, fmt.Errorf("--peer-ca %s holds no PEM certificate", f.CA)
	}
	chain, err := x509.ParseCertificates(slices.Concat(h.own.Certificate...))
	if err == nil {
		h.leaf, err = chain[0], verify(chain, h.roots)
	}
	if err != nil {
		return nil, fmt.Errorf("--peer-cert %s does not hold against --peer-ca %s, so peers would refuse it: %w", f.Cert, f.CA, err)
	}
	if h.revoked, err = readRevocations(t.revoked); err != nil {
		return nil, fmt.Errorf("--peer-revoked %s: %w", f.Revoked, err)
	}
	if h.revoked.hold(chain) {
		return nil, fmt.Errorf("--peer-cert %s is revoked by --peer-revoked %s; give this node another with `hearsay cert node`", f.Cert, f.Revoked)
	}
	return h, nil
}

func (f Files) bears(h *held, name string) error {
	if Bears(h.leaf, name) {
		return nil
	}
	return fmt.Errorf("--peer-cert %s is for %s, and this node is called %s; make the two agree with --name, or with `hearsay cert node %s`",
		f.Cert, strings.Join(Names(h.leaf), ", "), name, name)
}

// verify checks the first certificate of chain, with the help of the others.
func verify(chain []*x509.Certificate, roots *x509.CertPool) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return err
}
