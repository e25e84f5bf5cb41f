package workload

import (
	"encoding/json"
	"errors"
	"fmt"
)

// readChats reads a file of JSON lines, each an OpenAI chat request or at
// least its messages. Empty lines are skipped.
func readChats(file string) ([]map[string]json.RawMessage, error) {
	var chats []map[string]json.RawMessage
	err := eachLine(file, func(line []byte) error {
		chat, err := parseChat(line)
		chats = append(chats, chat)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf(`read chats: %w; chat:FILE names JSON lines, each an object with a list "messages", such as an OpenAI chat request`, err)
	}
	if len(chats) == 0 {
		return nil, fmt.Errorf("read chats: %s holds no request; write one JSON object with a list \"messages\" per line", file)
	}
	return chats, nil
}

// parseChat returns the request without what the load generator sets itself.
func parseChat(line []byte) (map[string]json.RawMessage, error) {
	var chat map[string]json.RawMessage
	if err := json.Unmarshal(line, &chat); err != nil {
		return nil, err
	}
	var messages []json.RawMessage
	if err := json.Unmarshal(chat["messages"], &messages); err != nil || len(messages) == 0 {
		return nil, errors.New("no messages")
	}
	for _, key := range []string{"model", "stream", "stream_options", "temperature", "max_tokens", "max_completion_tokens", "n"} {
		delete(chat, key)
	}
	return chat, nil
}
