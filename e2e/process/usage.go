package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tick is the unit of times in /proc: 1/100 s on every Linux.
const tick = 10 * time.Millisecond

// CPU is the time on a processor, of user and system together, that the process and the
// children that it has now have taken, in steps of 10 ms (proc(5), /proc/pid/stat).
func (s *Server) CPU() (time.Duration, error) {
	total, err := cpu(s.PID())
	if err != nil {
		return 0, err
	}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.PID()))
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range bytes.Fields(children) {
			pid, _ := strconv.Atoi(string(child))
			of, err := cpu(pid)
			if err != nil {
				return 0, err
			}
			total += of
		}
	}
	return total, nil
}

func cpu(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, in parentheses, may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var ticks int64
	for _, field := range fields[11:13] { // 14 and 15, utime and stime
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}
