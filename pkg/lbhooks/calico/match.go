package calico

import (
	"fmt"
	"net/netip"
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
		Rest: lbhooks.Seat{In: lbhooks.No, Why: "no such node"},
	}
	ready := lbhooks.NodesWith(m.objects.Slices(m.svc.Namespace, m.svc.Name), lbhooks.EndpointReady)
	observed := 0
	var unseen []string
	for _, n := range m.nodes {
		seat := m.seat(n, ready)
		if s, ok := m.statuses[n.Name]; ok && seat.Why != virtual {
			observed++
			seat.In, seat.Why = lbhooks.No, fmt.Sprintf("CalicoNodeStatus %s shows no route of its own to it", s.name)
			if route, in := s.originates(m.addresses); in {
				seat.In, seat.Why = lbhooks.Yes, fmt.Sprintf("CalicoNodeStatus %s: it originates %s", s.name, route)
			}
		} else if seat.In != lbhooks.No && m.objects.Leaving(n.Name) {
			unseen = append(unseen, n.Name)
		}
		r.Seats[n.Name] = seat
	}
	r.Evidence = fmt.Sprintf("Calico's rule: nodes with a ready endpoint and without the label; observed on %d nodes", observed)
	if !m.local() {
		r.Evidence = fmt.Sprintf("Calico's rule: every node without the label; observed on %d nodes", observed)
	}
	r.Provable = len(unseen) == 0 && observed > 0
	if !r.Provable {
		r.NoProof = "the label withdraws the routes of a node, but no CalicoNodeStatus of class Routes shows it" + of(unseen)
	}
	m.grace(&r)
	return r
}

func of(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return " for " + strings.Join(nodes, ", ")
}

const virtual = "a virtual node"

// seat is a node's place by Calico's rule: confd/pkg/backends/calico/routes.go advertiseThisService, and client.go
// updateGlobalRoutes for the ranges that every node advertises. The label of a drain that is under way is a request, not
// yet a fact.
func (m *match) seat(n *corev1.Node, ready map[string]bool) lbhooks.Seat {
	claimed := lbhooks.Claimed(n)
	in := ready[n.Name]
	if !m.local() {
		in = !m.single || len(ready) > 0
	}
	switch {
	case lbhooks.Virtual(n):
		return lbhooks.Seat{In: lbhooks.No, Why: virtual}
	case excludes(n) && claimed && in:
		return lbhooks.Seat{In: lbhooks.Unknown, Why: "labelled by a drain, nothing confirms that its routes are withdrawn"}
	case excludes(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "label " + lbhooks.ExcludeLabel + "=true"}
	case in:
		return lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "advertises it" + ignored(n)}
	}
	return lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no ready endpoint"}
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
