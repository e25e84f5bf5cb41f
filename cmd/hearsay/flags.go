package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a titled part of a command's flags, in help as in code.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// addGroups gives cmd the flags of all groups, and a help text that keeps them
// apart.
func addGroups(cmd *cobra.Command, groups ...flagGroup) {
	for _, g := range groups {
		g.flags.SortFlags = false
		cmd.Flags().AddFlagSet(g.flags)
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		fmt.Fprintf(out, "Usage:\n  %s\n", cmd.UseLine())
		for _, g := range groups {
			fmt.Fprintf(out, "\n%s:\n%s", g.title, g.flags.FlagUsages())
		}
		fmt.Fprintf(out, "\nEvery flag can stand in the --config file and in the environment: --peer-listen is HEARSAY_PEER_LISTEN.\n")
		return nil
	})
}

// flagError says in the operator's terms what is wrong with a command line.
func flagError(cmd *cobra.Command, err error) error {
	help := fmt.Sprintf("see `%s --help`", cmd.CommandPath())
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return fmt.Errorf("%w; %s", err, help)
	}
	is, known := map[string]string{
		"int": "is no whole number", "int64": "is no whole number", "uint64": "is no whole number from 0 on", "float64": "is no number",
		"duration": "is no duration such as 500ms or 2m", "bool": "is neither true nor false",
		"stringSlice": "is no list such as a,b",
	}[bad.GetFlag().Value.Type()]
	if !known {
		return fmt.Errorf("%w; %s", err, help)
	}
	return fmt.Errorf("--%s: %q %s; %s", bad.GetFlag().Name, bad.GetValue(), is, help)
}

// fillFlags sets the flags that the command line left alone, in a command that
// has --config: from the environment, then from the YAML file that it names.
func fillFlags(cmd *cobra.Command) error {
	flags := cmd.Flags()
	file := flags.Lookup("config")
	if file == nil {
		return nil
	}
	if err := fillFromEnvironment(flags); err != nil {
		return err
	}
	if file.Value.String() == "" {
		return nil
	}
	return fillFromFile(flags, file.Value.String())
}

// fillFromEnvironment reads HEARSAY_X for --x. An empty variable is an unset one;
// of a flag that may be repeated it holds the values behind commas.
func fillFromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := "HEARSAY_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := os.Getenv(name)
		if value == "" || f.Changed || err != nil {
			return
		}
		values := []string{value}
		if repeatable(f) {
			values = strings.Split(value, ",")
		}
		for _, v := range values {
			if e := flags.Set(f.Name, strings.TrimSpace(v)); e != nil && err == nil {
				err = fmt.Errorf("environment variable %s=%q: %w", name, value, e)
			}
		}
	})
	return err
}

func repeatable(f *pflag.Flag) bool { return f.Value.Type() == "stringArray" }

// fillFromFile reads a mapping of flags' names to scalars, or to lists of them for
// flags that may be repeated. Scalars count as they are written: 0123 is a name.
func fillFromFile(flags *pflag.FlagSet, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return fmt.Errorf("--config %s: %s", path, yaml.FormatError(err, false, true))
	}
	if len(file.Docs) > 1 {
		return fmt.Errorf("--config %s holds %d documents; one is read", path, len(file.Docs))
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		settings, ok := doc.Body.(ast.MapNode)
		if !ok {
			return fmt.Errorf("--config %s holds no mapping; write lines such as listen: 127.0.0.1:8080", path)
		}
		for each := settings.MapRange(); each.Next(); {
			if err := fillSetting(flags, each.Key().String(), each.Value()); err != nil {
				return fmt.Errorf("--config %s: %w", path, err)
			}
		}
	}
	return nil
}

func fillSetting(flags *pflag.FlagSet, name string, value ast.Node) error {
	f := flags.Lookup(name)
	if f == nil || f.Hidden || name == "config" {
		return fmt.Errorf("there is no flag --%s; see `hearsay serve --help`", name)
	}
	if f.Changed {
		return nil
	}
	values := []ast.Node{value}
	if list, ok := value.(*ast.SequenceNode); ok && repeatable(f) {
		values = list.Values
	}
	for _, v := range values {
		if _, scalar := v.(ast.ScalarNode); !scalar || v.Type() == ast.NullType {
			return fmt.Errorf("%s has no value that --%s could take", name, name)
		}
		if err := flags.Set(name, v.GetToken().Value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
