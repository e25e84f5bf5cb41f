package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/hearsay-project/hearsay/node"
)

// Why this node itself refuses a request.
var (
	errHeld     = errors.New("requests that wait hold all the memory they may")
	errClosed   = errors.New("the node has shut down")
	errNobody   = errors.New("no node that serves the model can be asked now")
	errNotFound = errors.New("there is nothing here")
	errMethod   = errors.New("this page is read with GET")
	errPanic    = errors.New("this node failed at the request")

	errUnauthorized = errors.New("the API key is missing or unknown; send it as Authorization: Bearer KEY")
)

// An unreadableError is a body that is refused rather than passed on unread.
type unreadableError struct{ error }

// The codes of errors that tell a peer something too, in refusedHeader: that no
// engine has seen the request.
const (
	codeBounced     = "bounced"
	codeFull        = "queue_full"
	codeHeld        = "memory_full"
	codeClosed      = "shutting_down"
	codeNoModel     = "model_not_found"
	codeTooLarge    = "request_too_large"
	codeStuck       = "engine_stuck"
	codeUnavailable = "engine_unavailable"
)

// refusal is an error of this node's own: what a client is told.
type refusal struct {
	status  int
	code    string
	message string
	retry   bool // it may pass
	unseen  bool // no engine has seen the request
}

// explain finds the words for err.
func (d *Daemon) explain(err error, q *request) refusal {
	var tooLarge *http.MaxBytesError
	var noModel *noModelError
	var unreadable *unreadableError
	var failed *failure
	switch {
	case errors.Is(err, errNotFound):
		return refusal{404, "not_found", "there is nothing at this path; an engine's API is under /v1/", false, false}
	case errors.Is(err, errUnauthorized):
		return refusal{401, "invalid_api_key", errUnauthorized.Error(), false, true}
	case errors.Is(err, errMethod):
		return refusal{405, "method_not_allowed", errMethod.Error(), false, false}
	case errors.As(err, &noModel):
		return refusal{404, codeNoModel, noModel.Error(), false, true}
	case errors.As(err, &tooLarge):
		return refusal{413, codeTooLarge, fmt.Sprintf("the request's body is larger than %d bytes", tooLarge.Limit), false, true}
	case errors.As(err, &unreadable):
		return refusal{400, "unreadable_body", "the request's body cannot be served: " + unreadable.Error(), false, false}
	case errors.Is(err, os.ErrDeadlineExceeded) && !q.wasRead:
		return refusal{408, "request_timeout", fmt.Sprintf("the request's body did not arrive within %v", bodyTimeout), false, true}
	case errors.Is(err, errFull):
		return refusal{429, codeFull, "this node's queue is full and no peer took the request; try again later", true, true}
	case errors.Is(err, errBounced):
		return refusal{429, codeBounced, errBounced.Error(), false, true}
	case errors.Is(err, errHeld):
		return refusal{429, codeHeld, errHeld.Error() + " at this node; try again later", true, true}
	case errors.Is(err, errClosed):
		return refusal{503, codeClosed, errClosed.Error(), true, true}
	case errors.Is(err, errNobody):
		return refusal{503, codeUnavailable, errNobody.Error() + "; try again later", true, true}
	case errors.Is(err, errStuck):
		return refusal{503, codeStuck, errStuck.Error() + "; try again later", true, true}
	case errors.Is(err, errPanic):
		return refusal{500, "internal_error", errPanic.Error() + "; its log says where", false, false}
	case errors.Is(err, errTimeout):
		return refusal{504, "timeout", fmt.Sprintf("no answer began within %v", d.cfg.FirstByteTimeout), false, false}
	case !q.wasRead:
		return refusal{400, "unreadable_body", err.Error(), false, false}
	}
	unseen := errors.As(err, &failed) && !failed.ran && q.replays == 0
	return refusal{502, codeUnavailable, err.Error(), unseen, unseen}
}

// refuse answers with an error of this node's own, in the shape of the API that was
// asked.
func (d *Daemon) refuse(w http.ResponseWriter, q *request, err error) result {
	r := d.explain(err, q)
	res := result{outcome: outcomeRefused, status: r.status, decision: node.Decision{Node: d.cfg.Node.Name, Self: true, Reason: r.code}}
	if errors.Is(err, io.ErrUnexpectedEOF) && !q.wasRead {
		res.outcome = outcomeCancelled // the client left in mid-body
	}
	if q.answered {
		return res
	}
	q.answered = true
	if r.status == http.StatusBadGateway {
		d.log.Error("request failed", "request_id", q.http.Header.Get(requestIDHeader), "err", err)
	}
	switch {
	case r.retry:
		w.Header().Set("Retry-After", "1")
	case r.status == http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case r.status == http.StatusMethodNotAllowed:
		w.Header().Set("Allow", "GET, HEAD")
	}
	if r.unseen && q.hop != "" {
		w.Header().Set(refusedHeader, r.code)
	}
	d.describe(w.Header(), q, res.decision)
	writeJSON(w, r.status, r.shaped(q))
	return res
}

// shaped is r as the clients of the API that q is for expect an error: Anthropic's,
// Ollama's, and OpenAI's for all others, since SGLang's and llama.cpp's have a message
// in the same place. Ollama's has no room for the code, which reasonHeader tells too.
func (r refusal) shaped(q *request) any {
	path := q.http.URL.Path
	switch {
	case isAnthropic(q.http):
		return anthropicError{"error", anthropicBody{r.message, r.anthropicType(), r.code}, q.http.Header.Get(requestIDHeader)}
	case strings.HasPrefix(path, ollamaPaths):
		return ollamaError{r.message}
	}
	return openAIError{openAIBody{Message: r.message, Type: r.openAIType(), Code: r.code}}
}

type (
	openAIError struct {
		Error openAIBody `json:"error"`
	}
	openAIBody struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	anthropicError struct {
		Type      string        `json:"type"`
		Error     anthropicBody `json:"error"`
		RequestID string        `json:"request_id"`
	}
	anthropicBody struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    string `json:"code"` // not Anthropic's own
	}
	ollamaError struct {
		Error string `json:"error"`
	}
)

func (r refusal) openAIType() string {
	switch {
	case r.status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case r.status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// anthropicType is from Anthropic's API reference, section "Errors", by status; what
// passes of itself at 503 is what that calls overloaded, at 529.
func (r refusal) anthropicType() string {
	switch r.status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if r.status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// writeJSON answers with v, as it is to be read by people too.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}
