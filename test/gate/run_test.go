package gate

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
)

// program returns kubectl, as somebody who may do everything in a cluster.
func program(c *controlplane.Cluster, t testing.TB) func(args ...string) (stdout, stderr string, code int) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.Kubeconfig(config); err != nil {
		t.Fatal(err)
	}
	path, err := c.Programs().Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	return func(args ...string) (string, string, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KUBECONFIG=" + config}
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
}
