package servicelb

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// agents is the svclb pods and the addresses of the nodes.
type agents struct {
	known   bool
	running map[types.NamespacedName]map[string]bool // by Service: nodes with a Ready svclb pod
	nodeOf  func() map[netip.Addr]string
	k3s     bool
}

func newAgents(objects lbhooks.Objects) *agents {
	nodes := objects.Nodes()
	a := &agents{running: map[types.NamespacedName]map[string]bool{}, nodeOf: sync.OnceValue(func() map[netip.Addr]string { return nodesByAddress(nodes) })}
	a.k3s = slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return strings.HasPrefix(n.Spec.ProviderID, "k3s://") })
	for _, pod := range objects.Agents(Name) {
		key := types.NamespacedName{Namespace: pod.Labels[labelNamespace], Name: pod.Labels[labelService]}
		if key.Name == "" {
			continue
		}
		a.known = true
		if a.running[key] == nil {
			a.running[key] = map[string]bool{}
		}
		if pod.Spec.NodeName != "" && lbhooks.PodReady(pod) {
			a.running[key][pod.Spec.NodeName] = true
		}
	}
	return a
}

func nodesByAddress(nodes []*corev1.Node) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, n := range nodes {
		for _, addr := range lbhooks.NodeAddresses(n) {
			out[addr] = n.Name
		}
	}
	return out
}

func (a *agents) match(svc *corev1.Service) (lbhooks.Rotation, bool) {
	running, ours := a.running[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}]
	addresses := lbhooks.Addresses(svc)
	r := lbhooks.Rotation{
		Hook: Name, Removal: lbhooks.RemovalNone, Follows: true, ZoneBlind: true, Seats: map[string]lbhooks.Seat{},
		NoProof:  "nothing takes a node out before its pods: service-lb reads no label, and lists a node for as long as it has a ready endpoint",
		Evidence: "status.loadBalancer lists the nodes' addresses; the exclude label is not read",
	}
	switch {
	case ours:
		r.Reason = "svclb pods run for the Service"
		r.Rest = lbhooks.Seat{In: lbhooks.No, Why: "no Ready svclb pod on it"}
		for node := range running {
			r.Seats[node] = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "not listed: no ready endpoint"}
		}
	case a.k3s && !a.known && len(addresses) > 0 && a.allNodes(addresses):
		r.Reason = "its addresses are those of k3s nodes"
		r.Rest = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "not listed: no ready endpoint"}
	default:
		return lbhooks.Rotation{}, false
	}
	for _, addr := range addresses {
		if node, ok := a.nodeOf()[addr]; ok {
			r.Seats[node] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: addr.String() + " is listed"}
		}
	}
	return r, true
}

func (a *agents) allNodes(addresses []netip.Addr) bool {
	return !slices.ContainsFunc(addresses, func(addr netip.Addr) bool { return a.nodeOf()[addr] == "" })
}
