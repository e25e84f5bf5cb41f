package mesh

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/hearsay-project/hearsay/gossip"
)

// What frame writes readFrame reads, and knows a clean end from a broken one.
func TestFramesSurviveTheWire(t *testing.T) {
	a := ack{life: 1<<63 + 1, version: 7}
	big := frame(frameRumor, bytes.Repeat([]byte{9}, frameHeader+3*frameStep+1))
	wire := append(append(a.frame(), big...), frame(frameGoodbye, make([]byte, frameHeader))...)
	in := bytes.NewReader(wire)
	kind, b, err := readFrame(in)
	if got, e := decodeAck(b); kind != frameAck || err != nil || e != nil || got != a {
		t.Errorf("ack: %d %v %v %v", kind, got, err, e)
	}
	if kind, b, err = readFrame(in); kind != frameRumor || err != nil || !bytes.Equal(b, big[frameHeader:]) {
		t.Errorf("rumor: %d, %d bytes, %v", kind, len(b), err)
	}
	if kind, b, err = readFrame(in); kind != frameGoodbye || err != nil || len(b) != 0 {
		t.Errorf("goodbye: %d %d %v", kind, len(b), err)
	}
	if _, _, err = readFrame(in); err != io.EOF {
		t.Errorf("end: %v", err)
	}
	if _, _, err = readFrame(bytes.NewReader(big[:len(big)-1])); err != io.ErrUnexpectedEOF {
		t.Errorf("cut short: %v", err)
	}
}

// A length is believed only as far as bytes follow it.
func TestFrameLengthAllocatesNothing(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, frameMax)
	wire := append(head, append([]byte{frameRumor}, make([]byte, 1000)...)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := readFrame(bytes.NewReader(wire))
	runtime.ReadMemStats(&after)
	if grew := after.TotalAlloc - before.TotalAlloc; err != io.ErrUnexpectedEOF || grew > 4*frameStep {
		t.Errorf("allocated %d bytes for 1000: %v", grew, err)
	}
	binary.BigEndian.PutUint32(wire, frameMax+1)
	if _, _, err := readFrame(bytes.NewReader(wire)); err == nil || err == io.ErrUnexpectedEOF {
		t.Error("a frame beyond the limit was read")
	}
}

// Whatever arrives is a frame within its limit or an error, and a frame is what was sent.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, frameRumor, 5})
	f.Add(ack{1, 2}.frame())
	f.Add([]byte{255, 255, 255, 255, frameRumor})
	f.Fuzz(func(t *testing.T, wire []byte) {
		for in := bytes.NewReader(wire); ; {
			at := len(wire) - in.Len()
			kind, b, err := readFrame(in)
			if err != nil {
				return
			}
			end := at + frameHeader + len(b)
			if len(b) > frameMax || !bytes.Equal(frame(kind, append(make([]byte, frameHeader), b...)), wire[at:end]) {
				t.Fatalf("frame of type %d with %d bytes is not what stood at %d", kind, len(b), at)
			}
			switch kind {
			case frameAck:
				decodeAck(b)
			case frameHold:
				decodeHold(b)
			}
		}
	})
}

// A rumor is encoded once for all streams, and a tree once while it does not change.
func TestATreeIsEncodedOnce(t *testing.T) {
	r := gossip.Rumor{Author: "n1", Life: 1, Version: 1, Every: time.Second, Tree: bigTree(9 << 10)}
	var said speech
	say := func() (whole, change []byte) {
		said.say(r)
		s, make0, _ := said.since(time.Time{}, hold{}, false)
		_, make1, _ := said.since(time.Time{}, hold{life: r.Life, told: 1}, false)
		_, again, _ := said.since(time.Time{}, hold{life: r.Life, told: 1}, false)
		_, stranger, _ := said.since(time.Time{}, hold{life: r.Life - 1, told: 1}, false)
		whole, change = make0(), make1()
		if &again()[0] != &change[0] || &stranger()[0] != &whole[0] {
			t.Error("bytes that were made are made again")
		}
		kind, payload, err := readFrame(bytes.NewReader(whole))
		if err != nil || kind != frameRumor || !bytes.Equal(payload, s.AppendBinary(nil)) {
			t.Errorf("the frame of rumor %d does not hold it: %v", r.Version, err)
		}
		return whole, change
	}
	say()
	first := said.latest
	r.Version = 2
	if whole, change := say(); &first.tree()[0] != &said.latest.tree()[0] || len(change) > 100 || len(whole) < 9<<10 {
		t.Errorf("%d bytes tell that nothing has changed, %d the whole", len(change), len(whole))
	}
	r.Version, r.Tree = 3, bigTree(18<<10)
	if _, change := say(); len(change) < 8<<10 || len(change) > 9<<10 {
		t.Errorf("%d bytes tell 1024 blocks", len(change))
	}
	said.whole = true
	r.Version = 4
	if whole, change := say(); &whole[0] != &change[0] {
		t.Error("a change is told in paper mode")
	}
}
