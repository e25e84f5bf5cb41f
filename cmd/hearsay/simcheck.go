package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hearsay-project/hearsay/emulate"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/sim"
)

// simLimits are the least and the most that flags of sim run take. Beyond them a
// run has no meaning, or takes years of virtual time or all memory.
var simLimits = []struct {
	flag        string
	least, most float64
}{
	{"requests", 1, 1e7},
	{"max-tokens", 1, 1e6},
	{"block-tokens", 1, emulate.MaxBlockTokens},
	{"closed", 1, 1e6},
	{"rate", 1e-3, 1e6},
	{"nodes", 1, sim.MaxNodes},
	{"queue-threshold", 1, 1e6},
	{"loss", 0, 1},
	{"duplicate", 0, 1},
	{"reorder", 0, 1},
	{"bandwidth", sim.MinBandwidth, 1e15},
}

// simTimes are the same for durations.
var simTimes = []struct {
	flag        string
	least, most time.Duration
}{
	{"poll", node.MinPoll, node.MaxPoll},
	{"delay", 0, maxDelay},
	{"jitter", 0, maxDelay},
}

// simClashes are flags of which one is in the place of the other.
var simClashes = [][2]string{
	{"rate", "closed"},
	{"rate", "arrivals"},
	{"closed", "arrivals"},
	{"regions", "matrix"},
	{"regions", "nodes"},
	{"matrix", "nodes"},
	{"regions", "delay"},
	{"matrix", "delay"},
}

// checkSimFlags refuses what was given and cannot be, flag by flag.
func checkSimFlags(flags *pflag.FlagSet) error {
	if err := refuseEmpty(flags); err != nil {
		return err
	}
	for _, clash := range simClashes {
		if flags.Changed(clash[0]) && flags.Changed(clash[1]) {
			return fmt.Errorf("--%s and --%s exclude each other; give one of them", clash[0], clash[1])
		}
	}
	if flags.Changed("by-topic") && !flags.Changed("repeats") {
		return errors.New("--by-topic draws subjects again and again; add --repeats")
	}
	for _, l := range simLimits {
		text := flags.Lookup(l.flag).Value.String()
		if v, _ := strconv.ParseFloat(text, 64); flags.Changed(l.flag) && !(v >= l.least && v <= l.most) {
			return fmt.Errorf("--%s %s is out of range; choose %s to %s", l.flag, text, decimal(l.least), decimal(l.most))
		}
	}
	for _, l := range simTimes {
		text := flags.Lookup(l.flag).Value.String()
		if d, _ := time.ParseDuration(text); d < l.least || d > l.most {
			return fmt.Errorf("--%s %s is out of range; choose %v to %v", l.flag, text, l.least, l.most)
		}
	}
	return nil
}

// refuseEmpty refuses texts that were given and are empty, as of a shell's variable
// that is not set: what it stood for would be passed over in silence.
func refuseEmpty(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() == "string" && strings.TrimSpace(f.Value.String()) == "" {
			err = fmt.Errorf("--%s is empty; give it a value, or leave it out", f.Name)
		}
	})
	return err
}

// checkPolicies returns the policies given, of those known, as the simulator calls them.
func checkPolicies(given, known []string) ([]string, error) {
	var names []string
	for _, name := range given {
		name = strings.TrimSpace(name)
		switch {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("--policy: there is no %q; choose one of %s", name, strings.Join(known, ", "))
		case slices.Contains(names, name):
			return nil, fmt.Errorf("--policy names %s twice; name it once", name)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("--policy names none; choose one of %s", strings.Join(known, ", "))
	}
	return names, nil
}

// parseCapacity reads the tokens of a cache, 0 for the profile's.
func parseCapacity(text string) (int, error) {
	switch text {
	case "":
		return 0, nil
	case "unlimited":
		return emulate.Unlimited, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > emulate.Unlimited {
		return 0, fmt.Errorf("--capacity %s is no number of tokens; write 1 to %d, or unlimited", text, emulate.Unlimited)
	}
	return n, nil
}
