package healthcheck

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// Assert returns the rotation of a Service whose user says that its balancer probes healthCheckNodePort: the nodes with a
// ready endpoint. Nodes are in the balancer's pool as far as the exclude label allows; by presence, the stricter reading.
func (h *Hook) Assert(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	r := lbhooks.Rotation{Hook: Name, Removal: lbhooks.RemovalNone, Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true}}
	switch {
	case timing.TargetsPods(svc):
		r.Broken = "the balancer targets pods, so no node's health check counts: remove annotation " + lbhooks.AnnotationHook
		return r
	case svc.Spec.HealthCheckNodePort == 0:
		r.Broken = "the Service has no healthCheckNodePort: only type LoadBalancer with externalTrafficPolicy Local has one"
		return r
	}
	hc, err := timing.Of(svc, objects.Nodes())
	if err != nil {
		r.Broken = err.Error()
		return r
	}
	r.Removal, r.HealthCheck, r.Follows = lbhooks.RemovalHealthCheck, hc, true
	r.Evidence = fmt.Sprintf("port %d answers where an endpoint is ready; probed every %s, out after %d failures (%s)",
		svc.Spec.HealthCheckNodePort, hc.Interval, hc.Unhealthy, hc.Source)
	r.Rest = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no ready endpoint: its health check fails"}
	r.Seats = seats(svc, objects)
	return r
}

// seats are the nodes whose port passes. A node that is not to take over keeps its place in the rotation: nobody knows
// whether this balancer obeys the label.
func seats(svc *corev1.Service, objects lbhooks.Objects) map[string]lbhooks.Seat {
	out := map[string]lbhooks.Seat{}
	for node := range lbhooks.NodesWith(objects.Slices(svc.Namespace, svc.Name), lbhooks.EndpointReady) {
		out[node] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "a ready endpoint: its health check passes"}
	}
	for _, n := range objects.Nodes() {
		switch {
		case lbhooks.Virtual(n):
			out[n.Name] = lbhooks.Seat{In: lbhooks.No, Why: "a virtual node, no balancer can send to it"}
		case lbhooks.ExcludedByPresence(n):
			seat := out[n.Name]
			out[n.Name] = lbhooks.Seat{In: cmp.Or(seat.In, lbhooks.No), Why: "it carries the label " + lbhooks.ExcludeLabel}
		}
	}
	return out
}
