// Package pool is what hooks of clouds have in common: a controller keeps every node in the pools of its load balancers
// but those that its rule leaves out, and the balancer's health check narrows a pool to the nodes with a ready endpoint.
package pool

import (
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// Barred returns the seat of a node that every cloud leaves out of its pools, false for one that none of these rules is
// about: a virtual node, one that the exclude label bars by this cloud's reading of it, or one that cluster-autoscaler is
// about to delete; neither readiness nor a cordon counts. The label of a drain that is under way is a request, not yet a
// fact: witness says who confirms it.
func Barred(n *corev1.Node, excluded func(*corev1.Node) bool, witness string) (lbhooks.Seat, bool) {
	switch {
	case lbhooks.Virtual(n):
		return Out("a virtual node, no balancer can send to it")
	case excluded(n) && lbhooks.Claimed(n):
		return lbhooks.Seat{In: lbhooks.Unknown, Why: label(n) + " by a drain, " + witness}, true
	case excluded(n):
		return Out(label(n))
	case lbhooks.ToBeDeleted(n):
		return Out("tainted ToBeDeletedByClusterAutoscaler")
	}
	return lbhooks.Seat{}, false
}

func label(n *corev1.Node) string {
	return fmt.Sprintf("label %s=%q", lbhooks.ExcludeLabel, n.Labels[lbhooks.ExcludeLabel])
}

// Sample returns the first node of a cloud, none where no node is of it.
func Sample(nodes []*corev1.Node, of func(*corev1.Node) bool) []*corev1.Node {
	if i := slices.IndexFunc(nodes, of); i >= 0 {
		return []*corev1.Node{nodes[i]}
	}
	return nil
}

// LeftOut returns the seats of the nodes that a rule leaves out. The nodes are looked at when it is first called: in most
// clusters no Service asks for the rule of a cloud.
func LeftOut(nodes []*corev1.Node, rule func(*corev1.Node) (lbhooks.Seat, bool)) func() map[string]lbhooks.Seat {
	return sync.OnceValue(func() map[string]lbhooks.Seat {
		seats := map[string]lbhooks.Seat{}
		for _, n := range nodes {
			if seat, out := rule(n); out {
				seats[n.Name] = seat
			}
		}
		return seats
	})
}

// Out is the seat of a node that a rule leaves out.
func Out(why string) (lbhooks.Seat, bool) { return lbhooks.Seat{In: lbhooks.No, Why: why}, true }

// Open makes every node a member that has no seat of its own. Member says what that is: "registered", "a backend".
func Open(r *lbhooks.Rotation, member string) {
	r.Rest = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: member + ": not excluded"}
}

// Checked narrows an open pool of a Service of policy Local by the check that the balancer of its cloud is known to make.
// Sample is a node that tells the cloud, empty where none does.
func Checked(r *lbhooks.Rotation, member string, svc *corev1.Service, sample []*corev1.Node, objects lbhooks.Objects) {
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return
	}
	switch check, err := timing.Known(svc, sample); {
	case err != nil:
		r.Evidence += "; its health check is not known: " + err.Error()
	case check != nil:
		Narrow(r, member, check, objects.Slices(svc.Namespace, svc.Name))
	}
}

// Narrow leaves of a pool that is open the members with a ready endpoint in these slices: the others fail the balancer's
// check. It fills the check too, which may be nil where the balancer checks something else that only they pass.
func Narrow(r *lbhooks.Rotation, member string, check *lbhooks.HealthCheck, endpoints []*discoveryv1.EndpointSlice) {
	r.HealthCheck, r.Follows = check, true
	r.Evidence += " that passes its health check"
	r.Rest = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no ready endpoint: its health check fails"}
	for node := range lbhooks.NodesWith(endpoints, lbhooks.EndpointReady) {
		_, shared := r.Shared[node]
		if _, own := r.Seats[node]; !shared && !own {
			r.Seats[node] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: member + ", and has a ready endpoint"}
		}
	}
}
