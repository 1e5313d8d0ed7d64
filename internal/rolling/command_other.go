//go:build !unix

package rolling

import (
	"context"
	"os/exec"
)

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", command) //nolint:gosec // the operator's own command
}

// runGroup runs a command that is killed when its context ends. Where there are no process groups, its children are not.
func runGroup(cmd *exec.Cmd) error { return cmd.Run() }
