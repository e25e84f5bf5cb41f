package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// maxChatLine bounds one request of a chat file, in bytes.
const maxChatLine = 32 << 20

// readChats reads a file of JSON lines, each an OpenAI chat request or at
// least its messages. Empty lines are skipped.
func readChats(file string) ([]map[string]json.RawMessage, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read chats: %w; name a file of JSON lines as chat:FILE", err)
	}
	defer f.Close()
	var chats []map[string]json.RawMessage
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxChatLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		chat, err := parseChat(line)
		if err != nil {
			return nil, fmt.Errorf(`read chats: %s, line %d: %w; a line is one JSON object with a list "messages", such as an OpenAI chat request`, file, n, err)
		}
		chats = append(chats, chat)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read chats: %s: %w; a line holds at most %d MiB", file, err, maxChatLine>>20)
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
