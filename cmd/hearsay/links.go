package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"github.com/hearsay-project/hearsay/sim"
)

// A region is a group of nodes that are close to each other, in a file of regions.
type region struct {
	Name   string            `yaml:"name"`
	Nodes  int               `yaml:"nodes"`
	Within string            `yaml:"within"` // delay between two of its nodes
	To     map[string]string `yaml:"to"`     // delay to other regions by name; a direction that neither gives is the other's
}

// readInput reads a file that a flag names.
func readInput(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w; name a file that can be read", err)
	}
	return data, nil
}

// regionMatrix reads a file of regions and returns the one-way delays between
// their nodes, which are numbered region by region.
func regionMatrix(path string) ([][]time.Duration, error) {
	data, err := readInput(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Regions []region `yaml:"regions"`
	}
	if err := readYAML(data, &file); err != nil {
		return nil, fmt.Errorf("%s%w", path, err)
	}
	if err := checkRegions(file.Regions); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var matrix [][]time.Duration
	for _, from := range file.Regions {
		var row []time.Duration
		for _, to := range file.Regions {
			d, err := from.delayTo(to)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			row = append(row, slices.Repeat([]time.Duration{d}, to.Nodes)...)
		}
		for range from.Nodes {
			matrix = append(matrix, row)
		}
	}
	return matrix, nil
}

// readYAML reads the one document of data. An error begins with the line, behind a
// comma, or with a colon.
func readYAML(data []byte, into any) error {
	file, err := parser.ParseBytes(data, 0)
	if err == nil && len(file.Docs) > 1 {
		return fmt.Errorf(" holds %d documents; write all regions into one", len(file.Docs))
	}
	if err == nil {
		err = yaml.UnmarshalWithOptions(data, into, yaml.Strict())
	}
	var at yaml.Error
	if !errors.As(err, &at) {
		return err
	}
	text, _, _ := strings.Cut(at.GetMessage(), "\n")
	if at.GetToken() == nil {
		return fmt.Errorf(": %s; `hearsay sim run --help` has an example", text)
	}
	return fmt.Errorf(", line %d: %s; `hearsay sim run --help` has an example", at.GetToken().Position.Line, text)
}

// checkRegions reports what keeps regions from being a cluster.
func checkRegions(regions []region) error {
	known, nodes := map[string]bool{}, 0
	for i, r := range regions {
		if r.Name == "" || known[r.Name] {
			return fmt.Errorf("region %d is called %q; give each a name of its own", i+1, r.Name)
		}
		if r.Nodes < 1 || r.Nodes > sim.MaxNodes {
			return fmt.Errorf("region %s has %d nodes; choose 1 to %d", r.Name, r.Nodes, sim.MaxNodes)
		}
		known[r.Name] = true
		nodes += r.Nodes
	}
	if nodes < 1 || nodes > sim.MaxNodes {
		return fmt.Errorf("%d nodes in %d regions; list regions with 1 to %d nodes in all", nodes, len(regions), sim.MaxNodes)
	}
	for _, r := range regions {
		for _, to := range slices.Sorted(maps.Keys(r.To)) {
			if !known[to] || to == r.Name {
				return fmt.Errorf("region %s has a delay to %q, which is no other region", r.Name, to)
			}
		}
	}
	return nil
}

// delayTo is the one-way delay from a node of r to another one, of to.
func (r region) delayTo(to region) (time.Duration, error) {
	text := cmp.Or(r.To[to.Name], to.To[r.Name])
	if r.Name == to.Name {
		text = r.Within
	}
	switch {
	case text != "":
		d, err := parseDelay(text)
		if err != nil {
			return 0, fmt.Errorf("region %s: %w", r.Name, err)
		}
		return d, nil
	case r.Name != to.Name:
		return 0, fmt.Errorf("there is no delay between %s and %s; add to: {%s: 40ms} to %s", r.Name, to.Name, to.Name, r.Name)
	case r.Nodes > 1:
		return 0, fmt.Errorf("region %s has no delay between its nodes; add within: 1ms to it", r.Name)
	}
	return 0, nil // of a single node to itself
}

// between stands between two cells of a matrix.
var between = regexp.MustCompile(`\s*[,;]\s*|\s+`)

// readMatrix reads a file of one-way delays, a line for each node it is from.
func readMatrix(path string) ([][]time.Duration, error) {
	data, err := readInput(path)
	if err != nil {
		return nil, err
	}
	var matrix [][]time.Duration
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		cells := between.Split(line, -1)
		row := make([]time.Duration, len(cells))
		for i, cell := range cells {
			if row[i], err = parseDelay(cell); err != nil {
				return nil, fmt.Errorf("%s, line %d: cell %d: %w", path, number, i+1, err)
			}
		}
		matrix = append(matrix, row)
	}
	for i, row := range matrix {
		if len(row) != len(matrix) {
			return nil, fmt.Errorf("%s: row %d has %d delays and there are %d rows; write a delay from each node to each node", path, i+1, len(row), len(matrix))
		}
	}
	if len(matrix) == 0 || len(matrix) > sim.MaxNodes {
		return nil, fmt.Errorf("%s holds %d rows; write one for each node, 1 to %d", path, len(matrix), sim.MaxNodes)
	}
	return matrix, nil
}

// maxDelay is far above what any network has, and far below what time can hold.
const maxDelay = time.Hour

// parseDelay reads a delay: 2ms, or a number of milliseconds.
func parseDelay(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if ms, notNumber := strconv.ParseFloat(text, 64); notNumber == nil && ms >= 0 && ms <= float64(maxDelay/time.Millisecond) {
		d, err = time.Duration(ms*float64(time.Millisecond)), nil
	}
	if err != nil || d < 0 || d > maxDelay {
		return 0, fmt.Errorf("%q is no delay; write one from 0 to %v, such as 40ms", text, maxDelay)
	}
	return d, nil
}
