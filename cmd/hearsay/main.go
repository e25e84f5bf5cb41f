// Command hearsay is a peer-to-peer router for LLM serving: one process beside
// every engine, no coordinator. Its commands are serve (one node), demo (a
// cluster on this machine), bench (measure a cluster), sim (simulate one), status
// (what a node believes) and cert (certificates for its peers). Exit 0 is done, 1
// failed, 2 misuse.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	running := false
	root := rootCommand()
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := fillFlags(cmd); err != nil {
			return err
		}
		running = true
		return nil
	}
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case !running || errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "hearsay: %v\n", err)
		return 2
	default:
		fmt.Fprintf(os.Stderr, "hearsay: %v\n", err)
		return 1
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "hearsay",
		Short:         "A peer-to-peer router for LLM serving",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(serveCommand(), demoCommand(), benchCommand(), simCommand(), statusCommand(), certCommand())
	return root
}

// usageError is an operator's mistake: exit 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func misuse(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}
