package workload

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// redraw is how often the progress line changes at most: faster is not read.
const redraw = 100 * time.Millisecond

// A bar is the progress line on a terminal; without a writer it draws nothing.
type bar struct {
	w     io.Writer
	drawn time.Time
}

// draw shows the line if it is time to.
func (b *bar) draw(now time.Time, line func() string) {
	if b.w == nil || now.Sub(b.drawn) < redraw {
		return
	}
	b.drawn = now
	fmt.Fprintf(b.w, "\r%s\x1b[K", line())
}

// clear takes the line away.
func (b *bar) clear() {
	if b.w != nil {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}

// progressLine fits 79 columns up to a million requests.
func progressLine(done, total int, elapsed, meanTTFT time.Duration) string {
	const width = 20
	filled := width * done / max(total, 1)
	line := fmt.Sprintf("[%s%s] %d/%d", strings.Repeat("#", filled), strings.Repeat(".", width-filled), done, total)
	if done == 0 || elapsed <= 0 {
		return line
	}
	left := time.Duration(float64(elapsed) / float64(done) * float64(total-done))
	return fmt.Sprintf("%s  %.1f/s  %s left  TTFT %s", line, float64(done)/elapsed.Seconds(), left.Round(time.Second), milliseconds(meanTTFT))
}
