package openai

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// An Error is an answer in the shape of OpenAI's errors.
type Error struct {
	Status  int
	Type    string
	Param   string // the field at fault, "" where none is
	Code    string // "" is null
	Message string

	retryAfter int // seconds, 0 for none
}

func (e *Error) Error() string { return e.Message }

// invalidRequest is the type of every error that is the client's.
const invalidRequest = "invalid_request_error"

// statusClientGone is nginx's for a client that closed its request; nobody reads it.
const statusClientGone = 499

// BadRequest is a client's mistake in the field param.
func BadRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: invalidRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// TooLong refuses a prompt that, alone or with its answer, exceeds the context.
func TooLong(param, format string, args ...any) *Error {
	e := BadRequest(param, format, args...)
	e.Code = "context_length_exceeded"
	return e
}

// Busy refuses a request that may come again in a second.
func Busy(why error) *Error {
	return &Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "rate_limit_exceeded",
		Message: why.Error(), retryAfter: 1,
	}
}

// Unavailable is the answer of an engine that is ending.
func Unavailable(why error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "server_error", Message: why.Error()}
}

// In names the object around the field at which err is at fault.
func In(outer string, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	inner := *e
	inner.Param, inner.Message = outer+"."+e.Param, outer+": "+e.Message
	return &inner
}

// writeError answers with err in the shape that problem gives it; nil is OpenAI's.
func writeError(w http.ResponseWriter, err error, problem func(*Error) any) {
	var e *Error
	if !errors.As(err, &e) { // the request's context has ended
		e = &Error{Status: statusClientGone, Type: invalidRequest, Message: err.Error()}
	}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	if problem == nil {
		problem = openAIProblem
	}
	writeJSON(w, e.Status, problem(e))
}

func openAIProblem(e *Error) any {
	field := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return map[string]any{"error": map[string]any{
		"message": e.Message, "type": e.Type, "param": field(e.Param), "code": field(e.Code),
	}}
}
