package spawn

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes lets a child die with the thread that started it, or gives it a session of its own if it is to last.
func attributes(lasting bool) *syscall.SysProcAttr {
	if lasting {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// Bound are the attributes of a child that dies with this process, started from any goroutine that is not bound to a
// thread: such threads stay as long as the process.
func Bound() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// setns moves the current thread into a network namespace.
func setns(namespace *os.File) error { return unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET) }
