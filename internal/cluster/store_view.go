package cluster

import (
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// StoreView is a Store at one moment, inside [Store.Read]. It knows no pods, budgets, DaemonSets and workloads.
type StoreView struct{ s *Store }

var _ guard.EvictionIndex = (*StoreView)(nil)

// Node returns the node of that name.
func (v *StoreView) Node(name string) (*guard.NodeFacts, bool) {
	n, ok := v.s.nodes[name]
	return n, ok
}

// Nodes lists every node, sorted by name.
func (v *StoreView) Nodes() iter.Seq[*guard.NodeFacts] {
	return func(yield func(*guard.NodeFacts) bool) {
		for _, n := range v.s.sorted {
			if !yield(v.s.nodes[n.Name]) {
				return
			}
		}
	}
}

// Service returns the facts of a Service; false when there is none or when kube-proxy would skip it.
func (v *StoreView) Service(key guard.Key) (*guard.ServiceFacts, bool) {
	e, ok := v.s.services[key]
	if !ok || !e.proxied() {
		return nil, false
	}
	return v.facts(e), true
}

// Services lists every Service that kube-proxy serves, sorted by key.
func (v *StoreView) Services() iter.Seq[*guard.ServiceFacts] {
	order := v.s.order.Load()
	if order == nil {
		var all []*storedService
		for _, e := range v.s.services {
			if e.proxied() {
				all = append(all, e)
			}
		}
		sortServices(all)
		order = &all
		v.s.order.Store(order)
	}
	return v.each(*order)
}

// ServicesOn lists the Services with an endpoint on that node, sorted by key.
func (v *StoreView) ServicesOn(node string) iter.Seq[*guard.ServiceFacts] {
	var on []*storedService
	for e := range v.s.onNode[node] {
		if e.proxied() {
			on = append(on, e)
		}
	}
	sortServices(on)
	return v.each(on)
}

// ServicesOf lists the Services of policy Local of a pod, sorted by key: those whose slices name it, and those that select
// its labels while no slice names it yet.
func (v *StoreView) ServicesOf(pod types.UID, key guard.Key, labels map[string]string) iter.Seq[*guard.ServiceFacts] {
	return v.Behind(key.Namespace, labels, func(yield func(types.UID) bool) { yield(pod) })
}

// Behind lists the Services of policy Local of a namespace that select labels, or whose slices name one of some pods, sorted by
// key. Of the others nothing is derived.
func (v *StoreView) Behind(namespace string, labels map[string]string, pods iter.Seq[types.UID]) iter.Seq[*guard.ServiceFacts] {
	local, of := v.s.local[namespace], serviceSet{}
	for e := range local {
		if guard.Selects(e.object.Spec.Selector, labels) {
			of[e] = struct{}{}
		}
	}
	for pod := range pods {
		for _, e := range v.s.ofPod[pod] {
			if local.has(e) {
				of[e] = struct{}{}
			}
		}
	}
	all := slices.Collect(maps.Keys(of))
	sortServices(all)
	return v.each(all)
}

// Reached lists the keys of the Services with externalTrafficPolicy Local, sorted. Like [StoreView.Gates] it derives nothing:
// whoever looks at all Services takes the keys first and then each Service in a Read of its own, so that no review waits for
// the rotations of all.
func (v *StoreView) Reached() []guard.Key {
	var keys []guard.Key
	for _, services := range v.s.local {
		keys = appendReached(keys, services)
	}
	slices.SortFunc(keys, guard.Key.Compare)
	return keys
}

// ReachedService returns the facts of one of [StoreView.Reached]. Of other Services nothing is derived: most of a cluster's are not
// of policy Local, and what is derived is kept.
func (v *StoreView) ReachedService(key guard.Key) (*guard.ServiceFacts, bool) {
	e, ok := v.s.services[key]
	if !ok || !e.proxied() || !externalLocal(e.object) {
		return nil, false
	}
	return v.facts(e), true
}

// ReachedServicesOn lists the facts of [StoreView.ReachedOn].
func (v *StoreView) ReachedServicesOn(node string) iter.Seq[*guard.ServiceFacts] {
	var on []*storedService
	for e := range v.s.onNode[node] {
		if e.proxied() && externalLocal(e.object) {
			on = append(on, e)
		}
	}
	sortServices(on)
	return v.each(on)
}

// ReachedOn lists of [StoreView.Reached] the Services with an endpoint on a node.
func (v *StoreView) ReachedOn(node string) []guard.Key {
	keys := appendReached(nil, v.s.onNode[node])
	slices.SortFunc(keys, guard.Key.Compare)
	return keys
}

func appendReached(keys []guard.Key, services serviceSet) []guard.Key {
	for e := range services {
		if e.proxied() && externalLocal(e.object) {
			keys = append(keys, e.key)
		}
	}
	return keys
}

// Gates lists, in any order, the value of the annotation safedrain.dev/gate of each Service of a namespace that has
// externalTrafficPolicy Local; "" where there is none. It derives nothing, so it costs little where there are many.
func (v *StoreView) Gates(namespace string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for e := range v.s.local[namespace] {
			if externalLocal(e.object) && !yield(e.object.Annotations[guard.AnnotationGate]) {
				return
			}
		}
	}
}

// Endpoint finds a pod by its name behind a Service of policy Local, and the node that slices show it on.
func (v *StoreView) Endpoint(pod guard.Key) (uid types.UID, node string, ok bool) {
	for e := range v.s.local[pod.Namespace] {
		for _, sl := range e.slices {
			for i := range sl.endpoints {
				if ep := &sl.endpoints[i]; ep.podKey == pod && ep.node != "" && !sl.headless {
					return ep.pod, ep.node, true
				}
			}
		}
	}
	return "", "", false
}

// Hint is what [StoreView.Endpoint] says as a rule, found at once. Where pods share a name, as one does with the one that it
// was reborn from, or nothing of the name is there any more, it may be about another one: nothing is decided by it.
func (v *StoreView) Hint(pod guard.Key) (uid types.UID, node string, ok bool) {
	p, ok := v.s.named[pod]
	return p.uid, p.node, ok
}

// Gate returns the value of the annotation safedrain.dev/gate of a namespace, "" when it has none.
func (v *StoreView) Gate(namespace string) string { return v.s.namespaces[namespace] }

// Objects returns what matching may look at.
func (v *StoreView) Objects() lbhooks.Objects { return v.s.world }

// RawNode returns a node as it was read, trimmed. Nobody changes it.
func (v *StoreView) RawNode(name string) (*corev1.Node, bool) {
	i, ok := slices.BinarySearchFunc(v.s.sorted, name, byNodeName)
	if !ok {
		return nil, false
	}
	return v.s.sorted[i], true
}

// RawService returns a Service as it was read, trimmed. Nobody changes it.
func (v *StoreView) RawService(key guard.Key) (*corev1.Service, bool) {
	e, ok := v.s.services[key]
	if !ok || e.object == nil {
		return nil, false
	}
	return e.object, true
}

// Pods lists nothing: pods are read live.
func (v *StoreView) Pods(string) iter.Seq[*corev1.Pod] { return func(func(*corev1.Pod) bool) {} }

// Pod knows no pod.
func (v *StoreView) Pod(types.UID) (*corev1.Pod, bool) { return nil, false }

// Budgets lists nothing.
func (v *StoreView) Budgets(string) iter.Seq[*policyv1.PodDisruptionBudget] {
	return func(func(*policyv1.PodDisruptionBudget) bool) {}
}

// DaemonSetExists takes a pod at its word.
func (v *StoreView) DaemonSetExists(guard.Key) bool { return true }

// Workloads lists nothing.
func (v *StoreView) Workloads(string) iter.Seq[*guard.Workload] {
	return func(func(*guard.Workload) bool) {}
}

func (v *StoreView) each(services []*storedService) iter.Seq[*guard.ServiceFacts] {
	return func(yield func(*guard.ServiceFacts) bool) {
		for _, e := range services {
			if !yield(v.facts(e)) {
				return
			}
		}
	}
}

// facts are those of the Service with its rotation. What stays the same while nothing changes is built once.
func (v *StoreView) facts(e *storedService) *guard.ServiceFacts {
	kept := e.facts.Load()
	if kept == nil {
		kept = e.serviceFacts()
		e.facts.Store(kept)
	}
	f := *kept
	f.Rotation = v.s.world.rotation(e)
	return &f
}

func sortServices(all []*storedService) {
	slices.SortFunc(all, func(a, b *storedService) int { return a.key.Compare(b.key) })
}
