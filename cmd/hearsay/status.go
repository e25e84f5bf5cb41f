package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/route"
)

func statusCommand() *cobra.Command {
	var url string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what a node believes of every peer, and how old it is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := fetchStatus(cmd.Context(), url)
			if err != nil {
				return err
			}
			if asJSON {
				out := json.NewEncoder(cmd.OutOrStdout())
				out.SetIndent("", "  ")
				return out.Encode(s)
			}
			return printStatus(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringVar(&url, "node", "http://127.0.0.1:8080", "`URL` of the node's API")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the JSON of /hearsay/v1/status")
	return cmd
}

// statusClient asks nodes about themselves.
var statusClient = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{Proxy: nil}}

// fetchStatus asks the node at base what it believes.
func fetchStatus(ctx context.Context, base string) (s daemon.Status, err error) {
	if base == "" {
		return s, misuse("--node is empty; give the URL of a node's API")
	}
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/hearsay/v1/status", nil)
	if err != nil {
		return s, misuse("--node: %w", err)
	}
	resp, err := statusClient.Do(req)
	if err != nil {
		return s, fmt.Errorf("no node answers at %s: %w; --node takes the address of a running node's API", base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("%s is no hearsay node: status %d", base, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&s); err != nil {
		return s, fmt.Errorf("%s is no hearsay node: %w", base, err)
	}
	return s, nil
}

func printStatus(out io.Writer, s daemon.Status) error {
	capacity := "an unknown number of"
	if s.CapacityTokens > 0 {
		capacity = fmt.Sprint(s.CapacityTokens)
	}
	untold := ""
	if s.UntoldBlocks > 0 {
		untold = fmt.Sprintf(", %d blocks not told to peers", s.UntoldBlocks)
	}
	fmt.Fprintf(out, "%s  policy %s, poll %s, queue %d%s, tree %d blocks (%d of %s tokens)%s\n",
		s.Name, s.Policy, ms(s.PollMS), s.Queue, pause(s.PausedMS), s.TreeBlocks, s.TreeTokens, capacity, untold)
	printEngine(out, s.Engine)
	if s.KVEvents != nil {
		printEvents(out, *s.KVEvents)
	}
	for _, t := range []struct {
		where string
		t     daemon.Totals
	}{{"served here", s.Here}, {"served by peers for this node", s.There}} {
		fmt.Fprintf(out, "  %s: %d requests; cached tokens expected %d, actual %d, of %d\n",
			t.where, t.t.Requests, t.t.PredictedTokens, t.t.CachedTokens, t.t.PromptTokens)
	}
	if s.Policy == (route.Economic{}).Name() {
		printEconomy(out, s.Economy)
	}
	if s.EngineError != "" {
		fmt.Fprintf(out, "  the engine does not answer: %s\n", s.EngineError)
	}
	if s.Trouble != "" {
		fmt.Fprintf(out, "  %s\n", s.Trouble)
	}
	if len(s.Peers) == 0 {
		fmt.Fprintln(out, "no peers yet; --join names one, or has others join this node")
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "\npeer\taddress\tstate\trumor age\ttree blocks\ttree tokens\tcredits\tqueue\tpause\tround trip")
	for _, p := range s.Peers {
		age := "-"
		if p.RumorAgeMS >= 0 {
			age = ms(p.RumorAgeMS)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n",
			p.Name, p.Addr, p.State, age, p.TreeBlocks, p.TreeTokens, p.Credits, p.Queue, ms(p.PausedMS), ms(p.RTTMS))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, p := range s.Peers {
		if p.Trouble != "" {
			fmt.Fprintf(out, "%s: %s\n", p.Name, p.Trouble)
		}
	}
	return nil
}

// printEconomy says what prices rest on, and what has come of them.
func printEconomy(out io.Writer, e daemon.EconomyStatus) {
	from := "a guess"
	if e.Samples > 0 {
		from = fmt.Sprintf("by %d samples", e.Samples)
	}
	fmt.Fprintf(out, "  prices: a prefill takes %s and %s a token (%s), a request that came now would wait %s\n",
		ms(e.Base), ms(e.PerToken), from, ms(e.BacklogMS))
	fmt.Fprintf(out, "  computed unasked: %d prefixes, %d tokens, given up %d, failed %d; forwards bounced: %d by this node, %d by peers\n",
		e.WarmedPrefixes, e.WarmedTokens, e.WarmedGivenUp, e.WarmedFailed, e.BouncedOff, e.Bounced)
}

// printEngine says what is known of the engine, and from whom where not from itself.
func printEngine(out io.Writer, e daemon.EngineStatus) {
	say := func(f daemon.Fact) string {
		switch f.From {
		case daemon.FromNobody:
			return "unknown"
		case daemon.FromEngine:
			return fmt.Sprint(f.Value)
		}
		return fmt.Sprintf("%v (%s)", f.Value, f.From)
	}
	fmt.Fprintf(out, "  engine %s, version %s: context %s tokens, KV cache %s tokens, running %s, waiting %s, reports cached tokens: %s\n",
		say(e.Kind), say(e.Version), say(e.Context), say(e.KVTokens), say(e.Running), say(e.Waiting), say(e.Cached))
	if e.Remedy != "" {
		fmt.Fprintf(out, "  to be changed at the engine: %s\n", e.Remedy)
	}
}

// printEvents says how the engine's KV events are followed, and what came of them.
func printEvents(out io.Writer, e daemon.KVEventsStatus) {
	fmt.Fprintf(out, "  KV events: %d of %d ranks connected, %d blocks held; %d batches, %d gaps, %d replays, cleared %d times, %d skipped; %d prompts linked, %d not\n",
		e.Connected, e.Ranks, e.Blocks, e.Batches, e.Gaps, e.Replays, e.Clears, e.Skipped, e.Prompts, e.Unlinked)
}

func ms(v float64) string {
	d := time.Duration(v * float64(time.Millisecond))
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func pause(msLeft float64) string {
	if msLeft <= 0 {
		return ""
	}
	return " (asks for a pause of " + ms(msLeft) + ")"
}
