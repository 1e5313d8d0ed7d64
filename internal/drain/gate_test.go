package drain

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

func withdrawOf(node string) WithdrawOptions {
	return WithdrawOptions{Node: node, HookTimeout: 30 * time.Second, AcceptUnproven: []string{"all"}}
}

func stays(*corev1.Node) string { return "" }

// A withdrawal evicts nothing and says of each Service when its pods may go: after the proof and the settle time.
func TestWithdrawReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		w.hook.settle = 10 * time.Second
		w.onEvent = func(e Event) {
			if _, ok := e.(Proven); ok {
				time.AfterFunc(5*time.Second, func() {
					if s := claimOf(t, w, "n1").Services["web/lb"]; s.ProofAt == nil || s.Released || s.Until == nil || !s.Until.Equal(s.ProofAt.Add(10*time.Second)) {
						t.Errorf("while it settles: %+v", s)
					}
				})
			}
		}
		res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1"))
		if res.Outcome != Done || res.Err != nil {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		c := claimOf(t, w, "n1")
		if c == nil || c.Phase != claim.Proven || c.Live() || !c.Services["web/lb"].Released || c.Services["web/lb"].Unproven {
			t.Errorf("claim %v", c)
		}
		if n := len(w.api.calls("evict")) + len(w.api.calls("delete")); n != 0 {
			t.Errorf("%d pods were evicted", n)
		}
		// Once more: nothing is let go anew, so nothing is written but the claim.
		released := c.Services["web/lb"]
		if res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1")); res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		if diff := cmp.Diff(released, claimOf(t, w, "n1").Services["web/lb"]); diff != "" {
			t.Errorf("the second withdrawal changed what was released: %s", diff)
		}
	})
}

// What cannot be proven does not go, and is tried again under the same claim.
func TestWithdrawUnproven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		w.hook.polls = -1
		res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1"))
		var notOut *NotOut
		if res.Outcome != HookFailed || !errors.As(res.Err, &notOut) {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		if c := claimOf(t, w, "n1"); c == nil || c.Live() || c.Services["web/lb"].Released {
			t.Errorf("claim %v", c)
		}
		w.hook.polls = 1
		if res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1")); res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
	})
}

func TestWithdrawChangesNothing(t *testing.T) {
	tests := map[string]struct {
		world func(*world)
		want  func(error) bool
	}{
		"last endpoint": {
			func(w *world) { w.service("lb", "n1") },
			func(err error) bool { var r *Refusal; return errors.As(err, &r) && len(r.Reasons()) > 0 },
		},
		"claimed by a run that lives": {
			func(w *world) {
				w.service("lb", "n1", "n2")
				w.api.setNode("n1", func(n *corev1.Node) {
					n.Annotations = map[string]string{claim.Annotation: (&claim.Claim{Run: "r1", Holder: "kim"}).String()}
				})
			},
			func(err error) bool { var h *HeldByOthers; return errors.As(err, &h) && !h.Ended },
		},
		"nothing to leave": {
			func(w *world) { w.pod("plain", "n1", "plain") },
			func(err error) bool { return err == nil },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				tc.world(w)
				before := w.api.node("n1")
				if res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1")); !tc.want(res.Err) {
					t.Errorf("outcome %d: %v", res.Outcome, res.Err)
				}
				if diff := sameNode(before, w.api.node("n1")); diff != "" || len(w.api.calls("patch")) != 0 {
					t.Errorf("changed: %v %s", w.api.calls("patch"), diff)
				}
			})
		})
	}
}

// A return lets nobody go first, waits, counts, and leaves the node as it was.
func TestReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		w.hook.follows = true
		before := w.api.node("n1")
		if res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1")); res.Outcome != Done {
			t.Fatal(res.Err)
		}
		time.AfterFunc(20*time.Second, func() {
			n := w.api.node("n1")
			if c := claimOf(t, w, "n1"); c.Phase != claim.Closing || n.Labels[lbhooks.ExcludeLabel] != "true" || !n.Spec.Unschedulable {
				t.Errorf("before its time was over: %v", c)
			}
		})
		if _, err := w.runner(t, "gate-1").Return(t.Context(), ReturnOptions{Node: "n1", Closing: 35 * time.Second, Leaving: stays}); err != nil {
			t.Fatal(err)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" {
			t.Errorf("not as it was: %s", diff)
		}
	})
}

// A node that is to leave after all keeps what was released; another run's claim is not touched.
func TestReturnThatDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		if res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1")); res.Outcome != Done {
			t.Fatal(res.Err)
		}
		was := claimOf(t, w, "n1")
		leaves := func(*corev1.Node) string { return "it is cordoned" }
		_, err := w.runner(t, "gate-1").Return(t.Context(), ReturnOptions{Node: "n1", Closing: time.Second, Leaving: leaves})
		var reopened *Reopened
		if !errors.As(err, &reopened) {
			t.Errorf("error %v", err)
		}
		if is := claimOf(t, w, "n1"); is.Phase != claim.Proven || is.Live() || cmp.Diff(was.Services, is.Services) != "" {
			t.Errorf("claim %v, was %v", is, was)
		}
		_, err = w.runner(t, "r2").Return(t.Context(), ReturnOptions{Node: "n1", Closing: time.Second, Leaving: stays})
		var lost *claim.LostTo
		if !errors.As(err, &lost) || claimOf(t, w, "n1").Run != "gate-1" {
			t.Errorf("error %v", err)
		}
	})
}

// A run that died after it had set the label: by the objects the node is out already, and it is proven all the same.
func TestWithdrawGoesOnWhereTheNodeIsOutByTheObjects(t *testing.T) {
	for _, run := range []string{"gate-1", "r2"} {
		t.Run(run, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.polls = -1
				w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1"))
				if c := claimOf(t, w, "n1"); c == nil || c.Services["web/lb"].Released {
					t.Fatalf("claim %v", c)
				}
				w.hook.polls, w.hook.sees = 1, true
				if run == "gate-1" {
					if res := w.runner(t, run).Withdraw(t.Context(), withdrawOf("n1")); res.Outcome != Done {
						t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
					}
				} else if res := w.runner(t, run).Drain(t.Context(), options("n1")); res.Outcome != Done {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if s := claimOf(t, w, "n1").Services["web/lb"]; !s.Released || s.ProofAt == nil {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// Whoever empties the node has barred it from its balancer already, and the balancer lags: it is claimed and proven.
func TestWithdrawWhereTheNodeIsBarredAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		w.hook.sees, w.hook.polls = true, 3
		w.api.setNode("n1", func(n *corev1.Node) { n.Labels[lbhooks.ExcludeLabel] = "karpenter" })
		before := w.api.node("n1")
		if res := w.runner(t, "gate-1").Withdraw(t.Context(), withdrawOf("n1")); res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		c := claimOf(t, w, "n1")
		if c == nil || !c.Services["web/lb"].Released || c.Services["web/lb"].ProofAt == nil {
			t.Fatalf("claim %v", c)
		}
		if _, err := w.runner(t, "gate-1").Return(t.Context(), ReturnOptions{Node: "n1", Closing: time.Second, Leaving: stays}); err != nil {
			t.Fatal(err)
		}
		if diff := sameNode(before, w.api.node("n1")); diff != "" {
			t.Errorf("not as it was: %s", diff)
		}
	})
}
