package cluster

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// RawService returns a Service as it was read, whether kube-proxy serves it or not.
func (s *Snapshot) RawService(key guard.Key) (*corev1.Service, bool) {
	svc, ok := s.raw[key]
	return svc, ok
}

// RawNode returns a Node as it was read, trimmed to metadata, spec, conditions and addresses.
func (s *Snapshot) RawNode(name string) (*corev1.Node, bool) {
	i, ok := s.nodeAt[name]
	if !ok {
		return nil, false
	}
	return s.nodes[i], true
}

// NodeNames lists the names of all nodes, sorted.
func (s *Snapshot) NodeNames() []string {
	names := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		names[i] = n.Name
	}
	return names
}

// RawNodes lists the nodes, sorted by name.
func (s *Snapshot) RawNodes() iter.Seq[*corev1.Node] { return slices.Values(s.nodes) }

// Count is a number of objects of one kind.
type Count struct {
	Kind string // "Service", or "ServiceL2Status.metallb.io" outside Kubernetes' own groups
	N    int
}

// Counts lists how many objects of each kind were read: those the rules or one of the hooks read, and all others, each
// sorted by kind.
func (s *Snapshot) Counts(hooks []lbhooks.Description) (read, other []Count) {
	needed := map[string]bool{}
	for _, d := range hooks {
		for _, n := range d.Needs {
			needed[kindName(schema.GroupKind{Group: n.Group, Kind: n.Kind})] = true
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(s.counts)) {
		c := Count{kind, s.counts[kind]}
		if ruleKinds[kind] || needed[kind] {
			read = append(read, c)
		} else {
			other = append(other, c)
		}
	}
	return read, other
}

// ruleKinds are the kinds that the rules themselves read.
var ruleKinds = map[string]bool{
	"Node": true, "Service": true, "EndpointSlice": true, "Pod": true, "PodDisruptionBudget": true,
	"DaemonSet": true, "Deployment": true, "StatefulSet": true, "ReplicaSet": true, kindAutoscaler.Kind: true,
}

// count fills the numbers of Counts.
func (s *Snapshot) count(l *listing) {
	s.counts = map[string]int{}
	for kind, n := range map[string]int{
		"Node": len(l.nodes), "Service": len(l.services), "EndpointSlice": l.sliceCount, "Pod": len(l.pods),
		"PodDisruptionBudget": len(l.budgets), "DaemonSet": len(l.daemonSets),
		"Deployment": len(l.deployments), "StatefulSet": len(l.statefulSets),
		"ReplicaSet": len(l.replicaSets), "NetworkPolicy": len(l.policies), kindAutoscaler.Kind: len(l.autoscalers),
	} {
		if n > 0 {
			s.counts[kind] = n
		}
	}
	for gk, of := range l.custom {
		s.counts[kindName(gk)] = len(of)
	}
	for kind, n := range l.places.counts() {
		s.counts[kind] += n
	}
	for kind, n := range l.others {
		s.counts[kind] += n
	}
}

// kindName names a kind: bare for Kubernetes' own groups, else with its group.
func kindName(gk schema.GroupKind) string {
	if builtIn(gk.Group) {
		return gk.Kind
	}
	return gk.String()
}

// Missing lists the verbs that were denied when the snapshot was loaded, sorted.
func (s *Snapshot) Missing() []Verb { return s.missing }

// Unavailable says why objects of a kind that a hook reads could not be listed: forbidden, or not served. It is empty
// when they could, and for a snapshot that was read from files.
func (s *Snapshot) Unavailable(gk schema.GroupKind) string {
	if s.unserved[gk] {
		return notServed(gk)
	}
	for _, v := range s.missing {
		if v.kind == gk {
			return "not allowed to " + v.String()
		}
	}
	return ""
}

func notServed(gk schema.GroupKind) string {
	return fmt.Sprintf("this cluster has no kind %s: its CRD is not installed", gk)
}

// compare orders verbs: needed ones first, then by resource.
func (v Verb) compare(o Verb) int {
	if v.Needed != o.Needed {
		if v.Needed {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(v.Group, o.Group), cmp.Compare(v.Resource, o.Resource),
		cmp.Compare(v.Namespace, o.Namespace), cmp.Compare(v.Verb, o.Verb), cmp.Compare(v.Why, o.Why))
}

// distinct sorts verbs and keeps one entry for each permission, a needed one before an optional one.
func distinct(verbs []Verb) []Verb {
	slices.SortFunc(verbs, Verb.compare)
	seen := map[Verb]bool{}
	return slices.DeleteFunc(verbs, func(v Verb) bool {
		key := Verb{Verb: v.Verb, Resource: v.Resource, Group: v.Group, Namespace: v.Namespace}
		again := seen[key]
		seen[key] = true
		return again
	})
}
