package hearsay

import (
	"encoding/hex"
	"go/ast"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hearsay-project/hearsay/gossip"
)

var (
	// foreign are flags of engines, and folders of the MMLU data set, that the docs
	// name beside our own.
	foreign = []string{
		"--enable-cache-report", "--enable-prompt-tokens-details", "--enable-prefix-caching",
		"--enable-metrics", "--random-seed", "--disable-radix-cache", "--enable-force-include-usage", "--metrics", "--kv-events-config", "dev/", "test/",
	}
	// fileSuffixes end the name of a file, and of no Go symbol: node.yaml.
	fileSuffixes = []string{"yaml", "yml", "json", "toml", "log", "pem", "key", "crt", "txt", "service", "go", "md", "sh"}

	codeSpan   = regexp.MustCompile("`+([^`]+)`+")
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pathWord   = regexp.MustCompile(`^(?:\./?)?\w[\w./-]*$`)
	flagWord   = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z0-9-]*)`)
	metricWord = regexp.MustCompile(`\bhearsay_[a-z0-9_]+`)
	envWord    = regexp.MustCompile(`\bHEARSAY_[A-Z0-9_]+`)
	symbolWord = regexp.MustCompile(`^([a-z]+)\.(\w+)((?:\.\w+)?)(?:$|[({\[])`)
	hexRow     = regexp.MustCompile("(?m)^\\| `([0-9a-f ]+)` \\|")
	// The beginning of a command line of this program.
	ownCommand = regexp.MustCompile(`^(?:\$ )?(?:\w+=\S+ )*(?:go run )?(?:\S*/)?hearsay(?:\s+(\w+))?(?:\s+(\w+))?(?:\s|$)`)
	commandEnd = regexp.MustCompile(`\|\|?|&&?|;|#`)
)

// A page is one document. It must not say what is not so.
type page struct {
	name, text, prose string   // prose is the text without code
	spans             []string // what stands in backticks
	fenced            []string // the lines of fenced blocks, continued ones joined
}

func pages(t *testing.T) (all []page) {
	for _, pattern := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/*.md", "docs/decisions/*.md"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, readPage(filepath.ToSlash(name), string(text)))
		}
	}
	return all
}

func readPage(name, text string) page {
	p, prose, inFence := page{name: name, text: text}, "", false
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			inFence = !inFence
		case inFence:
			p.fenced = append(p.fenced, line)
		default:
			prose += line
		}
	}
	// By paragraphs: a backtick without its other half spoils no more than one.
	for paragraph := range strings.SplitSeq(prose, "\n\n") {
		for _, m := range codeSpan.FindAllStringSubmatch(paragraph, -1) {
			p.spans = append(p.spans, strings.Join(strings.Fields(m[1]), " "))
		}
		p.prose += codeSpan.ReplaceAllString(paragraph, "") + "\n\n"
	}
	return p
}

// Every file and folder that a page names is there, and every link leads somewhere.
func TestDocsNameFilesThatExist(t *testing.T) {
	bases := map[string]bool{}
	_ = filepath.WalkDir(".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == ".git" {
			return fs.SkipDir
		}
		bases[d.Name()] = true
		return nil
	})
	for _, p := range pages(t) {
		exists := func(name string) bool {
			_, here := os.Stat(name)
			_, beside := os.Stat(path.Join(path.Dir(p.name), name))
			return here == nil || beside == nil
		}
		for _, name := range p.spans {
			top, _, inFolder := strings.Cut(strings.TrimPrefix(name, "./"), "/")
			source := slices.Contains([]string{".go", ".md", ".sh"}, path.Ext(name)) && path.Ext(name) != name
			switch {
			case !pathWord.MatchString(name) || exists(name) || slices.Contains(foreign, name):
			case !inFolder && bases[name]: // in some folder that the text has named
			case inFolder && strings.Index(top, ".") > 0: // a host, or a module
			case source, strings.HasSuffix(name, "/"), inFolder && exists(top+"/"):
				t.Errorf("%s: there is no %s", p.name, name)
			}
		}
		for _, m := range link.FindAllStringSubmatch(p.prose, -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if _, err := os.Stat(path.Join(path.Dir(p.name), to)); err != nil && !strings.Contains(to, ":") {
				t.Errorf("%s: the link to %s leads nowhere", p.name, m[1])
			}
		}
	}
}

// commandFlags returns the flags of each command, as "serve" or "sim run", which one
// file of cmd/hearsay defines: true, or false for a hidden one. Those of "" are all.
func commandFlags(t *testing.T) map[string]map[string]bool {
	commands := map[string]map[string]bool{"": {}}
	for _, f := range sources(t) {
		if f.pkg != "cmd/hearsay" || f.test {
			continue
		}
		flags, use := map[string]bool{"--help": false}, ""
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				fun := types.ExprString(n.Fun)
				if strings.HasSuffix(fun, "Var") && len(n.Args) == 4 {
					flags["--"+literal(n.Args[1])] = true
				} else if strings.HasSuffix(fun, ".MarkHidden") {
					flags["--"+literal(n.Args[0])] = false
				}
			case *ast.KeyValueExpr:
				if types.ExprString(n.Key) == "Use" {
					use, _, _ = strings.Cut(literal(n.Value), " ")
				}
			}
			return true
		})
		maps.Copy(commands[""], flags)
		if len(flags) > 1 {
			commands[commandOf(strings.TrimSuffix(f.name, ".go"), use)] = flags
		}
	}
	return commands
}

// commandOf is the whole name of a command that a file, named for its parent or for
// both, calls use: "bench" in bench.go, "bench paper" in benchpaper.go, "sim run" in sim.go.
func commandOf(file, use string) string {
	if file == use {
		return use
	}
	return strings.TrimSuffix(file, use) + " " + use
}

// commandIn is the command that a line beginning with hearsay calls, by the two words
// behind it: the second may be an argument.
func commandIn(commands map[string]map[string]bool, first, second string) string {
	if whole := first + " " + second; commands[whole] != nil {
		return whole
	}
	return first
}

// literal returns the text of a string literal, or "".
func literal(n ast.Node) string {
	if lit, ok := n.(*ast.BasicLit); ok {
		s, _ := strconv.Unquote(lit.Value)
		return s
	}
	return ""
}

// Every flag that a page names, alone or on a command line of hearsay, is one.
func TestDocsNameFlagsThatExist(t *testing.T) {
	commands := commandFlags(t)
	check := func(p page, command, line string) {
		for _, m := range flagWord.FindAllStringSubmatch(line, -1) {
			if _, ok := commands[command][m[1]]; !ok && m[1] != "--help" && (command != "" || !slices.Contains(foreign, m[1])) {
				t.Errorf("%s: there is no flag %s of hearsay %s; another program's belongs in foreign", p.name, m[1], command)
			}
		}
	}
	for _, p := range pages(t) {
		for _, code := range slices.Concat(p.spans, p.fenced) {
			for _, line := range commandEnd.Split(code, -1) {
				line = strings.TrimSpace(line)
				own := ownCommand.FindStringSubmatch(line)
				if own == nil && !strings.HasPrefix(line, "--") {
					continue // another program's
				}
				line, passedOn, _ := strings.Cut(line, " -- ") // by demo, to serve
				own = append(own, "", "", "")
				check(p, commandIn(commands, own[1], own[2]), line)
				check(p, "serve", passedOn)
			}
		}
	}
}

// Every metric and environment variable that a page names is one. A metric may be
// named by its beginning, hearsay_peer_, and a histogram by one of its series.
func TestDocsNameMetricsAndVariablesThatExist(t *testing.T) {
	serve, metrics, read := commandFlags(t)["serve"], literals(t, "daemon/metrics.go", metricWord), literals(t, "", envWord)
	for _, p := range pages(t) {
		for _, word := range metricWord.FindAllString(p.text, -1) {
			if !slices.ContainsFunc(metrics, func(name string) bool {
				series, front := strings.TrimPrefix(word, name), strings.HasSuffix(word, "_") && strings.HasPrefix(name, word)
				return front || slices.Contains([]string{"", "_bucket", "_sum", "_count"}, series)
			}) {
				t.Errorf("%s: there is no metric %s", p.name, word)
			}
		}
		for _, word := range envWord.FindAllString(p.text, -1) {
			flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(word, "HEARSAY_"), "_", "-"))
			if _, ok := serve[flag]; !ok && !slices.Contains(read, word) {
				t.Errorf("%s: nothing reads %s", p.name, word)
			}
		}
	}
}

// literals returns the string literals, in files whose path begins with in, that
// are all of word.
func literals(t *testing.T, in string, word *regexp.Regexp) (found []string) {
	for _, f := range sources(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s := literal(n)
			if s != "" && word.FindString(s) == s && strings.HasPrefix(path.Join(f.pkg, f.name), in) {
				found = append(found, s)
			}
			return true
		})
	}
	return found
}

// flagTables are the commands that the operator's page explains in a table of flags,
// with the words behind which it is the next.
var flagTables = map[string]string{
	"serve":       "## Flags of serve",
	"bench":       "## Measuring",
	"bench paper": "\n`hearsay bench paper` ",
	"sim run":     "## Simulating",
	"sim paper":   "\n`hearsay sim paper` ",
	"sim cells":   "\n`hearsay sim cells` ",
}

// The operator's page explains every metric, and every flag of these commands in the
// command's own table, and no other flag there.
func TestOperationsPageIsComplete(t *testing.T) {
	text, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Skip("docs/operations.md is not there")
	}
	commands := commandFlags(t)
	for command, words := range flagTables {
		_, after, found := strings.Cut(string(text), words)
		_, table, isTable := strings.Cut(after, "\n| flag | default | |\n")
		table, _, _ = strings.Cut(table, "\n\n")
		if !found || !isTable || commands[command] == nil {
			t.Errorf("docs/operations.md has no table of flags behind %q, or there is no command %q", words, command)
			continue
		}
		explained := map[string]bool{}
		for line := range strings.Lines(table) {
			for _, flag := range regexp.MustCompile("`(--[a-z-]+)`").FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
				explained[flag[1]] = true
				if _, ok := commands[command][flag[1]]; !ok {
					t.Errorf("docs/operations.md explains %s, which is no flag of hearsay %s", flag[1], command)
				}
			}
		}
		for flag, shown := range commands[command] {
			if shown && !explained[flag] {
				t.Errorf("docs/operations.md does not explain the flag %s of hearsay %s", flag, command)
			}
		}
	}
	words := regexp.MustCompile(`[a-z0-9_]+`).FindAllString(string(text), -1)
	for _, metric := range literals(t, "daemon/metrics.go", metricWord) {
		if !slices.Contains(words, metric) {
			t.Errorf("docs/operations.md does not explain the metric %s", metric)
		}
	}
}

// A flag of a command below another is looked for with that command.
func TestCommandsOfFlags(t *testing.T) {
	commands := commandFlags(t)
	for line, want := range map[string]string{
		"hearsay serve --poll 1s":                    "serve",
		"hearsay bench --json":                       "bench",
		"$ go run ./cmd/hearsay sim paper --out DIR": "sim paper",
		"hearsay sim run":                            "sim run",
		"hearsay bench paper --json":                 "bench paper",
		"hearsay status node --json":                 "status",
	} {
		own := ownCommand.FindStringSubmatch(line)
		if own == nil || commandIn(commands, own[1], own[2]) != want || commands[want] == nil {
			t.Errorf("%s: %q, want the flags of %q", line, own, want)
		}
	}
	for flag, command := range map[string]string{"--out": "sim paper", "--loss": "sim run", "--time-scale": "bench paper", "--target": "bench"} {
		if !commands[command][flag] {
			t.Errorf("hearsay %s has no flag %s", command, flag)
		}
	}
	if commands["bench"]["--time-scale"] || commands["sim run"]["--out"] {
		t.Error("a command has the flags of another")
	}
}

// Every Go symbol that a page names, as package.Name or package.Type.Member, is declared.
func TestDocsNameSymbolsThatExist(t *testing.T) {
	packages, declared := map[string]bool{}, map[string]bool{}
	for _, f := range sources(t) {
		pkg := f.ast.Name.Name
		packages[pkg] = f.pkg != "." && f.pkg != "cmd/hearsay"
		declare := func(of string, names ...*ast.Ident) {
			for _, name := range names {
				declared[pkg+"."+of+name.Name] = true
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				of := ""
				if n.Recv != nil {
					of = strings.TrimPrefix(types.ExprString(n.Recv.List[0].Type), "*") + "."
				}
				declare(of, n.Name)
				return false
			case *ast.ValueSpec:
				declare("", n.Names...)
			case *ast.TypeSpec:
				declare("", n.Name)
				ast.Inspect(n.Type, func(m ast.Node) bool {
					if field, ok := m.(*ast.Field); ok {
						declare(n.Name.Name+".", field.Names...)
					}
					return true
				})
			}
			return true
		})
	}
	for _, p := range pages(t) {
		for _, span := range p.spans {
			m := symbolWord.FindStringSubmatch(span)
			if m == nil || !packages[m[1]] || m[3] == "" && slices.Contains(fileSuffixes, m[2]) {
				continue
			}
			if name := m[1] + "." + m[2] + m[3]; !declared[name] {
				t.Errorf("%s: nothing declares %s", p.name, name)
			}
		}
	}
}

// The worked example of docs/protocol.md is the frame of a rumor, and all of it.
func TestProtocolExample(t *testing.T) {
	text, _ := os.ReadFile("docs/protocol.md")
	var digits string
	for _, m := range hexRow.FindAllStringSubmatch(string(text), -1) {
		digits += strings.ReplaceAll(m[1], " ", "")
	}
	payload, _ := hex.DecodeString(strings.TrimPrefix(digits, "0000005301"))
	r, err := gossip.DecodeRumor(payload)
	if err != nil || len(payload) != 0x53 || r.Author != "n1" || r.Life != 300 || r.Every != 200 || r.Tokens != 80 || r.Tree.Len() != 5 {
		t.Errorf("%s reads as %+v, %v", digits, r, err)
	}
}
