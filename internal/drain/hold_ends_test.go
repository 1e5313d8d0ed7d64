package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// TestHoldWaitEnds: a port that goes out of sight, or passes again and again, ends the wait without a proof; nothing is
// evicted, and the run does not wait for ever.
func TestHoldWaitEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(since time.Duration) lbhooks.Sight // of n1, after its pods are held
		says   string
	}{
		"out of sight": {func(d time.Duration) lbhooks.Sight {
			if d < 4*time.Second {
				return lbhooks.SightFailing
			}
			return lbhooks.SightUnreachable
		}, "nobody can say"},
		"odd from then on": {func(d time.Duration) lbhooks.Sight {
			if d < 4*time.Second {
				return lbhooks.SightFailing
			}
			return lbhooks.SightOdd
		}, "nobody can say"},
		"passes again and again": {func(d time.Duration) lbhooks.Sight {
			if d%(10*time.Second) < 5*time.Second {
				return lbhooks.SightFailing
			}
			return lbhooks.SightPassing
		}, "passed again"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHoldWorld(true)
				var held time.Time
				w.onEvent = func(e Event) {
					if _, ok := e.(Held); ok {
						held = time.Now()
					}
				}
				w.port.answer = func(node string, s lbhooks.Sight) lbhooks.Sight {
					if node != "n1" || held.IsZero() {
						return s
					}
					return tc.answer(time.Since(held))
				}
				opts := w.options()
				opts.Timeout = 20 * time.Minute // so that the test itself ends
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				if res.Outcome != HookFailed || !strings.Contains(res.Err.Error(), tc.says) || len(w.api.accepted) != 0 {
					t.Errorf("outcome %d: %v; evicted %v", res.Outcome, res.Err, w.api.accepted)
				}
			})
		})
	}
}

// TestHoldGoesOnOutOfSight: a port that is out of sight for less than a proof may take does not end the wait, and the
// balancer's check fails meanwhile too.
func TestHoldGoesOnOutOfSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		start := time.Now()
		w.port.answer = func(node string, s lbhooks.Sight) lbhooks.Sight {
			if d := time.Since(start); node == "n1" && d > 4*time.Second && d < 20*time.Second {
				return lbhooks.SightUnreachable
			}
			return s
		}
		res := w.runner(t, "r1").Drain(t.Context(), w.options())
		if res.Outcome != Done || len(w.api.accepted) != 1 || w.api.accepted[0].at.Sub(start) < 20*time.Second {
			t.Errorf("outcome %d: %v; evicted %v", res.Outcome, res.Err, w.api.accepted)
		}
	})
}

// TestHoldLooksAreBounded: among many nodes that do not answer, another one that passes is not looked for without end.
func TestHoldLooksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		for i := range 40 {
			name := fmt.Sprintf("m%02d", i)
			node := w.api.node("n3")
			node.Name, node.UID = name, types.UID(name)
			w.api.addNode(node)
			w.another(fmt.Sprintf("lb-m%02d", i), name)
			w.api.setPod("web/lb-"+name, func(p *corev1.Pod) { p.Status.PodIP = fmt.Sprintf("10.1.9.%d", i) })
		}
		w.port.delay = func(lbhooks.Target) time.Duration { return time.Second }
		w.port.answer = func(node string, s lbhooks.Sight) lbhooks.Sight {
			if node == "n1" {
				return s
			}
			return lbhooks.SightUnreachable
		}
		opts := w.options()
		opts.HookTimeout = 5 * time.Second
		start := time.Now()
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if took := time.Since(start); res.Outcome != HookFailed || took > 15*time.Second {
			t.Errorf("outcome %d after %s: %v", res.Outcome, took, res.Err)
		}
		if res.Err != nil && len(res.Err.Error()) > 500 {
			t.Errorf("an error that names every node: %v", res.Err)
		}
	})
}

// TestHoldSharedPodSeenLate: of two Services that share a pod and are held at the same time, the second may look at its
// port only when the pod is held for the first already; that is no reason against it.
func TestHoldSharedPodSeenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		w.asked = []string{"web/lb", "web/lb2"}
		w.also("lb2", func(*corev1.Service) {})
		w.port.delay = func(t lbhooks.Target) time.Duration {
			if t.Service.Name == "lb2" {
				return 2 * time.Second
			}
			return 0
		}
		res := w.runner(t, "r1").Drain(t.Context(), w.options())
		if res.Outcome != Done || len(w.api.accepted) != 1 {
			t.Errorf("outcome %d: %v; evicted %v", res.Outcome, res.Err, w.api.accepted)
		}
	})
}

// TestHoldEndsWithAServerThatHangs: a signal ends a run in seconds although the look at a held pod gets no answer.
func TestHoldEndsWithAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		var stopped time.Time
		w.onEvent = func(e Event) {
			if _, ok := e.(Held); ok {
				w.api.hang = func(c call) bool { return c.verb == "get" && strings.HasPrefix(c.what, "pods/") }
				time.AfterFunc(5*time.Second, func() { stopped = time.Now(); close(w.soft) })
			}
		}
		res := w.runner(t, "r1").Drain(t.Context(), w.options())
		if took := time.Since(stopped); res.Outcome != Interrupted || took > 10*time.Second {
			t.Errorf("outcome %d: %v, %s after the signal", res.Outcome, res.Err, took)
		}
	})
}

// TestHoldMirrorsSharedPods: a pod that is taken in for a second Service while it is looked at is still followed.
func TestHoldMirrorsSharedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		pod := w.api.pod("web/lb-0")
		s := holdSlices(guard.Key{Namespace: "web", Name: "lb"}, pod, []discoveryv1.EndpointSlice{w.api.sliceOf(w.api.services[0])})[0]
		r := w.runner(t, "r1")
		written, err := r.writeSlice(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		n := &nodeRun{run: &run{Runner: r}, name: "n1"}
		k := &keeper{n: n, pods: map[types.UID]*keptPod{}}
		k.keep(pod, []*discoveryv1.EndpointSlice{written})
		looking := k.pods[pod.UID]
		k.keep(pod, nil) // for another Service, while a look is under way
		ready := func(yes corev1.ConditionStatus) {
			w.api.setPod("web/lb-0", func(p *corev1.Pod) { p.Status.Conditions[0].Status = yes })
		}
		ready(corev1.ConditionFalse)
		k.lookAt(t.Context(), looking)
		ready(corev1.ConditionTrue)
		k.look(t.Context())
		if left := w.api.holdSlices(); len(left) != 1 || !*left[0].Endpoints[0].Conditions.Serving {
			t.Errorf("the pod is Ready and its slice says it does not serve: %+v", left)
		}
	})
}

// TestHoldUndoneWithoutService: labels are given back and our slices go although nobody will list the pod again.
func TestHoldUndoneWithoutService(t *testing.T) {
	for name, change := range map[string]func(*holdWorld){
		"the Service is gone":           func(w *holdWorld) { w.api.services = nil },
		"the Service selects otherwise": func(w *holdWorld) { w.api.services[0].Spec.Selector = map[string]string{"app": "other"} },
		"the pod has failed": func(w *holdWorld) {
			w.api.setPod("web/lb-0", func(p *corev1.Pod) { p.Status.Phase, p.Labels["app"] = corev1.PodFailed, "failed" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := heldBy(t, 3)
				change(w)
				_, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
				if res.Outcome != Done || len(w.api.holdSlices()) != 0 {
					t.Errorf("outcome %d: %v; slices %v", res.Outcome, res.Err, w.api.holdSlices())
				}
				if _, held := guard.HeldOf(w.api.pod("web/lb-0")); held {
					t.Error("the pod is still held")
				}
			})
		})
	}
}

// heldBy is a world in which a run died before the nth writing call of its hold.
func heldBy(t *testing.T, nth int, more ...func(*holdWorld)) *holdWorld {
	t.Helper()
	w := newHoldWorld(true)
	for _, change := range more {
		change(w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	died := w.die(nth, cancel)
	_ = w.runner(t, "r1").Drain(ctx, w.options())
	if !died() {
		t.Fatal("the run did not die where it was to")
	}
	w.api.before = nil
	return w
}

// TestHoldUndonePartly: one pod that cannot be given back stops neither the others nor what else is to be undone, and
// the claim stays until it can.
func TestHoldUndonePartly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := heldBy(t, 5, func(w *holdWorld) { w.another("lb-2", "n1") }) // two slices, two labels
		w.api.before = func(c call) error {
			if c.verb == "patch" && c.what == "pods/web/lb-0" {
				return errors.New("no way")
			}
			return nil
		}
		var out []Restored
		undo := func() (res *Result, c *claim.Claim) {
			out, res = w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
			return res, claimOf(t, w.world, "n1")
		}
		isHeld := func(name string) bool { _, held := guard.HeldOf(w.api.pod("web/" + name)); return held }
		res, c := undo()
		if res.Outcome != Unfinished || c == nil || !isHeld("lb-0") || isHeld("lb-2") {
			t.Errorf("outcome %d: %v; claim %+v, held %t %t", res.Outcome, res.Err, c, isHeld("lb-0"), isHeld("lb-2"))
		}
		if n := w.api.node("n1"); n.Spec.Unschedulable || !strings.Contains(fmt.Sprint(res.Err), "lb-0") {
			t.Errorf("error %v, cordoned %t", res.Err, n.Spec.Unschedulable)
		}
		if len(out[0].StaysOut) != 1 || slices.ContainsFunc(out[0].Services, func(s RestoredService) bool { return s.Back }) {
			t.Errorf("said to be back: %+v", out[0])
		}
		w.api.before = nil
		if res, c := undo(); res.Outcome != Done || c != nil || isHeld("lb-0") || len(w.api.holdSlices()) != 0 {
			t.Errorf("outcome %d: %v; claim %+v, slices %v", res.Outcome, res.Err, c, slices.Clone(w.api.holdSlices()))
		}
	})
}
