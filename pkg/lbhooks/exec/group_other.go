//go:build !unix

package execcmd

import "os/exec"

// runGroup runs a command that is killed when its context ends. Where there are no process groups, its children are not.
func runGroup(cmd *exec.Cmd) error {
	cmd.WaitDelay = grace
	return cmd.Run()
}
