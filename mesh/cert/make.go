package cert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

const (
	authorityCert = "ca.pem"
	authorityKey  = "ca.key"

	// skew is how far a peer's clock may be behind that of the maker.
	skew = time.Hour
)

// MakeAuthority makes the authority of a cluster in the folder dir: ca.pem, which all
// nodes get, and ca.key, which signs their certificates and which none needs. Nothing
// that is there is written over.
func MakeAuthority(dir string, valid time.Duration) error {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "hearsay peers"},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return write(c, valid, nil, nil, filepath.Join(dir, authorityCert), filepath.Join(dir, authorityKey))
}

// MakeNode has the authority in dir sign a certificate for the node called name,
// writes it to out as NAME.pem, its key as NAME.key, and returns its serial. Nothing
// that is there is written over.
func MakeNode(dir, out, name string, valid time.Duration) (serial string, err error) {
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, authorityCert), filepath.Join(dir, authorityKey))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w; `hearsay cert ca` makes an authority", err)
	}
	if err != nil {
		return "", fmt.Errorf("authority in %s: %w", dir, err)
	}
	if left := time.Until(ca.Leaf.NotAfter); left < valid {
		return "", fmt.Errorf("the authority in %s ends on %s, before the certificate would; make it shorter with --days, or a new authority", dir, ca.Leaf.NotAfter.Format(time.DateOnly))
	}
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	err = write(c, valid, ca.Leaf, ca.PrivateKey, filepath.Join(out, name+".pem"), filepath.Join(out, name+".key"))
	if err != nil {
		return "", err
	}
	return Serial(c), nil
}

// write makes a key on P-256, which every TLS library knows, and the certificate c
// for it, signed by an authority or by itself.
func write(c *x509.Certificate, valid time.Duration, ca *x509.Certificate, signer crypto.PrivateKey, certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if ca == nil {
		ca, signer = c, key
	}
	number := make([]byte, 16)
	if _, err := rand.Read(number); err != nil {
		return err
	}
	number[0] = number[0]&0x7f | 0x40 // positive, and never shorter
	c.SerialNumber = new(big.Int).SetBytes(number)
	c.NotBefore = time.Now().Add(-skew)
	c.NotAfter = time.Now().Add(valid)
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, signer)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := create(keyFile, 0o600, "PRIVATE KEY", secret); err != nil {
		return err
	}
	if err := create(certFile, 0o644, "CERTIFICATE", der); err != nil {
		os.Remove(keyFile) // so that the same command can be given again
		return err
	}
	return nil
}

// create writes a file that is not there yet.
func create(name string, mode os.FileMode, kind string, der []byte) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already, and is not written over; move it away, or write elsewhere", name)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
}
