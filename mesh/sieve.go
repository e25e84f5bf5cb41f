package mesh

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// memberlist trusts what it reads: it makes room for as many members as a message
// says, unpacks what is packed and skips nested values on its stack. So what comes
// for it is read here first, and passed on if a node of this cluster could have sent
// it: types in use, flat maps of short values, nothing compressed, nothing of users.

// The types of memberlist's messages that nodes send.
const (
	memberPing byte = iota
	memberIndirectPing
	memberAck
	memberSuspect
	memberAlive
	memberDead
	memberPushPull
	memberCompound
	memberNack byte = 11
	memberCRC  byte = 12
	memberErr  byte = 13
)

const (
	membersMax     = 1 << 13 // in one exchange; the dead are among them for half a minute
	memberFields   = 16      // of one map
	memberValueMax = 1 << 10 // bytes of one value; metadata has up to 512

	// exchangeMax bounds the bytes of an exchange. A member takes some 130.
	exchangeMax = 4 << 20
)

var errMember = errors.New("membership that no node would speak")

// A sieve reads one message and keeps what it has read.
type sieve struct {
	in   io.ByteReader
	most int // bytes
	kept []byte
}

func (s *sieve) next() (byte, error) {
	if len(s.kept) >= s.most {
		return 0, errMember
	}
	b, err := s.in.ReadByte()
	if err == nil {
		s.kept = append(s.kept, b)
	}
	return b, err
}

// number reads size bytes, big-endian.
func (s *sieve) number(size int) (n uint64, err error) {
	for range size {
		b, err := s.next()
		if err != nil {
			return 0, err
		}
		n = n<<8 | uint64(b)
	}
	return n, nil
}

// text reads n bytes.
func (s *sieve) text(n uint64) ([]byte, error) {
	if n > memberValueMax {
		return nil, errMember
	}
	from := len(s.kept)
	for range n {
		if _, err := s.next(); err != nil {
			return nil, err
		}
	}
	return s.kept[from:], nil
}

// value reads one value of MessagePack that is neither list nor map, and returns what
// it is: a text, or a whole number; of a negative one the absolute value is not kept.
func (s *sieve) value() (text []byte, n uint64, err error) {
	b, err := s.next()
	if err != nil {
		return nil, 0, err
	}
	switch {
	case b <= 0x7f:
		return nil, uint64(b), nil
	case b >= 0xe0, b >= 0xd0 && b <= 0xd3: // signed
		if b <= 0xd3 {
			n, err = s.number(1 << (b - 0xd0))
		}
		if b >= 0xe0 || n > 1<<31-1 {
			n = 1<<64 - 1
		}
		return nil, n, err
	case b == 0xc0, b == 0xc2:
		return nil, 0, nil
	case b == 0xc3:
		return nil, 1, nil
	case b >= 0xcc && b <= 0xcf:
		n, err = s.number(1 << (b - 0xcc))
		return nil, n, err
	case b >= 0xa0 && b <= 0xbf:
		text, err = s.text(uint64(b & 0x1f))
		return text, 0, err
	case b == 0xc4, b == 0xc5, b == 0xd9, b == 0xda:
		size := 1
		if b == 0xc5 || b == 0xda {
			size = 2
		}
		if n, err = s.number(size); err == nil {
			text, err = s.text(n)
		}
		return text, 0, err
	default:
		return nil, 0, errMember
	}
}

// fields reads a map and calls each, if it is not nil, with its numbers.
func (s *sieve) fields(each func(key string, n uint64)) error {
	b, err := s.next()
	if err != nil {
		return err
	}
	count := uint64(b & 0x0f)
	switch {
	case b == 0xde:
		if count, err = s.number(2); err != nil {
			return err
		}
	case b < 0x80 || b > 0x8f:
		return errMember
	}
	if count > memberFields {
		return errMember
	}
	for range count {
		key, _, err := s.value()
		if err != nil {
			return err
		}
		name := string(key)
		_, n, err := s.value()
		if err != nil {
			return err
		}
		if each != nil {
			each(name, n)
		}
	}
	return nil
}

// exchange reads the message of a stream: the states of members, or a probe over TCP
// and its answers.
func (s *sieve) exchange() error {
	kind, err := s.next()
	if err != nil {
		return err
	}
	switch kind {
	case memberPing, memberAck, memberErr:
		return s.fields(nil)
	case memberPushPull:
	default:
		return fmt.Errorf("%w: type %d", errMember, kind)
	}
	members, rest := uint64(0), uint64(0)
	err = s.fields(func(key string, n uint64) {
		switch key {
		case "Nodes":
			members = n
		case "UserStateLen":
			rest = n
		}
	})
	if err == nil && (members > membersMax || rest > 0) {
		err = fmt.Errorf("%w: %d members and %d bytes", errMember, members, rest)
	}
	for range members {
		if err != nil {
			break
		}
		err = s.fields(nil)
	}
	return err
}

// checkPacket says what is wrong with a packet.
func checkPacket(b []byte) error {
	if len(b) >= 5 && b[0] == memberCRC {
		b = b[5:] // memberlist compares
	}
	if len(b) < 2 || b[0] != memberCompound {
		return checkPart(b)
	}
	count := int(b[1])
	lengths, parts := b[2:], b[2:]
	if len(lengths) < 2*count {
		return errMember
	}
	parts = parts[2*count:]
	for i := range count {
		n := int(binary.BigEndian.Uint16(lengths[2*i:]))
		if n > len(parts) {
			return errMember
		}
		if err := checkPart(parts[:n]); err != nil {
			return err
		}
		parts = parts[n:]
	}
	return nil
}

// checkPart says what is wrong with one message of a packet.
func checkPart(b []byte) error {
	if len(b) == 0 {
		return errMember
	}
	switch b[0] {
	case memberPing, memberIndirectPing, memberAck, memberSuspect, memberAlive, memberDead, memberNack:
	default:
		return fmt.Errorf("%w: type %d", errMember, b[0])
	}
	in := bytes.NewReader(b[1:])
	s := sieve{in: in, most: len(b)}
	if err := s.fields(nil); err != nil || in.Len() > 0 {
		return errMember
	}
	return nil
}

// sieved is one stream of membership, for memberlist to read from.
type sieved struct {
	net.Conn
	port  *port
	whole *bytes.Reader // the message; nil: it has not come yet
}

func (c *sieved) Read(b []byte) (int, error) {
	if c.whole == nil {
		s := sieve{in: bufio.NewReader(c.Conn), most: exchangeMax}
		if err := s.exchange(); err != nil {
			if errors.Is(err, errMember) {
				c.port.turnAway(refusedMember, "peer refused", "remote", c.RemoteAddr().String(), "err", err)
			}
			return 0, err
		}
		c.whole = bytes.NewReader(s.kept)
	}
	return c.whole.Read(b)
}
