package daemon

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"

	"github.com/hearsay-project/hearsay/node"
)

// refuse answers with an error of this node's own, in OpenAI's shape.
func (d *Daemon) refuse(w http.ResponseWriter, q *request, decision node.Decision, err error) {
	status, kind := http.StatusBadGateway, "engine_unavailable"
	message := err.Error()
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		status, kind = http.StatusRequestEntityTooLarge, "request_too_large"
		message = "the request's body is larger than " + strconv.FormatInt(tooLarge.Limit, 10) + " bytes"
	case errors.Is(err, os.ErrDeadlineExceeded):
		status, kind = http.StatusRequestTimeout, "request_timeout"
		message = "the request's body did not arrive in time"
	case errors.Is(err, errFull):
		status, kind = http.StatusTooManyRequests, "queue_full"
		message = "every queue that could take this request is full; try again later"
		w.Header().Set("Retry-After", "1")
	case q.body == nil:
		status, kind = http.StatusBadRequest, "unreadable_body"
	}
	if status >= 500 {
		d.log.Error("request failed", "path", q.http.URL.Path, "err", err)
	}
	d.describe(w.Header(), q, node.Decision{Node: d.cfg.Node.Name, Self: true, Reason: kind})
	writeError(w, status, kind, message)
	d.finished(q, decision, result{outcome: outcomeRefused, status: status})
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
