package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/mesh/cert"
)

func certNodeCommand() *cobra.Command {
	var dir, out string
	var days int
	cmd := &cobra.Command{
		Use:   "node NAME",
		Short: "Make one node's certificate and key, signed by the authority",
		Long: "Node writes NAME.pem and NAME.key, the --peer-cert and --peer-key of the node of that name, which it then\n" +
			"bears without --name. To renew one, write the new files elsewhere with --out and move them over the old:\n" +
			"the node reads them without a restart. Nothing that is there is written over.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if !mesh.GoodName(name) {
				return misuse(`%q is no name for a node; take letters, digits, "-", "_" and "."`, name)
			}
			if days < 1 || days > daysMax {
				return misuse("--days must be 1 to %d", daysMax)
			}
			to := cmp.Or(out, dir)
			serial, err := cert.MakeNode(dir, to, name, time.Duration(days)*24*time.Hour)
			if err != nil {
				return misuse("%w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s and %s are made, serial %s\nhearsay serve --peer-cert %[1]s --peer-key %[2]s --peer-ca %[4]s\n",
				filepath.Join(to, name+".pem"), filepath.Join(to, name+".key"), serial, filepath.Join(dir, "ca.pem"))
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "`folder` of the authority, ca.pem and ca.key")
	cmd.Flags().StringVar(&out, "out", "", "`folder` to write to; default that of the authority")
	cmd.Flags().IntVar(&days, "days", 365, "how long it is good for")
	return cmd
}
