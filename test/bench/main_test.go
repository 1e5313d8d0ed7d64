package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/safedrain/safedrain/test/controlplane"
)

var (
	workDir   string
	safedrain string                // the program under test
	shared    *controlplane.Cluster // a whole one, once somebody asked for it
)

func TestMain(m *testing.M) {
	var alone error
	switch {
	case len(os.Args) == 4 && os.Args[1] == planHere:
		alone = planAlone(os.Args[2], os.Args[3])
	case len(os.Args) == 2 && os.Args[1] == listHere:
		alone = listAlone()
	default:
		testMain(m)
	}
	if alone != nil {
		fmt.Fprintln(os.Stderr, alone)
		os.Exit(1)
	}
}

func testMain(m *testing.M) {
	if line := os.Getenv(envMeasure); line != "" {
		os.Exit(measure(os.Args[1:]))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx := context.Background()
	var err error
	if workDir, err = os.MkdirTemp("", "safedrain-bench-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(workDir) }()
	if safedrain, err = controlplane.Safedrain(ctx, workDir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if shared != nil {
		if code != 0 {
			fmt.Fprintln(os.Stderr, shared.Logs())
		}
		err = errors.Join(err, shared.Stop(ctx))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// whole returns the whole control plane that benchmarks share, with kwok for kubelets.
func whole(t testing.TB) *controlplane.Cluster {
	t.Helper()
	if shared == nil {
		c, err := controlplane.Start(context.Background(), controlplane.Options{}) // it outlives this benchmark
		if err != nil {
			t.Fatal(err)
		}
		shared = c
	}
	return shared
}
