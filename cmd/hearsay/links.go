package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/hearsay-project/hearsay/sim"
)

// A region is a group of nodes that are close to each other, in a file of regions.
type region struct {
	Name   string            `yaml:"name"`
	Nodes  int               `yaml:"nodes"`
	Within string            `yaml:"within"` // delay between two of its nodes
	To     map[string]string `yaml:"to"`     // delay to other regions by name; a direction that neither gives is the other's
}

// regionMatrix reads a file of regions and returns the one-way delays between
// their nodes, which are numbered region by region.
func regionMatrix(path string) ([][]time.Duration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Regions []region `yaml:"regions"`
	}
	if err := yaml.UnmarshalWithOptions(data, &file, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.ReplaceAll(yaml.FormatError(err, false, false), "\n", " "))
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

// readMatrix reads a file of one-way delays, a line for each node it is from.
func readMatrix(path string) ([][]time.Duration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var matrix [][]time.Duration
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		cells := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(", ;\t\r\n", r) })
		if len(cells) == 0 {
			continue
		}
		row := make([]time.Duration, len(cells))
		for i, cell := range cells {
			if row[i], err = parseDelay(cell); err != nil {
				return nil, fmt.Errorf("%s, line %d: %w", path, number, err)
			}
		}
		matrix = append(matrix, row)
	}
	for i, row := range matrix {
		if len(row) != len(matrix) {
			return nil, fmt.Errorf("%s: row %d has %d delays and there are %d rows; write a delay from each node to each node", path, i+1, len(row), len(matrix))
		}
	}
	if len(matrix) == 0 {
		return nil, fmt.Errorf("%s holds no delays; write a row for each node", path)
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

// parseFault reads "TIME KIND [NODES] [xFACTOR]": 10s crash 2, 1m slow 1,3-4 x8,
// 20s heal. Nodes count from 1, as in their names.
func parseFault(text string, nodes int) (f sim.Fault, err error) {
	fail := func(problem string) (sim.Fault, error) {
		return sim.Fault{}, fmt.Errorf("fault %q: %s", text, problem)
	}
	words := strings.Fields(text)
	if len(words) < 2 {
		return fail(`write a time, what happens and to which nodes, such as "10s crash 2"`)
	}
	if f.At, err = time.ParseDuration(words[0]); err != nil || f.At < 0 {
		return fail(fmt.Sprintf("%q is no time since the start; write it as 10s or 1m30s", words[0]))
	}
	f.Kind = sim.Kind(words[1])
	rest := words[2:]
	switch f.Kind {
	case sim.Heal:
		if len(rest) > 0 {
			return fail("heal ends all partitions; name no nodes")
		}
		return f, nil
	case sim.Slow:
		if len(rest) != 2 || !strings.HasPrefix(rest[1], "x") {
			return fail(`write the nodes and how many times as long their engines take, such as "10s slow 2 x4"`)
		}
		f.Factor, err = strconv.ParseFloat(rest[1][1:], 64)
		if err != nil || !(f.Factor > 0 && f.Factor <= 1e6) {
			return fail(fmt.Sprintf("%q is no factor; write x4 for four times as long, x1 for normal again", rest[1]))
		}
	case sim.Crash, sim.Restart, sim.Partition:
		if len(rest) != 1 {
			return fail("name the nodes once, as 2 or 1,3-4")
		}
	default:
		return fail(fmt.Sprintf("unknown kind %q; choose crash, restart, partition, heal or slow", f.Kind))
	}
	if f.Nodes, err = parseNodes(rest[0], nodes); err != nil {
		return fail(err.Error())
	}
	return f, nil
}

// parseNodes reads nodes by number from 1, as 2 or 1,3-4, and returns them from 0.
func parseNodes(text string, nodes int) (list []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err1 := strconv.Atoi(first)
		to, err2 := from, error(nil)
		if isRange {
			to, err2 = strconv.Atoi(last)
		}
		if errors.Join(err1, err2) != nil || from < 1 || to < from || to > nodes {
			return nil, fmt.Errorf("%q names no nodes of 1 to %d; write them as 2 or 1,3-4", part, nodes)
		}
		for i := from; i <= to; i++ {
			list = append(list, i-1)
		}
	}
	return list, nil
}
