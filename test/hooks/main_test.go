package hooks

import (
	"fmt"
	"os"
	"testing"

	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/customkinds"
)

// slowness is how much slower than a double in memory a real API server on a busy machine may be.
const slowness = 15

var (
	// cluster is an API server and nothing else: what balancers do is what a test does.
	cluster *controlplane.Cluster
	admin   dynamic.Interface
)

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{
		WithoutKwok: true, WithoutScheduler: true, WithoutControllerManager: true,
	}, func(c *controlplane.Cluster) { cluster = c }))
}

// define makes the cluster serve MetalLB's kinds, again if a test before took one away.
func define(t *testing.T) {
	t.Helper()
	serve(t, customkinds.MetalLB()...)
}

// serve makes the cluster serve kinds, again if a test before took one away.
func serve(t *testing.T, kinds ...customkinds.Kind) {
	t.Helper()
	if admin == nil {
		client, err := dynamic.NewForConfig(cluster.Config())
		if err != nil {
			t.Fatal(err)
		}
		admin = client
	}
	if err := customkinds.Define(t.Context(), admin, kinds...); err != nil {
		t.Fatal(fmt.Errorf("serve kinds: %w", err))
	}
}
