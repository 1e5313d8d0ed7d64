package drain

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

func TestUncordon(t *testing.T) {
	uncordon := func(t *testing.T, w *world) ([]Restored, *Result) {
		t.Helper()
		return w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
	}
	t.Run("label, balancer follows endpoints", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld("n1", "n2")
			w.service("lb", "n1", "n2")
			w.hook.follows = true
			before := w.api.node("n1")
			if res := w.runner(t, "r1").Drain(t.Context(), options("n1")); res.Outcome != Done {
				t.Fatal(res.Err)
			}
			out, res := uncordon(t, w)
			if res.Outcome != Done {
				t.Fatal(res.Err)
			}
			if diff := sameNode(before, w.api.node("n1")); diff != "" {
				t.Errorf("not as it was: %s", diff)
			}
			if len(out) != 1 || len(out[0].Services) != 1 || !out[0].Services[0].Back || len(out[0].Warnings) != 1 {
				t.Errorf("restored %+v", out)
			}
		})
	})
	for name, tc := range map[string]struct {
		ready time.Duration // of a pod that is bound to the node; negative: there is none, 0: never
		want  Outcome
		back  bool
	}{
		"hook, no pod comes":      {-1, Done, false},
		"hook, a pod is coming":   {20 * time.Second, Done, true},
		"hook, it is never Ready": {0, Unfinished, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.removal = lbhooks.RemovalHook
				before := w.api.node("n1")
				if res := w.runner(t, "r1").Drain(t.Context(), options("n1")); res.Outcome != Done {
					t.Fatal(res.Err)
				}
				if tc.ready >= 0 {
					p := w.pod("back", "n1", "lb")
					unready := p.DeepCopy()
					unready.Status.Conditions[0].Status = corev1.ConditionFalse
					w.api.addPod(unready)
					if tc.ready > 0 {
						time.AfterFunc(tc.ready, func() { w.api.addPod(p) })
					}
				}
				out, res := uncordon(t, w)
				if res.Outcome != tc.want {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if got := len(w.hook.restored) == 1; got != tc.back || out[0].Services[0].Back != tc.back {
					t.Errorf("restored %v, %+v", w.hook.restored, out)
				}
				if n := w.api.node("n1"); n.Spec.Unschedulable {
					t.Error("still cordoned")
				}
				if tc.back {
					if diff := sameNode(before, w.api.node("n1")); diff != "" {
						t.Errorf("not as it was: %s", diff)
					}
				} else if c := claimOf(t, w, "n1"); c == nil || !c.Has("hook:fake:web/lb") {
					t.Errorf("the withdrawal is forgotten: %v", c)
				}
			})
		})
	}
	t.Run("without a claim", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld("n1")
			w.api.setNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
			_, res := uncordon(t, w)
			if res.Outcome != Done || w.api.node("n1").Spec.Unschedulable {
				t.Errorf("outcome %d: %v", res.Outcome, res.Err)
			}
		})
	})
	t.Run("cordoned by somebody else before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld("n1", "n2")
			w.api.setNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
			if res := w.runner(t, "r1").Drain(t.Context(), options("n1")); res.Outcome != Done {
				t.Fatal(res.Err)
			}
			_, res := uncordon(t, w)
			if n := w.api.node("n1"); res.Outcome != Done || n.Spec.Unschedulable || n.Annotations[claim.Annotation] != "" {
				t.Errorf("outcome %d: %v, %v", res.Outcome, res.Err, n)
			}
		})
	})
}
