//go:build !linux

package controlplane

import "syscall"

// childAttributes gives a child a session of its own. Only Linux can bind its life to ours; elsewhere a test that is
// killed leaves its children behind.
func childAttributes(bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}
