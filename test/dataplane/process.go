package dataplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
)

// process names a process of this machine for ever: its id alone may be given to another later.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since the machine started
}

// self is this process.
func self() (process, error) { return lookup(os.Getpid()) }

// lookup reads a process's start time; the error is fs.ErrNotExist when there is no such process.
func lookup(pid int) (process, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, syscall.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return process{}, err
	}
	// The name of the program, in brackets, may hold anything. After it: state, parent, ..., the start as field 22.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return process{}, fmt.Errorf("process %d: strange stat %q", pid, data)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return process{}, fs.ErrNotExist // dead, but its parent has not asked how
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return process{PID: pid, Start: start}, err
}

// alive reports whether the process still runs.
func (p process) alive() bool {
	now, err := lookup(p.PID)
	return err == nil && now == p
}

// kill ends the process at once unless it has ended.
func (p process) kill() error {
	if !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end process %d: %w", p.PID, err)
	}
	return nil
}

// inNamespaces lists the processes of which the main thread is in one of the named network namespaces, by those whose
// name starts with prefix. Everything in a namespace of a lab belongs to the lab.
func inNamespaces(prefix string) ([]process, error) {
	names, err := filepath.Glob(filepath.Join(netnsDir, prefix+"*"))
	if err != nil || len(names) == 0 {
		return nil, err
	}
	ours := map[string]bool{} // as the links in /proc show them
	for _, name := range names {
		var st syscall.Stat_t
		if err := syscall.Stat(name, &st); err == nil {
			ours[fmt.Sprintf("net:[%d]", st.Ino)] = true
		}
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	var found []process
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !ours[target] {
			continue // ended meanwhile, or not ours
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return nil, err
		}
		if p, err := lookup(pid); err == nil {
			found = append(found, p)
		}
	}
	return found, nil
}

// endProcesses ends what runs in the namespaces with that prefix and the processes named besides, and waits for it.
func endProcesses(ctx context.Context, prefix string, besides []process) error {
	return controlplane.Poll(ctx, 60*time.Second, "end the processes of the lab", func(context.Context) (bool, string, error) {
		running, err := inNamespaces(prefix)
		if err != nil {
			return false, "", err
		}
		for _, p := range besides {
			if p.alive() {
				running = append(running, p)
			}
		}
		var errs []error
		for _, p := range running {
			errs = append(errs, p.kill())
		}
		return len(running) == 0, fmt.Sprintf("%d running", len(running)), errors.Join(errs...)
	})
}

// ContainerID names a running process of this machine in the status of a pod.
func ContainerID(pid int) (string, error) {
	p, err := lookup(pid)
	return fmt.Sprintf("%s%d.%d", ContainerIDPrefix, p.PID, p.Start), err
}
