package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
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

func fillFromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := "HEARSAY_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(name)
		if !ok || f.Changed || err != nil {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = fmt.Errorf("environment variable %s=%q: %w", name, value, e)
		}
	})
	return err
}

func fillFromFile(flags *pflag.FlagSet, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var settings map[string]any
	if err := yaml.Unmarshal(data, &settings); err != nil {
		return fmt.Errorf("--config %s: %s", path, yaml.FormatError(err, false, true))
	}
	names := make([]string, 0, len(settings))
	for name := range settings {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f := flags.Lookup(name)
		if f == nil || name == "config" {
			return fmt.Errorf("--config %s: there is no flag --%s; see `hearsay serve --help`", path, name)
		}
		if f.Changed {
			continue
		}
		values, isList := settings[name].([]any)
		if !isList {
			values = []any{settings[name]}
		}
		for _, v := range values {
			if err := flags.Set(name, fmt.Sprint(v)); err != nil {
				return fmt.Errorf("--config %s: %s: %w", path, name, err)
			}
		}
	}
	return nil
}
