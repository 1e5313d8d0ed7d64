package hooktest

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Objects are objects at hand, for tests of matching. Fields are set before the first use.
type Objects struct {
	AllNodes  []*corev1.Node
	AllSlices []*discoveryv1.EndpointSlice
	Customs   []*unstructured.Unstructured
	Pods      map[string][]*corev1.Pod // agents, by hook
	Daemons   []*appsv1.DaemonSet
	Going     []string // leaving nodes
}

var _ lbhooks.Objects = (*Objects)(nil)

// Nodes lists the nodes, sorted by name.
func (o *Objects) Nodes() []*corev1.Node {
	return slices.SortedFunc(slices.Values(o.AllNodes), func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
}

// Slices lists the EndpointSlices of a Service.
func (o *Objects) Slices(namespace, service string) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range o.AllSlices {
		if s.Namespace == namespace && s.Labels[discoveryv1.LabelServiceName] == service {
			out = append(out, s)
		}
	}
	return out
}

// Custom lists the objects of a kind.
func (o *Objects) Custom(gk schema.GroupKind) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, u := range o.Customs {
		if u.GroupVersionKind().GroupKind() == gk {
			out = append(out, u)
		}
	}
	return out
}

// Agents lists the pods of a hook.
func (o *Objects) Agents(hook string) []*corev1.Pod { return o.Pods[hook] }

// DaemonSet returns the DaemonSet of that name.
func (o *Objects) DaemonSet(namespace, name string) (*appsv1.DaemonSet, bool) {
	i := slices.IndexFunc(o.Daemons, func(d *appsv1.DaemonSet) bool { return d.Namespace == namespace && d.Name == name })
	if i < 0 {
		return nil, false
	}
	return o.Daemons[i], true
}

// Leaving reports whether a node is leaving.
func (o *Objects) Leaving(node string) bool { return slices.Contains(o.Going, node) }

// Slice is an EndpointSlice of a Service, with one endpoint for each node named.
func Slice(svc *corev1.Service, conditions discoveryv1.EndpointConditions, nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{}
	s.Namespace, s.Name = svc.Namespace, svc.Name+"-1"
	s.Labels = map[string]string{discoveryv1.LabelServiceName: svc.Name}
	for _, node := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &node, Conditions: conditions})
	}
	return s
}
