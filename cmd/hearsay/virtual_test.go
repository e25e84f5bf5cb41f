package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/daemon"
	"github.com/hearsay-project/hearsay/engine"
	"github.com/hearsay-project/hearsay/engine/emulated"
	"github.com/hearsay-project/hearsay/mesh"
	"github.com/hearsay-project/hearsay/mesh/memnet"
	"github.com/hearsay-project/hearsay/node"
	"github.com/hearsay-project/hearsay/route"
	"github.com/hearsay-project/hearsay/workload"
)

// Whole nodes - daemons, peer streams, emulated engines, HTTP between them and the
// load generator - do in virtual time what the simulator says of the same requests:
// the hit rate within a point, the mean latency within a tenth. No machine adds
// anything here, so what differs is the simulator's.
func TestNodesDoAsSimulated(t *testing.T) {
	f := paperFlags{requests: 400, seed: 1, timeScale: 1, blockTokens: 14, port: 1, peerPort: 100}
	f.policies, f.delays, f.workloads = []string{"economic"}, []time.Duration{2 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond}, []string{uniform, skewed}
	priced, err := f.rows()
	if err != nil {
		t.Fatal(err)
	}
	rows := append(paperRows(), priced...)
	f.draw(t, rows)
	for _, r := range rows {
		t.Run(fmt.Sprintf("%s at %v", r.name(), r.scenario.Delay), func(t *testing.T) {
			if _, err := f.simulate(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				got := runInVirtualTime(t, &f, r)
				hit, mean := *got.ActualHit-*r.Simulated.ActualHit, *got.Mean / *r.Simulated.Mean - 1
				t.Logf("hit %.4f simulated (%.4f to %.4f), %.4f here; forwarded %.3f and %.3f; mean %.4f s and %.4f s", *r.Simulated.ActualHit, r.SimulatedLow, r.SimulatedHigh, *got.ActualHit, *r.Simulated.ForwardedShare, *got.ForwardedShare, *r.Simulated.Mean, *got.Mean)
				if got.Errors > 0 || math.Abs(hit) > .01 || math.Abs(mean) > .1 {
					t.Errorf("%d errors; hit %+.1f points and mean %+.1f %% from the simulator's; want 1 and 10 at most", got.Errors, 100*hit, 100*mean)
				}
			})
		})
	}
}

func (f *paperFlags) draw(t *testing.T, rows []*paperRow) {
	t.Helper()
	if err := f.check(nil); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		var err error
		if r.sample, err = workload.New(workload.Config{Name: r.Workload, Requests: f.requests, Seed: f.seed}); err != nil {
			t.Fatal(err)
		}
	}
}

// runInVirtualTime drives four nodes on a network in memory, inside a bubble.
func runInVirtualTime(t *testing.T, f *paperFlags, r *paperRow) *workload.Report {
	t.Helper()
	network := memnet.New()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	var targets []string
	for i := range r.scenario.Nodes {
		host := fmt.Sprintf("10.0.0.%d", i+1)
		listen := func(port string) net.Listener {
			l, err := network.Listen(host + port)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		policy, err := route.ByName(r.Policy)
		if err != nil {
			t.Fatal(err)
		}
		e, err := emulated.Open(emulated.Config{Profile: f.profile, BlockTokens: f.blockTokens, TokenBytes: f.tokenBytes()})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		cfg := daemon.Config{
			Node: node.Config{
				Name: fmt.Sprintf("n%d", i+1), Life: uint64(time.Now().UnixNano()), CapacityTokens: e.CapacityTokens(), Policy: policy,
				Poll: f.poll(r), Rand: rand.New(rand.NewPCG(f.seed, uint64(i))),
			},
			Engine: engine.Local{Handler: e},
			Mesh: mesh.Config{
				Listener: listen(":7946"), Dial: network.DialFrom(host), Insecure: true, LinkDelay: r.scenario.Delay,
			},
			API: listen(":80"),
			Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		}
		if i > 0 {
			cfg.Mesh.Join = []string{"10.0.0.1:7946"}
		}
		d, err := daemon.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- d.Run(ctx) }()
		targets = append(targets, "http://"+host+":80")
	}
	time.Sleep(time.Minute) // virtual: they find each other
	got, err := workload.Run(ctx, workload.Options{
		Workload: r.sample, Targets: targets,
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return network.Dial(ctx, addr) },
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range targets {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	time.Sleep(time.Minute) // virtual: memberlist's own goroutines end after a probe
	return got
}
