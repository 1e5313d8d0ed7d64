package drain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

func endpointFact(addr, node string, ready, serving, terminating bool) guard.Endpoint {
	return guard.Endpoint{
		Addr: netip.MustParseAddr(addr), Port: 8080, Node: node, Ready: ready, Serving: serving, Terminating: terminating,
	}
}

// TestHold: our slice comes before the label, the label before the wait, the eviction after the check's time, and nothing
// is left; the node never drops a connection that its balancer sends.
func TestHold(t *testing.T) {
	for name, tc := range map[string]struct {
		exact     bool
		reachable bool
		least     time.Duration
		label     string
	}{
		"exact":                             {true, true, 11 * time.Second, "tier"},
		"forward only":                      {false, true, 11 * time.Second, "app"},
		"exact, the port is out of sight":   {true, false, 13 * time.Second, "tier"},
		"forward, the port is out of sight": {false, false, 13 * time.Second, "app"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHoldWorld(tc.exact)
				if !tc.reachable {
					w.port.answer = func(string, lbhooks.Sight) lbhooks.Sight { return lbhooks.SightUnreachable }
				}
				dark := w.watched(t, "n1")
				start := time.Now()
				res := w.runner(t, "r1").Drain(t.Context(), w.options())
				if res.Outcome != Done {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if d := dark(); d != 0 {
					t.Errorf("the node dropped what its balancer sent for %s", d)
				}
				if log := w.api.holdLog(); !hasPrefix(log, "slice+ lb-0", "label lb-0") || len(w.api.holdSlices()) != 0 {
					t.Errorf("log %v, slices left %v", log, w.api.holdSlices())
				}
				accepted := w.api.accepted
				if len(accepted) != 1 || accepted[0].uid != "uid-lb-0" || accepted[0].at.Sub(start) < tc.least {
					t.Errorf("evictions %v, want lb-0 after %s", accepted, tc.least)
				}
				held := eventsOf[Held](w.world)
				if len(held) != 1 || held[0].Label != tc.label || held[0].Exact != tc.exact {
					t.Errorf("held %+v", held)
				}
				plan := res.Report.Services[0]
				if plan.Balancer.Removal != guard.RemovalHold || plan.Verdict != guard.Withdraw {
					t.Errorf("plan %+v", plan)
				}
			})
		})
	}
}

// TestHoldRefused: what stands against a hold is found out before anything is changed.
func TestHoldRefused(t *testing.T) {
	budget := func(allowed int32, labels map[string]string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "b"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, ExpectedPods: 3, CurrentHealthy: 2, DesiredHealthy: 2},
		}
	}
	for name, tc := range map[string]struct {
		change  func(*holdWorld)
		outcome Outcome
		says    string
	}{
		"not asked for":           {func(w *holdWorld) { w.asked = nil }, Refused, "nothing can prove"},
		"a budget":                {func(w *holdWorld) { w.api.budgets = append(w.api.budgets, budget(0, map[string]string{"app": "lb"})) }, Refused, "nothing can prove"},
		"a permission is missing": {func(w *holdWorld) { w.api.held.denied = map[string]bool{"create endpointslices": true} }, Refused, "may not create endpointslices.discovery.k8s.io"},
		"a NetworkPolicy": {func(w *holdWorld) {
			w.api.held.policies = []networkingv1.NetworkPolicy{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "p"},
				Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "lb", "tier": "web"}}},
			}}
		}, Refused, "nothing can prove"},
		"the port fails before": {func(w *holdWorld) { w.port.answer = at("n1", lbhooks.SightFailing) }, HookFailed, "has to pass before"},
		"the port is odd":       {func(w *holdWorld) { w.port.answer = at("n1", lbhooks.SightOdd) }, HookFailed, "has to pass before"},
		"no other node passes":  {func(w *holdWorld) { w.port.answer = at("n2", lbhooks.SightFailing) }, HookFailed, "nowhere to go"},
		"the eviction would not": {func(w *holdWorld) {
			w.api.answer = func(*corev1.Pod, int) error { return budget429(0, "The disruption budget b needs 2 healthy pods") }
		}, HookFailed, "may not be evicted now"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHoldWorld(true)
				tc.change(w)
				before := w.labelsOf("lb-0")
				res := w.runner(t, "r1").Drain(t.Context(), w.options())
				if res.Outcome != tc.outcome || !strings.Contains(res.Err.Error(), tc.says) {
					t.Errorf("outcome %d: %v; want %d with %q", res.Outcome, res.Err, tc.outcome, tc.says)
				}
				if log := w.api.holdLog(); len(log) != 0 || len(w.api.accepted) != 0 || len(w.labelsOf("lb-0")) != len(before) {
					t.Errorf("changed something: %v, evicted %v", log, w.api.accepted)
				}
			})
		})
	}
}

func at(node string, sight lbhooks.Sight) func(string, lbhooks.Sight) lbhooks.Sight {
	return func(n string, s lbhooks.Sight) lbhooks.Sight {
		if n == node {
			return sight
		}
		return s
	}
}

// errDied is the end of a run in the middle of a call.
var errDied = errors.New("the process is gone")

// die ends a run before its nth writing call of a hold, as kill -9 does: no call of it arrives any more.
func (w *holdWorld) die(nth int, cancel func()) (died func() bool) {
	count, dead := 0, false
	w.api.before = func(c call) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		writes := strings.HasPrefix(c.what, "endpointslices") && c.verb != "list" && c.verb != "get" ||
			strings.HasPrefix(c.what, "pods/") && (c.verb == "patch" || c.verb == "evict" && !c.dryRun)
		if writes {
			count++
		}
		if count >= nth && !dead {
			dead = true
			cancel()
		}
		if dead {
			return errDied
		}
		return nil
	}
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return dead
	}
}

// TestHoldResumes: a run that dies before any call of a hold is taken up by the same command, without a blackhole.
func TestHoldResumes(t *testing.T) {
	for _, exact := range []bool{true, false} {
		for nth := 1; nth <= 3; nth++ { // the slice, the label, the eviction
			t.Run(strings.Join([]string{"call", string(rune('0' + nth)), map[bool]string{true: "exact", false: "forward"}[exact]}, " "), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newHoldWorld(exact)
					ctx, cancel := context.WithCancel(t.Context())
					died := w.die(nth, cancel)
					dark := w.watched(t, "n1")
					_ = w.runner(t, "r1").Drain(ctx, w.options())
					if !died() {
						t.Fatal("the run did not die where it was to")
					}
					w.api.before = nil
					time.Sleep(5 * time.Second)
					if nth == 3 && w.sight("n1") != lbhooks.SightFailing {
						t.Error("what was held is not held any more")
					}
					opts := w.options()
					opts.TakeOver = true
					again := time.Now()
					res := w.runner(t, "r2").Drain(t.Context(), opts)
					if res.Outcome != Done {
						t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
					}
					if d := dark(); d != 0 {
						t.Errorf("the node dropped what its balancer sent for %s", d)
					}
					if n := len(w.api.accepted); n != 1 || w.api.accepted[0].at.Sub(again) < 11*time.Second {
						t.Errorf("evictions %v, the second run began at %s", w.api.accepted, again)
					}
					if left := w.api.holdSlices(); len(left) != 0 {
						t.Errorf("slices left: %v", left)
					}
				})
			})
		}
	}
}

// TestHoldUndone: uncordon gives the labels back exactly and removes our slice only when the controller has the pod again;
// a pod that its ReplicaSet let go is said to go only forward. The node serves all the while.
func TestHoldUndone(t *testing.T) {
	for name, tc := range map[string]struct {
		exact bool
		nth   int
	}{
		"before the label":           {true, 2},
		"held":                       {true, 3},
		"held, goes only forward":    {false, 3},
		"before, to go only forward": {false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHoldWorld(tc.exact)
				before := w.labelsOf("lb-0")
				ctx, cancel := context.WithCancel(t.Context())
				died := w.die(tc.nth, cancel)
				dark := w.watched(t, "n1")
				_ = w.runner(t, "r1").Drain(ctx, w.options())
				if !died() {
					t.Fatal("the run did not die where it was to")
				}
				w.api.before = nil
				time.Sleep(5 * time.Second)
				out, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
				if res.Outcome != Done {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if d := dark(); d != 0 {
					t.Errorf("the node dropped what its balancer sent for %s", d)
				}
				forward := !tc.exact && tc.nth == 3
				warned := slices.ContainsFunc(out[0].Warnings, func(s string) bool { return strings.Contains(s, "goes only forward") })
				if warned != forward {
					t.Errorf("warnings %q", out[0].Warnings)
				}
				if forward {
					return
				}
				after := w.labelsOf("lb-0")
				same := len(after) == len(before)
				for k, v := range before {
					same = same && after[k] == v
				}
				_, held := guard.HeldOf(w.api.pod("web/lb-0"))
				if !same || held || len(w.api.holdSlices()) != 0 || w.sight("n1") != lbhooks.SightPassing {
					t.Errorf("labels %v, held %t, slices %v", after, held, w.api.holdSlices())
				}
				if log := w.api.holdLog(); tc.nth == 3 && !slices.Equal(log, []string{"slice+ lb-0", "label lb-0", "unlabel lb-0", "slice- lb-0"}) {
					t.Errorf("in the wrong order: %v", log)
				}
			})
		})
	}
}

// TestHoldRollsBack: a proof that does not come is undone with --rollback: here a port that goes on passing.
func TestHoldRollsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		w.port.answer = func(string, lbhooks.Sight) lbhooks.Sight { return lbhooks.SightPassing }
		opts := w.options()
		opts.Rollback = true
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if res.Outcome != HookFailed || len(w.api.accepted) != 0 {
			t.Fatalf("outcome %d: %v, evicted %v", res.Outcome, res.Err, w.api.accepted)
		}
		if _, held := guard.HeldOf(w.api.pod("web/lb-0")); held || len(w.api.holdSlices()) != 0 || w.api.node("n1").Spec.Unschedulable {
			t.Errorf("not undone: %v %v", w.api.pod("web/lb-0"), w.api.holdSlices())
		}
	})
}

// TestHoldMirrorsReadiness: while a pod is held, our slice says whether it serves.
func TestHoldMirrorsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		ready := func(yes corev1.ConditionStatus) {
			w.api.setPod("web/lb-0", func(p *corev1.Pod) { p.Status.Conditions[0].Status = yes })
		}
		serving := func() bool {
			s := w.api.holdSlices()
			return len(s) == 1 && *s[0].Endpoints[0].Conditions.Serving
		}
		var seen []bool
		done := make(chan struct{})
		w.onEvent = func(e Event) {
			if _, ok := e.(Held); !ok {
				return
			}
			go func() {
				defer close(done)
				time.Sleep(1500 * time.Millisecond)
				seen = append(seen, serving())
				ready(corev1.ConditionFalse)
				time.Sleep(1500 * time.Millisecond)
				seen = append(seen, serving())
				ready(corev1.ConditionTrue)
				time.Sleep(1500 * time.Millisecond)
				seen = append(seen, serving())
			}()
		}
		res := w.runner(t, "r1").Drain(t.Context(), w.options())
		<-done
		if res.Outcome != Done || !slices.Equal(seen, []bool{true, false, true}) {
			t.Errorf("outcome %d: %v; serving %v", res.Outcome, res.Err, seen)
		}
	})
}

// TestHoldFlapping: a port that passes again in between makes the time begin anew.
func TestHoldFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		start := time.Now()
		w.port.answer = func(node string, s lbhooks.Sight) lbhooks.Sight {
			if d := time.Since(start); node == "n1" && d > 8*time.Second && d < 9500*time.Millisecond {
				return lbhooks.SightPassing
			}
			return s
		}
		res := w.runner(t, "r1").Drain(t.Context(), w.options())
		if res.Outcome != Done || len(w.api.accepted) != 1 || w.api.accepted[0].at.Sub(start) < 20*time.Second {
			t.Errorf("outcome %d: %v; evicted %v, begun %s", res.Outcome, res.Err, w.api.accepted, start)
		}
	})
}
