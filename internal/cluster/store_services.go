package cluster

import (
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
)

// storedService is a Service with its slices; object is nil while only slices of it are there.
type storedService struct {
	served
	key     guard.Key
	version uint64                             // of what the facts rest on
	facts   atomic.Pointer[guard.ServiceFacts] // without the rotation; nil when they are to be built anew
}

// proxied reports whether the Service is there and kube-proxy serves it.
func (e *storedService) proxied() bool {
	var skipped guard.Skipped
	return e.object != nil && !countSkipped(e.object, &skipped)
}

// drop forgets what was derived from the Service.
func (e *storedService) drop() {
	e.version++
	e.facts.Store(nil)
}

// entry returns what is kept of a Service, which may be nothing yet. The lock is held.
func (s *Store) entry(key guard.Key) *storedService {
	e := s.services[key]
	if e == nil {
		e = &storedService{key: key}
		s.services[key] = e
	}
	return e
}

// forget drops an entry of which nothing is left. The lock is held.
func (s *Store) forget(e *storedService) {
	if e.object == nil && len(e.slices) == 0 {
		delete(s.services, e.key)
	}
}

// list enters a Service where it is looked for, and unlist takes it out. The lock is held.
func (s *Store) list(e *storedService) {
	if !e.proxied() {
		return
	}
	s.order.Store(nil)
	if externalLocal(e.object) || internalLocal(e.object) {
		add(s.local, e.key.Namespace, e)
		for _, sl := range e.slices {
			s.placePods(e, sl)
		}
	}
	for _, in := range e.object.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			add(s.byAddress, in.IP, e)
		}
	}
	s.share(e)
}

func (s *Store) unlist(e *storedService) {
	if !e.proxied() {
		return
	}
	s.order.Store(nil)
	if s.isLocal(e) {
		for pod, name := range podsOf(e.slices) {
			s.unplacePod(e, pod, name)
		}
		remove(s.local, e.key.Namespace, e)
	}
	var neighbours []*storedService
	for _, in := range e.object.Status.LoadBalancer.Ingress {
		remove(s.byAddress, in.IP, e)
		for n := range s.byAddress[in.IP] {
			neighbours = append(neighbours, n)
		}
	}
	e.shared = nil
	for _, n := range neighbours {
		s.sharedOf(n)
	}
}

// share finds with whom a Service and its neighbours have an address in common. The lock is held.
func (s *Store) share(e *storedService) {
	for _, in := range e.object.Status.LoadBalancer.Ingress {
		for n := range s.byAddress[in.IP] {
			if n != e {
				s.sharedOf(n)
			}
		}
	}
	s.sharedOf(e)
}

func (s *Store) sharedOf(e *storedService) {
	var shared []guard.Key
	for _, in := range e.object.Status.LoadBalancer.Ingress {
		for n := range s.byAddress[in.IP] {
			if n != e {
				shared = append(shared, n.key)
			}
		}
	}
	slices.SortFunc(shared, guard.Key.Compare)
	if shared = slices.Compact(shared); !slices.Equal(shared, e.shared) {
		e.shared = shared
		s.serviceChanged(e)
	}
}

func add[K comparable](m map[K]serviceSet, key K, e *storedService) {
	if m[key] == nil {
		m[key] = serviceSet{}
	}
	m[key][e] = struct{}{}
}

func remove[K comparable](m map[K]serviceSet, key K, e *storedService) {
	delete(m[key], e)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// replaceSlice puts a slice in the place of the one with that key; nil takes it away. The lock is held.
func (s *Store) replaceSlice(key guard.Key, next *slice) {
	old := s.slices[key]
	if sameSlice(old, next) {
		return
	}
	if old != nil {
		delete(s.slices, key)
		e := s.services[old.service]
		e.slices = slices.DeleteFunc(slices.Clone(e.slices), func(sl *slice) bool { return sl == old })
		if next == nil || next.service != old.service {
			s.unplace(e, old)
			s.serviceChanged(e)
			s.forget(e)
		}
	}
	if next == nil {
		return
	}
	s.slices[key] = next
	e := s.entry(next.service)
	i, _ := slices.BinarySearchFunc(e.slices, next.name, func(sl *slice, name string) int { return strings.Compare(sl.name, name) })
	e.slices = slices.Insert(slices.Clone(e.slices), i, next)
	s.place(e, next)
	if old != nil && old.service == next.service {
		s.unplace(e, old)
	}
	s.serviceChanged(e)
}

// place notes on which nodes and before which pods a Service has an endpoint. The lock is held.
func (s *Store) place(e *storedService, sl *slice) {
	if sl.headless {
		return
	}
	for i := range sl.endpoints {
		ep := &sl.endpoints[i]
		add(s.onNode, ep.node, e)
	}
	s.placePods(e, sl)
}

func (s *Store) isLocal(e *storedService) bool { return s.local[e.key.Namespace].has(e) }

// placePods notes which pods are behind a Service of policy Local. Nobody asks for those of others, which are most. The lock is
// held.
func (s *Store) placePods(e *storedService, sl *slice) {
	if sl.headless || !s.isLocal(e) {
		return
	}
	for i := range sl.endpoints {
		ep := &sl.endpoints[i]
		if ep.pod == "" {
			continue
		}
		if !slices.Contains(s.ofPod[ep.pod], e) {
			s.ofPod[ep.pod] = append(s.ofPod[ep.pod], e)
		}
		if ep.node != "" {
			s.named[ep.podKey] = endpointPod{ep.pod, ep.node}
		}
	}
}

func (s *Store) unplacePod(e *storedService, pod types.UID, name guard.Key) {
	left := slices.DeleteFunc(slices.Clone(s.ofPod[pod]), func(o *storedService) bool { return o == e })
	if len(left) == 0 {
		delete(s.ofPod, pod)
		if s.named[name].uid == pod { // and not that of one reborn
			delete(s.named, name)
		}
	} else {
		s.ofPod[pod] = left
	}
}

// podsOf lists the pods that slices name.
func podsOf(all []*slice) map[types.UID]guard.Key {
	pods := map[types.UID]guard.Key{}
	for _, sl := range all {
		for i := range sl.endpoints {
			if ep := &sl.endpoints[i]; !sl.headless {
				pods[ep.pod] = ep.podKey
			}
		}
	}
	return pods
}

// unplace forgets the nodes and pods of a slice that no other slice of the Service names. The lock is held.
func (s *Store) unplace(e *storedService, old *slice) {
	if old.headless {
		return
	}
	nodes, pods := map[string]bool{}, podsOf([]*slice{old})
	for i := range old.endpoints {
		nodes[old.endpoints[i].node] = true
	}
	for _, sl := range e.slices {
		for i := range sl.endpoints {
			if !sl.headless {
				delete(nodes, sl.endpoints[i].node)
				delete(pods, sl.endpoints[i].pod)
			}
		}
	}
	for node := range nodes {
		remove(s.onNode, node, e)
	}
	if s.isLocal(e) {
		for pod, name := range pods {
			s.unplacePod(e, pod, name)
		}
	}
}
