package spawn

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// IP runs lines of the ip command in a network namespace, or in this process's own when netns is empty. One process runs
// all of them; the first line that fails ends it.
func IP(ctx context.Context, netns string, lines ...string) error {
	args := []string{"-batch", "-"}
	if netns != "" {
		args = append([]string{"-netns", netns}, args...)
	}
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip in namespace %q: %w: %s", netns, err, bytes.TrimSpace(out))
	}
	return nil
}
