package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/safedrain/safedrain/test/controlplane"
)

// envBinary names a ready safedrain; without it one is built from this tree, as `make build` does.
const envBinary = "SAFEDRAIN_TEST_BINARY"

var (
	cluster    *controlplane.Cluster // shared by all tests: each takes an Env of it
	kubeconfig string                // of somebody who may do everything
	binary     string                // safedrain
	kubectlBin string
)

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if err := sideBySide(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "safedrain-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if binary, err = buildBinary(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var setup error
	code := controlplane.Main(m, controlplane.Options{}, func(c *controlplane.Cluster) {
		cluster, kubeconfig = c, filepath.Join(dir, "kubeconfig")
		if setup = c.Kubeconfig(kubeconfig); setup == nil {
			kubectlBin, setup = c.Programs().Kubectl()
		}
	})
	if setup != nil {
		fmt.Fprintln(os.Stderr, setup)
		return max(code, 1)
	}
	return code
}

// sideBySide lets more tests run at a time than there are processors, since they wait most of the time, unless
// `go test -parallel` says how many.
func sideBySide() error {
	const name = "test.parallel"
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == name })
	if chosen {
		return nil
	}
	return flag.Set(name, "8")
}

func buildBinary(ctx context.Context, dir string) (string, error) {
	if path := os.Getenv(envBinary); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "safedrain")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/safedrain")
	cmd.Dir = filepath.Join("..", "..") // its own module: the versions that are shipped
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build safedrain: %w\n%s", err, out)
	}
	return path, nil
}
