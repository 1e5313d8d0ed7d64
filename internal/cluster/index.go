package cluster

import (
	"iter"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// maxCachedSeats bounds the memory of the rotations that an Index keeps: a rotation may list a seat for every node.
const maxCachedSeats = 100_000

// Index is a view of a Snapshot for one request. Building one is cheap. It may be used from several goroutines when its
// Matcher may.
type Index struct {
	snap    *Snapshot
	matcher Matcher
	hooks   []lbhooks.Description
	named   map[string]bool

	mu        sync.Mutex
	rotations map[int]lbhooks.Rotation
	seats     int
}

// Index returns a view of the snapshot for a request that names these nodes. The Matcher is asked for the rotation of a
// Service once, when the Service is first asked for.
func (s *Snapshot) Index(m Matcher, nodes []string) *Index {
	ix := &Index{
		snap: s, matcher: m, hooks: m.Descriptions(),
		named: make(map[string]bool, len(nodes)), rotations: map[int]lbhooks.Rotation{},
	}
	for _, n := range nodes {
		ix.named[n] = true
	}
	return ix
}

// Snapshot returns what the view is of.
func (ix *Index) Snapshot() *Snapshot { return ix.snap }

// Node returns the node of that name.
func (ix *Index) Node(name string) (*guard.NodeFacts, bool) {
	i, ok := ix.snap.nodeAt[name]
	if !ok {
		return nil, false
	}
	return &ix.snap.facts[i], true
}

// Nodes lists every node, sorted by name.
func (ix *Index) Nodes() iter.Seq[*guard.NodeFacts] {
	return func(yield func(*guard.NodeFacts) bool) {
		for i := range ix.snap.facts {
			if !yield(&ix.snap.facts[i]) {
				return
			}
		}
	}
}

// Service returns the facts of a Service; false when there is none or when kube-proxy would skip it.
func (ix *Index) Service(key guard.Key) (*guard.ServiceFacts, bool) {
	i, ok := ix.snap.at[key]
	if !ok {
		return nil, false
	}
	return ix.service(i), true
}

// Services lists every Service that kube-proxy serves, sorted by key.
func (ix *Index) Services() iter.Seq[*guard.ServiceFacts] {
	return func(yield func(*guard.ServiceFacts) bool) {
		for i := range ix.snap.services {
			if !yield(ix.service(i)) {
				return
			}
		}
	}
}

// ServicesOn lists the Services with an endpoint on that node, sorted by key.
func (ix *Index) ServicesOn(node string) iter.Seq[*guard.ServiceFacts] {
	return func(yield func(*guard.ServiceFacts) bool) {
		for _, i := range ix.snap.onNode[node] {
			if !yield(ix.service(int(i))) {
				return
			}
		}
	}
}

// Pods lists the pods bound to a node, sorted by key.
func (ix *Index) Pods(node string) iter.Seq[*corev1.Pod] { return slices.Values(ix.snap.podsOn[node]) }

// Pod returns a pod that is at hand.
func (ix *Index) Pod(uid types.UID) (*corev1.Pod, bool) {
	p, ok := ix.snap.pods[uid]
	return p, ok
}

// Budgets lists the PodDisruptionBudgets of a namespace, sorted by name.
func (ix *Index) Budgets(namespace string) iter.Seq[*policyv1.PodDisruptionBudget] {
	return slices.Values(ix.snap.budgets[namespace])
}

// DaemonSetExists reports whether the DaemonSet is there. Where DaemonSets could not be read, a pod is taken at its word.
func (ix *Index) DaemonSetExists(key guard.Key) bool {
	return ix.snap.daemonSets == nil || ix.snap.daemonSets[key] != nil
}

// Workloads lists the workloads of a namespace that were read, sorted by name.
func (ix *Index) Workloads(namespace string) iter.Seq[*guard.Workload] {
	return slices.Values(ix.snap.workloads[namespace])
}

// Skipped counts the Services that a judgement leaves out.
func (ix *Index) Skipped() guard.Skipped { return ix.snap.skipped }

// Objects returns what matching may look at in this view.
func (ix *Index) Objects() lbhooks.Objects { return (*view)(ix) }

// service builds the facts of a Service.
func (ix *Index) service(i int) *guard.ServiceFacts {
	f := ix.snap.services[i].serviceFacts()
	f.Rotation = ix.rotation(i)
	return f
}

// rotation asks the Matcher for the rotation of a Service, once per view. Nobody outside sends to a Service that is not
// reachable from outside.
func (ix *Index) rotation(i int) lbhooks.Rotation {
	svc := ix.snap.services[i].object
	if !external(svc) {
		return unreachable
	}
	ix.mu.Lock()
	r, ok := ix.rotations[i]
	ix.mu.Unlock()
	if ok {
		return r
	}
	r = match(ix.matcher, svc, (*view)(ix), func(hook string) string { return brokenBy(ix.hooks, hook, ix.snap.Unavailable) })
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.seats+len(r.Seats) <= maxCachedSeats {
		ix.rotations[i] = r
		ix.seats += len(r.Seats)
	}
	return r
}

// unreachable is the rotation of a Service that is not reachable from outside. Nobody changes it.
var unreachable = lbhooks.Rotation{Removal: lbhooks.RemovalNone, Rest: lbhooks.Seat{In: lbhooks.No}}

// match asks for the rotation of a Service, and doubts it where its hook cannot work.
func match(m Matcher, svc *corev1.Service, objects lbhooks.Objects, broken func(hook string) string) lbhooks.Rotation {
	r := m.Match(svc, objects)
	if r.Broken == "" {
		if r.Broken = broken(r.Hook); r.Broken != "" {
			doubt(&r)
		}
	}
	return r
}

// doubt turns what a hook guesses without the objects that it cannot read into what it is: that a node which could be in
// rotation is not in it is nothing that it knows.
func doubt(r *lbhooks.Rotation) {
	r.Rest = doubted(r.Rest)
	r.Seats, r.Shared = doubtedAll(r.Seats), doubtedAll(r.Shared)
}

func doubted(s lbhooks.Seat) lbhooks.Seat {
	if s.In == lbhooks.No && s.Eligible {
		s.In = lbhooks.Unknown
	}
	return s
}

// doubtedAll returns the seats doubted: the map that it was given where there is no doubt, for many Services share one.
func doubtedAll(seats map[string]lbhooks.Seat) map[string]lbhooks.Seat {
	var out map[string]lbhooks.Seat
	for node, s := range seats {
		if d := doubted(s); d != s {
			if out == nil {
				out = maps.Clone(seats)
			}
			out[node] = d
		}
	}
	if out == nil {
		return seats
	}
	return out
}

// brokenBy says why a hook cannot work here: a kind that it cannot do without is not served, or may not be read.
func brokenBy(hooks []lbhooks.Description, hook string, unavailable func(schema.GroupKind) string) string {
	for _, d := range hooks {
		if d.Name != hook {
			continue
		}
		for _, n := range d.Needs {
			if n.Optional {
				continue
			}
			if why := unavailable(schema.GroupKind{Group: n.Group, Kind: n.Kind}); why != "" {
				return why
			}
		}
	}
	return ""
}

// view is an Index as hooks see it.
type view Index

// Nodes lists the nodes, sorted by name.
func (v *view) Nodes() []*corev1.Node { return v.snap.nodes }

// Slices lists the EndpointSlices of a Service, sorted by name.
func (v *view) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	i, ok := v.snap.at[guard.Key{Namespace: namespace, Name: service}]
	if !ok {
		return nil
	}
	return v.snap.services[i].expand()
}

// expand returns the slices of the Service as API objects.
func (s *served) expand() []*discoveryv1.EndpointSlice {
	out := make([]*discoveryv1.EndpointSlice, len(s.slices))
	for i, sl := range s.slices {
		out[i] = sl.expand()
	}
	return out
}

// Custom lists the objects of a kind, sorted by key.
func (v *view) Custom(gk schema.GroupKind) []*unstructured.Unstructured { return v.snap.custom[gk] }

// Agents lists the pods that a hook selected by labels.
func (v *view) Agents(hook string) []*corev1.Pod { return agentsOf(v.hooks, hook, v.snap.agentsBy) }

// agentsOf lists the pods that one hook selects.
func agentsOf(hooks []lbhooks.Description, hook string, by func(selector string) []*corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, d := range hooks {
		if d.Name != hook {
			continue
		}
		for _, n := range d.Needs {
			if n.Labels != "" {
				out = append(out, by(n.Labels)...)
			}
		}
	}
	return out
}

// DaemonSet returns a DaemonSet that was read.
func (v *view) DaemonSet(namespace, name string) (*appsv1.DaemonSet, bool) {
	d := v.snap.daemonSets[guard.Key{Namespace: namespace, Name: name}]
	return d, d != nil
}

// Leaving reports whether a node is named in the request or is leaving.
func (v *view) Leaving(node string) bool {
	if v.named[node] {
		return true
	}
	i, ok := v.snap.nodeAt[node]
	return ok && v.snap.facts[i].Leaving != guard.Stays
}

// agentsBy returns the pods that match a label selector; live they were listed by it, else they are looked for once.
func (s *Snapshot) agentsBy(selector string) []*corev1.Pod {
	if s.agents != nil {
		return s.agents[selector]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := s.selected[selector]; ok {
		return found
	}
	var found []*corev1.Pod
	if sel, err := labels.Parse(selector); err == nil {
		for node, pods := range s.podsOn {
			for _, p := range pods {
				if node != "" && sel.Matches(labels.Set(p.Labels)) {
					found = append(found, p)
				}
			}
		}
		sortPods(found)
	}
	s.selected[selector] = found
	return found
}
