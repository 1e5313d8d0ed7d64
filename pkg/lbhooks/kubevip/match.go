package kubevip

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// match is one Service that kube-vip fronts.
type match struct {
	*world
	*install

	svc     *corev1.Service
	objects lbhooks.Objects
	differ  bool // kube-vips that are set up differently announce it
}

const differs = "kube-vips that are set up in different ways announce it"

func (m *match) local() bool {
	return m.svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// usable is kube-vip's rule of a local endpoint, pkg/endpoints/providers/endpointslices.go: serving, where nil is not;
// set up to read Endpoints, whose addresses are those that are ready: endpoints.go beside it.
func (c *config) usable(e discoveryv1.EndpointConditions) bool {
	if c.endpoints {
		return lbhooks.EndpointReady(e)
	}
	return e.Serving != nil && *e.Serving
}

func (m *match) rotation() lbhooks.Rotation {
	r := lbhooks.Rotation{
		Hook: Name, Removal: lbhooks.RemovalNone, Follows: true, FollowsServing: !m.config.endpoints, ZoneBlind: true,
		Rest: lbhooks.Seat{In: lbhooks.No, Eligible: true}, Seats: map[string]lbhooks.Seat{},
	}
	slices := m.objects.Slices(m.svc.Namespace, m.svc.Name)
	usable := lbhooks.NodesWith(slices, m.config.usable)
	for name := range m.nodes() {
		if why := m.runs(name); why != "" {
			r.Seats[name] = lbhooks.Seat{In: lbhooks.No, Why: why}
		}
	}
	switch mode := m.config.mode(m.svc); {
	case m.differ:
		clear(r.Seats)
		m.unknown(&r, differs)
	case mode == modeNodes:
		m.everyNode(&r, usable)
	case mode == modeUnknown:
		m.unknown(&r, m.config.unreadable())
	default:
		m.leased(&r, usable)
	}
	r.NoProof = m.noProof(slices, usable)
	if m.stuck == "" {
		r.Removal = lbhooks.RemovalLabel
	}
	r.Provable = r.NoProof == ""
	if m.local() && m.svc.Annotations[annotationLease] != "" {
		r.Unsupported = "kube-vip does not announce a Service of policy Local that bears the annotation " + annotationLease
	}
	return r
}

// everyNode seats the nodes that announce by themselves: pkg/endpoints/endpoints_bgp.go. Of policy Cluster any endpoint
// in the slices counts, whatever its conditions.
func (m *match) everyNode(r *lbhooks.Rotation, usable map[string]bool) {
	some := len(lbhooks.NodesWith(m.objects.Slices(m.svc.Namespace, m.svc.Name), func(discoveryv1.EndpointConditions) bool { return true })) > 0
	for name := range m.nodes() {
		if m.runs(name) == "" && (usable[name] || !m.local() && some) {
			r.Seats[name] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "announces by BGP"}
		}
	}
	r.Evidence = "kube-vip announces by BGP from every node " + map[bool]string{true: "with an endpoint", false: "it runs on"}[m.local()]
}

// leased seats the holder of the Lease. A leader of all Services without an endpoint of this one announces nothing.
func (m *match) leased(r *lbhooks.Rotation, usable map[string]bool) {
	key := m.config.leaseOf(m.svc)
	holder, held := m.holder[key]
	switch {
	case held && m.local() && m.config.mode(m.svc) == modeGlobal && !usable[holder]:
		r.Seats[holder] = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "holds Lease " + key.String() + ", but has no endpoint: announces nothing"}
		r.Evidence = fmt.Sprintf("Lease %s is held by %s, which has no endpoint: nobody announces", key, holder)
	case held:
		r.Seats[holder] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "holds Lease " + key.String()}
		r.Evidence = fmt.Sprintf("Lease %s is held by %s", key, holder)
	case len(m.holder) > 0:
		r.Evidence = "nobody holds Lease " + key.String()
	default:
		m.unknown(r, "no Lease is at hand")
	}
}

// unknown seats by the annotation that kube-vip writes on becoming the holder and never clears: it may be stale, so
// every other node with kube-vip on it may announce.
func (m *match) unknown(r *lbhooks.Rotation, why string) {
	r.Rest.In, r.Evidence = lbhooks.Unknown, why
	host := m.svc.Annotations[annotationHost]
	if m.nodes()[host] != nil {
		r.Seats[host] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "annotation " + annotationHost + ", which may be stale"}
		r.Evidence += fmt.Sprintf("; annotation %s names %s, and may be stale", annotationHost, host)
	}
}

// noProof says why a removal cannot be proven; "" when it can.
func (m *match) noProof(slices []*discoveryv1.EndpointSlice, usable map[string]bool) string {
	c := &m.config
	switch {
	case m.stuck != "":
		return m.stuck
	case m.differ:
		return differs
	case c.unreadable() != "":
		return c.unreadable()
	case c.preserve:
		return "kube-vip leaves the address on a node that lost the election (vip_preserve_on_leadership_loss)"
	}
	if family := crowded(slices); family != "" && !c.endpoints && m.local() {
		return fmt.Sprintf("more than one EndpointSlice of family %s: kube-vip goes by whichever changed last, so who can take over is not certain", family)
	}
	if c.mode(m.svc) == modeGlobal && m.local() {
		if without := m.leadersWithout(usable); len(without) > 0 {
			return fmt.Sprintf("kube-vip elects one leader for all Services, and %s could win without an endpoint of this one: set svc_election",
				shorten(without))
		}
	}
	return ""
}

// crowded returns the family of which a Service has more than one slice; "" for none.
func crowded(slices []*discoveryv1.EndpointSlice) string {
	n := map[discoveryv1.AddressType]int{}
	for _, s := range slices {
		if n[s.AddressType]++; n[s.AddressType] > 1 {
			return string(s.AddressType)
		}
	}
	return ""
}

// leadersWithout lists the nodes that stay, run kube-vip and have no usable endpoint: one of them could become the leader
// of all Services, and then nobody announces this one.
func (m *match) leadersWithout(usable map[string]bool) []string {
	var out []string
	for _, node := range slices.Sorted(maps.Keys(m.nodes())) {
		if m.runs(node) == "" && !usable[node] && !m.objects.Leaving(node) {
			out = append(out, node)
		}
	}
	return out
}

func shorten(nodes []string) string {
	if len(nodes) > 3 {
		return fmt.Sprintf("%s +%d", strings.Join(nodes[:3], ", "), len(nodes)-3)
	}
	return strings.Join(nodes, ", ")
}
