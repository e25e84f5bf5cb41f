package kvevents

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// A Kind says what an Event tells.
type Kind uint8

// The kinds of events.
const (
	Unknown Kind = iota
	Stored
	Removed
	Cleared
)

// An Event is one of a batch. Its slices belong to the Decoder.
type Event struct {
	Kind   Kind
	Hashes []uint64 // the engine's names of blocks; those of bytes are hashed to these
	Group  int      // group of layers that the blocks belong to, 0 where there is one

	// Of Stored alone:
	Parent    uint64 // the block before Hashes[0], if HasParent
	HasParent bool
	Tokens    []uint32 // BlockSize for each of Hashes
	BlockSize int
	Adapter   string   // LoRA adapter, by its name or else as #id
	Salt      string   // the request's cache_salt
	Extra     []uint64 // what else makes a block's tokens different (a picture), for each of Hashes or none; 0 for nothing

	// Counts is false for what says nothing of a prefix in the engine's own memory:
	// blocks of another medium (CPU, disk, another host), of a group of layers that
	// keeps less than a whole prefix (a sliding window), or without their tokens.
	Counts bool
}

// A Decoder reads batches. It keeps its buffers: what it returns is good until it is
// used again.
//
// A batch is msgpack, [time, [event...], data-parallel rank], where the rank may be
// missing, or a map of ts, events and data_parallel_rank. An event has one of two
// shapes, which may mix. As an array it is its tag and then, by position,
//
//	BlockStored  block_hashes, parent_block_hash, token_ids, block_size, lora_id,
//	             medium, lora_name or SGLang's metadata, extra_keys, group_idx,
//	             kv_cache_spec_kind, kv_cache_spec_sliding_window
//	BlockRemoved block_hashes, medium, group_idx
//	AllBlocksCleared
//
// with any number of the last ones left out (vLLM to 0.23, SGLang before #37482).
// As a map it has these names and its tag at type (vLLM since #42892, SGLang since
// #37482, which adds cache_salt and session_id). Fields that are not known are
// skipped, whatever they hold. A hash is an integer, signed or not, or bytes;
// token_ids may be pairs, of which the first is the token (SGLang with EAGLE).
type Decoder struct {
	reader
	events []Event
	hashes []uint64
	tokens []uint32
	extras []uint64
}

// Bounds of one batch: beyond them it is none that an engine makes.
const (
	maxEvents = 1 << 16
	maxHashes = 1 << 20
	maxTokens = 1 << 22
)

var errBounds = errors.New("a batch is larger than an engine makes")

// Decode returns the events of a batch. On an error nothing of it is to be used.
func (d *Decoder) Decode(payload []byte) (events []Event, err error) {
	d.reader = reader{raw: payload}
	d.events, d.hashes, d.tokens, d.extras = d.events[:0], d.hashes[:0], d.tokens[:0], d.extras[:0]
	err = d.batch()
	if err == nil && d.at < len(payload) {
		err = errors.New("bytes after its end")
	}
	d.raw = nil // it is the caller's
	if err != nil {
		return nil, fmt.Errorf("batch of KV events: %w", err)
	}
	return d.events, nil
}

func (d *Decoder) batch() error {
	if d.next() == classMap {
		told := false
		err := d.members(func(name string) error {
			if name == "events" {
				told = true
				return d.list(d.event)
			}
			return d.skip(0)
		})
		if err == nil && !told {
			err = errors.New("a map without events")
		}
		return err
	}
	n := 0
	err := d.list(func() error {
		if n++; n == 2 {
			return d.list(d.event)
		}
		return d.skip(0)
	})
	if err == nil && n < 2 {
		err = fmt.Errorf("an array of %d, where [time, events] is due", n)
	}
	return err
}

// positions are the fields of an event after its tag, in their order.
var positions = map[string][]string{
	"BlockStored":  {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"},
	"BlockRemoved": {"block_hashes", "medium", "group_idx"},
}

// A draft is an event of which not all fields have been read.
type draft struct {
	Event
	tag, medium, locality, layers string
	loraID                        int
	extraKeys                     []byte // as they came
}

func (d *Decoder) event() error {
	if len(d.events) == maxEvents {
		return errBounds
	}
	e := draft{loraID: -1}
	var err error
	if d.next() == classMap {
		err = d.members(func(name string) error { return d.field(&e, name) })
	} else {
		err = d.positions(&e)
	}
	if err != nil {
		return err
	}
	if err := d.finish(&e); err != nil {
		return fmt.Errorf("%s: %w", e.tag, err)
	}
	d.events = append(d.events, e.Event)
	return nil
}

func (d *Decoder) positions(e *draft) error {
	names := []string{"type"} // of the fields to come
	err := d.list(func() (err error) {
		name := ""
		if len(names) > 0 {
			name, names = names[0], names[1:]
		}
		if err = d.field(e, name); name == "type" {
			names = positions[e.tag]
		}
		return err
	})
	if err == nil && e.tag == "" {
		err = errors.New("an event without a tag")
	}
	return err
}

// field reads the value of one field of an event. Null says nothing.
func (d *Decoder) field(e *draft, name string) (err error) {
	if d.next() == classNull {
		return d.skip(0)
	}
	switch name {
	case "type":
		e.tag, err = d.text()
	case "block_hashes":
		e.Hashes, err = appendList(&d.reader, &d.hashes, maxHashes, d.hash)
	case "parent_block_hash":
		e.HasParent = true
		e.Parent, err = d.hash()
	case "token_ids":
		e.Tokens, err = appendList(&d.reader, &d.tokens, maxTokens, d.token)
	case "block_size":
		e.BlockSize, err = d.small()
	case "lora_id":
		e.loraID, err = d.small()
	case "medium":
		e.medium, err = d.text()
	case "locality":
		e.locality, err = d.text()
	case "lora_name":
		if d.next() == classMap { // SGLang's metadata has this position
			return d.metadata(e)
		}
		e.Adapter, err = d.text()
	case "cache_salt":
		e.Salt, err = d.text()
	case "metadata":
		if d.next() != classMap {
			return d.skip(0)
		}
		return d.metadata(e)
	case "extra_keys":
		from := d.at
		err = d.skip(0)
		e.extraKeys = d.raw[from:min(d.at, len(d.raw))]
	case "group_idx":
		e.Group, err = d.small()
	case "kv_cache_spec_kind":
		e.layers, err = d.text()
	default:
		err = d.skip(0)
	}
	return err
}

// appendList appends the elements of an array to all, of which there may be so many.
func appendList[T any](r *reader, all *[]T, most int, element func() (T, error)) ([]T, error) {
	from := len(*all)
	err := r.list(func() error {
		v, err := element()
		if *all = append(*all, v); len(*all) > most {
			err = errBounds
		}
		return err
	})
	return (*all)[from:len(*all):len(*all)], err
}

// small reads a number that is none of tokens or hashes. Below 0 it says nothing.
func (d *Decoder) small() (int, error) {
	bits, negative, err := d.integer()
	if negative || bits > math.MaxInt32 {
		return -1, err
	}
	return int(bits), err
}

// metadata is what SGLang put after the medium for some months (#30827).
func (d *Decoder) metadata(e *draft) error {
	return d.members(func(name string) (err error) {
		if name != "cache_salt" {
			return d.skip(0)
		}
		e.Salt, err = d.text()
		return err
	})
}

// finish makes an event of its fields.
func (d *Decoder) finish(e *draft) error {
	here := (e.medium == "" || e.medium == "GPU") && e.locality != "REMOTE"
	switch e.tag {
	case "BlockStored":
		e.Kind = Stored
		if e.Adapter == "" && e.loraID >= 0 {
			e.Adapter = fmt.Sprint("#", e.loraID)
		}
		// By division, since a product could overflow.
		n := len(e.Hashes)
		whole := e.BlockSize > 0 && len(e.Tokens)%e.BlockSize == 0 && len(e.Tokens)/e.BlockSize == n
		e.Counts = here && whole && wholePrefix(e.layers)
		if e.Counts && len(e.extraKeys) > 0 {
			return d.extra(e)
		}
	case "BlockRemoved":
		e.Kind, e.Counts = Removed, here
	case "AllBlocksCleared":
		e.Kind, e.Counts = Cleared, true
	}
	return nil
}

// wholePrefix says whether layers of this kind (vLLM's KVCacheSpecKind) keep all of
// a prefix.
func wholePrefix(layers string) bool {
	for _, part := range []string{"sliding", "chunked", "mamba", "linear", "cross", "encoder"} {
		if strings.Contains(strings.ToLower(layers), part) {
			return false
		}
	}
	return true
}

// extra reads extra_keys, a list of null or a tuple for each block: of a tuple the
// name of the adapter (which vLLM repeats there), the cache_salt in the first block
// of all, and what names a picture or the like.
func (d *Decoder) extra(e *draft) error {
	keys := reader{raw: e.extraKeys}
	first := len(d.extras)
	err := keys.list(func() error {
		from := keys.at
		texts, only, err := keys.texts()
		if err != nil {
			return err
		}
		tuple := e.extraKeys[from:keys.at]
		texts = slices.DeleteFunc(texts, func(s string) bool { return s == e.Adapter })
		switch {
		case only && len(texts) == 0:
			d.extras = append(d.extras, 0)
		case only && len(d.extras) == first && !e.HasParent && e.Salt == "":
			e.Salt = strings.Join(texts, "\x00")
			d.extras = append(d.extras, 0)
		default:
			d.extras = append(d.extras, max(1, xxh3.Hash(tuple)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if e.Extra = d.extras[first:]; len(e.Extra) != len(e.Hashes) {
		e.Extra, e.Counts = nil, len(e.Extra) == 0
	}
	return nil
}
