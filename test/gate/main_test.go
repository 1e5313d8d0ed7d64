package gate

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
)

var (
	binary  string // safedrain
	scratch string // a directory that is gone after the tests
	// ends are called after all tests, last first.
	ends struct {
		sync.Mutex
		all []func()
	}
)

// atEnd has something called after all tests.
func atEnd(end func()) {
	ends.Lock()
	defer ends.Unlock()
	ends.all = append(ends.all, end)
}

// lazyCluster is a cluster that starts when a test first needs it and ends after all tests.
type lazyCluster struct {
	options controlplane.Options

	once sync.Once
	c    *controlplane.Cluster
	err  error
}

var (
	// shared is for tests that act on their own namespace and nodes alone.
	shared lazyCluster
	// own is for whole gates, whose controllers act everywhere.
	own = lazyCluster{options: controlplane.Options{HPASyncPeriod: 2 * time.Second}}
	// bare is for gates that are elected beside those of the own cluster: two at once would act on the same nodes.
	bare = lazyCluster{options: controlplane.Options{WithoutKwok: true, WithoutScheduler: true, WithoutControllerManager: true}}
)

func (l *lazyCluster) get(t testing.TB) *controlplane.Cluster {
	t.Helper()
	l.once.Do(func() {
		if l.c, l.err = controlplane.Start(context.Background(), l.options); l.err == nil {
			atEnd(func() { _ = l.c.Stop(context.Background()) })
		}
	})
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.c
}

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if err := sideBySide(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	if scratch, err = os.MkdirTemp("", "safedrain-gate-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if binary, err = controlplane.Safedrain(context.Background(), scratch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	for _, end := range slices.Backward(ends.all) {
		end()
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
