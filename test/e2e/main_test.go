package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/safedrain/safedrain/test/controlplane"
)

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
	if binary, err = controlplane.Safedrain(context.Background(), dir); err != nil {
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
	return flag.Set(name, "14")
}
