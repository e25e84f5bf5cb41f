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

	"github.com/hearsay-project/hearsay/dialect"
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

// refuse answers with an error of this node's own, in OpenAI's shape.
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
	if q.endpoint.Dialect == dialect.Messages {
		writeJSON(w, r.status, anthropicError{"error", errorOf(r.status, r.code, r.message)})
	} else {
		writeError(w, r.status, r.code, r.message)
	}
	return res
}

// An apiError is OpenAI's. Anthropic's, which says besides that it is one, has the
// same type and message in the same place.
type (
	apiError struct {
		Error errorBody `json:"error"`
	}
	anthropicError struct {
		Type  string    `json:"type"`
		Error errorBody `json:"error"`
	}
	errorBody struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
)

func errorOf(status int, code, message string) errorBody {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status >= 500:
		kind = "server_error"
	}
	return errorBody{Message: message, Type: kind, Code: code}
}

// writeError writes an error in the shape of the OpenAI API.
func writeError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, apiError{errorOf(status, code, message)})
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
