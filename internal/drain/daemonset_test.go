package drain

import (
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// daemonService adds a Service whose pods are a DaemonSet's, one on each of these nodes.
func (w *world) daemonService(name string, on ...string) {
	w.api.daemons = []appsv1.DaemonSet{{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: "ds"}}}
	w.service(name)
	for _, node := range on {
		p := w.pod(name+"-"+node, node, name)
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: name, UID: "ds", Controller: ptr.To(true)}}
		w.api.addPod(p)
	}
}

// Pods of a DaemonSet serve through the whole drain: the balancer's word is what is waited for, and none of them is
// evicted. C28.
func TestDaemonSetEndpointsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2", "n3")
		w.daemonService("in", "n1", "n2", "n3")
		w.hook.polls, w.hook.settle = 6, 2*time.Second
		opts := options("n1")
		opts.Flags.IgnoreDaemonSets = true
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if res.Outcome != Done || len(w.api.calls("evict")) != 0 || w.api.pod("web/in-n1") == nil {
			t.Fatalf("outcome %d (%v), evictions %v", res.Outcome, res.Err, w.api.calls("evict"))
		}
		proven := eventsOf[Proven](w)
		if w.hook.seen["n1/in"] < 6 || len(proven) != 1 || proven[0].Settle != 2*time.Second {
			t.Errorf("%d polls, proven %+v", w.hook.seen["n1/in"], proven)
		}
	})
}

// Behind a balancer that sends whether or not there is an endpoint the node comes back at once when a DaemonSet's pod is
// still there: nothing has to come first. C31.
func TestDaemonSetComesBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.daemonService("in", "n1", "n2")
		w.hook.removal = lbhooks.RemovalHook
		opts := options("n1")
		opts.Flags.IgnoreDaemonSets = true
		if res := w.runner(t, "r1").Drain(t.Context(), opts); res.Outcome != Done {
			t.Fatal(res.Err)
		}
		start := time.Now()
		out, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
		if took := time.Since(start); res.Outcome != Done || took > 3*time.Second || len(w.hook.restored) != 1 || len(out[0].Warnings) != 0 {
			t.Errorf("outcome %d (%v) after %s, restored %v, %+v", res.Outcome, res.Err, took, w.hook.restored, out)
		}
	})
}
