package cert

import (
	"crypto/x509"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// revocations are certificates that count no more, by serial or by name.
type revocations struct{ serials, names map[string]bool }

// readRevocations reads a list with a line for each certificate, or for all of a
// node's: "serial 5f0c", in hexadecimal, or "name n3". Empty lines, and those that
// begin with #, do not count.
func readRevocations(text []byte) (revocations, error) {
	r := revocations{map[string]bool{}, map[string]bool{}}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) == 2 && words[0] == "name" {
			r.names[words[1]] = true
			continue
		}
		serial, ok := new(big.Int), false
		if len(words) == 2 && words[0] == "serial" {
			_, ok = serial.SetString(strings.ReplaceAll(words[1], ":", ""), 16)
		}
		if !ok {
			return r, fmt.Errorf("line %d is neither `name NAME` nor `serial HEX`", n)
		}
		r.serials[serial.Text(16)] = true
	}
	return r, nil
}

// hold says whether a certificate of chain is revoked: the peer's own by either
// mark, one between it and the authority by its serial.
func (r revocations) hold(chain []*x509.Certificate) bool {
	return slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return r.serials[Serial(c)] }) ||
		slices.ContainsFunc(Names(chain[0]), func(name string) bool { return r.names[name] })
}
