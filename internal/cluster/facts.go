package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Taints and labels by which a node is recognised.
const (
	taintScaleDown     = "ToBeDeletedByClusterAutoscaler"
	taintDisrupted     = "karpenter.sh/disrupted"
	taintOutOfService  = corev1.TaintNodeOutOfService
	labelMaster        = "node-role.kubernetes.io/master"
	labelControlPlane  = "node-role.kubernetes.io/control-plane"
	labelProxyName     = "service.kubernetes.io/service-proxy-name"
	annotationClaim    = claim.Annotation
	labelExcluded      = corev1.LabelNodeExcludeBalancers
	labelZone          = corev1.LabelTopologyZone
	clusterIPHeadless  = corev1.ClusterIPNone
	trafficPolicyLocal = corev1.ServiceExternalTrafficPolicyLocal
)

// NodeFacts states a Node that was read live as the rules read it. It shares the node's labels and taints.
func NodeFacts(n *corev1.Node) guard.NodeFacts { return nodeFacts(n) }

// nodeFacts states a Node as the rules read it.
func nodeFacts(n *corev1.Node) guard.NodeFacts {
	f := guard.NodeFacts{
		Name: n.Name, Zone: n.Labels[labelZone], Cordoned: n.Spec.Unschedulable,
		Labels: n.Labels, Taints: n.Spec.Taints,
		Virtual: lbhooks.Virtual(n),
		Claim:   nodeClaim(n),
	}
	_, master := n.Labels[labelMaster]
	_, controlPlane := n.Labels[labelControlPlane]
	f.ControlPlane = master || controlPlane
	if v, ok := n.Labels[labelExcluded]; ok {
		f.Excluded = &v
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			f.Ready = c.Status == corev1.ConditionTrue
			if f.Ready {
				f.ReadySince = c.LastTransitionTime.Time
			}
			f.Unreachable = c.Status == corev1.ConditionUnknown
		}
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			f.Addresses = append(f.Addresses, a.Address)
		}
	}
	f.Leaving = leaving(n, &f)
	return f
}

// leaving says why a node is going, the most certain reason first: a claim comes last, because it may be the run's own.
func leaving(n *corev1.Node, f *guard.NodeFacts) guard.Leaving {
	switch {
	case n.DeletionTimestamp != nil:
		return guard.LeavingDeleted
	case hasTaint(n, taintOutOfService):
		return guard.LeavingOutOfSvc
	case hasTaint(n, taintScaleDown):
		return guard.LeavingScaleDown
	case hasTaint(n, taintDisrupted):
		return guard.LeavingDisrupted
	case f.Claim != nil && (f.Cordoned || f.Excluded != nil):
		return guard.LeavingClaimed
	default:
		return guard.Stays
	}
}

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// countSkipped reports whether kube-proxy leaves the Service out, and counts why; it also counts the served Services that
// have no policy Local.
func countSkipped(svc *corev1.Service, n *guard.Skipped) bool {
	_, otherProxy := svc.Labels[labelProxyName]
	switch {
	case otherProxy:
		n.OtherProxy++
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		n.ExternalName++
	case svc.Spec.ClusterIP == clusterIPHeadless:
		n.Headless++
	default:
		if !externalLocal(svc) && !internalLocal(svc) {
			n.ClusterPolicy++
		}
		return false
	}
	return true
}

// external reports whether a Service is reachable from outside, by the rule of Kubernetes' own ExternallyAccessible.
func external(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP, "":
		return len(svc.Spec.ExternalIPs) > 0
	default:
		return false
	}
}

func externalLocal(svc *corev1.Service) bool {
	return external(svc) && svc.Spec.ExternalTrafficPolicy == trafficPolicyLocal
}

func internalLocal(svc *corev1.Service) bool {
	p := svc.Spec.InternalTrafficPolicy
	return p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal
}

// serviceFacts states a Service as the rules read it, without its rotation.
func (s *served) serviceFacts() *guard.ServiceFacts {
	svc := s.object
	f := &guard.ServiceFacts{
		Key: serviceKey(svc), Type: svc.Spec.Type,
		External: externalLocal(svc), Internal: internalLocal(svc),
		PublishNotReady: svc.Spec.PublishNotReadyAddresses,
		Hold:            svc.Annotations[guard.AnnotationHold] == "true",
		Selectorless:    len(svc.Spec.Selector) == 0,
		HealthCheckPort: svc.Spec.HealthCheckNodePort,
		Gate:            svc.Annotations[guard.AnnotationGate],
		Floor:           svc.Annotations[guard.AnnotationFloor],
		Selector:        svc.Spec.Selector,
		SharedWith:      s.shared,
	}
	if f.Type == "" {
		f.Type = corev1.ServiceTypeClusterIP
	}
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			f.NodePorts = append(f.NodePorts, p.NodePort)
		}
	}
	slices.Sort(f.NodePorts)
	f.NodePorts = slices.Compact(f.NodePorts)
	for _, family := range s.families() {
		f.Ports = s.appendPorts(f.Ports, family)
	}
	return f
}

// families returns the IP families that kube-proxy serves the Service in: those of its cluster addresses.
func (s *served) families() []corev1.IPFamily {
	spec := &s.object.Spec
	ips := spec.ClusterIPs
	if len(ips) == 0 && spec.ClusterIP != "" {
		ips = []string{spec.ClusterIP}
	}
	var out []corev1.IPFamily
	add := func(f corev1.IPFamily) {
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	for _, ip := range ips {
		switch {
		case netutils.IsIPv6String(ip):
			add(corev1.IPv6Protocol)
		case netutils.IsIPv4String(ip):
			add(corev1.IPv4Protocol)
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, f := range spec.IPFamilies {
		add(f)
	}
	if len(out) == 0 { // a manifest that never saw an API server
		for _, sl := range s.slices {
			add(sl.family)
		}
	}
	if len(out) == 0 {
		add(corev1.IPv4Protocol)
	}
	slices.Sort(out)
	return out
}

// feed is a slice, by its place among the Service's, with the number by which it carries a port.
type feed struct {
	slice  int
	number uint16
}

// appendPorts adds every port of the Service in one family. Slice ports are found by name and protocol, as kube-proxy
// does. Ports that are fed by the same slices with the same numbers share one list of endpoints.
func (s *served) appendPorts(ports []guard.Port, family corev1.IPFamily) []guard.Port {
	var fed []feed
	var endpoints []guard.Endpoint
	for _, p := range s.object.Spec.Ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		var by []feed
		for i, sl := range s.slices {
			if number, ok := sl.carries(p.Name, protocol); ok && sl.family == family && !sl.headless {
				by = append(by, feed{i, number})
			}
		}
		if !slices.Equal(by, fed) {
			fed, endpoints = by, s.endpointsOf(by)
		}
		ports = append(ports, guard.Port{Name: p.Name, Protocol: protocol, Family: family, NodePort: p.NodePort, Endpoints: endpoints})
	}
	return ports
}

func (s *served) endpointsOf(which []feed) []guard.Endpoint {
	n := 0
	for _, f := range which {
		n += len(s.slices[f.slice].endpoints)
	}
	out := make([]guard.Endpoint, 0, n)
	for _, f := range which {
		for j := range s.slices[f.slice].endpoints {
			e := s.slices[f.slice].endpoints[j].fact()
			e.Port = f.number
			out = append(out, e)
		}
	}
	return out
}
