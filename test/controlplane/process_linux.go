package controlplane

import "syscall"

// childAttributes lets a child die with the thread that started it, or gives it a session of its own if it is to last.
func childAttributes(detached bool) *syscall.SysProcAttr {
	if detached {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
