package drain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// holdWorld is a world whose balancer only its own check tells anything: every 5 s, out after two failures, 1 s timeout.
type holdWorld struct {
	*world
	check *checkHook
	port  *fakePort
	asked []string // --hold
}

// newHoldWorld has Service web/lb with a pod on each of n1 and n2. The pods bear app=lb, which the Service selects by, and
// tier=web, which it selects by only where exact says so; their ReplicaSet selects by app.
func newHoldWorld(exact bool) *holdWorld {
	w := &holdWorld{world: newWorld("n1", "n2", "n3"), asked: []string{"web/lb"}}
	w.service("lb", "n1", "n2")
	for i, name := range []string{"web/lb-0", "web/lb-1"} {
		w.api.setPod(name, func(p *corev1.Pod) {
			p.Labels["tier"], p.Status.PodIP = "web", fmt.Sprintf("10.1.0.%d", i+1)
		})
	}
	if exact {
		w.api.services[0].Spec.Selector["tier"] = "web"
	}
	w.api.replicaSet("lb", map[string]string{"app": "lb"})
	w.api.held.patched = w.release
	w.check = &checkHook{fakeHook: w.hook, before: func([]string) error { return nil }}
	w.port = &fakePort{fakeHook: w.hook, w: w}
	return w
}

// release is what the ReplicaSet controller does with a pod that it no longer selects: it lets it go, and starts another.
func (w *holdWorld) release(p *corev1.Pod) {
	if p.Labels["app"] == "lb" || len(p.OwnerReferences) == 0 {
		return
	}
	w.api.setPod(podName(p), func(p *corev1.Pod) { p.OwnerReferences = nil })
	w.mu.Lock()
	defer w.mu.Unlock()
	time.AfterFunc(3*time.Second, func() {
		next := w.pod(p.Name+"-new", "n3", "lb")
		w.api.setPod(podName(next), func(p *corev1.Pod) { p.Labels["tier"], p.Status.PodIP = "web", "10.1.1."+p.Name[3:4] })
	})
}

func (w *holdWorld) runner(t *testing.T, run string) *Runner {
	t.Helper()
	r := w.world.runner(t, run)
	hooks := holdHooks{w}
	r.Hooks = hooks
	r.Load = func(ctx context.Context, nodes []string) (*cluster.Snapshot, error) {
		return cluster.Load(ctx, &cluster.Clients{Kubernetes: r.Client}, hooks.Descriptions(), cluster.Scope{Nodes: nodes, Hold: w.asked})
	}
	return r
}

func (w *holdWorld) options() Options {
	o := options("n1")
	o.Flags.Hold = w.asked
	return o
}

type holdHooks struct{ w *holdWorld }

// Match sees the nodes as the hook health-check does: in rotation where an endpoint is ready.
func (f holdHooks) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return lbhooks.Rotation{Removal: lbhooks.RemovalNone, Rest: lbhooks.Seat{In: lbhooks.No}}
	}
	r, _ := f.w.check.Match(svc, objects)
	r.Follows, r.Rest = true, lbhooks.Seat{In: lbhooks.No, Eligible: true}
	for node := range lbhooks.NodesWith(objects.Slices(svc.Namespace, svc.Name), lbhooks.EndpointReady) {
		r.Seats[node] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true}
	}
	return r
}

func (f holdHooks) Descriptions() []lbhooks.Description {
	return []lbhooks.Description{f.w.check.Describe()}
}

func (f holdHooks) Hook(name string) (lbhooks.Hook, bool) {
	switch name {
	case "fake":
		return f.w.check, true
	case "health-check":
		return f.w.port, true
	}
	return nil, false
}

// fakePort is healthCheckNodePort on every node, as kube-proxy would answer from the slices. A balancer that checks it
// drops the node once it has failed for long enough.
type fakePort struct {
	*fakeHook
	w *holdWorld

	mu     sync.Mutex
	answer func(node string, sight lbhooks.Sight) lbhooks.Sight // of a test that has it otherwise
	delay  func(lbhooks.Target) time.Duration                   // of a look; nil: none
}

func (p *fakePort) Look(ctx context.Context, t lbhooks.Target) (lbhooks.Sight, string, error) {
	if err := ctx.Err(); err != nil {
		return "", "", err
	}
	if p.delay != nil {
		time.Sleep(p.delay(t))
	}
	sight := p.w.sight(t.Node.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answer != nil {
		sight = p.answer(t.Node.Name, sight)
	}
	return sight, t.Node.Name + " " + string(sight), nil
}

// sight is what the slices make of a node: passing with a ready endpoint, by kube-proxy's rules.
func (w *holdWorld) sight(node string) lbhooks.Sight {
	if state, _ := w.state(node); state == guard.StateServing {
		return lbhooks.SightPassing
	}
	return lbhooks.SightFailing
}

// state is what kube-proxy on a node would have of web/lb, with how many endpoints.
func (w *holdWorld) state(node string) (guard.State, int) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	var found []guard.Endpoint
	all := append(w.api.ownSlices(), w.api.sliceOf(w.api.services[0]))
	for _, s := range all {
		if s.Labels["kubernetes.io/service-name"] != "lb" {
			continue
		}
		for _, e := range s.Endpoints {
			found = append(found, endpointFact(e.Addresses[0], ptr.Deref(e.NodeName, ""), *e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating))
		}
	}
	state, usable := guard.Usable(found, node)
	return state, len(usable)
}

// watched records, every 100 ms, how long a node sends nowhere although the balancer has not dropped it yet: the blackhole.
// The balancer drops a node whose port failed for 11 s without a break.
func (w *holdWorld) watched(t *testing.T, node string) func() time.Duration {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	var dark time.Duration
	go func() {
		defer close(done)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		var failing time.Duration
		for {
			select {
			case <-ticker.C:
			case <-quit:
				return
			}
			state, _ := w.state(node)
			if state == guard.StateServing {
				failing = 0
				continue
			}
			failing += 100 * time.Millisecond
			if state == guard.StateEmpty && failing < 11*time.Second {
				dark += 100 * time.Millisecond
			}
		}
	}()
	return func() time.Duration {
		close(quit)
		<-done
		return dark
	}
}

// labelsOf are the labels of a pod of namespace web.
func (w *holdWorld) labelsOf(name string) map[string]string {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	return maps.Clone(w.api.pods["web/"+name].Labels)
}

func hasPrefix(log []string, prefix ...string) bool {
	return len(log) >= len(prefix) && slices.Equal(log[:len(prefix)], prefix)
}
