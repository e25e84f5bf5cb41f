package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearsay-project/hearsay/mesh/cert"
)

func certCACommand() *cobra.Command {
	var dir string
	var days int
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Make a cluster's authority: ca.pem for every node, ca.key to sign with",
		Long: "Ca writes ca.pem, which every node is given as --peer-ca, and ca.key, with which `hearsay cert node` signs.\n" +
			"Whoever has ca.key can make peers: keep it off the nodes. Nothing that is there is written over.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if days < 1 || days > daysMax {
				return misuse("--days must be 1 to %d", daysMax)
			}
			if err := cert.MakeAuthority(dir, time.Duration(days)*24*time.Hour); err != nil {
				return misuse("%w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s and %s are made; next, for each node: hearsay cert node NAME\n", filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key"))
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "`folder` to write to")
	cmd.Flags().IntVar(&days, "days", 3650, "how long it is good for")
	return cmd
}
