package drain

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// checkHook is a balancer that only its own health check tells anything.
type checkHook struct {
	*fakeHook
	before func(others []string) error
	asked  []string
}

func (h *checkHook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	r, ok := h.fakeHook.Match(svc, objects)
	r.Provable, r.Removal = false, lbhooks.RemovalHealthCheck
	r.HealthCheck = &lbhooks.HealthCheck{Interval: 5 * time.Second, Unhealthy: 2, Timeout: time.Second, Source: "test"}
	return r, ok
}

func (h *checkHook) Before(_ context.Context, t lbhooks.Target, others []*corev1.Node) (string, error) {
	var names []string
	for _, n := range others {
		names = append(names, n.Name)
	}
	h.asked = append(h.asked, t.Node.Name+" beside "+fmt.Sprint(names))
	return "passes", h.before(names)
}

type checkHooks struct{ h *checkHook }

func (f checkHooks) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	r, _ := f.h.Match(svc, objects)
	return r
}

func (f checkHooks) Descriptions() []lbhooks.Description {
	return []lbhooks.Description{f.h.Describe()}
}

func (f checkHooks) Hook(name string) (lbhooks.Hook, bool) { return f.h, name == "fake" }

// TestHealthCheckRemoves: where pods outlive the balancer's check their eviction is the withdrawal. It is begun only when
// the check was seen to work; no label is set, and nothing else waits.
func TestHealthCheckRemoves(t *testing.T) {
	for name, tc := range map[string]struct {
		before  error
		outcome Outcome
		evicted []string
	}{
		"the check works": {nil, Done, []string{"pods/web/lb-0", "pods/web/other"}},
		"it does not":     {fmt.Errorf("silent: %w", lbhooks.ErrNotProven), HookFailed, []string{"pods/web/other"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2", "n3")
				w.service("lb", "n1", "n2")
				w.api.pod("web/lb-0").Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
					PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 20}},
				}
				w.pod("other", "n1", "other")
				hook := &checkHook{fakeHook: w.hook, before: func([]string) error { return tc.before }}
				res := checkRunner(t, w, hook).Drain(t.Context(), options("n1"))
				if res.Outcome != tc.outcome {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				evicted := names(w.api.calls("evict"))
				slices.Sort(evicted)
				if d := cmp.Diff(tc.evicted, evicted); d != "" {
					t.Errorf("evictions (-want +got):\n%s", d)
				}
				if d := cmp.Diff([]string{"n1 beside [n2]"}, hook.asked); d != "" {
					t.Errorf("asked (-want +got):\n%s", d)
				}
				if _, labelled := w.api.node("n1").Labels[lbhooks.ExcludeLabel]; labelled {
					t.Error("the node was labelled")
				}
				if n := len(eventsOf[Relied](w)); (n == 1) != (tc.before == nil) {
					t.Errorf("%d events that the check is relied on", n)
				}
			})
		})
	}
}

func checkRunner(t *testing.T, w *world, hook *checkHook) *Runner {
	t.Helper()
	r := w.runner(t, "r1")
	r.Hooks = checkHooks{hook}
	r.Load = func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
		return cluster.Load(ctx, &cluster.Clients{Kubernetes: r.Client}, r.Hooks.Descriptions(), cluster.Scope{Nodes: nodes})
	}
	return r
}

// TestProofSettles: a proof may ask for a time of its own, which an option of the run overrides.
func TestProofSettles(t *testing.T) {
	for name, tc := range map[string]struct {
		option *time.Duration
		want   time.Duration
	}{
		"the proof's":  {nil, 5 * time.Second},
		"the option's": {ptr.To(time.Second), time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.settle, w.hook.proofSettle = 2*time.Second, ptr.To(5*time.Second)
				opts := options("n1")
				opts.Settle = tc.option
				if res := w.runner(t, "r1").Drain(t.Context(), opts); res.Outcome != Done {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if got := eventsOf[Proven](w)[0].Settle; got != tc.want {
					t.Errorf("settled %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// TestUncordonSaysWhatIsGone: also of a Service that nobody could be told of, uncordon says that the node served it before.
func TestUncordonSaysWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		w.hook.blind, w.hook.removal = true, lbhooks.RemovalNone
		opts := options("n1")
		opts.Flags.AcceptUnproven = []string{"all"}
		if res := w.runner(t, "r1").Drain(t.Context(), opts); res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		restored, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		want := []string{"web/lb served from n1 before the drain and does not now; nothing moves a pod back"}
		if d := cmp.Diff(want, restored[0].Warnings); d != "" {
			t.Errorf("warnings (-want +got):\n%s", d)
		}
	})
}
