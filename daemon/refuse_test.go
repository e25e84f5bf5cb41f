package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// Each error of this node's own has the shape of the API that was asked, with a type
// that this API has.
func TestErrorShapes(t *testing.T) {
	d := &Daemon{cfg: Config{FirstByteTimeout: time.Second}}
	for _, test := range []struct {
		err                             error
		status                          int
		code, openAIType, anthropicType string
	}{
		{errNotFound, 404, "not_found", "invalid_request_error", "not_found_error"},
		{errUnauthorized, 401, "invalid_api_key", "invalid_request_error", "authentication_error"},
		{errMethod, 405, "method_not_allowed", "invalid_request_error", "invalid_request_error"},
		{&noModelError{"nope", nil}, 404, codeNoModel, "invalid_request_error", "not_found_error"},
		{&http.MaxBytesError{Limit: 9}, 413, codeTooLarge, "invalid_request_error", "request_too_large"},
		{&unreadableError{errors.New("nested")}, 400, "unreadable_body", "invalid_request_error", "invalid_request_error"},
		{os.ErrDeadlineExceeded, 408, "request_timeout", "invalid_request_error", "timeout_error"},
		{errFull, 429, codeFull, "rate_limit_error", "rate_limit_error"},
		{errBounced, 429, codeBounced, "rate_limit_error", "rate_limit_error"},
		{errHeld, 429, codeHeld, "rate_limit_error", "rate_limit_error"},
		{errClosed, 503, codeClosed, "server_error", "overloaded_error"},
		{errNobody, 503, codeUnavailable, "server_error", "overloaded_error"},
		{errStuck, 503, codeStuck, "server_error", "overloaded_error"},
		{errPanic, 500, "internal_error", "server_error", "api_error"},
		{errTimeout, 504, "timeout", "server_error", "timeout_error"},
		{errors.New("broken off"), 400, "unreadable_body", "invalid_request_error", "invalid_request_error"},
		{&failure{error: errors.New("reset")}, 502, codeUnavailable, "server_error", "api_error"},
	} {
		message, _ := json.Marshal(d.explain(test.err, refused("/", false, test.status)).message)
		openAI := fmt.Sprintf(`{"error":{"message":%s,"type":%q,"param":null,"code":%q}}`, message, test.openAIType, test.code)
		anthropic := fmt.Sprintf(`{"type":"error","error":{"message":%s,"type":%q,"code":%q},"request_id":"here"}`, message, test.anthropicType, test.code)
		ollama := fmt.Sprintf(`{"error":%s}`, message)
		for path, want := range map[string]string{
			"/v1/chat/completions": openAI, "/v1/completions": openAI, "/v1/responses": openAI, "/v1/embeddings": openAI,
			"/v1/models/nope": openAI, "/v1/messagesx": openAI, "/generate": openAI, "/completion": openAI, "/nothing": openAI, "/metrics": openAI,
			"/v1/messages": anthropic, "/v1/messages/count_tokens": anthropic, "/v1/messages/batches": anthropic,
			"/api/chat": ollama, "/api/generate": ollama, "/api/embed": ollama, "/api/pull": ollama,
		} {
			for _, versioned := range []bool{false, true} {
				if versioned {
					want = anthropic
				}
				q := refused(path, versioned, test.status)
				r := d.explain(test.err, q)
				w := httptest.NewRecorder()
				writeJSON(w, r.status, r.shaped(q))
				if w.Code != test.status || strings.TrimSpace(w.Body.String()) != want {
					t.Errorf("%v at %s, Anthropic's %v: %d %s, want %d %s", test.err, path, versioned, w.Code, w.Body, test.status, want)
				}
			}
		}
	}
}

// refused is a request to a path that has been read, unless the error is one of reading.
func refused(path string, versioned bool, status int) *request {
	r := httptest.NewRequest(http.MethodPost, path, nil)
	r.Header.Set(requestIDHeader, "here")
	if versioned {
		r.Header.Set(anthropicVersionHeader, "2023-06-01")
	}
	return &request{http: r, wasRead: status != 400 && status != 408}
}

// An id that is too long, or is more than visible ASCII, does not stand in headers and
// logs; those made here have one width.
func TestRequestIDsAreBounded(t *testing.T) {
	long := strings.Repeat("x", requestIDMax)
	for said, kept := range map[string]bool{"a": true, "req_01~!": true, long: true, "": false, long + "x": false, "two words": false, "a\tb": false, "\xff": false, "é": false} {
		h := http.Header{requestIDHeader: {said, long + long}}
		identify(h)
		got := h[requestIDHeader]
		if len(got) != 1 || (got[0] == said) != kept || !kept && len(got[0]) != len("req-")+32 {
			t.Errorf("%q becomes %q", said, got)
		}
	}
}
