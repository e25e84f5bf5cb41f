package kvevents

import (
	"encoding/binary"
	"math"
	"time"
)

// AppendBatch appends events as vLLM writes them since #42892, of blocks in the
// memory of a GPU. What a Decoder makes of it is the same events.
func AppendBatch(b []byte, at time.Time, events []Event) []byte {
	b = append(b, fixArray|3, codeFloat64)
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(at.UnixMicro())/1e6))
	b = appendHeader(b, codeArray32, len(events))
	for i := range events {
		b = appendEvent(b, &events[i])
	}
	return append(b, 0) // of rank 0
}

func appendEvent(b []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		b = appendText(appendText(append(b, fixMap|9), "type"), "BlockStored")
		b = appendHashes(b, e.Hashes)
		b = appendText(b, "parent_block_hash")
		if e.HasParent {
			b = appendUint(b, e.Parent)
		} else {
			b = append(b, codeNil)
		}
		b = appendHeader(appendText(b, "token_ids"), codeArray32, len(e.Tokens))
		for _, t := range e.Tokens {
			b = appendUint(b, uint64(t))
		}
		b = appendUint(appendText(b, "block_size"), uint64(e.BlockSize))
		b = appendText(appendText(b, "medium"), "GPU")
		b = appendName(appendText(b, "lora_name"), e.Adapter)
		b = appendName(appendText(b, "cache_salt"), e.Salt)
		return appendUint(appendText(b, "group_idx"), uint64(e.Group))
	case Removed:
		b = appendText(appendText(append(b, fixMap|4), "type"), "BlockRemoved")
		b = appendHashes(b, e.Hashes)
		b = appendText(appendText(b, "medium"), "GPU")
		return appendUint(appendText(b, "group_idx"), uint64(e.Group))
	case Cleared:
		return appendText(appendText(append(b, fixMap|1), "type"), "AllBlocksCleared")
	default:
		return appendText(appendText(append(b, fixMap|1), "type"), "Unknown")
	}
}

func appendHashes(b []byte, hashes []uint64) []byte {
	b = appendHeader(appendText(b, "block_hashes"), codeArray32, len(hashes))
	for _, h := range hashes {
		b = appendUint(b, h)
	}
	return b
}

func appendHeader(b []byte, code byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, code), uint32(n))
}

func appendText(b []byte, s string) []byte { return append(appendHeader(b, codeStr32, len(s)), s...) }

// appendName appends a text that is null where it is empty.
func appendName(b []byte, s string) []byte {
	if s == "" {
		return append(b, codeNil)
	}
	return appendText(b, s)
}

func appendUint(b []byte, n uint64) []byte {
	switch {
	case n <= positiveFixEnd:
		return append(b, byte(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, codeUint32), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, codeUint64), n)
	}
}
