package mesh

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
	"github.com/hearsay-project/hearsay/mesh/cert"
	"github.com/hearsay-project/hearsay/prefix"
)

const benchPoll = 500 * time.Millisecond

// BenchmarkCluster runs so many nodes with polls of 500 ms in one process, over loopback,
// each with 5 new blocks a poll, and tells what one of them costs where each tells all and
// where rumors are relayed, without certificates and with. One operation is a poll. Use
// -benchtime 40x.
func BenchmarkCluster(b *testing.B) {
	for _, nodes := range []int{16, 64} {
		for _, way := range []struct {
			name  string
			above int
			certs bool
		}{{"direct", 0, false}, {"direct+certs", 0, true}, {"relay", 4, false}, {"relay+certs", 4, true}} {
			b.Run(fmt.Sprintf("nodes=%d/%s", nodes, way.name), func(b *testing.B) {
				f := &fleet{b: b, said: map[string]map[uint64]time.Time{}, rng: rand.New(rand.NewPCG(1, 1))}
				f.run(nodes, way.above, way.certs)
			})
		}
	}
}

// A fleet is nodes in one process, and when each of their rumors was said.
type fleet struct {
	b     *testing.B
	nodes []*sailor
	rng   *rand.Rand

	mu   sync.Mutex
	said map[string]map[uint64]time.Time
	late []time.Duration // from saying to hearing
}

type sailor struct {
	*Mesh
	mu      sync.Mutex
	view    *gossip.View
	tree    *prefix.Tree
	version uint64
}

func (f *fleet) heard(n *sailor, r gossip.Rumor) {
	n.mu.Lock()
	news := n.view.Hear(time.Now(), r)
	n.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if news {
		f.late = append(f.late, time.Since(f.said[r.Author][r.Version]))
	}
}

// open adds a node, with a certificate made in dir unless that is empty.
func (f *fleet) open(dir string, above int) {
	name := fmt.Sprintf("gpu%d-7946", len(f.nodes))
	n := &sailor{view: gossip.NewView(gossip.Config{}), tree: prefix.NewTree(1<<30, 6250)}
	f.said[name] = map[uint64]time.Time{}
	host := net.IPv4(127, 0, 0, byte(len(f.nodes)+1)) // of its own, as handshakes are limited by host
	listener, err := net.Listen("tcp", net.JoinHostPort(host.String(), "0"))
	if err != nil {
		f.b.Fatal(err)
	}
	cfg := Config{Name: name, Listener: listener, RelayAbove: above, RumorBytes: 1 << 20}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: host}}
	cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }
	if len(f.nodes) > 0 {
		cfg.Join = []string{f.nodes[0].Addr()}
	}
	cfg.OnRumor = func(r gossip.Rumor) { f.heard(n, r) }
	cfg.Told = func(peer string) (uint64, uint64) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.view.Told(peer)
	}
	if dir != "" {
		if _, err = cert.MakeNode(dir, dir, name, time.Hour); err != nil {
			f.b.Fatal(err)
		}
		files := cert.Files{Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key"), CA: filepath.Join(dir, "ca.pem")}
		if cfg.Identity, err = cert.Open(files, name); err != nil {
			f.b.Fatal(err)
		}
	}
	if n.Mesh, err = Open(cfg); err != nil {
		f.b.Fatal(err)
	}
	f.nodes = append(f.nodes, n)
}

// poll has every node say something, one after the other within the interval.
func (f *fleet) poll(tick <-chan time.Time) {
	for _, n := range f.nodes {
		<-tick
		c := make(prefix.Chain, 5)
		for i := range c {
			c[i] = prefix.Hash(f.rng.Uint64())
		}
		n.tree.Insert(c, 80)
		n.version++
		f.mu.Lock()
		f.said[n.cfg.Name][n.version] = time.Now()
		f.mu.Unlock()
		n.Broadcast(gossip.Rumor{
			Author: n.cfg.Name, Life: 1, Version: n.version, Every: benchPoll,
			Models: []string{"meta-llama/Llama-3.1-8B-Instruct"}, Tree: n.tree.Snapshot(),
		})
	}
}

// close ends all at once.
func (f *fleet) close() {
	var wg sync.WaitGroup
	for _, n := range f.nodes {
		wg.Go(func() { n.Close() })
	}
	wg.Wait()
}

// count adds up what all have heard, and their streams.
func (f *fleet) count() (bytes uint64, streams int) {
	for _, n := range f.nodes {
		bytes += n.Stats().RumorBytesReceived
		n.Mesh.mu.Lock()
		for _, p := range n.peers {
			if p.stream != nil {
				streams++
			}
		}
		n.Mesh.mu.Unlock()
	}
	return bytes, streams
}

// memory is what the process has in use.
func memory() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func (f *fleet) run(count, above int, certs bool) {
	b, dir := f.b, ""
	if certs {
		dir = b.TempDir()
		if err := cert.MakeAuthority(dir, 24*time.Hour); err != nil {
			b.Fatal(err)
		}
	}
	defer f.close()
	held, goroutines := memory(), runtime.NumGoroutine()
	for range count {
		f.open(dir, above)
		time.Sleep(benchPoll / 2) // all at once, their handshakes would take these two cores half a minute
	}
	tick := time.NewTicker(benchPoll / time.Duration(count))
	defer tick.Stop()
	for range 20 + int(spareWait/benchPoll) { // for the streams of the beginning to end
		f.poll(tick.C)
	}
	f.mu.Lock()
	f.late = nil
	f.mu.Unlock()
	spent, polls := cpu(), 0
	was, _ := f.count()
	for b.Loop() {
		f.poll(tick.C)
		polls++
	}
	spent = cpu() - spent
	bytes, streams := f.count()
	each, seconds := 1/float64(count), float64(polls)*benchPoll.Seconds()
	b.ReportMetric(100*each*spent.Seconds()/seconds, "%core")
	b.ReportMetric(each*float64(bytes-was)/seconds/1000, "kB/s")
	f.mu.Lock()
	late := f.late
	f.late, f.said = nil, nil
	f.mu.Unlock()
	b.ReportMetric(each*float64(memory()-held)/1e6, "MB")
	b.ReportMetric(each*float64(runtime.NumGoroutine()-goroutines), "goroutines")
	b.ReportMetric(each*float64(streams), "streams")
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2])/float64(benchPoll), "polls-p50")
	b.ReportMetric(float64(late[len(late)*99/100])/float64(benchPoll), "polls-p99")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRelayedRumor tells what it takes to read a rumor of 5 new blocks that is
// relayed, to hear it and to keep it, without certificates and with.
func BenchmarkRelayedRumor(b *testing.B) {
	for _, certs := range []bool{false, true} {
		b.Run(fmt.Sprintf("certs=%v", certs), func(b *testing.B) {
			f, dir := &fleet{b: b, said: map[string]map[uint64]time.Time{}}, ""
			if certs {
				dir = b.TempDir()
				if err := cert.MakeAuthority(dir, 24*time.Hour); err != nil {
					b.Fatal(err)
				}
			}
			f.open(dir, 0)
			f.open(dir, 0)
			defer f.close()
			m, author := f.nodes[0], f.nodes[1]
			p := &peer{Peer: Peer{Name: "author", State: StateAlive}, member: true, life: 1}
			if certs {
				own, err := author.cfg.Identity.Server().GetCertificate(nil)
				if err != nil {
					b.Fatal(err)
				}
				p.chain = []*x509.Certificate{own.Leaf}
			}
			m.Mesh.mu.Lock()
			m.peers[p.Name] = p
			m.Mesh.mu.Unlock()
			s := m.newStream(&peer{Peer: Peer{Name: "relay"}}, nil, relaySpoken)
			r := gossip.Rumor{Author: p.Name, Life: 1, Version: 1, Every: benchPoll, Models: []string{"meta-llama/Llama-3.1-8B-Instruct"}, Change: &gossip.Change{}}
			for b.Loop() {
				b.StopTimer()
				r.Version++
				r.Change.Since, r.Change.Come = r.Version-1, []prefix.Hash{1, 2, 3, 4, prefix.Hash(r.Version + 4)}
				payload := author.seal(r.AppendBinary(nil))[frameHeader:]
				b.StartTimer()
				if err := s.relayed(payload); err != nil {
					b.Fatal(err)
				}
			}
			if m.Refused()[refusedForged] > 0 || m.Stats().RelayedNews == 0 {
				b.Errorf("refused %v, counted %+v", m.Refused(), m.Stats())
			}
		})
	}
}
