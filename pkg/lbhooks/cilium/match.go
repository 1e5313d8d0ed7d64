package cilium

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// match is one Service, looked at for either hook.
type match struct {
	*world

	svc     *corev1.Service
	objects lbhooks.Objects
}

const l2Local = "Cilium L2 announcements do not support externalTrafficPolicy Local: a node without a pod may announce the address"

func (m *match) local() bool {
	return m.svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// active is Cilium's rule of a backend that counts for advertisements: ready, where nil is true, and not terminating.
func active(c discoveryv1.EndpointConditions) bool {
	return lbhooks.EndpointReady(c) && (c.Terminating == nil || !*c.Terminating)
}

func (m *match) bgp() (lbhooks.Rotation, bool) {
	name, ok := m.advertising(m.svc)
	class := m.svc.Spec.LoadBalancerClass
	r := lbhooks.Rotation{
		Hook: BGP, Removal: lbhooks.RemovalNone, Follows: true, ZoneBlind: true, Seats: map[string]lbhooks.Seat{},
		Rest: lbhooks.Seat{In: lbhooks.No, Why: "no BGP session"},
	}
	switch {
	case ok:
		r.Reason = "CiliumBGPAdvertisement " + name + " selects it"
	case class != nil && *class == classBGP && m.svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		r.Reason = fmt.Sprintf("load balancer class %q", classBGP)
		if len(m.adverts) > 0 {
			r.Evidence = "no CiliumBGPAdvertisement selects it: nobody advertises it"
			return r, true
		}
	default:
		return lbhooks.Rotation{}, false
	}
	m.seatBGP(&r)
	m.leverBGP(&r)
	if policies, also := m.announcing(m.svc); also && m.local() {
		r.Unsupported = unsupported(policies)
	}
	return r, true
}

// seatBGP follows pkg/bgp/manager/reconciler/service.go, getLoadBalancerIPPaths and hasBackends.
func (m *match) seatBGP(r *lbhooks.Rotation) {
	nodes := lbhooks.NodesWith(m.objects.Slices(m.svc.Namespace, m.svc.Name), active)
	n := 0
	for _, node := range m.nodes {
		if lbhooks.Virtual(node) || !m.hasSession(node) {
			continue
		}
		seat := lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no active backend"}
		if nodes[node.Name] || !m.local() && len(nodes) > 0 {
			seat.In, seat.Why = lbhooks.Yes, "advertises it"
			n++
		}
		r.Seats[node.Name] = seat
	}
	which := "with a session and an active backend"
	if !m.local() {
		which = "with a session"
	}
	r.Evidence = fmt.Sprintf("Cilium's rule: every node %s, %d nodes", which, n)
}

// leverBGP finds how a node leaves: by the label, where that ends its sessions and nothing but Services hangs on them;
// else by the end of its active backends, for as long as the pods still serve.
func (m *match) leverBGP(r *lbhooks.Rotation) {
	obeys := len(m.configs) > 0
	for _, n := range m.nodes {
		if r.Seats[n.Name].Eligible && !lbhooks.LabelRemoves(n, m.configured) {
			obeys = false
		}
	}
	switch {
	case obeys && m.pods == "":
		r.Removal, r.Provable = lbhooks.RemovalLabel, true
		r.Evidence += "; the label ends the sessions of a node"
		return
	case obeys:
		r.NoProof = "the label would end the node's sessions, but CiliumBGPAdvertisement " + m.pods + " advertises pods over them: nothing takes the node out before its pods"
	default:
		r.NoProof = "no label takes a node out: the route goes when the last backend on it begins to terminate"
	}
	if !m.local() {
		return
	}
	r.HealthCheck = &lbhooks.HealthCheck{Interval: converge, Unhealthy: 1, Source: "Cilium withdraws the route of a terminating backend; the time is for the peers"}
	if _, stated := m.svc.Annotations[lbhooks.AnnotationHealthCheck]; stated {
		if hc, err := timing.Known(m.svc, nil); err == nil {
			r.HealthCheck = hc
		} else {
			r.NoProof += "; " + err.Error()
		}
	}
}

func unsupported(policies []policy) string {
	if len(policies) == 0 {
		return l2Local
	}
	return fmt.Sprintf("%s (CiliumL2AnnouncementPolicy %s)", l2Local, policies[0].name)
}

func (m *match) l2() (lbhooks.Rotation, bool) {
	policies, ok := m.announcing(m.svc)
	if !ok {
		return lbhooks.Rotation{}, false
	}
	r := lbhooks.Rotation{
		Hook: L2, Removal: lbhooks.RemovalNone, ZoneBlind: true, Seats: map[string]lbhooks.Seat{},
		Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true},
	}
	switch {
	case len(policies) > 0:
		r.Reason = "CiliumL2AnnouncementPolicy " + policies[0].name + " announces its addresses"
	default:
		r.Reason = fmt.Sprintf("load balancer class %q", classL2)
	}
	if m.local() {
		r.Unsupported, r.Evidence = unsupported(policies), l2Local
		return r, true
	}
	m.seatL2(&r, policies)
	return r, true
}

// seatL2 seats the holder of the Lease among the nodes that a policy selects.
func (m *match) seatL2(r *lbhooks.Rotation, policies []policy) {
	selects := func(n *corev1.Node) bool {
		for _, p := range policies {
			if p.nodes.Matches(labels.Set(n.Labels)) {
				return true
			}
		}
		return len(policies) == 0
	}
	obeys := len(policies) > 0
	for _, n := range m.nodes {
		seat := lbhooks.Seat{In: lbhooks.Unknown, Eligible: selects(n) && !lbhooks.Virtual(n)}
		if m.anyLease || !seat.Eligible {
			seat.In = lbhooks.No
		}
		if seat.Eligible && !lbhooks.LabelRemoves(n, selects) {
			obeys = false
		}
		r.Seats[n.Name] = seat
	}
	name := leaseName(m.svc)
	holder, held := m.holders[name]
	switch {
	case held:
		r.Seats[holder] = lbhooks.Seat{In: lbhooks.Yes, Eligible: r.Seats[holder].Eligible, Why: "holds Lease " + name}
		r.Evidence = fmt.Sprintf("Lease %s is held by %s", name, holder)
	case m.anyLease:
		r.Evidence = "nobody holds Lease " + name
	default:
		r.Evidence = "no Lease is at hand"
	}
	if obeys {
		r.Removal, r.Provable = lbhooks.RemovalLabel, true
		return
	}
	r.NoProof = "no CiliumL2AnnouncementPolicy keeps off nodes that bear the label " + lbhooks.ExcludeLabel
}

// leaseName is the name of the Lease of a Service: Cilium Documentation/network/l2-announcements.rst.
func leaseName(svc *corev1.Service) string {
	return strings.Join([]string{strings.TrimSuffix(leasePrefix, "-"), svc.Namespace, svc.Name}, "-")
}
