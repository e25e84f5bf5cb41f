package cert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// authority makes one in a folder of its own.
func authority(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := MakeAuthority(dir, 10*year); err != nil {
		t.Fatal(err)
	}
	return dir
}

// issue makes a node's certificate and returns its files.
func issue(t *testing.T, dir, name string) Files {
	t.Helper()
	if _, err := MakeNode(dir, dir, name, year); err != nil {
		t.Fatal(err)
	}
	return Files{Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key"), CA: filepath.Join(dir, "ca.pem")}
}

func open(t *testing.T, f Files, name string) *Identity {
	t.Helper()
	id, err := Open(f, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func leaf(t *testing.T, f Files) []*x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{pair.Leaf}
}

func wantReason(t *testing.T, err error, reason string) {
	t.Helper()
	no, ok := errors.AsType[*Refusal](err)
	if reason == "" && err == nil || ok && no.Reason == reason {
		return
	}
	t.Errorf("got %v, want the reason %q", err, reason)
}

// One authority makes peers of whatever names a node may bear; keys are their owner's
// alone, and nothing is written over.
func TestMadeCertificatesHold(t *testing.T) {
	dir := authority(t)
	n1 := open(t, issue(t, dir, "n1"), "")
	for _, name := range []string{"gpu5-7946", "A_b.C", "10.0.0.1", "-x.", strings.Repeat("n", 128)} {
		f := issue(t, dir, name)
		if got := open(t, f, "").Name(); got != name {
			t.Errorf("the certificate of %s names %s", name, got)
		}
		wantReason(t, n1.Check(leaf(t, f), name), "")
		wantReason(t, n1.Check(leaf(t, f), "n1"), Misfit)
		if info, err := os.Stat(f.Key); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Key, info.Mode(), err)
		}
		if left := time.Until(leaf(t, f)[0].NotAfter); left < year-time.Minute || left > year {
			t.Errorf("it is good for %v", left)
		}
	}
	was, _ := os.ReadFile(filepath.Join(dir, "n1.key"))
	_, again := MakeNode(dir, dir, "n1", year)
	for _, err := range []error{again, MakeAuthority(dir, year)} {
		if err == nil || !strings.Contains(err.Error(), "is there already, and is not written over") {
			t.Errorf("written over: %v", err)
		}
	}
	if is, _ := os.ReadFile(filepath.Join(dir, "n1.key")); string(is) != string(was) {
		t.Error("the key has changed")
	}
}

// What cannot be made is told with the remedy, and leaves no half of it behind.
func TestMakeNodeSaysWhatIsMissing(t *testing.T) {
	if _, err := MakeNode(t.TempDir(), t.TempDir(), "n1", year); err == nil || !strings.Contains(err.Error(), "`hearsay cert ca` makes an authority") {
		t.Error(err)
	}
	dir := authority(t)
	if _, err := MakeNode(dir, dir, "n1", 11*year); err == nil || !strings.Contains(err.Error(), "ends on") {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "n1.pem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeNode(dir, dir, "n1", year); err == nil {
		t.Error("written over")
	}
	if _, err := os.Stat(filepath.Join(dir, "n1.key")); err == nil {
		t.Error("a key without a certificate is left behind")
	}
}

// Strangers are told apart by what is wrong with them.
func TestCheckSaysWhy(t *testing.T) {
	dir, foreign := authority(t), authority(t)
	f := issue(t, dir, "n1")
	f.Revoked = filepath.Join(dir, "revoked")
	n2, n3, n4 := leaf(t, issue(t, dir, "n2")), leaf(t, issue(t, dir, "n3")), leaf(t, issue(t, foreign, "n4"))
	if _, err := MakeNode(dir, dir, "old", -time.Minute); err != nil {
		t.Fatal(err)
	}
	old := leaf(t, Files{Cert: filepath.Join(dir, "old.pem"), Key: filepath.Join(dir, "old.key")})
	list := "# stolen\n\nname n2\nserial " + strings.ToUpper(Serial(n3[0])) + "\n"
	if err := os.WriteFile(f.Revoked, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	n1 := open(t, f, "n1")
	wantReason(t, n1.Check(nil, ""), None)
	wantReason(t, n1.Check(n2, ""), Revoked)
	wantReason(t, n1.Check(n3, "n3"), Revoked)
	wantReason(t, n1.Check(n4, "n4"), Foreign)
	wantReason(t, n1.Check(old, ""), Expired)
	wantReason(t, n1.Check(leaf(t, f), "n1"), "")
	wantReason(t, n1.Check(leaf(t, f), "n5"), Misfit)
}

// A changed file counts once it is whole and good; until then, and after an error,
// what was read before does.
func TestFilesAreReadAgain(t *testing.T) {
	dir, next := authority(t), authority(t)
	f := issue(t, dir, "n1")
	f.Revoked = filepath.Join(dir, "revoked")
	write := func(name string, texts ...string) {
		if err := os.WriteFile(name, []byte(strings.Join(texts, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write(f.Revoked)
	id, n2 := open(t, f, ""), leaf(t, issue(t, dir, "n2"))
	renewed, n3 := issue(t, next, "n1"), leaf(t, issue(t, next, "n3"))
	reread := func(changed bool, want string) {
		t.Helper()
		switch got, err := id.Reread(); {
		case want == "" && (err != nil || got != changed), want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("changed %v, %v, want %v, %q", got, err, changed, want)
		}
	}
	reread(false, "")
	write(f.CA, text(filepath.Join(dir, "ca.pem")), text(renewed.CA))
	reread(true, "")
	wantReason(t, id.Check(n3, "n3"), "")
	write(f.Cert, text(renewed.Cert))
	reread(false, "do not go together")
	write(f.Key, text(renewed.Key))
	reread(true, "")
	if own, _ := id.Server().GetCertificate(nil); Serial(own.Leaf) != Serial(leaf(t, renewed)[0]) {
		t.Error("the old certificate is shown")
	}
	write(f.Revoked, "name")
	reread(false, "line 1 is neither `name NAME` nor `serial HEX`")
	write(f.Revoked, "name n2")
	reread(true, "")
	wantReason(t, id.Check(n2, ""), Revoked)
	if err := os.Remove(f.Revoked); err != nil {
		t.Fatal(err)
	}
	reread(false, "--peer-revoked: open ")
	wantReason(t, id.Check(n2, ""), Revoked)
}

// Each mistake with the files is one sentence that names the flag.
func TestOpenSaysWhichFlag(t *testing.T) {
	dir, foreign := authority(t), authority(t)
	own, other := issue(t, dir, "n1"), issue(t, foreign, "n2")
	list := filepath.Join(dir, "revoked")
	if err := os.WriteFile(list, []byte("name n1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		f          Files
		name, want string
	}{
		{Files{"", own.Key, own.CA, ""}, "", "--peer-cert is missing"},
		{Files{own.Cert, own.Key, "", ""}, "", "--peer-ca is missing"},
		{Files{own.Cert + "x", own.Key, own.CA, ""}, "", "--peer-cert: open " + own.Cert + "x"},
		{Files{own.Cert, own.Key + "x", own.CA, ""}, "", "--peer-key: open "},
		{Files{own.Cert, own.Key, own.CA + "x", ""}, "", "--peer-ca: open "},
		{Files{own.Cert, other.Key, own.CA, ""}, "", "do not go together"},
		{Files{own.Cert, own.Key, own.Key, ""}, "", "holds no PEM certificate"},
		{Files{other.Cert, other.Key, own.CA, ""}, "", "peers would refuse it: x509: certificate signed by unknown authority"},
		{Files{own.Cert, own.Key, own.CA, ""}, "n7", "is for n1, and this node is called n7; make the two agree with --name"},
		{Files{own.CA, filepath.Join(dir, "ca.key"), own.CA, ""}, "n1", "is for hearsay peers"},
		{Files{own.Cert, own.Key, own.CA, list + "x"}, "", "--peer-revoked: open "},
		{Files{own.Cert, own.Key, own.CA, own.CA}, "", "line 1 is neither"},
		{Files{own.Cert, own.Key, own.CA, list}, "", "is revoked by --peer-revoked"},
	} {
		if _, err := Open(c.f, c.name); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// What a node signs is told from what it has not, whatever kind of key it has.
func TestSignaturesAreVerified(t *testing.T) {
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var leaves []*x509.Certificate
	var signatures [][]byte
	for i, key := range []crypto.Signer{edKey, rsaKey, ecKey} {
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), NotAfter: time.Now().Add(day)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		id := &Identity{}
		id.held.Store(&held{own: tls.Certificate{PrivateKey: key}})
		signature, err := id.Sign([]byte("said"))
		if err != nil {
			t.Fatal(err)
		}
		leaves, signatures = append(leaves, leaf), append(signatures, signature)
	}
	for i, leaf := range leaves {
		for j, signature := range signatures {
			if Verify(leaf, []byte("said"), signature) != (i == j) || Verify(leaf, []byte("not said"), signature) {
				t.Errorf("certificate %d and signature %d", i, j)
			}
		}
	}
}
