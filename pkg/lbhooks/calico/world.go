package calico

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/pool"
)

// world is what Calico advertises and where, the same for all Services.
type world struct {
	*installation

	nodes     []*corev1.Node
	nobody    func() map[string]lbhooks.Seat // seats beside idle, where no node advertises
	everybody func() map[string]lbhooks.Seat // seats beside advertising, where all do
	leaving   func() []string                // nodes
	observed  func() int                     // nodes whose routes are told
}

// installation is what of it nodes have no part in, which change more often than the rest.
type installation struct {
	balancers []netip.Prefix // serviceLoadBalancerIPs
	externals []netip.Prefix // serviceExternalIPs
	single    bool           // serviceLoadBalancerAggregation is Disabled: a route a Service, of policy Cluster too
	statuses  map[string]status
	routes    routes
}

// status is what a CalicoNodeStatus of class Routes says of a node.
type status struct {
	name   string
	node   string
	silent string         // that it shows no route to a Service
	static []netip.Prefix // what the node originates
	period int64          // seconds between two updates; 0 when it is never updated
	at     string         // RFC 3339, of the last update
}

func newWorld(objects lbhooks.Objects, in *installation) *world {
	w := &world{installation: in, nodes: objects.Nodes()}
	w.nobody = pool.LeftOut(w.nodes, func(n *corev1.Node) (lbhooks.Seat, bool) { return w.beside(n, false) })
	w.everybody = pool.LeftOut(w.nodes, func(n *corev1.Node) (lbhooks.Seat, bool) { return w.beside(n, true) })
	w.leaving = sync.OnceValue(func() (names []string) {
		for _, n := range w.nodes {
			if objects.Leaving(n.Name) {
				names = append(names, n.Name)
			}
		}
		return names
	})
	w.observed = sync.OnceValue(func() (observed int) {
		for name := range w.statuses {
			if n := lbhooks.NodeOf(w.nodes, name); n != nil && !lbhooks.Virtual(n) {
				observed++
			}
		}
		return observed
	})
	return w
}

func newInstallation(objects lbhooks.Objects) *installation {
	w := &installation{statuses: map[string]status{}}
	for _, g := range groups {
		for _, u := range objects.Custom(schema.GroupKind{Group: g.name, Kind: "BGPConfiguration"}) {
			if u.GetName() != "default" {
				continue // those of one node hold nothing about Services
			}
			w.balancers = append(w.balancers, cidrs(u, "serviceLoadBalancerIPs")...)
			w.externals = append(w.externals, cidrs(u, "serviceExternalIPs")...)
			aggregation, _, _ := unstructured.NestedString(u.Object, "spec", "serviceLoadBalancerAggregation")
			w.single = w.single || aggregation == "Disabled"
		}
		for _, u := range objects.Custom(schema.GroupKind{Group: g.name, Kind: "CalicoNodeStatus"}) {
			if s, ok := statusOf(u); ok {
				w.statuses[s.node] = s
			}
		}
	}
	w.routes = routesOf(w.statuses)
	return w
}

// routes are the nodes that originate each route, sorted.
type routes map[netip.Prefix][]string

func routesOf(statuses map[string]status) routes {
	out := routes{}
	for node, s := range statuses {
		for _, p := range s.static {
			out[p] = append(out[p], node)
		}
	}
	for _, nodes := range out {
		slices.Sort(nodes)
	}
	return out
}

// to lists the routes that lead to one of some addresses, the longest first.
func (r routes) to(addresses []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addresses {
		for bits := a.BitLen(); bits >= 0; bits-- {
			if p, err := a.Prefix(bits); err == nil && len(r[p]) > 0 && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

func cidrs(u *unstructured.Unstructured, field string) []netip.Prefix {
	blocks, _, _ := unstructured.NestedSlice(u.Object, "spec", field)
	var out []netip.Prefix
	for _, b := range blocks {
		block, ok := b.(map[string]any)
		if !ok {
			continue
		}
		text, _, _ := unstructured.NestedString(block, "cidr")
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// statusOf reads a status; false for one that does not tell routes.
func statusOf(u *unstructured.Unstructured) (status, bool) {
	s := status{name: u.GetName(), silent: "CalicoNodeStatus " + u.GetName() + " shows no route of its own to it"}
	s.node, _, _ = unstructured.NestedString(u.Object, "spec", "node")
	s.period, _, _ = unstructured.NestedInt64(u.Object, "spec", "updatePeriodSeconds")
	s.at, _, _ = unstructured.NestedString(u.Object, "status", "lastUpdated")
	classes, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "classes")
	for _, family := range []string{"routesV4", "routesV6"} {
		routes, _, _ := unstructured.NestedSlice(u.Object, "status", "routes", family)
		for _, r := range routes {
			route, ok := r.(map[string]any)
			if !ok {
				continue
			}
			source, _, _ := unstructured.NestedString(route, "learnedFrom", "sourceType")
			text, _, _ := unstructured.NestedString(route, "destination")
			if p, err := netip.ParsePrefix(text); err == nil && source == "Static" {
				s.static = append(s.static, p.Masked())
			}
		}
	}
	return s, s.node != "" && slices.Contains(classes, "Routes")
}

// originates returns the route of its own by which a node draws traffic for one of the addresses.
func (s *status) originates(addresses []netip.Addr) (netip.Prefix, bool) {
	for _, p := range s.static {
		if slices.ContainsFunc(addresses, p.Contains) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// advertised returns the addresses of a Service that Calico advertises: confd/pkg/backends/calico/routes.go,
// getAllRoutesForService. The load balancer class plays no part.
func (w *installation) advertised(svc *corev1.Service) ([]netip.Addr, string) {
	var out []netip.Addr
	reason := ""
	add := func(addr netip.Addr, blocks []netip.Prefix, field string) {
		i := slices.IndexFunc(blocks, func(p netip.Prefix) bool { return p.Contains(addr) })
		if i < 0 {
			return
		}
		out = append(out, addr)
		if reason == "" {
			reason = fmt.Sprintf("%s is in %s %s of the BGPConfiguration", addr, field, blocks[i])
		}
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, addr := range lbhooks.Addresses(svc) {
			add(addr, w.balancers, "serviceLoadBalancerIPs")
		}
	}
	for _, text := range svc.Spec.ExternalIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			add(addr.Unmap(), w.externals, "serviceExternalIPs")
		}
	}
	return out, reason
}

// excludes is Calico's rule of the exclude label, confd/pkg/backends/calico/client.go ExcludeServiceAdvertisement: only
// the value "true" counts.
func excludes(n *corev1.Node) bool { return n.Labels[lbhooks.ExcludeLabel] == "true" }
