package cluster

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// maxStoredSeats bounds the memory of the rotations that a Store keeps: one may list a seat for every node.
const maxStoredSeats = 500_000

// storeWorld is a Store as hooks see it, from one change of the nodes and of the balancers' objects to the next. Hooks keep
// what they derive from one world, so another one is made when anything of it changes. It is used under the Store's lock.
type storeWorld struct {
	s      *Store
	steady *int // another one when anything but nodes and slices has changed

	mu        sync.Mutex
	nodes     []*corev1.Node                                    // nil before somebody asked for them
	lists     map[schema.GroupKind][]*unstructured.Unstructured // sorted by key
	selected  map[string][]*corev1.Pod                          // agents by label selector
	rotations map[*storedService]storedRotation
	seats     int
}

// storedRotation is a rotation that holds for one version of a Service.
type storedRotation struct {
	version  uint64
	rotation lbhooks.Rotation
}

var (
	_ lbhooks.Objects = (*storeWorld)(nil)
	_ lbhooks.Steady  = (*storeWorld)(nil)
)

// turn begins a new world: everything that hooks derived is derived anew when it is asked for. The lock is held.
func (s *Store) turn() {
	s.world = &storeWorld{
		s: s, steady: new(int), lists: map[schema.GroupKind][]*unstructured.Unstructured{},
		selected: map[string][]*corev1.Pod{}, rotations: map[*storedService]storedRotation{},
	}
}

// turnNodes begins a new world that differs in its nodes only. The lock is held.
func (s *Store) turnNodes() {
	steady, lists, selected := s.world.steady, s.world.lists, s.world.selected
	s.turn()
	s.world.steady, s.world.lists, s.world.selected = steady, lists, selected
}

// rotation returns the rotation of a Service. Nobody outside sends to a Service that is not reachable from outside.
func (w *storeWorld) rotation(e *storedService) lbhooks.Rotation {
	if !external(e.object) {
		return unreachable
	}
	w.mu.Lock()
	kept, ok := w.rotations[e]
	w.mu.Unlock()
	if ok && kept.version == e.version {
		return kept.rotation
	}
	r := match(w.s.matcher, e.object, w, func(hook string) string {
		return brokenBy(w.s.hooks, hook, func(gk schema.GroupKind) string { return w.s.unavailable[gk] })
	})
	w.keep(e, storedRotation{e.version, r})
	return r
}

// keep keeps a rotation, and drops others when there are too many.
func (w *storeWorld) keep(e *storedService, r storedRotation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seats -= len(w.rotations[e].rotation.Seats)
	w.rotations[e] = r
	w.seats += len(r.rotation.Seats)
	for other, kept := range w.rotations {
		if w.seats <= maxStoredSeats {
			return
		}
		if other != e {
			w.seats -= len(kept.rotation.Seats)
			delete(w.rotations, other)
		}
	}
}

// Steady is the same while nothing but nodes and slices changes.
func (w *storeWorld) Steady() any { return w.steady }

// Nodes lists the nodes, sorted by name.
func (w *storeWorld) Nodes() []*corev1.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes == nil {
		w.s.lent.Store(true)
		w.nodes = w.s.sorted
	}
	return w.nodes
}

// Slices lists the EndpointSlices of a Service, sorted by name.
func (w *storeWorld) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	e, ok := w.s.services[guard.Key{Namespace: namespace, Name: service}]
	if !ok || !e.proxied() {
		return nil
	}
	return e.expand()
}

// Custom lists the objects of a kind, sorted by key.
func (w *storeWorld) Custom(gk schema.GroupKind) []*unstructured.Unstructured {
	w.mu.Lock()
	defer w.mu.Unlock()
	list, ok := w.lists[gk]
	if !ok {
		list = slices.SortedFunc(maps.Values(w.s.custom[gk]), func(a, b *unstructured.Unstructured) int {
			return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
		})
		w.lists[gk] = list
	}
	return list
}

// Agents lists the pods that a hook selected by labels.
func (w *storeWorld) Agents(hook string) []*corev1.Pod {
	return agentsOf(w.s.hooks, hook, w.selectedBy)
}

func (w *storeWorld) selectedBy(selector string) []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, ok := w.selected[selector]
	if ok {
		return found
	}
	if sel, err := labels.Parse(selector); err == nil {
		for _, p := range w.s.agents {
			if sel.Matches(labels.Set(p.Labels)) {
				found = append(found, p)
			}
		}
		sortPods(found)
	}
	w.selected[selector] = found
	return found
}

// DaemonSet returns a DaemonSet that was read.
func (w *storeWorld) DaemonSet(namespace, name string) (*appsv1.DaemonSet, bool) {
	d := w.s.daemonSets[guard.Key{Namespace: namespace, Name: name}]
	return d, d != nil
}

// Leaving reports whether a node is leaving.
func (w *storeWorld) Leaving(node string) bool {
	n, ok := w.s.nodes[node]
	return ok && n.Leaving != guard.Stays
}
