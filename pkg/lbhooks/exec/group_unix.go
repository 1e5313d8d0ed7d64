//go:build unix

package execcmd

import (
	"errors"
	"os/exec"
	"syscall"
)

// runGroup runs a command in a process group of its own. When the context of the command ends, the group is asked to end,
// and a moment later the command is killed. Whatever is left of the group when the command has ended is killed too.
func runGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return signal(cmd, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	_ = signal(cmd, syscall.SIGKILL)
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return nil // it ended; only a child had kept its output open
	}
	return err
}

// signal goes to the whole group; one that is gone is no error.
func signal(cmd *exec.Cmd, s syscall.Signal) error {
	if err := syscall.Kill(-cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
