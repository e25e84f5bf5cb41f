package builtin

import (
	"bytes"
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tinyModel is the project's own model; tiny/SOURCE.txt says where it comes from.
//
//go:embed tiny/model-f16.gguf
var tinyModel []byte

const (
	tinyName    = "hearsay-tiny"
	tinyContext = 8192
	maxRandom   = 1 << 27 // bounds a random model to about 6 GB of weights
)

// loadModel opens what Config.Model and Config.Tokenizer name, and gives the
// model's name too.
func loadModel(path, tokenizerPath string) (*model, *tokenizer, string, error) {
	size, random := strings.CutPrefix(path, "random:")
	if path != "" && !random {
		m, tok, err := loadFile(path, tokenizerPath)
		if err != nil {
			return nil, nil, "", fmt.Errorf("model %s: %w", path, err)
		}
		base := filepath.Base(path)
		return m, tok, strings.TrimSuffix(base, filepath.Ext(base)), nil
	}
	m, tok, err := loadGGUF(bytes.NewReader(tinyModel), int64(len(tinyModel)))
	if err != nil || !random {
		return m, tok, tinyName, err
	}
	width, depth, _ := strings.Cut(size, "x")
	dim, err1 := strconv.Atoi(width)
	layers, err2 := strconv.Atoi(depth)
	if err1 != nil || err2 != nil || dim < 16 || dim > 8192 || dim%8 != 0 || layers < 1 || layers > 128 || dim*dim*layers > maxRandom {
		return nil, nil, "", fmt.Errorf("model %s: write random:DIMxLAYERS, with DIM from 16 to 8192 in steps of 8, up to 128 LAYERS and DIM x DIM x LAYERS up to %d, as in random:512x8", path, maxRandom)
	}
	m, err = randomModel(dim, layers, len(tok.pieces))
	return m, tok, strings.ReplaceAll(path, ":", "-"), err
}

// loadFile tells GGUF from llama2.c by its magic.
func loadFile(path, tokenizerPath string) (*model, *tokenizer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, bare(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, bare(err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("not a file; give a GGUF or llama2.c .bin file")
	}
	magic := make([]byte, 4)
	if n, _ := f.ReadAt(magic, 0); n == 4 && string(magic) == "GGUF" {
		if tokenizerPath != "" {
			return nil, nil, fmt.Errorf("a GGUF file has its tokenizer inside; leave %s out", tokenizerPath)
		}
		return loadGGUF(f, info.Size())
	}
	if tokenizerPath == "" {
		tokenizerPath = filepath.Join(filepath.Dir(path), "tokenizer.bin")
	}
	raw, err := os.ReadFile(tokenizerPath)
	if err != nil {
		return nil, nil, fmt.Errorf("not GGUF, and llama2.c's tokenizer %s: %w", tokenizerPath, bare(err))
	}
	tok, err := parseLlama2cTokenizer(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("tokenizer %s: %w", tokenizerPath, err)
	}
	m, err := loadLlama2c(f, info.Size(), tok)
	return m, tok, err
}

// bare drops the path that an error of the os package repeats.
func bare(err error) error {
	if pathErr, ok := err.(*fs.PathError); ok {
		return pathErr.Err
	}
	return err
}
