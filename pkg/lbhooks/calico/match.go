package calico

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// match is one Service that Calico advertises.
type match struct {
	*world

	svc       *corev1.Service
	objects   lbhooks.Objects
	addresses []netip.Addr
	reason    string
}

func (m *match) local() bool {
	return m.svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func (m *match) rotation() lbhooks.Rotation {
	r := lbhooks.Rotation{
		Hook: Name, Reason: m.reason, Removal: lbhooks.RemovalLabel, Follows: m.local(), ZoneBlind: true, Seats: map[string]lbhooks.Seat{},
	}
	ready := lbhooks.NodesWith(m.objects.Slices(m.svc.Namespace, m.svc.Name), lbhooks.EndpointReady)
	if !m.local() && (!m.single || len(ready) > 0) {
		r.Rest, r.Shared = advertising, m.everybody()
	} else {
		r.Rest, r.Shared = idle, m.nobody()
	}
	if m.local() {
		for name := range ready {
			if n := lbhooks.NodeOf(m.nodes, name); n != nil {
				r.Seats[name] = m.seat(n, true)
			}
		}
	}
	m.observe(&r)
	observed := m.observed()
	r.Evidence = fmt.Sprintf("Calico's rule: nodes with a ready endpoint and without the label; observed on %d nodes", observed)
	if !m.local() {
		r.Evidence = fmt.Sprintf("Calico's rule: every node without the label; observed on %d nodes", observed)
	}
	unseen := slices.DeleteFunc(slices.Clone(m.leaving()), func(node string) bool {
		_, seen := m.statuses[node]
		return seen || r.Seat(node).In == lbhooks.No
	})
	r.Provable = len(unseen) == 0 && observed > 0
	if !r.Provable {
		r.NoProof = "the label withdraws the routes of a node, but no CalicoNodeStatus of class Routes shows it" + of(unseen)
	}
	m.grace(&r)
	return r
}

// observe seats the nodes whose status shows a route to the Service.
func (m *match) observe(r *lbhooks.Rotation) {
	for _, route := range m.routes.to(m.addresses) {
		for _, name := range m.routes[route] {
			n := lbhooks.NodeOf(m.nodes, name)
			if n == nil || lbhooks.Virtual(n) || r.Seats[name].In == lbhooks.Yes {
				continue
			}
			r.Seats[name] = lbhooks.Seat{
				In: lbhooks.Yes, Eligible: !excludes(n), Why: fmt.Sprintf("CalicoNodeStatus %s: it originates %s", m.statuses[name].name, route),
			}
		}
	}
}

func of(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return " for " + strings.Join(nodes, ", ")
}

// The seats of nodes that nothing is special about.
var (
	advertising = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "advertises it"}
	idle        = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no ready endpoint"}
)

// seat is a node's place by Calico's rule: confd/pkg/backends/calico/routes.go advertiseThisService, and client.go
// updateGlobalRoutes for the ranges that every node advertises. The label of a drain that is under way is a request, not
// yet a fact. A node with a status is where that shows it, see observe.
func (w *world) seat(n *corev1.Node, in bool) lbhooks.Seat {
	status, observed := w.statuses[n.Name]
	switch {
	case lbhooks.Virtual(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "a virtual node"}
	case observed:
		return lbhooks.Seat{In: lbhooks.No, Eligible: !excludes(n), Why: status.silent}
	case excludes(n) && in && lbhooks.Claimed(n):
		return lbhooks.Seat{In: lbhooks.Unknown, Why: "labelled by a drain, nothing confirms that its routes are withdrawn"}
	case excludes(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "label " + lbhooks.ExcludeLabel + "=true"}
	case in:
		seat := advertising
		seat.Why += ignored(n)
		return seat
	}
	return idle
}

// beside is the seat of a node, and whether it is another one than that of the nodes that nothing is special about.
func (w *world) beside(n *corev1.Node, in bool) (lbhooks.Seat, bool) {
	seat := w.seat(n, in)
	return seat, seat != advertising && seat != idle
}

// ignored points out an exclude label that Calico does not obey.
func ignored(n *corev1.Node) string {
	if value, ok := n.Labels[lbhooks.ExcludeLabel]; ok {
		return fmt.Sprintf(`; the label's value %q is not "true", so Calico does not obey it`, value)
	}
	return ""
}

// grace is how a node of a Service of policy Local leaves without the label: its route goes with its last ready endpoint.
func (m *match) grace(r *lbhooks.Rotation) {
	if !m.local() {
		return
	}
	r.HealthCheck = &lbhooks.HealthCheck{Interval: converge, Unhealthy: 1, Source: "Calico withdraws the route of an endpoint that is not ready; the time is for BIRD and its peers"}
	if _, stated := m.svc.Annotations[lbhooks.AnnotationHealthCheck]; !stated {
		return
	}
	hc, err := timing.Known(m.svc, nil)
	if err != nil {
		r.NoProof = strings.TrimPrefix(r.NoProof+"; "+err.Error(), "; ")
		return
	}
	r.HealthCheck = hc
}
