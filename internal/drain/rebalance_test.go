package drain

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// refusedBy is an answer with 429: by a webhook with a cause, or by a budget.
func refusedBy(message string, cause metav1.CauseType) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
		Details: &metav1.StatusDetails{RetryAfterSeconds: 1, Causes: []metav1.StatusCause{{Type: cause, Message: message}}},
	}}
}

// TestRebalanceRefused: which pod of two is evicted, and how long that is tried, when its eviction is refused.
func TestRebalanceRefused(t *testing.T) {
	gate := func(reason guard.EvictionReason) error {
		return refusedBy(`admission webhook "evict.safedrain.dev" denied the request: web/lb: later`, metav1.CauseType(reason))
	}
	other := refusedBy(`admission webhook "other.example" denied the request: no`, "")
	budget := refusedBy("The disruption budget few needs 2 healthy pods and has 2 currently", policyv1.DisruptionBudgetCause)
	mark := func(w *world) {
		p := w.pod("lb-0", "n2", "lb")
		p.Annotations = map[string]string{guard.AnnotationKeeper: "lb?"}
		w.api.addPod(p)
	}
	for name, tc := range map[string]struct {
		refused func(pod string, since time.Duration) error
		at      map[time.Duration]func(*world) // what happens meanwhile
		moved   string                         // "" for none
		from    time.Duration                  // it is over then at the earliest
		to      time.Duration                  // and at the latest
		warning string                         // a part of one; "" for none
	}{
		"by nobody": {func(string, time.Duration) error { return nil }, nil, "lb-0", 0, 10 * time.Second, ""},
		"until a keeper is relied on, which it is itself": {
			func(pod string, since time.Duration) error {
				switch {
				case since < time.Second:
					return gate(guard.NoKeeper)
				case pod == "lb-0":
					return gate(guard.Keeper)
				case since < 45*time.Second:
					return gate(guard.NoKeeper)
				}
				return nil
			},
			map[time.Duration]func(*world){time.Second / 2: mark}, "lb-1", 45 * time.Second, 60 * time.Second, "",
		},
		"no keeper is ever relied on": {
			func(string, time.Duration) error { return gate(guard.NoKeeper) }, nil, "", 100 * time.Second, 101 * time.Second,
			"pod web/lb-0 of node/n2 is not evicted: held by webhook evict.safedrain.dev: ",
		},
		"by another webhook": {
			func(string, time.Duration) error { return other }, nil, "", evictWithin, evictWithin + 10*time.Second, "held by webhook other.example: ",
		},
		"by a budget": {
			func(string, time.Duration) error { return budget }, nil, "", evictWithin, evictWithin + 10*time.Second, "held by budget web/few: ",
		},
		"by a budget for a while": {
			func(_ string, since time.Duration) error {
				if since < 15*time.Second {
					return budget
				}
				return nil
			}, nil, "lb-0", 15 * time.Second, 30 * time.Second, "",
		},
		"until a pod comes by itself": {
			func(string, time.Duration) error { return gate(guard.NoKeeper) },
			map[time.Duration]func(*world){10 * time.Second: func(w *world) { w.pod("lb-9", "n1", "lb") }}, "", 10 * time.Second, 20 * time.Second, "",
		},
		"until it is gone": {
			func(string, time.Duration) error { return gate(guard.NoKeeper) },
			map[time.Duration]func(*world){10 * time.Second: func(w *world) {
				w.api.mu.Lock()
				defer w.api.mu.Unlock()
				w.api.ends = func(*corev1.Pod) time.Duration { return -1 } // so that nothing comes in its place
				w.api.terminate(w.api.pods["web/lb-0"])
			}}, "", 10 * time.Second, 20 * time.Second,
			"it is gone or another one by now",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n2", "n2")
				w.api.setNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
				began := time.Now()
				w.api.answer = func(p *corev1.Pod, _ int) error { return tc.refused(p.Name, time.Since(began)) }
				for after, what := range tc.at {
					time.AfterFunc(after, func() { what(w) })
				}
				w.replace(time.Second, "n1")
				out, res := w.runner(t, "r1").Uncordon(t.Context(), RestoreOptions{
					Nodes: []string{"n1"}, WaitTimeout: 100 * time.Second, Rebalance: []string{rebalanceAll},
				})
				took := time.Since(began)
				if res.Outcome != Done || len(out) != 1 {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				moved := ""
				for _, m := range out[0].Moved {
					moved += m.Pod
					if m.To != "n1" {
						t.Errorf("%s came to %q", m.New, m.To)
					}
				}
				if moved != tc.moved || took < tc.from || took > tc.to {
					t.Errorf("moved %q after %s, want %q after %s to %s", moved, took, tc.moved, tc.from, tc.to)
				}
				said := strings.Join(out[0].Warnings, "\n")
				if tc.warning == "" && said != "" || !strings.Contains(said, tc.warning) {
					t.Errorf("warnings %q, want %q", said, tc.warning)
				}
			})
		})
	}
}
