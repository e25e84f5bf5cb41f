package hearsay

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hearsay-project/hearsay/"

// layers says what each package of the project may import of the project.
// A package that is not here does not belong to the project yet: add it, with
// a thought, or put the code where it fits.
var layers = map[string][]string{
	"prefix":          {},
	"route":           {},
	"estimate":        {},
	"tokens":          {},
	"gossip":          {"prefix"},
	"dialect":         {"prefix"},
	"node":            {"prefix", "estimate", "route", "gossip"},
	"emulate":         {"prefix"},
	"sim":             {"prefix", "route", "gossip", "node", "emulate"},
	"engine":          {},
	"engine/openai":   {"dialect"},
	"engine/probe":    {},
	"engine/builtin":  {"engine/openai"},
	"engine/kvevents": {"prefix"},
	"engine/emulated": {"prefix", "tokens", "dialect", "emulate", "engine/kvevents", "engine/openai"},
	"mesh":            {"gossip", "mesh/cert"},
	"mesh/cert":       {},
	"mesh/memnet":     {},
	"report":          {},
	"workload":        {"prefix", "tokens"},
	"experiment":      {"prefix", "emulate", "sim", "report", "workload"},
	"daemon":          {"prefix", "route", "gossip", "dialect", "node", "engine", "engine/probe", "engine/kvevents", "mesh"},
	"cases":           {},
	"cmd/hearsay":     {"prefix", "tokens", "dialect", "route", "gossip", "node", "emulate", "sim", "report", "experiment", "engine", "engine/builtin", "engine/emulated", "engine/kvevents", "engine/probe", "mesh", "mesh/cert", "workload", "daemon"},
}

// pure packages are told the time and their chance: they read no clock, start
// no goroutine and touch nothing outside their memory.
var pure = []string{"prefix", "estimate", "route", "gossip", "dialect", "node", "emulate", "sim"}

var (
	impure    = []string{"net", "os", "sync", "sync/atomic", "context", "log/slog", "math/rand"}
	clockCall = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	// globalRand are the functions of math/rand/v2 that do not draw from the process's own source.
	globalRand = []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}
	badNames   = []string{"util", "utils", "common", "helper", "helpers", "types", "pkg", "internal", "base", "misc"}
)

const (
	maxFileLines = 500
	maxFuncLines = 70
)

type sourceFile struct {
	pkg  string // folder, slash-separated, relative to the module
	name string
	test bool
	fset *token.FileSet
	ast  *ast.File
}

func (f sourceFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", path.Join(f.pkg, f.name), f.fset.Position(n.Pos()).Line)
}

func sources(t *testing.T) []sourceFile {
	t.Helper()
	var files []sourceFile
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == "e2e"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(p) != ".go" || p == "deps.go":
			return nil
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, sourceFile{
			pkg: filepath.ToSlash(filepath.Dir(p)), name: d.Name(),
			test: strings.HasSuffix(p, "_test.go"), fset: fset, ast: tree,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A package imports only what stands below it.
func TestImportsFollowTheLayers(t *testing.T) {
	for _, f := range sources(t) {
		if f.pkg == "." {
			continue
		}
		allowed, known := layers[f.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the layer table", f.name, f.pkg)
			continue
		}
		for _, spec := range f.ast.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if own, ours := strings.CutPrefix(imported, module); ours && own != f.pkg && !f.test && !slices.Contains(allowed, own) {
				t.Errorf("%s: %s may not import %s", f.at(spec), f.pkg, own)
			}
			if !f.test && slices.Contains(pure, f.pkg) && (slices.Contains(impure, imported) || strings.HasPrefix(imported, "net/")) {
				t.Errorf("%s: pure package %s may not import %s", f.at(spec), f.pkg, imported)
			}
		}
	}
}

// The core never reads a clock, starts a goroutine or draws global chance.
func TestPurePackagesArePure(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || !slices.Contains(pure, f.pkg) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: go statement in pure package", f.at(n))
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if ok && x.Obj == nil && x.Name == "time" && slices.Contains(clockCall, n.Sel.Name) {
					t.Errorf("%s: time.%s in pure package", f.at(n), n.Sel.Name)
				}
				if ok && x.Obj == nil && x.Name == "rand" && !slices.Contains(globalRand, n.Sel.Name) {
					t.Errorf("%s: rand.%s draws from the process's source", f.at(n), n.Sel.Name)
				}
			}
			return true
		})
	}
}

// A file fits a sitting, a function a screen.
func TestSizes(t *testing.T) {
	for _, f := range sources(t) {
		if lines := f.fset.Position(f.ast.FileEnd).Line; lines > maxFileLines {
			t.Errorf("%s has %d lines, more than %d", path.Join(f.pkg, f.name), lines, maxFileLines)
		}
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1; lines > maxFuncLines {
				t.Errorf("%s: %s has %d lines, more than %d", f.at(fn), fn.Name.Name, lines, maxFuncLines)
			}
		}
	}
}

// Every package opens with one comment, and is named for what it gives.
func TestPackageComments(t *testing.T) {
	comments := map[string][]string{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		if slices.Contains(badNames, path.Base(f.pkg)) {
			t.Errorf("package %s is named for nothing that it gives", f.pkg)
		}
		if f.ast.Doc != nil {
			comments[f.pkg] = append(comments[f.pkg], f.name)
		}
	}
	for _, f := range sources(t) {
		if !f.test && len(comments[f.pkg]) != 1 {
			t.Errorf("package %s has %d package comments %v, want 1", f.pkg, len(comments[f.pkg]), comments[f.pkg])
			comments[f.pkg] = []string{"reported"}
		}
	}
}
