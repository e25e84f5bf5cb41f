package cases

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/failures.md has a row for each case, and names each test of it, all of which
// there are.
func TestFailuresPage(t *testing.T) {
	declared := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "node_modules" {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(name)
		for _, m := range function.FindAllSubmatch(text, -1) {
			declared[string(m[1])] = true
		}
		return err
	})
	page, err2 := os.ReadFile("../docs/failures.md")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (G\d\d) \|.*$`).FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] += m[0]
	}
	for n := 1; n <= 92; n++ {
		if row := rows[fmt.Sprintf("G%02d", n)]; strings.Count(row, "| G") != 1 && n != 9 { // there is no G09
			t.Errorf("G%02d has %d rows", n, strings.Count(row, "| G"))
		} else if row != "" && !strings.Contains(row, "`Test") {
			t.Errorf("G%02d has no test", n)
		}
	}
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		if !declared[m[1]] {
			t.Errorf("there is no %s", m[1])
		}
	}
	for name := range declared {
		if m := regexp.MustCompile(`^Test(G\d\d)`).FindStringSubmatch(name); m != nil && !strings.Contains(rows[m[1]], "`"+name+"`") {
			t.Errorf("the row of %s does not name %s", m[1], name)
		}
	}
}
