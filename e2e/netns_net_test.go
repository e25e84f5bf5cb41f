//go:build linux

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A lan is hosts that are network namespaces of their own, with the test as the wire
// between them: each has a TUN device, and what comes out of one is written to the one
// that it is addressed to, late, out of order or never, as the link between the two
// says. Other than tc's netem, of which many kernels are built without, it can treat
// each direction of each pair differently, and draws its losses from a seed.
//
// Namespaces are called hs-PID-N, and end with the test.
type lan struct {
	t    *testing.T
	tuns []*os.File

	mu   sync.Mutex
	link func(from, to int) link // nil: perfect
}

// A link is what happens to packets of one direction.
type link struct {
	loss   float64       // share that is lost
	delay  time.Duration // of the others
	hasten float64       // share of those that overtake: they are not delayed
}

// mtu is that of Ethernet, and so a request takes some packets.
const mtu = 1500

// newLAN makes hosts 1 to n; host n+1 is the namespace of this process.
func newLAN(t *testing.T, n int) *lan {
	l := &lan{t: t}
	for i := range n + 1 {
		l.host(i+1, i == n)
	}
	for from := range l.tuns {
		go l.carry(from)
	}
	return l
}

// host makes a namespace with its end of the wire, or puts that into this one.
func (l *lan) host(i int, here bool) {
	name := fmt.Sprintf("hs-%d-%d", os.Getpid(), i)
	tun, err := openTUN(name)
	if err != nil {
		l.t.Fatal(err)
	}
	l.tuns = append(l.tuns, tun)
	l.t.Cleanup(func() { tun.Close() })
	ip := func(args ...string) { l.ip(args...) }
	if !here {
		l.ip("netns", "add", name)
		l.t.Cleanup(func() { l.ip("netns", "delete", name) })
		l.ip("link", "set", name, "netns", name)
		ip = func(args ...string) { l.ip(append([]string{"-netns", name}, args...)...) }
	}
	ip("address", "add", address(i)+"/24", "dev", name)
	ip("link", "set", "lo", "up")
	ip("link", "set", name, "mtu", strconv.Itoa(mtu), "up")
}

func address(host int) string { return fmt.Sprint("10.77.0.", host) }

func (l *lan) ip(args ...string) {
	l.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		l.t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// within is a command line that runs program in the namespace of a host.
func within(host int, program string) []string {
	return []string{"ip", "netns", "exec", fmt.Sprintf("hs-%d-%d", os.Getpid(), host), program}
}

// openTUN makes a device for IP packets that is there while it is open (Linux,
// Documentation/networking/tuntap.rst).
func openTUN(name string) (*os.File, error) {
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	var request struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte // to the size of a struct ifreq
	}
	copy(request.name[:], name)
	request.flags = syscall.IFF_TUN | syscall.IFF_NO_PI
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&request))); e != 0 {
		syscall.Close(fd)
		return nil, fmt.Errorf("make TUN device %s: %w", name, e)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// set has all links be as of says; nil makes them perfect.
func (l *lan) set(of func(from, to int) link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.link = of
}

// carry takes what comes out of a device to where it goes, until the device is closed.
func (l *lan) carry(from int) {
	random := rand.New(rand.NewPCG(*soakSeed, uint64(from)))
	packet := make([]byte, 1<<16)
	for {
		n, err := l.tuns[from].Read(packet)
		if err != nil {
			return
		}
		const header, destination = 20, 19 // IPv4's; the last byte of the address is the host
		if n < header || packet[0]>>4 != 4 {
			continue
		}
		to := int(packet[destination]) - 1
		if to < 0 || to >= len(l.tuns) {
			continue
		}
		l.mu.Lock()
		of := l.link
		l.mu.Unlock()
		var on link
		if of != nil {
			on = of(from+1, to+1)
		}
		lost, hastened := random.Float64() < on.loss, random.Float64() < on.hasten
		switch {
		case lost:
		case on.delay == 0 || hastened:
			l.deliver(to, packet[:n])
		default:
			late := append([]byte(nil), packet[:n]...)
			time.AfterFunc(on.delay, func() { l.deliver(to, late) })
		}
	}
}

// deliver gives a packet to a host. What its queue has no room for is lost, as it is on
// other wires.
func (l *lan) deliver(to int, packet []byte) { _, _ = l.tuns[to].Write(packet) }

// tryNamespace makes a namespace and a device, and removes them.
func tryNamespace() error {
	name := fmt.Sprintf("hs-%d-0", os.Getpid())
	tun, err := openTUN(name)
	if err != nil {
		return err
	}
	defer tun.Close()
	for _, do := range []string{"add", "delete"} {
		if out, err := exec.Command("ip", "netns", do, name).CombinedOutput(); err != nil {
			return fmt.Errorf("ip netns %s: %w: %s", do, err, out)
		}
	}
	return nil
}

// sweepNamespaces removes those of tests that have died.
func sweepNamespaces() {
	out, _ := exec.Command("ip", "netns", "list").Output()
	for line := range strings.Lines(string(out)) {
		var pid, host int
		if n, _ := fmt.Sscanf(line, "hs-%d-%d", &pid, &host); n == 2 && syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = exec.Command("ip", "netns", "delete", fmt.Sprintf("hs-%d-%d", pid, host)).Run()
		}
	}
}
