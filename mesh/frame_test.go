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
			if kind == frameAck {
				decodeAck(b)
			}
		}
	})
}

// A rumor is encoded once for all streams, and a tree once while it does not change.
func TestATreeIsEncodedOnce(t *testing.T) {
	r := gossip.Rumor{Author: "n1", Life: 1, Version: 1, Every: time.Second, Tree: bigTree(1 << 10)}
	first := newSpoken(r, nil)
	r.Version = 2
	second := newSpoken(r, first)
	r.Version, r.Tree = 3, bigTree(2<<10)
	third := newSpoken(r, second)
	made, again := second.frame(), second.frame()
	if &first.tree()[0] != &second.tree()[0] || &made[0] != &again[0] {
		t.Error("bytes that were made are made again")
	}
	for i, s := range []*spoken{first, second, third} {
		kind, payload, err := readFrame(bytes.NewReader(s.frame()))
		if err != nil || kind != frameRumor || !bytes.Equal(payload, s.AppendBinary(nil)) {
			t.Errorf("the frame of rumor %d does not hold it: %v", i+1, err)
		}
	}
}
