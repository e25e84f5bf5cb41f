package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
)

// LoadTLS reads this node's certificate and key and the cluster's CA, PEM files
// named by --peer-cert, --peer-key and --peer-ca. Whoever shows a certificate
// that the CA signed is a peer, whether it dials or is dialled: the CA is the
// membership list, so it should sign nothing but peers. Host names are not
// compared, for peers find each other by gossip under addresses no certificate
// could foresee, and clientAuth and serverAuth are both accepted, for every node
// is both. TLS 1.3 only. The files are read once; a renewed certificate takes a restart.
func LoadTLS(cert, key, ca string) (*tls.Config, error) {
	for _, f := range []struct{ flag, name string }{{"cert", cert}, {"key", key}, {"ca", ca}} {
		if f.name == "" {
			return nil, fmt.Errorf("--peer-%s is missing: give --peer-cert, --peer-key and --peer-ca together", f.flag)
		}
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("--peer-cert %s and --peer-key %s do not go together: %w", cert, key, err)
	}
	authority, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("--peer-ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("--peer-ca %s holds no PEM certificate", ca)
	}
	chain, err := x509.ParseCertificates(slices.Concat(own.Certificate...))
	if err == nil {
		err = verify(chain, roots)
	}
	if err != nil {
		return nil, fmt.Errorf("--peer-cert %s does not hold against --peer-ca %s, so peers would refuse it: %w", cert, ca, err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{own},
		MinVersion:   tls.VersionTLS13,
		ClientAuth:   tls.RequireAnyClientCert,
		// The standard check would compare host names and demand one key usage
		// per direction. VerifyConnection checks the chain in its place, in both
		// directions and on resumed sessions too.
		InsecureSkipVerify: true,
		VerifyConnection:   func(state tls.ConnectionState) error { return verify(state.PeerCertificates, roots) },
	}, nil
}

// verify checks the first certificate of chain, with the help of the others.
func verify(chain []*x509.Certificate, roots *x509.CertPool) error {
	if len(chain) == 0 {
		return errors.New("peer shows no certificate")
	}
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
