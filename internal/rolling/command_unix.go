//go:build unix

package rolling

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
)

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-c", command) //nolint:gosec // the operator's own command
}

// runGroup runs a command in a process group of its own, so that a signal from the terminal does not reach it. When the
// context of the command ends, the group is asked to end, and a while later the command is killed. Whatever is left of the
// group when the command has ended is killed too.
func runGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return signalGroup(cmd, syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	_ = signalGroup(cmd, syscall.SIGKILL)
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return nil // it ended; only a child had kept its output open
	}
	return err
}

// signalGroup signals the whole group; one that is gone is no error.
func signalGroup(cmd *exec.Cmd, s syscall.Signal) error {
	if err := syscall.Kill(-cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
