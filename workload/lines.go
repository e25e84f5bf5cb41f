package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLine bounds one line of a data file, in bytes.
const maxLine = 32 << 20

// openFile opens a file for reading, and unpacks it if its name ends in .gz.
func openFile(name string) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil || filepath.Ext(name) != ".gz" {
		return f, err
	}
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{unpacked, f}, nil
}

// eachLine hands the lines of a file to use, without the white space around
// them; empty ones are left out. An error names the file and the line.
func eachLine(name string, use func(line []byte) error) error {
	f, err := openFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return scanLines(f, name, use)
}

func scanLines(r io.Reader, name string, use func(line []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	n := 1
	for ; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := use(line); err != nil {
			return fmt.Errorf("%s, line %d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s, line %d: %w; a line holds at most %d MiB", name, n, err, maxLine>>20)
	}
	return nil
}

// readJSON decodes a file that is one JSON value.
func readJSON(name string, v any) error {
	f, err := openFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	err = json.Unmarshal(text, v)
	at := int64(len(text))
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
	}
	return fmt.Errorf("%s, line %d: %w", name, 1+bytes.Count(text[:at], []byte("\n")), err)
}

// find lists the files of a folder, or of the folders in it, that match one of
// the patterns, sorted. It fails if there are none.
func find(dir string, patterns ...string) ([]string, error) {
	for _, place := range []string{escapeGlob(dir), filepath.Join(escapeGlob(dir), "*")} {
		var files []string
		for _, pattern := range patterns {
			more, err := filepath.Glob(filepath.Join(place, pattern))
			if err != nil {
				return nil, err
			}
			files = append(files, more...)
		}
		if len(files) > 0 {
			slices.Sort(files)
			return files, nil
		}
	}
	return nil, fmt.Errorf("%s holds no %s; name the folder of the data", dir, strings.Join(patterns, " or "))
}
