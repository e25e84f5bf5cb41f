// Package openai serves the OpenAI API, and those of other vendors and engines that
// generate text, for an engine of this process.
//
// A Server reads a request into a Call, has its Engine answer it token by token and
// writes what comes in the shape of the endpoint, whole or as server-sent events. So
// an engine knows tokens and time and nothing of HTTP, and every engine refuses,
// answers and breaks off alike. Another API that generates text is an entry of apis:
// other names for what a Call holds, and a form for the answer.
//
// OpenAI's shapes are those of its API reference, with the fields beyond it that
// vLLM has: max_model_len of a model, and the endpoints /tokenize and /detokenize.
package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/hearsay-project/hearsay/dialect"
)

// maxBody bounds a request's body in bytes.
const maxBody = 32 << 20

// An Engine generates text. Its errors of type *Error are answered as they are.
type Engine interface {
	// Generate queues c, whose fields have been read, and returns without waiting
	// for its turn. When ctx ends so does the answer, and what it held is free.
	Generate(ctx context.Context, c *Call) (Stream, error)
}

// A Stream is the answer to one Call. One goroutine reads it, to its end.
type Stream interface {
	// Next waits for the next token and gives the text that it made safe to show,
	// which may be none. False means that the answer has ended.
	Next() (text string, ok bool)
	// Prompt counts the prompt's tokens, and those of them that were found cached.
	// It may be called once Next has returned.
	Prompt() (tokens, cached int)
	// Finish says, once Next has given false, why: "stop" or "length" and the
	// answer's tokens, or what broke it off.
	Finish() (reason string, tokens int, err error)
}

// A Tokenizer is an Engine that shows its tokens.
type Tokenizer interface {
	// Tokenize gives the tokens of the prompt or messages of c.
	Tokenize(c *Call) ([]int32, error)
	Detokenize(ids []int32) (string, error)
}

// A TextTokenizer is a Tokenizer that shows the text of each token, where asked to by
// return_token_strs, as vLLM does.
type TextTokenizer interface {
	Tokenizer
	TokenTexts(c *Call) ([]string, error)
}

// A Server is the API of one model. It is safe for concurrent use.
type Server struct {
	Engine  Engine
	Model   string // id that clients see
	Started time.Time
	Context int // most tokens of a prompt and its answer together
	Tells   Tells
}

// Tells says how a server tells what was found cached.
type Tells uint8

const (
	TellsAll     Tells = iota // in every usage, and in headers when the first token is ready
	TellsEach                 // in every usage, as llama.cpp
	TellsFound                // in a usage, where anything was: as vLLM and SGLang with their flags
	TellsNothing              // as they without
)

// ServeHTTP answers
//
//	POST /v1/chat/completions   OpenAI's API, streamed or not
//	POST /v1/completions        the same for text; prompt may be token ids
//	POST /v1/responses          OpenAI's API, of which nothing is stored
//	POST /v1/messages           Anthropic's API, its errors in Anthropic's shape
//	POST /generate              SGLang's own API
//	POST /completion            llama.cpp's own API
//	POST /api/chat              Ollama's own API, and
//	POST /api/generate          the same for text
//	POST /v1/embeddings         if the engine is an Embedder
//	GET  /v1/models
//	POST /tokenize              {"prompt"} or {"messages"}, if the engine is a Tokenizer
//	POST /detokenize            {"tokens"}, likewise
//
// Nothing is sent before the first token is there, so that a failure until then has
// its own status. A stream that fails later panics with http.ErrAbortHandler, with
// which net/http cuts the connection, so that nobody takes what came for the whole.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &Call{Path: r.URL.Path, Arrived: time.Now()}
	if err := s.serve(w, r, c); err != nil {
		writeError(w, err, apis[c.Path].problem)
	}
}

// A handler answers a request, or returns an error before anything was sent.
type handler func(w http.ResponseWriter, r *http.Request, c *Call) error

func (s *Server) endpoint(path string) (method string, serve handler) {
	tok, cuts := s.Engine.(Tokenizer)
	vectors, embeds := s.Engine.(Embedder)
	switch {
	case apis[path].form != nil:
		return http.MethodPost, s.generate
	case path == "/v1/embeddings" && embeds:
		return http.MethodPost, embed(s.Model, vectors)
	case path == "/v1/models":
		return http.MethodGet, s.listModels
	case path == "/tokenize" && cuts:
		return http.MethodPost, s.tokenize(tok)
	case path == "/detokenize" && cuts:
		return http.MethodPost, detokenize(tok)
	}
	return "", nil
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, c *Call) error {
	method, serve := s.endpoint(c.Path)
	switch {
	case serve == nil:
		err := BadRequest("", "there is nothing at %s", c.Path)
		err.Status = http.StatusNotFound
		return err
	case r.Method != method:
		w.Header().Set("Allow", method)
		err := BadRequest("", "%s takes %s, not %s", c.Path, method, r.Method)
		err.Status = http.StatusMethodNotAllowed
		return err
	case method == http.MethodPost:
		if err := c.readBody(w, r); err != nil {
			return err
		}
		if err := c.checkModel(s.Model); err != nil {
			return err
		}
	}
	return serve(w, r, c)
}

// readBody takes a body that is a JSON object.
func (c *Call) readBody(w http.ResponseWriter, r *http.Request) (err error) {
	c.Body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		err := BadRequest("", "the body is larger than %d bytes", maxBody)
		err.Status = http.StatusRequestEntityTooLarge
		return err
	}
	if err != nil {
		return BadRequest("", "the body could not be read: %v", err)
	}
	if c.Fields, err = parseObject(c.Body); err != nil {
		return BadRequest("", "the body must be a JSON object")
	}
	return nil
}

func (s *Server) generate(w http.ResponseWriter, r *http.Request, c *Call) error {
	if err := c.readOptions(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream, err := s.Engine.Generate(ctx, c)
	if err != nil {
		return err
	}
	text, ok := stream.Next()
	if !ok {
		if _, _, err := stream.Finish(); err != nil {
			return err
		}
	}
	prompt, cached := stream.Prompt()
	if s.Tells == TellsAll {
		w.Header().Set(dialect.PromptTokensHeader, strconv.Itoa(prompt))
		w.Header().Set(dialect.CachedTokensHeader, strconv.Itoa(cached))
	}
	a := newReply(w, c, s.Model, prompt, cached)
	if s.Tells == TellsNothing || s.Tells == TellsFound && cached == 0 {
		a.usage.Details = nil
	}
	for ; ok; text, ok = stream.Next() {
		a.add(text)
	}
	reason, tokens, err := stream.Finish()
	switch {
	case err == nil:
		a.end(reason, tokens)
	case !c.Stream:
		return err
	case r.Context().Err() == nil:
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request, _ *Call) error {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": s.Model, "object": "model", "created": s.Started.Unix(), "owned_by": "hearsay", "max_model_len": s.Context,
	}}})
	return nil
}

func (s *Server) tokenize(tok Tokenizer) handler {
	return func(w http.ResponseWriter, _ *http.Request, c *Call) error {
		c.Chat = c.Fields["messages"] != nil
		if !c.Chat && c.Fields["prompt"] == nil {
			return BadRequest("prompt", "give a prompt or messages")
		}
		ids, err := tok.Tokenize(c)
		if err != nil {
			return err
		}
		answer := map[string]any{"count": len(ids), "max_model_len": s.Context, "tokens": ids}
		if texts, ok := tok.(TextTokenizer); ok && string(c.Fields["return_token_strs"]) == "true" {
			if answer["token_strs"], err = texts.TokenTexts(c); err != nil {
				return err
			}
		}
		writeJSON(w, http.StatusOK, answer)
		return nil
	}
}

func detokenize(tok Tokenizer) handler {
	return func(w http.ResponseWriter, _ *http.Request, c *Call) error {
		var ids []int32
		if err := c.Fields.Get("tokens", &ids, "a list of token ids"); err != nil {
			return err
		}
		if ids == nil {
			return BadRequest("tokens", "give tokens")
		}
		text, err := tok.Detokenize(ids)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, map[string]any{"prompt": text})
		return nil
	}
}
