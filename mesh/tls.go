package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
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
	chain, err := os.ReadFile(cert)
	if err != nil {
		return nil, fmt.Errorf("--peer-cert: %w", err)
	}
	secret, err := os.ReadFile(key)
	if err != nil {
		return nil, fmt.Errorf("--peer-key: %w", err)
	}
	own, err := tls.X509KeyPair(chain, secret)
	if err != nil {
		return nil, fmt.Errorf("--peer-cert %s and --peer-key %s are no certificate and its key: %w", cert, key, err)
	}
	authority, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("--peer-ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("--peer-ca %s holds no PEM certificate", ca)
	}
	if err := verifyChain(own.Leaf, intermediates(chain), roots); err != nil {
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
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("peer shows no certificate")
			}
			between := x509.NewCertPool()
			for _, c := range state.PeerCertificates[1:] {
				between.AddCert(c)
			}
			return verifyChain(state.PeerCertificates[0], between, roots)
		},
	}, nil
}

func verifyChain(leaf *x509.Certificate, between, roots *x509.CertPool) error {
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return err
}

func intermediates(chain []byte) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(chain)
	return pool
}
