package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Vantage is where probes start from.
type Vantage struct {
	Own     []netip.Addr // addresses of the interfaces here, without loopback and link-local ones; sorted
	Sources []netip.Addr // those of them from which packets to the nodes leave; sorted
}

// Look finds the addresses of this machine, or of the network namespace that the program runs in. It sends nothing.
func Look(ctx context.Context, nodes []netip.Addr) (Vantage, error) {
	var v Vantage
	all, err := net.InterfaceAddrs()
	if err != nil {
		return v, fmt.Errorf("cannot list the addresses of this machine, so nothing tells whether it is a node: %w", err)
	}
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if addr := prefix.Addr().Unmap(); err == nil && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			v.Own = append(v.Own, addr)
		}
	}
	var dialer net.Dialer
	for _, node := range nodes {
		// A UDP socket that is connected makes the kernel choose its source; no packet leaves.
		conn, err := dialer.DialContext(ctx, "udp", netip.AddrPortFrom(node, 9).String())
		if err != nil {
			continue // no route: its probes will say so
		}
		if local, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			v.Sources = append(v.Sources, local.AddrPort().Addr().Unmap().WithZone(""))
		}
		_ = conn.Close()
	}
	v.Own, v.Sources = distinct(v.Own), distinct(v.Sources)
	return v, nil
}

func distinct(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// Surroundings is what is known of the cluster that tells whether the program runs in it.
type Surroundings struct {
	Nodes []*corev1.Node
	// EndpointNode returns the node of the endpoint at an address, "" when there is none.
	EndpointNode func(netip.Addr) string
	// PodNode asks the API for the node of the pod at an address, "" when there is none.
	PodNode func(context.Context, netip.Addr) (string, error)
	// ServiceHost is KUBERNETES_SERVICE_HOST here, and APIHost the address of the Service default/kubernetes of the cluster.
	ServiceHost, APIHost string
}

// Place is where the program runs, as seen from the cluster. The zero value is outside.
//
// kube-proxy treats what comes from its own node, and from the pods on it, as inside traffic: under a Local policy too it
// sends that to any endpoint. So a node always looks healthy to itself.
type Place struct {
	Node string // the node it runs on, or on which its pod runs
	Pod  bool   // in a pod's own network
	Lost bool   // in a pod of the cluster, and nothing tells on which node
}

// Locate finds out where the program runs.
func Locate(ctx context.Context, v Vantage, s Surroundings) (Place, error) {
	for _, n := range s.Nodes {
		for _, addr := range lbhooks.NodeAddresses(n) {
			if slices.Contains(v.Own, addr) {
				return Place{Node: n.Name}, nil
			}
		}
	}
	for _, addr := range v.Sources {
		if node := s.EndpointNode(addr); node != "" {
			return Place{Node: node, Pod: true}, nil
		}
	}
	inside := s.ServiceHost != "" && s.ServiceHost == s.APIHost
	guess := inRangeOf(s.Nodes, v.Sources)
	if !inside && guess == "" {
		return Place{}, nil
	}
	for _, addr := range v.Sources {
		node, err := s.PodNode(ctx, addr)
		if err != nil {
			return Place{}, fmt.Errorf("cannot tell whether %s is the address of a pod: %w", addr, err)
		}
		if node != "" {
			return Place{Node: node, Pod: true}, nil
		}
	}
	if guess != "" { // pods of another runtime on the node, or one that the API does not show yet
		return Place{Node: guess, Pod: true}, nil
	}
	return Place{Pod: true, Lost: true}, nil
}

// inRangeOf returns the node in whose pod range an address lies.
func inRangeOf(nodes []*corev1.Node, addrs []netip.Addr) string {
	for _, n := range nodes {
		for _, cidr := range n.Spec.PodCIDRs {
			prefix, err := netip.ParsePrefix(cidr)
			if err == nil && slices.ContainsFunc(addrs, prefix.Contains) {
				return n.Name
			}
		}
	}
	return ""
}

// Forbids says why a probe of a node proves nothing, before it is made; "" when it may.
func (p Place) Forbids(node string) string {
	switch {
	case p.Lost:
		return "we run in a pod of this cluster, and nothing tells on which node"
	case node != p.Node:
		return ""
	case p.Pod:
		return "we run in a pod on this node"
	}
	return "we run on this node"
}

// Doubts says why what a port answered proves nothing; "" when it counts. A proxy that knows pods by the range of the whole
// cluster takes the pods of other nodes for its own too: it sends them to any endpoint, which then may answer past it, so
// that both an accepted connection and silence mean nothing. Health check ports do not care who asks.
func (p Place) Doubts(port string) string {
	if p.Pod && port != guard.PortHealthCheck {
		return "we run in a pod: a proxy that knows pods by the cluster's range treats those of other nodes as its own"
	}
	return ""
}

// String says where the program runs.
func (p Place) String() string {
	switch {
	case p.Lost:
		return "in a pod"
	case p.Pod:
		return "in a pod on " + p.Node
	case p.Node != "":
		return "on " + p.Node
	}
	return "outside the nodes"
}
