package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"

	"github.com/hearsay-project/hearsay/node"
)

// refuse answers with an error of this node's own, in OpenAI's shape.
func (d *Daemon) refuse(w http.ResponseWriter, q *request, err error) result {
	res := result{outcome: outcomeRefused, decision: node.Decision{Node: d.cfg.Node.Name, Self: true}}
	code, message := "engine_unavailable", err.Error()
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		res.status, code = http.StatusRequestEntityTooLarge, "request_too_large"
		message = fmt.Sprintf("the request's body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		res.status, code = http.StatusRequestTimeout, "request_timeout"
		message = fmt.Sprintf("the request's body did not arrive within %v", bodyTimeout)
	case errors.Is(err, errFull):
		res.status, code = http.StatusTooManyRequests, "queue_full"
		message = "this node's queue is full and no peer took the request; try again later"
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, errHeld):
		res.status, code = http.StatusTooManyRequests, "memory_full"
		message = errHeld.Error() + " at this node; try again later"
		w.Header().Set("Retry-After", "1")
	case q.body == nil:
		res.status, code = http.StatusBadRequest, "unreadable_body"
	default:
		res.status = http.StatusBadGateway
		d.log.Error("request failed", "path", q.http.URL.Path, "err", err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) && q.body == nil {
		res.outcome = outcomeCancelled // the client left in mid-body
	}
	res.decision.Reason = code
	d.describe(w.Header(), q, res.decision)
	writeError(w, res.status, code, message)
	return res
}

// writeError writes an error in the shape of the OpenAI API.
func writeError(w http.ResponseWriter, status int, code, message string) {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status >= 500:
		kind = "server_error"
	}
	body, _ := json.Marshal(map[string]any{"error": map[string]any{
		"message": message, "type": kind, "param": nil, "code": code,
	}})
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
