package hooks

import (
	"context"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/calico"
	"github.com/safedrain/safedrain/pkg/lbhooks/calico/calicotest"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/test/customkinds"
)

// calicoNode is a calico-node whose status is a real object, and whose hook reads it as a user of its own.
type calicoNode struct {
	*calicotest.Balancer

	reader *reader
}

func newCalicoNode(t *testing.T) *calicoNode {
	t.Helper()
	statuses := customkinds.Kind{GroupVersionResource: calicotest.Statuses, Name: "CalicoNodeStatus"}
	serve(t, statuses)
	s := newScene(t)
	var needs []lbhooks.Need
	for _, n := range calico.New(nil, clock.RealClock{}).Describe().Needs {
		if n.Kind == "CalicoNodeStatus" {
			needs = append(needs, n)
		}
	}
	c := &calicoNode{reader: newReader(t, s.Env, needs, statuses)}
	c.Balancer = calicotest.New(calicotest.Config{Writer: admin, Reader: c.reader.dynamic, Target: s.target(), Fail: c.reader.Fail, Slowness: slowness})
	c.reader.must(c.Show(t.Context(), hooktest.In))
	var reports sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	reports.Go(func() { c.Report(ctx, 300*time.Millisecond) })
	t.Cleanup(func() {
		cancel()
		reports.Wait()
		err := admin.Resource(calicotest.Statuses).Delete(context.Background(), s.nodes[0].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) { // its kind may be gone by now
			t.Error(err)
		}
	})
	return c
}

func TestCalico(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newCalicoNode(t) })
}
