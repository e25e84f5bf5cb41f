package main

import "github.com/spf13/cobra"

func certCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Make the certificates by which nodes know each other",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return misuse("say which: `hearsay cert ca`, once, then `hearsay cert node NAME` for each node")
		},
	}
	cmd.AddCommand(certCACommand(), certNodeCommand())
	return cmd
}

// daysMax keeps certificates within what their times can say.
const daysMax = 100 * 365
