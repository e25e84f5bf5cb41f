package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
)

// BenchmarkHop asks two nodes, over TCP on loopback, for what the second has
// cached: the second directly, the first by a hop, in turn, so that the two are
// measured side by side. The engine takes no time. What a hop adds is the
// difference of the two medians, and of the two 99th percentiles.
func BenchmarkHop(b *testing.B) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	urls := startNodes(b, 2, &stubEngine{})
	body := completionBody(prompt("law", 100), 1)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer client.CloseIdleConnections()
	ask := func(url, want string) time.Duration {
		begun := time.Now()
		resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if hops := resp.Header.Get(hopsHeader); want != "" && hops != want {
			b.Fatalf("%s took %s hops, want %s", url, hops, want)
		}
		return time.Since(begun)
	}
	ask(urls[1], "")
	for !hasHeard(b, urls[0]) {
		time.Sleep(10 * time.Millisecond)
	}
	for range 20 { // to warm up
		ask(urls[0], "1")
	}
	var direct, hop []time.Duration
	for b.Loop() {
		direct = append(direct, ask(urls[1], "0"))
		hop = append(hop, ask(urls[0], "1"))
	}
	slices.Sort(direct)
	slices.Sort(hop)
	for name, q := range map[string]float64{"p50": 0.50, "p99": 0.99} {
		at := int(q * float64(len(hop)-1))
		b.ReportMetric(float64(direct[at].Microseconds()), name+"-direct-us")
		b.ReportMetric(float64(hop[at].Microseconds()), name+"-hop-us")
		b.ReportMetric(float64((hop[at] - direct[at]).Microseconds()), name+"-added-us")
	}
}

// hasHeard says whether a node believes that its peer has something cached.
func hasHeard(b *testing.B, url string) bool {
	resp, err := http.Get(url + "/hearsay/v1/status")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		b.Fatal(err)
	}
	return len(s.Peers) == 1 && s.Peers[0].TreeBlocks > 0
}

// startNodes runs n joined nodes on loopback, all beside one engine, and returns
// their URLs. Their poll is the default: at a short one a busy machine makes a peer
// look silent.
func startNodes(b testing.TB, n int, e *stubEngine) (urls []string) {
	b.Helper()
	var seed string
	for i := range n {
		name := fmt.Sprint("n", i+1)
		cfg := Config{
			Node:   node.Config{Name: name, Life: uint64(time.Now().UnixNano()), Policy: route.Longest{}, Rand: rand.New(rand.NewPCG(1, 2))},
			Engine: e.transport(),
			API:    bind(b), Mesh: mesh.Config{Listener: bind(b)},
		}
		if seed != "" {
			cfg.Mesh.Join = []string{seed}
		}
		seed = cfg.Mesh.Listener.Addr().String()
		d, err := New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		b.Cleanup(func() { cancel(); <-ended })
		urls = append(urls, "http://"+cfg.API.Addr().String())
	}
	return urls
}

func bind(b testing.TB) net.Listener {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	return l
}
