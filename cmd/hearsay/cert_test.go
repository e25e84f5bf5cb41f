package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// One command makes an authority, one each a node's certificate; mistakes are a
// sentence and exit 2, and write over nothing.
func TestCert(t *testing.T) {
	ca := newAuthority(t)
	out := t.TempDir()
	said := ca.make(t, "node", "gpu5", "--out", out)
	for _, want := range []string{filepath.Join(out, "gpu5.pem"), "serial ", "--peer-ca " + filepath.Join(ca.dir, "ca.pem")} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said:\n%s", want, said)
		}
	}
	if info, err := os.Stat(filepath.Join(ca.dir, "ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the authority's key: %v, %v", info.Mode(), err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"cert"}, "say which: `hearsay cert ca`"},
		{[]string{"cert", "ca", "--dir", ca.dir}, "is not written over"},
		{[]string{"cert", "ca", "--dir", filepath.Join(ca.dir, "nowhere")}, "no such file"},
		{[]string{"cert", "ca", "--days", "0"}, "--days must be 1 to"},
		{[]string{"cert", "node", "--dir", ca.dir}, "accepts 1 arg(s)"},
		{[]string{"cert", "node", "two words", "--dir", ca.dir}, `"two words" is no name for a node`},
		{[]string{"cert", "node", "../n1", "--dir", ca.dir}, "is no name for a node"},
		{[]string{"cert", "node", "gpu5", "--dir", ca.dir, "--out", out}, "is not written over"},
		{[]string{"cert", "node", "gpu6", "--dir", out}, "`hearsay cert ca` makes an authority"},
		{[]string{"cert", "node", "gpu6", "--dir", ca.dir, "--days", "4000"}, "make it shorter with --days"},
		{[]string{"serve", "--name", "gpu7", "--peer-cert", filepath.Join(out, "gpu5.pem"), "--peer-key", filepath.Join(out, "gpu5.key"), "--peer-ca", filepath.Join(ca.dir, "ca.pem")}, "is for gpu5, and this node is called gpu7"},
		{[]string{"serve", "--insecure-peers", "--peer-cert", filepath.Join(out, "gpu5.pem")}, "--insecure-peers must be false where --peer-cert"},
		{[]string{"serve", "--peer-revoked", filepath.Join(out, "list")}, "--peer-cert is missing"},
	} {
		text, err := program(t, c.args...).CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 2 || !strings.Contains(string(text), c.want) {
			t.Errorf("%v: %v, want exit 2 and %q\n%s", c.args, err, c.want, text)
		}
	}
}
