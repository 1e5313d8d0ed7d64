package lbhooks

import (
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// toBeDeletedTaint is set by cluster-autoscaler; the cloud service controller leaves such nodes out of its pools.
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// NodeOf returns the node of that name, nil where there is none. The nodes are sorted by name, as [Objects] lists them.
func NodeOf(nodes []*corev1.Node, name string) *corev1.Node {
	i, ok := slices.BinarySearchFunc(nodes, name, func(n *corev1.Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return nil
	}
	return nodes[i]
}

// Virtual reports whether a node has no machine that a balancer could send to: one of virtual-kubelet, or EKS Fargate.
func Virtual(n *corev1.Node) bool {
	if n.Labels["type"] == "virtual-kubelet" || n.Labels["eks.amazonaws.com/compute-type"] == "fargate" {
		return true
	}
	return hasTaint(n, "virtual-kubelet.io/provider")
}

// ExcludedByPresence is the rule of balancers that look at the key of the exclude label only, "false" included: MetalLB,
// the AWS load balancer controller, Azure and GKE.
func ExcludedByPresence(n *corev1.Node) bool {
	_, ok := n.Labels[ExcludeLabel]
	return ok
}

// ExcludedByValue is the rule of the cloud service controller: a value that parses as a boolean counts as that boolean,
// and one that does not, the empty one included, excludes the node.
func ExcludedByValue(n *corev1.Node) bool {
	value, ok := n.Labels[ExcludeLabel]
	if !ok {
		return false
	}
	excluded, err := strconv.ParseBool(value)
	return err != nil || excluded
}

// ToBeDeleted reports whether cluster-autoscaler is about to delete the node.
func ToBeDeleted(n *corev1.Node) bool { return hasTaint(n, toBeDeletedTaint) }

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// NodeAddresses returns the internal and external addresses of a node, internal ones first.
func NodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == kind {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out
}

// Addresses returns the addresses of a Service's load balancer, in the order of its status.
func Addresses(svc *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

// NodesWith returns the nodes that have an endpoint whose conditions satisfy use. Endpoints without a node are local
// nowhere and count for none.
func NodesWith(slices []*discoveryv1.EndpointSlice, use func(discoveryv1.EndpointConditions) bool) map[string]bool {
	nodes := map[string]bool{}
	for _, s := range slices {
		for i := range s.Endpoints {
			if ep := &s.Endpoints[i]; ep.NodeName != nil && use(ep.Conditions) {
				nodes[*ep.NodeName] = true
			}
		}
	}
	return nodes
}

// EndpointReady is the condition of kube-proxy's health check port: ready, where nil means true.
func EndpointReady(c discoveryv1.EndpointConditions) bool { return c.Ready == nil || *c.Ready }

// PodReady reports whether a pod runs, is Ready and is not terminating.
func PodReady(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
		return false
	}
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Memo keeps what a hook derived from one set of Objects for the next Service matched against the same set: Objects do
// not change during a request. The zero value is ready for use.
type Memo[T any] struct {
	mu    sync.Mutex
	of    any
	value T
}

// Get returns the value derived from objects, and derives it on the first call for them.
func (m *Memo[T]) Get(objects Objects, derive func(Objects) T) T {
	return m.get(objects, objects, derive)
}

// Steady is implemented by Objects that come again and again with other nodes and slices: it returns the same comparable value
// for as long as everything else is the same.
type Steady interface{ Steady() any }

// GetSteady is Get for what is derived without a look at nodes and slices.
func (m *Memo[T]) GetSteady(objects Objects, derive func(Objects) T) T {
	if s, ok := objects.(Steady); ok {
		return m.get(s.Steady(), objects, derive)
	}
	return m.get(objects, objects, derive)
}

func (m *Memo[T]) get(of any, objects Objects, derive func(Objects) T) T {
	if !reflect.TypeOf(of).Comparable() {
		return derive(objects)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil || m.of != of {
		m.of, m.value = of, derive(objects)
	}
	return m.value
}

// Claimed reports whether a drain is at work on the node: the exclude label on it is then a request, and not yet a fact.
func Claimed(n *corev1.Node) bool {
	_, ok := n.Annotations[AnnotationDrain]
	return ok
}
