package drain

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/guard"
)

// also adds a Service like web/lb under another name.
func (w *holdWorld) also(name string, change func(*corev1.Service)) {
	svc := w.api.services[0].DeepCopy()
	svc.Name = name
	change(svc)
	w.api.services = append(w.api.services, svc)
}

// slicesBy are the slices of holds by Service, while pods are held.
func slicesBy(all []discoveryv1.EndpointSlice) map[string]int {
	out := map[string]int{}
	for _, s := range all {
		out[s.Labels[discoveryv1.LabelServiceName]]++
	}
	return out
}

// TestHoldSeveral: pods behind several Services get a slice for each that loses them; all pods of the Service on the node
// are held before the wait; two Services that are held for themselves share a pod without harm.
func TestHoldSeveral(t *testing.T) {
	for name, tc := range map[string]struct {
		asked  []string
		change func(*holdWorld)
		want   map[string]int // slices by Service when everything is held
		pods   int
	}{
		"two pods on the node": {[]string{"web/lb"}, func(w *holdWorld) { w.another("lb-2", "n1") }, map[string]int{"lb": 2}, 2},
		"a pod that is not Ready": {[]string{"web/lb"}, func(w *holdWorld) {
			w.another("lb-2", "n1")
			w.api.setPod("web/lb-2", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
		}, map[string]int{"lb": 2}, 2},
		"a Service of the cluster's": {[]string{"web/lb"}, func(w *holdWorld) {
			w.also("inside", func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, "" })
		}, map[string]int{"lb": 1, "inside": 1}, 1},
		"a Service by another label": {[]string{"web/lb"}, func(w *holdWorld) {
			w.also("inside", func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, ""
				s.Spec.Selector = map[string]string{"app": "lb"}
			})
		}, map[string]int{"lb": 1}, 1},
		"two that are held": {[]string{"web/lb", "web/lb2"}, func(w *holdWorld) {
			w.also("lb2", func(*corev1.Service) {})
		}, map[string]int{"lb": 1, "lb2": 1}, 1},
		"two that are held by different labels": {[]string{"all"}, func(w *holdWorld) {
			w.also("lb2", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "lb"} })
		}, map[string]int{"lb": 1, "lb2": 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHoldWorld(true)
				w.asked = tc.asked
				tc.change(w)
				dark := w.watched(t, "n1")
				looks := make(chan map[string]int, 2) // as many as Services are held
				w.onEvent = func(e Event) {
					if _, ok := e.(Held); ok {
						go func() { time.Sleep(6 * time.Second); looks <- slicesBy(w.api.holdSlices()) }()
					}
				}
				start := time.Now()
				res := w.runner(t, "r1").Drain(t.Context(), w.options())
				if res.Outcome != Done {
					t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
				}
				if d := dark(); d != 0 {
					t.Errorf("the node dropped what its balancer sent for %s", d)
				}
				seen := <-looks
				if len(seen) != len(tc.want) {
					t.Errorf("slices %v, want %v", seen, tc.want)
				}
				for service, n := range tc.want {
					if seen[service] != n {
						t.Errorf("slices %v, want %v", seen, tc.want)
					}
				}
				if len(w.api.accepted) != tc.pods || slices.ContainsFunc(w.api.accepted, func(c call) bool { return c.at.Sub(start) < 11*time.Second }) {
					t.Errorf("evicted %v from %s on", w.api.accepted, start)
				}
				if left := w.api.holdSlices(); len(left) != 0 {
					t.Errorf("slices left %v", left)
				}
			})
		})
	}
}

// another adds a pod like lb-0.
func (w *holdWorld) another(name, node string) {
	w.pod(name, node, "lb")
	w.api.setPod("web/"+name, func(p *corev1.Pod) { p.Labels["tier"], p.Status.PodIP = "web", "10.1.2."+name[len(name)-1:] })
}

// TestHoldSlices: one slice a family, with the ports and the address of the controller's, owned by the pod, the same name
// at every try.
func TestHoldSlices(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "p", UID: "u"}}
	slice := func(family discoveryv1.AddressType, address string) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "lb-" + string(family), Labels: map[string]string{discoveryv1.LabelServiceName: "lb"}},
			AddressType: family,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}, {Name: ptr.To("dns"), Port: ptr.To(int32(53)), Protocol: ptr.To(corev1.ProtocolUDP)}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"192.0.2.9"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: "other"}},
				{Addresses: []string{address}, NodeName: ptr.To("n1"), TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: "u"}},
			},
		}
	}
	key := guard.Key{Namespace: "web", Name: "lb"}
	have := []discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, "10.0.0.1"), slice(discoveryv1.AddressTypeIPv6, "fd00::1")}
	out := holdSlices(key, pod, have)
	if len(out) != 2 || out[0].Name == out[1].Name {
		t.Fatalf("slices %v, want one a family", out)
	}
	for _, s := range out {
		e := s.Endpoints[0]
		if len(s.Endpoints) != 1 || len(s.Ports) != 2 || *e.NodeName != "n1" || *e.Conditions.Ready || !*e.Conditions.Serving || !*e.Conditions.Terminating ||
			len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != "u" || s.Labels[discoveryv1.LabelManagedBy] != managedBy {
			t.Errorf("slice %+v", s)
		}
	}
	again := holdSlices(key, pod, []discoveryv1.EndpointSlice{*out[0], *out[1], have[0]})
	if len(again) != 2 || fmt.Sprint(again[0].Name, again[1].Name) != fmt.Sprint(out[0].Name, out[1].Name) {
		t.Errorf("again %v, want the same names", again)
	}
	if none := holdSlices(key, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "new"}}, have); len(none) != 0 {
		t.Errorf("a pod that no slice names: %v", none)
	}
}

// TestHoldInterrupted: a signal while the check's time passes keeps what stands and evicts nothing.
func TestHoldInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		w.onEvent = func(e Event) {
			if _, ok := e.(Held); ok {
				close(w.soft)
			}
		}
		res := w.runner(t, "r1").Drain(t.Context(), w.options())
		if res.Outcome != Interrupted || len(w.api.accepted) != 0 || len(w.api.holdSlices()) != 1 {
			t.Errorf("outcome %d: %v; evicted %v, slices %v", res.Outcome, res.Err, w.api.accepted, w.api.holdSlices())
		}
		if state, _ := w.state("n1"); state != guard.StateTerminating {
			t.Errorf("the node is %s, want it to serve on", state)
		}
	})
}

// TestHoldDeniedByWebhook: a webhook's no to the dry run does not stand against a hold; it may wait for its proof.
func TestHoldDeniedByWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		w.api.answer = func(_ *corev1.Pod, try int) error {
			if try == 1 { // the dry run
				return status(429, metav1.StatusReasonTooManyRequests, `admission webhook "evict.safedrain.dev" denied the request: leaving`)
			}
			return nil
		}
		if res := w.runner(t, "r1").Drain(t.Context(), w.options()); res.Outcome != Done {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
	})
}

// TestHoldPodsOfDyingRun: a context that ends hard leaves no goroutine behind.
func TestHoldPodsOfDyingRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHoldWorld(true)
		ctx, cancel := context.WithCancel(t.Context())
		w.onEvent = func(e Event) {
			if _, ok := e.(Held); ok {
				cancel()
			}
		}
		if res := w.runner(t, "r1").Drain(ctx, w.options()); res.Outcome != Interrupted {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
	})
}
