package daemon

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Headers that hearsay adds. All that begin so are taken out of what a client sends.
const (
	ownHeaders     = "Hearsay-"
	hopHeader      = "Hearsay-Hop"             // on a forwarded request: the node that a client asked
	deadlineHeader = "Hearsay-Deadline"        // on a forwarded request: milliseconds that its client's node still waits
	promiseHeader  = "Hearsay-Promise"         // on a forwarded request: what its client's node expects
	reportHeader   = "Hearsay-Report"          // on an answer to a peer: what that one learns from
	resumedHeader  = "Hearsay-Resumed"         // an answer's trailer: the nodes that gave it again, when it had broken off
	refusedHeader  = "Hearsay-Refused"         // on an answer to a peer: its node did not let the engine see the request, and why
	nodeHeader     = "Hearsay-Node"            // on an answer: the node whose engine gave it
	hopsHeader     = "Hearsay-Hops"            // on an answer: 0 or 1
	reasonHeader   = "Hearsay-Reason"          // on an answer: why that node
	expectedHeader = "Hearsay-Expected-Tokens" // on an answer: cached tokens that the estimate promised

	requestIDHeader   = "X-Request-Id"
	anthropicIDHeader = "Request-Id" // the same, where Anthropic's clients look for it
	traceparentHeader = "Traceparent"
)

// apiHandler is what clients see: the node's own pages, and the paths of an engine.
// It redirects nobody: a redirected POST becomes a GET in many clients.
func (d *Daemon) apiHandler() http.Handler {
	own := map[string]http.Handler{
		"/healthz":           http.HandlerFunc(serveHealthy),
		"/readyz":            http.HandlerFunc(d.serveReady),
		"/hearsay/v1/status": http.HandlerFunc(d.serveStatus),
		"/metrics":           promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{}),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var page http.Handler
		if plainPath(r.URL) {
			page = own[r.URL.Path]
		}
		if page != nil && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			page.ServeHTTP(w, r)
			return
		}
		d.serveClient(w, r, page != nil)
	})
}

// serveClient answers a request of a client; what is for one of the node's own pages
// comes here if its method is wrong.
func (d *Daemon) serveClient(w http.ResponseWriter, r *http.Request, own bool) {
	dropOwn(r.Header)
	identify(r.Header)
	q := newRequest(r, "")
	if own {
		q.wrong = errMethod
	} else if !d.authorized(r.Header) {
		q.wrong = errUnauthorized
	}
	d.serve(w, q)
}

// dropOwn takes out what nodes say to each other: no client may say it, and no
// engine needs to hear it.
func dropOwn(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, ownHeaders) {
			delete(h, name)
		}
	}
}

// serveForwarded answers a request of a peer.
func (d *Daemon) serveForwarded(w http.ResponseWriter, r *http.Request) {
	from := r.Header.Get(hopHeader)
	if from == "" {
		from = "unknown"
	}
	identify(r.Header)
	d.serve(w, newRequest(r, from))
}

// identify sees that a request can be found again in the logs of nodes and engine.
// An id of a client's that is too long, or is more than visible ASCII, is replaced.
// One that belongs to no trace yet begins one, sampled as an engine's own would be
// (W3C Trace Context, section 3.2).
func identify(h http.Header) {
	var id [24]byte
	_, _ = rand.Read(id[:]) // never fails
	said := h.Get(requestIDHeader)
	if !wellFormed(said) {
		said = "req-" + hex.EncodeToString(id[:16])
	}
	h.Set(requestIDHeader, said) // one, of several too
	if h.Get(traceparentHeader) == "" {
		h.Set(traceparentHeader, "00-"+hex.EncodeToString(id[:16])+"-"+hex.EncodeToString(id[16:])+"-01")
	}
}

// requestIDMax is the longest id of a request that a client may give.
const requestIDMax = 128

// wellFormed says whether a client's id can stand in headers and logs as it is: some
// visible characters of ASCII.
func wellFormed(id string) bool {
	return id != "" && len(id) <= requestIDMax && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-`)

// traceID is the trace that a request belongs to, or "".
func traceID(h http.Header) string {
	if m := traceparent.FindStringSubmatch(h.Get(traceparentHeader)); m != nil {
		return m[1]
	}
	return ""
}

const (
	messagesPath = "/v1/messages" // Anthropic's, and what lies below it
	ollamaPaths  = "/api/"

	anthropicVersionHeader = "Anthropic-Version"
)

// isAnthropic says whether a request is of Anthropic's API, of which each bears a
// version: the list of models has the path of OpenAI's.
func isAnthropic(r *http.Request) bool {
	path := r.URL.Path
	return path == messagesPath || strings.HasPrefix(path, messagesPath+"/") || r.Header.Get(anthropicVersionHeader) != ""
}

// keyHeaders are where clients of OpenAI, Anthropic and Azure put their key.
var keyHeaders = []string{"Authorization", "X-Api-Key", "Api-Key"}

// authorized says whether a client may come in. Keys are compared by their hashes,
// so that the time it takes tells nothing of them. A key for this node is taken
// out, since neither peers nor engine need to know it, unless Config.ForwardKeys.
func (d *Daemon) authorized(h http.Header) (ok bool) {
	if len(d.cfg.APIKeys) == 0 {
		return true
	}
	for _, name := range keyHeaders {
		key := h.Get(name)
		if scheme, bearer, found := strings.Cut(key, " "); found && strings.EqualFold(scheme, "Bearer") {
			key = strings.TrimSpace(bearer)
		}
		if _, known := d.apiKeys[sha256.Sum256([]byte(key))]; known {
			ok = true
			if !d.cfg.ForwardKeys {
				delete(h, name)
			}
		}
	}
	return ok
}

// plainPath rewrites the path of u where slashes are doubled or trail: clients make
// such paths of base URLs that end in one. It is false for a path that another reader
// may take for another one: it climbs, or has behind an escape what is more than a
// character.
func plainPath(u *url.URL) bool {
	escaped := u.EscapedPath()
	for strings.Contains(escaped, "//") {
		escaped = strings.ReplaceAll(escaped, "//", "/")
	}
	if escaped != "/" {
		escaped = strings.TrimSuffix(escaped, "/")
	}
	path, err := url.PathUnescape(escaped)
	if err != nil || strings.Contains(path, "//") || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == '\\' }) {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "." || part == ".." {
			return false
		}
	}
	if escaped != u.EscapedPath() {
		u.Path, u.RawPath = path, escaped
	}
	return true
}

func serveHealthy(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }

func (d *Daemon) serveStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, d.Status())
}

// serveReady says whether a load balancer should send clients here: the engine
// serves, and the node is not on its way out.
func (d *Daemon) serveReady(w http.ResponseWriter, _ *http.Request) {
	if why := d.unready(); why != "" {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n"))
}
