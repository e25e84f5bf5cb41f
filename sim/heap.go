package sim

import "time"

// what an event is about.
type what uint8

const (
	arrival   what = iota // a request comes to the cluster
	engineDue             // something happens in an engine
	speak                 // a node's poll interval is over
	hear                  // a rumor arrives at the nodes [first, last)
	forwarded             // a forwarded request arrives at its node
	answered              // an answer arrives at the origin
	refused               // the origin learns that an attempt is lost
	cancelled             // a node learns that nobody waits for an attempt
	watch                 // the origin looks whether a forward's node still lives
	ask                   // a node is asked for its tree (on-demand)
	told                  // the tree that was asked for arrives
	giveUp                // the origin waits no longer for trees
	loaded                // a KV cache fetched from node first, of last blocks, is to have arrived
	fault                 // a fault befalls
)

// An event happens at a time. Only the fields that its kind needs are set.
type event struct {
	at      time.Duration // since the start
	seq     uint64        // the order of events of one time
	what    what
	node    int32 // where
	first   int32
	last    int32
	life    uint64
	call    *call
	attempt *attempt
	rumor   *spoken
}

// A queue holds events, the earliest first: a binary heap.
type queue struct {
	events []event
	seq    uint64
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.events = append(q.events, e)
	i := len(q.events) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !earlier(&e, &q.events[parent]) {
			break
		}
		q.events[i] = q.events[parent]
		i = parent
	}
	q.events[i] = e
}

func (q *queue) pop() event {
	top := q.events[0]
	end := len(q.events) - 1
	e := q.events[end]
	q.events[end] = event{}
	q.events = q.events[:end]
	if end == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= end {
			break
		}
		if child+1 < end && earlier(&q.events[child+1], &q.events[child]) {
			child++
		}
		if !earlier(&q.events[child], &e) {
			break
		}
		q.events[i] = q.events[child]
		i = child
	}
	q.events[i] = e
	return top
}

func earlier(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }
