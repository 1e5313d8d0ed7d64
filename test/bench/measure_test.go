package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/test/controlplane"
)

// envMeasure makes this test program run its arguments as a command and write what that cost to the file named. The
// kernel counts the memory of whoever starts a program as the program's own: so a small process has to start it.
const envMeasure = "SAFEDRAIN_BENCH_MEASURE"

// cost is what a command took.
type cost struct {
	Took   time.Duration
	CPU    time.Duration
	MaxRSS int64 // bytes
	Code   int
}

// measure runs a command and writes its cost.
func measure(line []string) int {
	began := time.Now()
	cmd := exec.CommandContext(context.Background(), line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := cost{Took: time.Since(began), Code: cmd.ProcessState.ExitCode()}
	c.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		c.MaxRSS = usage.Maxrss * 1024 // Linux counts in KiB
	}
	data, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(os.Getenv(envMeasure), data, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runTimeout is for a command that hangs.
const runTimeout = 5 * time.Minute

// run runs a command against the API server of a configuration and returns its cost and what it printed.
func run(t testing.TB, config *rest.Config, path string, args ...string) (c cost, output string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, result := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "cost")
	if err := controlplane.WriteKubeconfig(config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, append([]string{path}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "KUBECONFIG=" + kubeconfig, envMeasure + "=" + result}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s", path, args, err, out.String())
	}
	data, err := os.ReadFile(result)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		t.Fatalf("%s %v: no cost: %v\n%s", path, args, err, out.String())
	}
	return c, out.String()
}
