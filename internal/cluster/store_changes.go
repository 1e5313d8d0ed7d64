package cluster

import (
	"maps"
	"slices"
	"sync"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Changes collects what changed in a Store for one reader, who takes it when there is time: it never holds up the Store,
// and grows with the objects of the cluster and not with their changes.
type Changes struct {
	ready chan struct{}

	mu       sync.Mutex
	services map[guard.Key]struct{}
	nodes    map[string]struct{}
	objects  bool
}

// Change is what changed since the last look.
type Change struct {
	Services []guard.Key // the Service, its slices, its neighbours at an address, or the gate's mode in its namespace; sorted
	Nodes    []string    // facts or annotations of these nodes, not their heartbeats; sorted
	Objects  bool        // objects of balancers: any rotation may be another one
}

// Subscribe returns the changes from now on; cancel ends them.
func (s *Store) Subscribe() (changes *Changes, cancel func()) {
	c := &Changes{ready: make(chan struct{}, 1), services: map[guard.Key]struct{}{}, nodes: map[string]struct{}{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers[c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscribers, c)
	}
}

// Ready receives when there is something to take.
func (c *Changes) Ready() <-chan struct{} { return c.ready }

// Take returns what changed since the last call.
func (c *Changes) Take() Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Change{
		Services: slices.SortedFunc(maps.Keys(c.services), guard.Key.Compare),
		Nodes:    slices.Sorted(maps.Keys(c.nodes)),
		Objects:  c.objects,
	}
	clear(c.services)
	clear(c.nodes)
	c.objects = false
	return out
}

func (c *Changes) note(add func()) {
	c.mu.Lock()
	add()
	c.mu.Unlock()
	select {
	case c.ready <- struct{}{}:
	default: // the reader knows already
	}
}

// serviceChanged drops what was derived from a Service and tells everybody. The lock is held.
func (s *Store) serviceChanged(e *storedService) {
	e.drop()
	s.tell(e.key)
}

func (s *Store) tell(key guard.Key) {
	for c := range s.subscribers {
		c.note(func() { c.services[key] = struct{}{} })
	}
}

func (s *Store) nodeChanged(name string) {
	for c := range s.subscribers {
		c.note(func() { c.nodes[name] = struct{}{} })
	}
}

// objectsChanged begins a new world and tells everybody. The lock is held.
func (s *Store) objectsChanged() {
	s.turn()
	for c := range s.subscribers {
		c.note(func() { c.objects = true })
	}
}
