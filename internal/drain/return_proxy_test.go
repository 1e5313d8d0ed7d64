package drain

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// proxied is a world whose kube-proxies can be asked, behind an announcer that follows the endpoints, as MetalLB is.
type proxied struct {
	*world
	rotation func(*lbhooks.Rotation)
	sight    func(node string) lbhooks.Sight // of a health check port; nil: nobody looks
}

func newProxied(nodes ...string) *proxied {
	w := &proxied{world: newWorld(nodes...)}
	w.rotation = func(r *lbhooks.Rotation) { r.Follows, r.FollowsServing = true, true }
	return w
}

func (w *proxied) runner(t *testing.T, run string) *Runner {
	t.Helper()
	r := w.world.runner(t, run)
	hooks := proxiedHooks{fakeHooks{w.hook}, w}
	r.Hooks = hooks
	r.Load = func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
		return cluster.Load(ctx, &cluster.Clients{Kubernetes: r.Client}, hooks.Descriptions(), cluster.Scope{Nodes: nodes})
	}
	return r
}

// drained is the world with node n1 drained.
func (w *proxied) drained(t *testing.T) {
	t.Helper()
	if res := w.runner(t, "r1").Drain(t.Context(), options("n1")); res.Outcome != Done {
		t.Fatal(res.Err)
	}
}

// coming binds a pod of web/lb to a node, Ready after some time.
func (w *proxied) coming(node string, ready time.Duration) {
	p := w.pod("back", node, "lb")
	unready := p.DeepCopy()
	unready.Status.Conditions[0].Status = corev1.ConditionFalse
	w.api.addPod(unready)
	time.AfterFunc(ready, func() { w.api.addPod(p) })
}

// passesAfter is a port of n1 that passes after some time, and one of every other node that passes always.
func passesAfter(d time.Duration, before lbhooks.Sight) func(string) lbhooks.Sight {
	start := time.Now()
	return func(node string) lbhooks.Sight {
		if node == "n1" && time.Since(start) < d {
			return before
		}
		return lbhooks.SightPassing
	}
}

func everywhere(s lbhooks.Sight) func(string) lbhooks.Sight {
	return func(string) lbhooks.Sight { return s }
}

type proxiedHooks struct {
	fakeHooks
	w *proxied
}

func (f proxiedHooks) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	r := f.fakeHooks.Match(svc, objects)
	f.w.rotation(&r)
	return r
}

func (f proxiedHooks) Hook(name string) (lbhooks.Hook, bool) {
	if name == portHook && f.w.sight != nil {
		return ports{f.w.hook, f.w}, true
	}
	return f.fakeHooks.Hook(name)
}

type ports struct {
	*fakeHook
	w *proxied
}

func (p ports) Look(ctx context.Context, t lbhooks.Target) (lbhooks.Sight, string, error) {
	sight := p.w.sight(t.Node.Name)
	if sight == lbhooks.SightUnreachable { // silence takes as long as the caller has patience
		<-ctx.Done()
		return sight, "", ctx.Err()
	}
	return sight, t.Node.Name + " says " + string(sight), nil
}

// A node comes back when it can serve: not before the pods that are on their way are usable endpoints and its kube-proxy
// knows them, and not later.
func TestReturnWaits(t *testing.T) {
	const second = time.Second
	for name, tc := range map[string]struct {
		world    func(w *proxied)
		outcome  Outcome
		from, to time.Duration // within which the uncordon ends
		labelled bool          // in the end
		says     string        // in a detail, a warning, or the error
	}{
		"nothing comes": {world: func(*proxied) {}, to: 0, says: "sends only where a pod runs"},
		"a pod comes, kube-proxy follows": {
			world: func(w *proxied) { w.coming("n1", 20*second); w.sight = passesAfter(21*second, lbhooks.SightFailing) },
			from:  21 * second, to: 26 * second, says: "label removed; kube-proxy knows its pod: n1 says passing",
		},
		"a pod is there, kube-proxy knows it": {
			world: func(w *proxied) { w.coming("n1", 0); w.sight = everywhere(lbhooks.SightPassing) },
			to:    second / 2, says: "kube-proxy knows its pod",
		},
		"no port answers from here": {
			world: func(w *proxied) { w.coming("n1", 3*second); w.sight = everywhere(lbhooks.SightUnreachable) },
			from:  5 * second, to: 7 * second, says: "kube-proxy had 2s to learn of its pod: its health check port 30500 on n1 does not answer",
		},
		"no port says anything of the Service": {
			world: func(w *proxied) { w.coming("n1", 3*second); w.sight = everywhere(lbhooks.SightOdd) },
			from:  5 * second, to: 6 * second, says: "kube-proxy had 2s to learn of its pod: n1 says odd",
		},
		"nobody looks at ports": {
			world: func(w *proxied) { w.coming("n1", 3*second) },
			from:  5 * second, to: 6 * second, says: "kube-proxy had 2s",
		},
		"the port refuses, those of others do not": {
			world: func(w *proxied) { w.coming("n1", 0); w.sight = passesAfter(15*second, lbhooks.SightOdd) },
			from:  15 * second, to: 20 * second, says: "kube-proxy knows its pod",
		},
		"the port is silent, those of others are not": {
			world: func(w *proxied) { w.coming("n1", 0); w.sight = passesAfter(15*second, lbhooks.SightUnreachable) },
			from:  15 * second, to: 20 * second, says: "kube-proxy knows its pod",
		},
		"kube-proxy never knows the pod": {
			world: func(w *proxied) { w.coming("n1", 0); w.sight = passesAfter(time.Hour, lbhooks.SightFailing) }, outcome: Unfinished,
			from: 60 * second, to: 62 * second, labelled: true, says: "kube-proxy on n1 does not know its pod: n1 says failing, after 1m0s",
		},
		"the pod is never Ready": {
			world: func(w *proxied) { w.coming("n1", time.Hour) },
			from:  60 * second, to: 62 * second, says: "web/lb: pod back is not Ready, after 1m0s; n1 is back without it",
		},
		"the scheduler takes its time": {
			world: func(w *proxied) {
				w.coming("", time.Hour)
				time.AfterFunc(4*second, func() { w.coming("n1", 3*second) })
				w.sight = everywhere(lbhooks.SightPassing)
			},
			from: 7 * second, to: 10 * second, says: "kube-proxy knows its pod",
		},
		"the pod goes elsewhere": {
			world: func(w *proxied) {
				w.coming("", time.Hour)
				time.AfterFunc(4*second, func() { w.coming("n2", 0) })
			},
			from: 4 * second, to: 7 * second, says: "nothing moves a pod back",
		},
		"the pod fits nowhere": {
			world: func(w *proxied) { w.coming("", time.Hour) },
			from:  schedulingWithin, to: schedulingWithin + 5*second, says: "nothing moves a pod back",
		},
		"its pods there terminate": {
			world: func(w *proxied) {
				w.coming("n1", 0)
				time.AfterFunc(time.Microsecond, func() {
					w.api.setPod("web/back", func(p *corev1.Pod) {
						at := p.CreationTimestamp
						at.Time = time.Now()
						p.DeletionTimestamp = &at
					})
				})
				time.AfterFunc(8*second, func() { w.api.finish(w.api.pod("web/back")) })
				w.sight = everywhere(lbhooks.SightFailing)
			},
			from: 8 * second, to: 12 * second, says: "nothing moves a pod back",
		},
		"the node is not Ready": {
			world: func(w *proxied) {
				w.api.setNode("n1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
				time.AfterFunc(30*second, func() {
					w.api.setNode("n1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
				})
			},
			from: 30 * second, to: 36 * second, says: "sends only where a pod runs",
		},
		"the node is never Ready": {
			world: func(w *proxied) {
				w.api.setNode("n1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
			},
			outcome: Unfinished, from: 60 * second, to: 62 * second, labelled: true, says: "the node is not Ready, after 1m0s",
		},
		"the balancer asks kube-proxy itself": {
			world: func(w *proxied) {
				w.coming("n1", time.Hour)
				w.rotation = func(r *lbhooks.Rotation) {
					r.Follows, r.HealthCheck = true, &lbhooks.HealthCheck{Interval: second, Unhealthy: 2, Timeout: second}
				}
			},
			to: 0, says: "label removed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newProxied("n1", "n2", "n3")
				w.service("lb", "n1", "n2")
				w.drained(t)
				tc.world(w)
				time.Sleep(time.Millisecond)
				start := time.Now()
				out, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
				if took := time.Since(start); took < tc.from-time.Millisecond || took > tc.to {
					t.Errorf("ended after %s, want %s to %s", took, tc.from, tc.to)
				}
				if res.Outcome != tc.outcome {
					t.Errorf("outcome %d: %v", res.Outcome, res.Err)
				}
				n := w.api.node("n1")
				if labelled := n.Labels[lbhooks.ExcludeLabel] == "true"; labelled != tc.labelled || n.Spec.Unschedulable {
					t.Errorf("labelled %t, unschedulable %t", labelled, n.Spec.Unschedulable)
				}
				if said := saidBy(out, res); !strings.Contains(said, tc.says) {
					t.Errorf("it says\n%s\nwithout %q", said, tc.says)
				}
				if waited := len(eventsOf[ReturnPending](w.world)) > 0; waited != (tc.from > 0) {
					t.Errorf("it said that it waits: %t", waited)
				}
			})
		})
	}
}

// A pod that is bound while uncordon lists pods is not missed: those without a node are listed first.
func TestReturnSeesWhoIsBoundMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newProxied("n1", "n2")
		w.service("lb", "n1", "n2")
		w.drained(t)
		w.coming("", time.Hour)
		w.sight = passesAfter(10*time.Second, lbhooks.SightFailing)
		// It is bound as soon as the first list of pods after the uncordon has been read.
		lists := 0
		w.api.before = func(c call) error {
			if c.String() == "list pods" && !w.api.node("n1").Spec.Unschedulable {
				if lists++; lists == 3 { // one of the load that looks for holds, and one of those of the look itself
					w.coming("n1", 5*time.Second)
				}
			}
			return nil
		}
		start := time.Now()
		out, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
		if took := time.Since(start); res.Outcome != Done || took < 10*time.Second {
			t.Errorf("outcome %d after %s: %v, %+v", res.Outcome, took, res.Err, out)
		}
	})
}

// saidBy is everything that an uncordon says in its end.
func saidBy(out []Restored, res *Result) string {
	var all []string
	for _, n := range out {
		all = append(all, n.Warnings...)
		for _, s := range n.Services {
			all = append(all, s.Detail)
		}
	}
	if res.Err != nil {
		all = append(all, res.Err.Error())
	}
	return strings.Join(all, "\n")
}

// A hook puts a node back when its kube-proxy knows the pod, and leaves it out when it does not.
func TestReturnByHookWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		after   time.Duration
		outcome Outcome
	}{
		"kube-proxy learns of it": {12 * time.Second, Done},
		"it never does":           {time.Hour, Unfinished},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newProxied("n1", "n2")
				w.service("lb", "n1", "n2")
				w.hook.removal, w.rotation = lbhooks.RemovalHook, func(*lbhooks.Rotation) {}
				w.drained(t)
				w.coming("n1", 10*time.Second)
				w.sight = passesAfter(tc.after, lbhooks.SightFailing)
				start := time.Now()
				out, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1"}, WaitTimeout: time.Minute})
				if res.Outcome != tc.outcome || (len(w.hook.restored) == 1) != (tc.outcome == Done) {
					t.Fatalf("outcome %d, restored %v: %v", res.Outcome, w.hook.restored, res.Err)
				}
				if took := time.Since(start); took < min(tc.after, time.Minute) {
					t.Errorf("ended after %s: %+v", took, out)
				}
			})
		})
	}
}

// One Service that has to wait keeps the label for all, and all nodes take pods before one of them is waited for.
func TestReturnOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newProxied("n1", "n2", "n3")
		w.service("lb", "n1", "n2", "n3")
		w.service("web", "n1", "n2", "n3")
		w.replace(time.Second, "n3")
		opts := options("n1", "n2")
		if res := w.runner(t, "r1").Drain(t.Context(), opts); res.Outcome != Done {
			t.Fatal(res.Err)
		}
		w.coming("n1", 20*time.Second)
		w.pod("web-back", "n1", "web")
		w.sight = everywhere(lbhooks.SightPassing)
		time.AfterFunc(15*time.Second, func() {
			n1, n2 := w.api.node("n1"), w.api.node("n2")
			if n1.Labels[lbhooks.ExcludeLabel] != "true" || n1.Spec.Unschedulable || n2.Spec.Unschedulable {
				t.Errorf("after 15s n1 has the labels %v; unschedulable: n1 %t, n2 %t", n1.Labels, n1.Spec.Unschedulable, n2.Spec.Unschedulable)
			}
		})
		start := time.Now()
		out, res := w.runner(t, "r2").Uncordon(t.Context(), RestoreOptions{Nodes: []string{"n1", "n2"}, WaitTimeout: time.Minute})
		if took := time.Since(start); res.Outcome != Done || took < 20*time.Second || took > 26*time.Second {
			t.Fatalf("outcome %d after %s: %v, %+v", res.Outcome, took, res.Err, out)
		}
		for _, name := range opts.Nodes {
			if n := w.api.node(name); n.Labels[lbhooks.ExcludeLabel] != "" {
				t.Errorf("%s still has the label", name)
			}
		}
	})
}
