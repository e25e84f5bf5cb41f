package mesh

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearsay-project/hearsay/mesh/memnet"
)

// ends are the ways in which a process ends.
var ends = map[string]func(*memnet.Network, *testNode){
	"left": func(_ *memnet.Network, n *testNode) {
		n.Leave(context.Background())
		n.Close()
	},
	"killed": func(network *memnet.Network, n *testNode) {
		network.Kill(n.host)
		n.Close()
	},
}

// back is how long after the restart of a process all must be connected again.
const back = 2500 * time.Millisecond

// restart ends some of five nodes, all at once, starts them again down later, and
// wants every pair to have a stream soon and for good. n1 is the seed of all others
// and has none itself.
func restart(t *testing.T, down time.Duration, end func(*memnet.Network, *testNode), numbers ...int) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		open := func(i int) *testNode {
			if i == 1 {
				return start(t, network, i, nil, nil)
			}
			return start(t, network, i, seed, nil)
		}
		var nodes []*testNode
		for i := 1; i <= 5; i++ {
			nodes = append(nodes, open(i))
		}
		eventually(t, time.Minute, "every pair has a stream", func() bool { return connected(nodes) })
		time.Sleep(10 * time.Second)
		var ending sync.WaitGroup
		for _, i := range numbers {
			ending.Go(func() { end(network, nodes[i-1]) })
		}
		ending.Wait()
		time.Sleep(down)
		for _, i := range numbers {
			nodes[i-1] = open(i)
		}
		if took := eventually(t, time.Minute, "all are connected", func() bool { return connected(nodes) }); took > back {
			t.Errorf("whole again after %v, more than %v", took, back)
		}
		time.Sleep(time.Minute)
		// Where all begin anew at once, what one still knew of another's former
		// life may reach it late: that shows as one more death and join.
		for _, i := range numbers {
			if saw := nodes[i-1].saw(); len(saw) < 4 || len(saw) > 6 {
				t.Errorf("n%d saw %v, want each other join and at most one come and go", i, saw)
			}
		}
		if !connected(nodes) {
			t.Error("it did not last")
		}
	})
}

// Whatever restarts within a second or so is a member again about two seconds
// later: the seed, all but another, all but the seed.
func TestRestartsAreQuick(t *testing.T) {
	for how, end := range ends {
		for _, numbers := range [][]int{{1}, {1, 2, 3, 4}, {2, 3, 4, 5}, {1, 2, 4, 5}} {
			for _, down := range []time.Duration{0, time.Second} {
				if testing.Short() && down > 0 {
					continue
				}
				t.Run(fmt.Sprint(how, numbers, down), func(t *testing.T) { restart(t, down, end, numbers...) })
			}
		}
	}
}

// A node that has not heard of its dialler is told.
func TestDiallerIntroducesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		nodes := []*testNode{start(t, network, 1, nil, nil), start(t, network, 2, nil, nil)}
		time.Sleep(time.Minute)
		nodes[1].transport.send(aliveMessage("n2", []byte{127, 0, 0, 2}, 7946, 1, 5, 2, 0, 0, 0), at(nodes[0]))
		eventually(t, 200*time.Millisecond, "a stream", func() bool { return connected(nodes) })
	})
}
