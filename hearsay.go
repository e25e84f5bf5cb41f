// Package hearsay is a peer-to-peer router for LLM serving. It has no code of
// its own: cmd/hearsay is the program, ARCHITECTURE.md says where everything is.
package hearsay
