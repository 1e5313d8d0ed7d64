package controlplane

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// New starts a cluster for one test and ends it with the test. The ends of the logs are shown if the test failed.
func New(t testing.TB, options Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		if err := c.Stop(context.Background()); err != nil { // the test's own context has ended
			t.Error(err)
		}
	})
	return c
}

// Main runs the tests of a package with one shared cluster and returns the exit code for TestMain. The ends of the logs
// are shown if a test failed.
func Main(m *testing.M, options Options, use func(*Cluster)) int {
	ctx := context.Background()
	c, err := Start(ctx, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	use(c)
	code := m.Run()
	if code != 0 {
		fmt.Fprintln(os.Stderr, c.Logs())
	}
	if err := c.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}
