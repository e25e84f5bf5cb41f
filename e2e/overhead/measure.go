package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/hearsay-project/hearsay/report"
)

// streamed is the length in tokens of the streams, and eventsOf what a client sees of
// one: a token each, the usage and [DONE].
const streamed = 50

func eventsOf(tokens int) int { return tokens + 2 }

// A sum is what one target did under one kind of load.
type sum struct {
	outcome
	cpu, clock time.Duration
}

func (f *flags) measure(ctx context.Context, targets []target) error {
	fmt.Printf("%s/%s, %d cores; %d rounds of %v for each\n\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), f.rounds, f.period)
	if err := f.firstTokens(ctx, targets); err != nil {
		return err
	}
	for _, clients := range f.clients {
		title := fmt.Sprintf("Whole answers, %d connections", clients)
		err := f.compare(ctx, targets, title, "requests", func(o outcome) int { return o.answers }, func(addr string) outcome {
			return load(addr, clients, request(16, false), 0, 0, f.period)
		})
		if err != nil {
			return err
		}
	}
	for _, clients := range f.clients {
		title := fmt.Sprintf("Streams, %d at a time, a token each %v", clients, f.pace)
		err := f.compare(ctx, targets, title, "chunks", func(o outcome) int { return o.events }, func(addr string) outcome {
			return load(addr, clients, request(streamed, true), eventsOf(streamed), f.pace*streamed, f.period)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// compare puts the same load on the targets in turn and prints how many units of work
// each has done.
func (f *flags) compare(ctx context.Context, targets []target, title, unit string, work func(outcome) int, load func(addr string) outcome) error {
	sums, err := f.takeTurns(ctx, targets, load)
	if err != nil {
		return err
	}
	table := report.Table{Title: title, Columns: []string{"", unit + "/s", unit + "/s per core", "first byte median", "p99"}}
	for i, s := range sums {
		perCore := "-" // the engine is what the others are measured against
		if i > 0 && s.cpu > 0 {
			perCore = report.Number(float64(work(s.outcome)) / s.cpu.Seconds())
		}
		table.Rows = append(table.Rows, []string{
			targets[i].name, report.Number(float64(work(s.outcome)) / s.clock.Seconds()), perCore,
			ms(quantile(s.ttfts, 0.5)), ms(quantile(s.ttfts, 0.99)),
		})
	}
	fmt.Println(table)
	return nil
}

// firstTokens asks the targets one after another, over and over, on kept connections.
func (f *flags) firstTokens(ctx context.Context, targets []target) error {
	conns := make([]*conn, len(targets))
	ttfts := make([][]time.Duration, len(targets))
	one := request(1, true)
	for i, t := range targets {
		c, err := dial(t.addr)
		if err != nil {
			return err
		}
		defer c.Close()
		conns[i] = c
	}
	const warmUp = 100
	for n := range f.asks + warmUp {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for i, c := range conns {
			ttft, events, _, err := c.ask(one)
			if err != nil || events != eventsOf(1) {
				return fmt.Errorf("ask %s: %d events, %w", targets[i].name, events, err)
			}
			if n >= warmUp {
				ttfts[i] = append(ttfts[i], ttft)
			}
		}
	}
	table := report.Table{
		Title:   fmt.Sprintf("Time to the first token of a stream, %d requests one at a time, the targets in turn", f.asks),
		Columns: []string{"", "median", "p99", "added median", "added p99"},
	}
	for i, t := range targets {
		row := []string{t.name, ms(quantile(ttfts[i], 0.5)), ms(quantile(ttfts[i], 0.99)), "-", "-"}
		if i > 0 {
			row[3] = ms(quantile(ttfts[i], 0.5) - quantile(ttfts[0], 0.5))
			row[4] = ms(quantile(ttfts[i], 0.99) - quantile(ttfts[0], 0.99))
		}
		table.Rows = append(table.Rows, row)
	}
	fmt.Println(table)
	return nil
}

// takeTurns puts the same load on the targets in turn, and sums up.
func (f *flags) takeTurns(ctx context.Context, targets []target, load func(addr string) outcome) ([]sum, error) {
	sums := make([]sum, len(targets))
	for range f.rounds {
		for i, t := range targets {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			before, err := t.cpu()
			if err != nil {
				return nil, err
			}
			begun := time.Now()
			o := load(t.addr)
			s := &sums[i]
			s.clock += time.Since(begun)
			after, err := t.cpu()
			if err != nil {
				return nil, err
			}
			if o.err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, o.err)
			}
			s.cpu += after - before
			s.answers += o.answers
			s.events += o.events
			s.ttfts = append(s.ttfts, o.ttfts...)
		}
	}
	return sums, nil
}

func quantile(of []time.Duration, q float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[int(q*float64(len(of)-1))]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d.Microseconds())/1000) }
