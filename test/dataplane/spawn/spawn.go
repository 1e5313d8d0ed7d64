// Package spawn starts processes and does things inside network namespaces.
package spawn

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Spawner starts processes from one operating system thread that lives as long as the spawner: a child that is bound to
// die with its parent dies with the thread that started it, and a namespace is a property of a thread as well.
type Spawner struct {
	starts  chan func()
	lasting bool // children outlive this process
}

// New returns a spawner. Its children die with this process unless they are to last.
func New(lasting bool) *Spawner {
	s := &Spawner{starts: make(chan func()), lasting: lasting}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the spawner
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// Close ends the spawner, and with it every child that is not to last.
func (s *Spawner) Close() { close(s.starts) }

// Start starts cmd in a network namespace, or in this process's own when netns is empty. The child leads a process group.
func (s *Spawner) Start(cmd *exec.Cmd, netns string) error {
	cmd.SysProcAttr = attributes(s.lasting)
	started := make(chan error)
	s.starts <- func() {
		if netns == "" {
			started <- cmd.Start()
			return
		}
		started <- inside(netns, cmd.Start)
	}
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	return nil
}

// Path is the file through which a network namespace of that name is entered.
func Path(netns string) string { return filepath.Join("/run/netns", netns) }

// Do runs f on a thread that is inside a network namespace. What f starts on other goroutines is not inside; a socket
// stays in the namespace in which it was made.
func Do(netns string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var stayed bool
		done <- inside(netns, func() error { stayed = true; return f() })
		if stayed && home() {
			runtime.UnlockOSThread() // otherwise the thread, which is in a strange place, ends with this goroutine
		}
	}()
	return <-done
}

// inside enters a namespace on the current thread, which has to be locked, and comes back after f.
func inside(netns string, f func() error) error {
	back, err := Enter(netns)
	if err != nil {
		return err
	}
	err = f()
	if backErr := back(); backErr != nil {
		return backErr
	}
	return err
}

// Enter moves the current thread, which has to be locked, into a network namespace. The function it returns moves it back.
func Enter(netns string) (back func() error, err error) {
	target, err := os.Open(Path(netns))
	if err != nil {
		return nil, fmt.Errorf("enter network namespace %q: %w", netns, err)
	}
	defer func() { _ = target.Close() }()
	origin, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	if err := setns(target); err != nil {
		_ = origin.Close()
		return nil, fmt.Errorf("enter network namespace %q: %w", netns, err)
	}
	return func() error {
		defer func() { _ = origin.Close() }()
		if err := setns(origin); err != nil {
			return fmt.Errorf("leave network namespace %q: %w", netns, err)
		}
		return nil
	}, nil
}

// home reports whether the current thread is in the namespace of the process's main thread.
func home() bool {
	mine, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	process, err := os.Readlink("/proc/self/ns/net")
	return err == nil && mine == process
}
