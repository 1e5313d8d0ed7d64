package drain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Somebody else changes the node while the proof is waited for: stop before the eviction, exit 4. C21.
func TestForeignChanges(t *testing.T) {
	tests := map[string]struct {
		change func(*corev1.Node)
		want   Outcome
		says   string
	}{
		"uncordoned":    {func(n *corev1.Node) { n.Spec.Unschedulable = false }, Unfinished, "was uncordoned"},
		"unlabelled":    {func(n *corev1.Node) { delete(n.Labels, lbhooks.ExcludeLabel) }, Unfinished, "lost the label"},
		"claim removed": {func(n *corev1.Node) { delete(n.Annotations, claim.Annotation) }, Unfinished, "removed the claim"},
		"claim taken over": {func(n *corev1.Node) {
			n.Annotations[claim.Annotation] = `{"v":1,"run":"x","holder":"bob@laptop","phase":"granted"}`
		}, Unfinished, "bob@laptop took over"},
		"the kubelet writes its status": {func(n *corev1.Node) { n.Status.Phase = "x" }, Done, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.polls, w.hook.settle = 3, 5*time.Second
				w.onEvent = func(e Event) {
					if _, ok := e.(Proven); ok {
						w.api.setNode("n1", tc.change)
					}
				}
				res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
				if res.Outcome != tc.want {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if tc.want == Done {
					return
				}
				if !strings.Contains(res.Err.Error(), tc.says) {
					t.Errorf("error %q does not say %q", res.Err, tc.says)
				}
				if n := len(w.api.calls("evict")); n != 0 {
					t.Errorf("%d evictions", n)
				}
			})
		})
	}
}

// What somebody does to the node while nothing of the run is due is seen at once; without the right to watch, at the next
// renewal of the claim. C21.
func TestForeignChangeIsSeenAtOnce(t *testing.T) {
	changes := map[string]struct {
		change func(*world)
		want   Outcome
	}{
		"uncordoned": {func(w *world) { w.api.setNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = false }) }, Unfinished},
		"unclaimed":  {func(w *world) { w.api.setNode("n1", func(n *corev1.Node) { delete(n.Annotations, claim.Annotation) }) }, Unfinished},
		"deleted":    {func(w *world) { w.api.deleteNode("n1") }, Done},
	}
	for name, tc := range changes {
		for mayWatch, within := range map[bool]time.Duration{true: time.Second, false: claim.RenewEvery + time.Second} {
			t.Run(fmt.Sprint(name, ", may watch nodes ", mayWatch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld("n1", "n2")
					w.pod("p", "n1", "app")
					w.api.ends = func(*corev1.Pod) time.Duration { return -1 }
					w.api.deny = func(c call) bool { return !mayWatch && c.String() == "watch nodes" }
					var changed time.Time
					time.AfterFunc(25*time.Second, func() {
						changed = time.Now()
						tc.change(w)
					})
					res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
					if res.Outcome != tc.want {
						t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
					}
					if took := time.Since(changed); took > within {
						t.Errorf("noticed after %s, want %s at most", took, within)
					}
				})
			})
		}
	}
}

// The watch of the node breaks, and somebody uncordons it before there is another one: that begins with the node as it is.
func TestForeignChangeBetweenWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return -1 }
		time.AfterFunc(21*time.Second, func() {
			w.api.breakWatches()
			w.api.setNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		})
		start := time.Now()
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if took := time.Since(start); res.Outcome != Unfinished || took > 23*time.Second {
			t.Errorf("outcome %d after %s: %v", res.Outcome, took, res.Err)
		}
	})
}

func TestNodeDeletedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		p := w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return -1 }
		time.AfterFunc(30*time.Second, func() {
			w.api.mu.Lock()
			delete(w.api.nodes, "n1")
			w.api.mu.Unlock()
		})
		_ = p
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		if d := eventsOf[Drained](w); len(d) != 1 || !d[0].Deleted || !res.Nodes[0].Deleted {
			t.Errorf("drained %v", d)
		}
	})
}

// The first signal: the call in flight is finished, nothing new is begun, the state is kept and marked as ended.
func TestInterrupt(t *testing.T) {
	for _, rollback := range []bool{false, true} {
		t.Run(fmt.Sprint("rollback ", rollback), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.polls = 100
				before := w.api.node("n1")
				time.AfterFunc(3*time.Second, func() { close(w.soft) })
				opts := options("n1")
				opts.Rollback = rollback
				start := time.Now()
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				if res.Outcome != Interrupted || time.Since(start) > 4*time.Second {
					t.Fatalf("outcome %d after %s: %v", res.Outcome, time.Since(start), res.Err)
				}
				if n := len(w.api.calls("evict")); n != 0 {
					t.Errorf("%d evictions", n)
				}
				if rollback {
					if diff := sameNode(before, w.api.node("n1")); diff != "" {
						t.Errorf("not as it was: %s", diff)
					}
				} else if c := claimOf(t, w, "n1"); c == nil || c.Live() {
					t.Errorf("claim %v", c)
				}
			})
		})
	}
}

func TestInterruptBeforeTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		close(w.soft)
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Interrupted || len(w.api.calls("patch")) != 0 || !strings.Contains(res.Err.Error(), "nothing changed") {
			t.Errorf("outcome %d: %v, patches %v", res.Outcome, res.Err, w.api.calls("patch"))
		}
	})
}

func TestSecondSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return -1 }
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		res := w.runner(t, "r1").Drain(ctx, options("n1"))
		if res.Outcome != Interrupted {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
	})
}

// The other node dies while the pods of an unproven Service go: stop.
func TestOtherNodeLoses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.service("lb", "n1", "n2")
		w.hook.polls = 20
		time.AfterFunc(2*time.Second, func() {
			w.api.setNode("n2", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
		})
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		var loses *OtherLoses
		if res.Outcome != Unfinished || !errors.As(res.Err, &loses) {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if n := len(w.api.calls("evict")); n != 0 {
			t.Errorf("%d evictions", n)
		}
	})
}

func TestForeignMarksStay(t *testing.T) {
	label := func(v string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels[lbhooks.ExcludeLabel] = v } }
	tests := map[string]func(*corev1.Node){
		"nothing before":  func(*corev1.Node) {},
		"cordoned before": func(n *corev1.Node) { n.Spec.Unschedulable = true },
		"labelled before": label("true"),
		"label false":     label("false"),
		"label empty":     label(""),
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.polls = -1
				w.api.setNode("n1", change)
				before := w.api.node("n1")
				opts := options("n1")
				opts.Rollback = true
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				if res.Outcome != HookFailed {
					t.Errorf("outcome %d: %v", res.Outcome, res.Err)
				}
				if diff := sameNode(before, w.api.node("n1")); diff != "" {
					t.Errorf("not as it was: %s", diff)
				}
			})
		})
	}
}
