package mesh

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/hearsay-project/hearsay/gossip"
)

// A frame is what travels on a rumor stream:
//
//	length  u32, big-endian: bytes of the payload
//	type    u8
//	payload
//
// A receiver skips a type it does not know.
const (
	frameRumor   byte = 1 // author to peer: gossip.Rumor.AppendBinary
	frameAck     byte = 2 // life u64, version u64, big-endian: the newest rumor read
	frameGoodbye byte = 3 // no payload: the sender leaves; the receiver closes the connection
	frameHold    byte = 4 // life u64, told u64, answers u64, big-endian: what the sender holds of the receiver's tree

	// From relaySpoken on:
	frameRelayed  byte = 5 // a rumor in the author's bytes, signed, see appendRelayed
	frameDigest   byte = 6 // gossip.Relay.AppendDigest: what the sender has heard, for the receiver to tell what is later
	frameAnswered byte = 7 // no payload: that has been told, as far as there was room
	frameRest     byte = 8 // no payload: the sender, which dialled, needs the stream no more; the receiver closes it
)

const (
	frameHeader = 5
	ackSize     = 16
	holdSize    = 24

	// frameMax bounds a payload: nothing longer than a rumor is ever sent.
	frameMax = gossip.MaxRumorBytes

	// frameStep is what is allocated on the word of a length alone. Beyond it a
	// payload's memory grows only as its bytes arrive.
	frameStep = 64 << 10
)

// readFrame reads one frame. It holds at most about twice the bytes that really
// arrived, whatever the length says. The payload is the caller's. io.EOF means
// that the stream ended between frames.
func readFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > frameMax {
		return 0, nil, badFrame{fmt.Errorf("frame of %d bytes is longer than %d", size, frameMax)}
	}
	for left := int(size); left > 0; left = int(size) - len(payload) {
		have := len(payload)
		step := min(left, max(have, frameStep))
		payload = slices.Grow(payload, step)[:have+step]
		if _, err := io.ReadFull(r, payload[have:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
	}
	return head[4], payload, nil
}

// frame completes a frame whose payload stands behind frameHeader bytes of room.
func frame(kind byte, b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-frameHeader))
	b[4] = kind
	return b
}

// appendFrame appends a frame to b.
func appendFrame(b []byte, kind byte, payload []byte) []byte {
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(payload))), kind)
	return append(b, payload...)
}

// ack is the payload of an ack, and names a rumor.
type ack struct{ life, version uint64 }

func (a ack) frame() []byte {
	b := make([]byte, frameHeader, frameHeader+ackSize)
	b = binary.BigEndian.AppendUint64(b, a.life)
	return frame(frameAck, binary.BigEndian.AppendUint64(b, a.version))
}

func decodeAck(b []byte) (ack, error) {
	if len(b) != ackSize {
		return ack{}, fmt.Errorf("ack of %d bytes, want %d", len(b), ackSize)
	}
	return ack{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, nil
}

// hold is the payload of a hold: the life and version of the receiver's tree that
// the sender holds, 0 for none, and the version of the rumor that was of no use to
// it, 0 when the stream begins.
type hold struct{ life, told, answers uint64 }

func (h hold) frame() []byte {
	b := make([]byte, frameHeader, frameHeader+holdSize)
	for _, v := range []uint64{h.life, h.told, h.answers} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return frame(frameHold, b)
}

func decodeHold(b []byte) (hold, error) {
	if len(b) != holdSize {
		return hold{}, fmt.Errorf("hold of %d bytes, want %d", len(b), holdSize)
	}
	return hold{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}, nil
}
