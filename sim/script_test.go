package sim

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/prefix"
)

var update = flag.Bool("update", false, "write what the scripts in testdata say into them")

func contains(err error, part string) bool { return strings.Contains(err.Error(), part) }

// A script is a cluster, what is asked of it and what befalls it, as lines of words
// and key=value pairs:
//
//	cluster n=4 delay=2ms poll=500ms policy=longest+pushback threshold=8 capacity=TOKENS
//	ask n1 topic=law [from=1s] [x40] [every=5ms] [out=TOKENS]
//	crash|restart|partition|slow n2 [n3...] from=2s [factor=4]
//	heal from=3s
//
// A topic's prompts share 28 blocks of 32; the last four are each prompt's own.
type script struct {
	cfg      Config
	requests []Request
	entries  []int
	topics   []string
}

func parse(t *testing.T, text string) *script {
	s := &script{cfg: Config{Profile: paper(t), Seed: 1, Check: true}}
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		var nodes []int
		args := map[string]string{"x": "1"}
		for _, w := range words[1:] {
			if k, v, ok := strings.Cut(w, "="); ok {
				args[k] = v
			} else if n, err := strconv.Atoi(w[1:]); err != nil {
				t.Fatalf("%q: what is %q?", line, w)
			} else if w[0] == 'n' {
				nodes = append(nodes, n-1)
			} else {
				args[w[:1]] = w[1:]
			}
		}
		number := func(key string) int { n, _ := strconv.Atoi(args[key]); return n }
		span := func(key string) time.Duration { d, _ := time.ParseDuration(cmp.Or(args[key], "0s")); return d }
		switch words[0] {
		case "cluster":
			s.cfg.Nodes, s.cfg.Policy, s.cfg.Poll = number("n"), args["policy"], span("poll")
			s.cfg.Network.Delay, s.cfg.QueueThreshold, s.cfg.CapacityTokens = span("delay"), number("threshold"), number("capacity")
		case "ask":
			for i := range number("x") {
				s.ask(nodes[0], args["topic"], span("from")+time.Duration(i)*span("every"), number("out"))
			}
		default:
			factor, _ := strconv.ParseFloat(args["factor"], 64)
			s.cfg.Faults = append(s.cfg.Faults, Fault{At: span("from"), Kind: Kind(words[0]), Nodes: nodes, Factor: factor})
		}
	}
	slices.SortStableFunc(s.requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	for i := range s.requests {
		s.entries = append(s.entries, int(s.requests[i].Chain[31]>>48))
	}
	return s
}

// ask adds a request; its last block's name tells the entry, for use after sorting.
func (s *script) ask(entry int, topic string, at time.Duration, out int) {
	if !slices.Contains(s.topics, topic) {
		s.topics = append(s.topics, topic)
	}
	c := make(prefix.Chain, 32)
	for i := range c {
		c[i] = prefix.Hash(slices.Index(s.topics, topic)+1)<<8 | prefix.Hash(i)
		if i >= 28 {
			c[i] |= prefix.Hash(entry)<<48 | prefix.Hash(len(s.requests)+1)<<24
		}
	}
	s.requests = append(s.requests, Request{Topic: topic, Chain: c, Tokens: 512, Output: out, At: at})
}

// play runs the script and tells it in lines; a line stands for all requests in a
// row that went the same way for the same reason.
func (s *script) play(t *testing.T) string {
	records := make([]Record, len(s.requests))
	s.cfg.Trace = func(r Record) { records[r.Index] = r }
	s.cfg.entry = func(i int) int { return s.entries[i] }
	if _, err := Run(s.cfg, slices.Values(s.requests)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i := 0; i < len(records); {
		r, j := records[i], i
		way := tell(r)
		for j < len(records) && tell(records[j]) == way {
			j++
		}
		times := ""
		if j-i > 1 {
			times = fmt.Sprintf(" x%d", j-i)
		}
		fmt.Fprintf(&out, "t=%.3f %s%s\n", r.At.Seconds(), way, times)
		i = j
	}
	return out.String()
}

func tell(r Record) string {
	if r.Err != "" {
		return fmt.Sprintf("n%d %s: %s", r.Entry+1, r.Topic, r.Err)
	}
	return fmt.Sprintf("n%d %s -> n%d found %d/32: %s", r.Entry+1, r.Topic, r.Node+1, (r.Cached+15)/16, r.Reason)
}

// Each script's story is the one below its line.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head, want, _ := strings.Cut(string(text), "----\n")
			got := parse(t, head).play(t)
			if *update {
				if err := os.WriteFile(file, []byte(head+"----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("%s now tells\n%s\nit told\n%s\nto keep the new story: go test ./sim -run TestScripts -update", file, got, want)
			}
		})
	}
}
