package node

import (
	"math/bits"

	"github.com/hearsay-project/hearsay/prefix"
)

// A ledger keeps, for the prefixes that this node's clients ask for, how often they
// do and what their forwards have cost that would not have been needed had this node
// held them: the rent of the ski-rental problem. It keeps them at checkpoints, the
// first 16 blocks of a prompt and 16 depths of each doubling from there, so that a
// prompt of a thousand blocks costs some hundred entries. Its clock is the requests of its
// node's clients.
//
// Two generations bound it, as they do heads: when the young one is full the old one
// goes, and with it what was not asked for since.
type ledger struct {
	clock      float64
	young, old map[prefix.Hash]*entry
}

type entry struct {
	count, at float64 // requests, and when the last came
	debt, due float64 // seconds, and when they were added
}

const (
	// ledgerSpan requests old, a request no longer counts.
	ledgerSpan = 2000
	// ledgerMax entries are kept, of some 100 bytes, in both generations together.
	ledgerMax = 1 << 15
)

// stride is how far apart checkpoints are at a depth: a sixteenth of the power of two
// below it.
func stride(depth int) int { return 1 << max(bits.Len(uint(depth))-5, 0) }

// checkpoint is the deepest checkpoint no deeper than depth.
func checkpoint(depth int) int { return depth &^ (stride(depth) - 1) }

// ask counts a request for c.
func (l *ledger) ask(c prefix.Chain) {
	l.clock++
	for depth := 1; depth <= len(c); depth += stride(depth) {
		e, young := l.entry(c[depth-1])
		if e == nil {
			e = &entry{at: l.clock}
		}
		if !young {
			if len(l.young) >= ledgerMax/2 || l.young == nil {
				l.young, l.old = map[prefix.Hash]*entry{}, l.young
			}
			l.young[c[depth-1]] = e
		}
		e.count, e.at = e.asked(l.clock)+1, l.clock
	}
}

// at returns the entry of the first depth blocks of c, nil where there is none.
func (l *ledger) at(c prefix.Chain, depth int) *entry {
	if depth = checkpoint(min(depth, len(c))); depth <= 0 {
		return nil
	}
	e, _ := l.entry(c[depth-1])
	return e
}

// entry returns what is kept under a name, nil where nothing is, and whether that stands
// in the young generation.
func (l *ledger) entry(h prefix.Hash) (e *entry, young bool) {
	if e, young = l.young[h]; !young {
		e = l.old[h]
	}
	return e, young
}

// rate is how many of this node's requests, of one, begin with the first depth
// blocks of c.
func (l *ledger) rate(c prefix.Chain, depth int) float64 {
	e := l.at(c, depth)
	if e == nil {
		return 0
	}
	return e.asked(l.clock) / max(1, min(l.clock, ledgerSpan))
}

// owe adds the rent of a forward, in seconds, to the debt of what it was for, or takes
// it back. Debts fade within stay requests, as what was bought for them would.
func (l *ledger) owe(c prefix.Chain, depth int, rent, stay float64) {
	if e := l.at(c, depth); e != nil && rent != 0 {
		e.debt, e.due = max(0, e.owed(l.clock, stay)+rent), l.clock
	}
}

// owed is the debt of the first depth blocks of c, in seconds.
func (l *ledger) owed(c prefix.Chain, depth int, stay float64) float64 {
	if e := l.at(c, depth); e != nil {
		return e.owed(l.clock, stay)
	}
	return 0
}

func (e *entry) asked(clock float64) float64 {
	return e.count * max(0, 1-(clock-e.at)/ledgerSpan)
}

func (e *entry) owed(clock, stay float64) float64 {
	return e.debt * max(0, 1-(clock-e.due)/max(stay, 1))
}
