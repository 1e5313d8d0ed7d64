package cluster

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// maxInterned bounds the strings that a Store keeps one copy of: labels of pods that come and go would grow it for ever.
const maxInterned = 200_000

// Store is a view of a live cluster that is changed object by object, for decisions about one pod, node or Service at a
// time. It holds what a [Snapshot] holds, in the same form, less the pods. What it is given is its own from then on: it
// trims objects in place, so nobody else may read them.
//
// What follows from the objects is derived when it is asked for and kept until something it rests on changes: the facts of
// a Service as long as it, its slices and its neighbours at an address stay; rotations as long as no object of a balancer
// changes and no node does in what hooks read of it. The heartbeats of nodes and the renewals of Leases change nothing.
type Store struct {
	matcher Matcher
	hooks   []lbhooks.Description

	packing sync.Mutex // guards strings
	strings interner

	mu          sync.RWMutex
	nodes       map[string]*guard.NodeFacts
	sorted      []*corev1.Node // by name; replaced and never changed once it was lent
	lent        atomic.Bool    // hooks have seen sorted
	services    map[guard.Key]*storedService
	order       atomic.Pointer[[]*storedService] // those that kube-proxy serves, sorted by key; nil when it is to be made anew
	slices      map[guard.Key]*slice             // by their own key
	onNode      map[string]serviceSet            // by the node of an endpoint, "" for none
	ofPod       map[types.UID][]*storedService   // Services of policy Local, by the pod of an endpoint
	named       map[guard.Key]endpointPod        // pods of ofPod by name
	local       map[string]serviceSet            // Services of policy Local, by namespace
	byAddress   map[string]serviceSet            // by the address of their load balancer
	namespaces  map[string]string                // value of the annotation safedrain.dev/gate
	custom      map[schema.GroupKind]map[guard.Key]*unstructured.Unstructured
	agents      map[guard.Key]*corev1.Pod
	daemonSets  map[guard.Key]*appsv1.DaemonSet
	unavailable map[schema.GroupKind]string
	world       *storeWorld

	subscribers map[*Changes]struct{}
}

// endpointPod is a pod as slices show it.
type endpointPod struct {
	uid  types.UID
	node string
}

type serviceSet map[*storedService]struct{}

func (s serviceSet) has(svc *storedService) bool { _, ok := s[svc]; return ok }

// NewStore returns an empty Store. The Matcher is asked for the rotation of a Service when the Service is asked for.
func NewStore(m Matcher) *Store {
	s := &Store{
		matcher: m, hooks: m.Descriptions(), strings: interner{},
		nodes: map[string]*guard.NodeFacts{}, services: map[guard.Key]*storedService{}, slices: map[guard.Key]*slice{},
		onNode: map[string]serviceSet{}, ofPod: map[types.UID][]*storedService{}, local: map[string]serviceSet{},
		named: map[guard.Key]endpointPod{}, byAddress: map[string]serviceSet{}, namespaces: map[string]string{},
		custom: map[schema.GroupKind]map[guard.Key]*unstructured.Unstructured{}, agents: map[guard.Key]*corev1.Pod{},
		daemonSets: map[guard.Key]*appsv1.DaemonSet{}, subscribers: map[*Changes]struct{}{},
	}
	s.turn()
	return s
}

// Read calls f with a view of the whole that does not change meanwhile. Nothing that the view hands out may be kept; f must
// not take long and must not call the Store.
func (s *Store) Read(f func(v *StoreView)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(&StoreView{s})
}

// trim packs an object by a function that uses the one copy of each string.
func (s *Store) trim(pack func(interner)) {
	s.packing.Lock()
	defer s.packing.Unlock()
	if len(s.strings) > maxInterned {
		s.strings = interner{}
	}
	pack(s.strings)
}

// Trim drops from an object in place what a Store does not keep of it, so that many can wait to be set; setting one does so
// too. A slice is packed, see [Store.PackSlice].
func (s *Store) Trim(object any) {
	switch o := object.(type) {
	case *corev1.Node:
		s.trim(func(in interner) { trimNode(o, in) })
	case *corev1.Service:
		s.trim(func(in interner) { trimService(o, in) })
	case *corev1.Pod:
		s.trim(func(in interner) { trimPod(o, in) })
	case *appsv1.DaemonSet:
		s.trim(func(in interner) { trimDaemonSet(o, in) })
	case *unstructured.Unstructured:
		trimCustom(o)
	}
}

// SetNode adds or changes a node.
func (s *Store) SetNode(n *corev1.Node) {
	s.Trim(n)
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	facts := nodeFacts(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, known := slices.BinarySearchFunc(s.sorted, n.Name, byNodeName)
	switch {
	case !known:
		s.sorted = slices.Insert(s.ownNodes(), i, n)
		s.turnNodes()
	case sameNode(s.sorted[i], n):
		return
	default:
		turn := s.nodes[n.Name].Leaving != facts.Leaving || !sameToHooks(s.sorted[i], n)
		s.sorted = s.ownNodes()
		s.sorted[i] = n
		if turn {
			s.turnNodes()
		}
	}
	s.nodes[n.Name] = &facts
	s.nodeChanged(n.Name)
}

// ownNodes returns the nodes in a slice that nobody else has. The lock is held.
func (s *Store) ownNodes() []*corev1.Node {
	if s.lent.Swap(false) {
		return slices.Clone(s.sorted)
	}
	return s.sorted
}

func byNodeName(n *corev1.Node, name string) int { return strings.Compare(n.Name, name) }

// DeleteNode forgets a node.
func (s *Store) DeleteNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, known := slices.BinarySearchFunc(s.sorted, name, byNodeName)
	if !known {
		return
	}
	s.sorted = slices.Delete(s.ownNodes(), i, i+1)
	delete(s.nodes, name)
	s.turnNodes()
	s.nodeChanged(name)
}

// SetService adds or changes a Service.
func (s *Store) SetService(svc *corev1.Service) {
	s.Trim(svc)
	key := serviceKey(svc)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(key)
	if e.object != nil && sameService(e.object, svc) {
		return
	}
	s.unlist(e)
	e.object = svc
	s.list(e)
	s.serviceChanged(e)
}

// DeleteService forgets a Service.
func (s *Store) DeleteService(key guard.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.services[key]
	if !ok || e.object == nil {
		return
	}
	s.unlist(e)
	e.object = nil
	s.serviceChanged(e)
	s.forget(e)
}

// SetSlice adds or changes an EndpointSlice. One that cannot be read is left out, as kube-proxy leaves it out.
func (s *Store) SetSlice(sl *discoveryv1.EndpointSlice) {
	key := guard.Key{Namespace: sl.Namespace, Name: sl.Name}
	s.SetPackedSlice(key, s.PackSlice(sl))
}

// PackedSlice is an EndpointSlice in the form in which a Store keeps it.
type PackedSlice struct{ slice *slice }

// PackSlice packs an EndpointSlice for [Store.SetPackedSlice], a quarter of its size.
func (s *Store) PackSlice(sl *discoveryv1.EndpointSlice) PackedSlice {
	var packed PackedSlice
	s.trim(func(in interner) { packed.slice, _ = compactSlice(sl, in) })
	return packed
}

// SetPackedSlice adds or changes an EndpointSlice of that key.
func (s *Store) SetPackedSlice(key guard.Key, packed PackedSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaceSlice(key, packed.slice)
}

// DeleteSlice forgets an EndpointSlice.
func (s *Store) DeleteSlice(key guard.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaceSlice(key, nil)
}

// SetNamespace notes the gate's mode in a namespace.
func (s *Store) SetNamespace(n *corev1.Namespace) {
	s.setGate(n.Name, n.Annotations[guard.AnnotationGate])
}

// DeleteNamespace forgets a namespace.
func (s *Store) DeleteNamespace(name string) { s.setGate(name, "") }

func (s *Store) setGate(namespace, mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.namespaces[namespace] == mode {
		return
	}
	if mode == "" {
		delete(s.namespaces, namespace)
	} else {
		s.namespaces[namespace] = mode
	}
	for e := range s.local[namespace] {
		s.tell(e.key)
	}
}

// SetCustom adds or changes an object of a kind that hooks match by.
func (s *Store) SetCustom(gk schema.GroupKind, u *unstructured.Unstructured) {
	s.Trim(u)
	key := guard.Key{Namespace: u.GetNamespace(), Name: u.GetName()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.custom[gk] == nil {
		s.custom[gk] = map[guard.Key]*unstructured.Unstructured{}
	}
	old, known := s.custom[gk][key]
	s.custom[gk][key] = u
	if !known || !sameCustom(gk, old, u) {
		s.objectsChanged()
	}
}

// DeleteCustom forgets an object of a kind that hooks match by.
func (s *Store) DeleteCustom(gk schema.GroupKind, key guard.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.custom[gk][key]; known {
		delete(s.custom[gk], key)
		s.objectsChanged()
	}
}

// SetAgent adds or changes a pod that a hook selects by its labels.
func (s *Store) SetAgent(pod *corev1.Pod) {
	s.Trim(pod)
	key := guard.Key{Namespace: pod.Namespace, Name: pod.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.agents[key]
	s.agents[key] = pod
	if old == nil || !samePod(old, pod) {
		s.objectsChanged()
	}
}

// DeleteAgent forgets a pod that a hook selects by its labels.
func (s *Store) DeleteAgent(key guard.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.agents[key]; known {
		delete(s.agents, key)
		s.objectsChanged()
	}
}

// SetDaemonSet adds or changes a DaemonSet: hooks ask where its agents can run. Without any, they are not known.
func (s *Store) SetDaemonSet(d *appsv1.DaemonSet) {
	s.Trim(d)
	key := guard.Key{Namespace: d.Namespace, Name: d.Name}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.daemonSets[key]
	s.daemonSets[key] = d
	if old == nil || !sameDaemonSet(old, d) {
		s.objectsChanged()
	}
}

// DeleteDaemonSet forgets a DaemonSet.
func (s *Store) DeleteDaemonSet(key guard.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.daemonSets[key]; known {
		delete(s.daemonSets, key)
		s.objectsChanged()
	}
}

// SetUnavailable says why objects of some kinds that hooks read cannot be had: a hook that cannot do without one is broken.
func (s *Store) SetUnavailable(why map[schema.GroupKind]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !maps.Equal(s.unavailable, why) {
		s.unavailable = why
		s.objectsChanged()
	}
}
