package mesh

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// An upgrade is an endpoint of the peer port that turns an HTTP/1.1 connection
// into a stream of bytes (RFC 9110, section 7.8):
//
//	GET /hearsay/v1/rumors HTTP/1.1
//	Host: 10.0.0.2:7946
//	Connection: Upgrade
//	Upgrade: hearsay-rumor/2, hearsay-rumor/1
//	Hearsay-From: n1
//	Hearsay-To: n2              (who should be at that address)
//	Hearsay-Addr: 10.0.0.1:7946 (where the dialler itself is dialled)
//
// is answered 101 with the same Connection, an Upgrade and a Hearsay-From of the
// answerer, or with another status and one sentence. The dialler speaks only
// after the 101.
//
// The number in a token is a version of the protocol. The dialler offers every one
// that it speaks, the latest first, and the answer takes the latest that both do: a
// cluster is upgraded node by node, one version at a time.
type upgrade struct {
	path, protocol string
	least, most    int // versions that this node speaks
}

var (
	upgradeRumors  = upgrade{"/hearsay/v1/rumors", "hearsay-rumor", 1, 2}
	upgradePulls   = upgrade{"/hearsay/v1/pulls", "hearsay-pull", 1, 1}
	upgradeStreams = upgrade{"/hearsay/v1/streams", "hearsay-stream", 1, 1}
)

// relaySpoken is the first version of the protocol of rumors in which they are relayed.
const relaySpoken = 2

const (
	headerFrom = "Hearsay-From"
	headerTo   = "Hearsay-To"
	headerAddr = "Hearsay-Addr"

	// Both ends of a rumor stream say these; who does not is taken at its word.
	headerNames = "Hearsay-Names" // Naming.String
	headerHeard = "Hearsay-Heard" // the latest life of the other end that was heard
)

func (u upgrade) token(version int) string { return fmt.Sprintf("%s/%d", u.protocol, version) }

// offer is what this node speaks, as a list for the header Upgrade.
func (u upgrade) offer() string {
	var tokens []string
	for v := u.most; v >= u.least; v-- {
		tokens = append(tokens, u.token(v))
	}
	return strings.Join(tokens, ", ")
}

// choose returns the latest version of an offer that this node speaks too, or 0.
func (u upgrade) choose(offer string) (version int) {
	for token := range strings.SplitSeq(offer, ",") {
		number, ok := strings.CutPrefix(strings.TrimSpace(token), u.protocol+"/")
		v, err := strconv.Atoi(number)
		if ok && err == nil && v >= u.least && v <= u.most {
			version = max(version, v)
		}
	}
	return version
}

// Naming is how a node makes names of prefixes. Where it differs between two nodes
// they would never find a prefix at each other, so they speak no rumors and nothing
// is routed between them.
type Naming struct {
	Scheme     string // what is hashed, and how the model enters it; no space in it
	BlockBytes int
	Key        string // a fingerprint of the cluster's key; empty: none
}

// noKey stands for no cluster key on the wire.
const noKey = "-"

// String is the naming as it is said: three words. The zero Naming is silence.
func (n Naming) String() string {
	if n == (Naming{}) {
		return ""
	}
	key := n.Key
	if key == "" {
		key = noKey
	}
	return fmt.Sprintf("%s %d %s", n.Scheme, n.BlockBytes, key)
}

// differ says in one sentence how the node called name, which says theirs, makes
// other names than the one called own. It is empty where they agree, or one is silent.
func (n Naming) differ(own, name, theirs string) string {
	ours := n.String()
	us, them := strings.Fields(ours), strings.Fields(theirs)
	if ours == "" || len(them) == 0 || ours == theirs {
		return ""
	}
	if len(them) < len(us) {
		them = append(them, "?", "?")
	}
	switch {
	case us[0] != them[0]:
		return fmt.Sprintf("%s names prefixes by %s, %s by %s: nothing is routed between them; run one version on all nodes", own, us[0], name, them[0])
	case us[1] != them[1]:
		return fmt.Sprintf("%s names blocks of %s bytes, %s of %s: nothing is routed between them; run one version on all nodes", own, us[1], name, them[1])
	case us[2] == noKey:
		return fmt.Sprintf("%s has no cluster key and %s has one: nothing is routed between them; give all nodes the same --cluster-key", own, name)
	case them[2] == noKey:
		return fmt.Sprintf("%s has a cluster key and %s has none: nothing is routed between them; give all nodes the same --cluster-key", own, name)
	case us[2] != them[2]:
		return fmt.Sprintf("%s and %s have different cluster keys: nothing is routed between them; give all nodes the same --cluster-key", own, name)
	default:
		return "" // what a later version adds is its own to judge
	}
}

// greeting is what this node says of itself to the peer called name.
func (m *Mesh) greeting(name string) http.Header {
	m.mu.Lock()
	defer m.mu.Unlock()
	say := http.Header{}
	if names := m.cfg.Naming.String(); names != "" {
		say.Set(headerNames, names)
	}
	if p := m.peers[name]; p != nil && p.life > 0 {
		say.Set(headerHeard, strconv.FormatUint(p.life, 10))
	}
	return say
}

// remember takes in which life of this node the other end of a stream has heard.
func (m *Mesh) remember(said http.Header) {
	if life, err := strconv.ParseUint(said.Get(headerHeard), 10, 64); err == nil && life > 0 {
		m.cfg.OnRemembered(life)
	}
}

// trouble keeps why there is no stream with the peer called name; it ends when the
// next rumor of it is heard.
func (m *Mesh) trouble(name, sentence string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[name]; p != nil {
		p.Trouble = sentence
	}
}

// heard keeps the life of a rumor that was taken in.
func (m *Mesh) heard(p *peer, life uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.heardAt, p.Trouble, p.lost = time.Now(), "", false
	if p.here() {
		p.life = max(p.life, life)
	}
	if p.State == StateSuspect && !p.spareAt.IsZero() {
		p.State = StateAlive // it needs no stream
	}
}
