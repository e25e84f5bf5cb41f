package cases

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/mesh"
)

// G70: a node that comes back at another address under its name is used there soon,
// and what it had cached is not believed any more.
func TestG70NewAddress(t *testing.T) {
	for name, end := range map[string]func(c *cluster){
		"left":   func(c *cluster) { _ = c.members["B"].end() },
		"killed": func(c *cluster) { c.kill("B") },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 3, always(JSON(200, silent)), func(t *testing.T, c *cluster) {
				c.warm(chatPath, long("law", 20, ""))
				end(c)
				c.start("B", "10.0.0.99", c.served(), sendTo("B"))
				begun := time.Now()
				for {
					r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat)
					if r.status != 200 {
						t.Fatalf("%d %s", r.status, r.body)
					}
					if r.node() == "B" {
						break
					}
					if time.Since(begun) > time.Minute {
						t.Fatal("B is not used again")
					}
					time.Sleep(500 * time.Millisecond)
				}
				if took := time.Since(begun); took > 15*time.Second {
					t.Errorf("used again after %v", took)
				}
				if b := c.believed("B", "A"); b.TreeBlocks != 0 || !strings.HasPrefix(b.Addr, "10.0.0.99:") {
					t.Errorf("A believes %+v", b)
				}
				c.settle()
			}, sendTo("B"))
		})
	}
}

// G71: the sides of a partition that lasted go on serving, and are one cluster again
// within a minute of its end, by themselves.
func TestG71Partition(t *testing.T) {
	virtual(t, 3, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		c.network().Cut(hostOf("A"), clients, engineHostOf("A"))
		for range 10 {
			time.Sleep(time.Minute)
			if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, chat); r.status != 200 || r.node() != "A" {
				t.Errorf("cut off, A answers %d", r.status)
			}
		}
		if c.state("B", "A") != "dead" || c.state("C", "B") != "alive" {
			t.Errorf("B is %s for A, C is %s for B", c.state("B", "A"), c.state("C", "B"))
		}
		c.network().Heal()
		for _, at := range []string{"B", "C"} {
			if r := c.askAt(t.Context(), at, http.MethodPost, chatPath, chat); r.status != 200 {
				t.Errorf("%s answers %d", at, r.status)
			}
		}
		begun := time.Now()
		c.settle()
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("whole again after %v", took)
		}
	})
}

// G72: as many models as an engine may have are known to peers.
func TestG72ManyModels(t *testing.T) {
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		models := []string{"m-test"}
		for i := range 200 {
			models = append(models, fmt.Sprintf("adapter-%03d-%s", i, strings.Repeat("x", 200)))
		}
		c.served().serve(models...)
		time.Sleep(5 * time.Second)
		if n := len(c.believed("B", "A").Models); n != len(models) {
			t.Errorf("A knows %d of %d models", n, len(models))
		}
		if r := c.askAt(t.Context(), "A", http.MethodPost, chatPath, strings.Replace(chat, "m-test", models[200], 1)); r.status != 200 || r.node() != "B" {
			t.Errorf("%d from %q: %s", r.status, r.node(), r.body)
		}
	})
}

// G88: members that come and go at a high rate, while everybody asks who is there,
// stop nobody, and in the end all is as it is. The rate is as it was reported, for
// three seconds and not a minute: each takes more than one of a processor's.
func TestG88ComingAndGoing(t *testing.T) {
	const seconds, perSecond = 3, 100 // joins and leaves
	virtual(t, 2, always(JSON(200, answer)), func(t *testing.T, c *cluster) {
		stop, ended := make(chan bool), make(chan bool)
		asking := *c
		asking.members = maps.Clone(c.members)
		go func() {
			defer close(ended)
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				begun := time.Now()
				for _, path := range []string{"/metrics", "/hearsay/v1/status"} {
					if r := asking.get("A", path); r.status != 200 || time.Since(begun) > time.Second {
						t.Errorf("%s: %d after %v", path, r.status, time.Since(begun))
					}
				}
			}
		}()
		var members sync.WaitGroup
		for i := range seconds * perSecond / 2 {
			members.Go(func() { c.visit(i) })
			time.Sleep(time.Second * 2 / perSecond)
		}
		members.Wait()
		close(stop)
		<-ended
		time.Sleep(time.Minute) // until the killed are found dead
		c.settle()
		for _, at := range []string{"A", "B"} {
			for _, p := range c.members[at].daemon.Status().Peers {
				if member := len(p.Name) == 1; member != (p.State == "alive") {
					t.Errorf("%s believes that %s is %s", at, p.Name, p.State)
				}
			}
		}
	})
}

// visit joins a member without an engine, for a moment, under a name that others
// have had before. One in two is killed.
func (c *cluster) visit(i int) {
	host := fmt.Sprintf("10.1.%d.%d", i/250, i%250)
	m, err := mesh.Open(mesh.Config{
		Name: fmt.Sprint("visitor-", i%100), Listener: c.wires.listen(c.t, host, peerPort), Dial: c.wires.dialFrom(host),
		Join: []string{c.members["A"].peer, c.members["B"].peer}, Insecure: true,
	})
	if err != nil {
		c.t.Error(err)
		return
	}
	time.Sleep(200 * time.Millisecond)
	if i%2 == 0 {
		c.network().Kill(host)
	} else {
		_ = m.Leave(c.t.Context()) // whom all these changes keep from spreading it is found dead
	}
	_ = m.Close()
}
