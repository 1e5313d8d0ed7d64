package azure

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// What ties a Service to Azure's load balancer. Sources: cloud-provider-azure pkg/consts and pkg/provider/azure.go
// (annotations, nodes left out), cloud-provider (the finalizer).
const (
	annotationPrefix = "service.beta.kubernetes.io/azure-"
	finalizerCleanup = "service.kubernetes.io/load-balancer-cleanup"
	labelManaged     = "kubernetes.azure.com/managed"
)

// world is what the objects tell of Azure, the same for all Services.
type world struct {
	sample []*corev1.Node // a virtual machine of Azure, none when there is none
	barred map[string]lbhooks.Seat
}

func newWorld(objects lbhooks.Objects) *world {
	w := &world{barred: map[string]lbhooks.Seat{}}
	for _, n := range objects.Nodes() {
		if _, ok := machineOf(n); ok && len(w.sample) == 0 && !lbhooks.Virtual(n) {
			w.sample = []*corev1.Node{n}
		}
		if seat, out := barred(n); out {
			w.barred[n.Name] = seat
		}
	}
	return w
}

// reason says why a Service is behind Azure's load balancer, "" when nothing says so.
func (w *world) reason(svc *corev1.Service) string {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.LoadBalancerClass != nil || len(w.sample) == 0 {
		return ""
	}
	for key := range svc.Annotations {
		if strings.HasPrefix(key, annotationPrefix) {
			return "annotations " + annotationPrefix + "*, and the nodes are Azure's"
		}
	}
	if slices.Contains(svc.Finalizers, finalizerCleanup) {
		return "finalizer " + finalizerCleanup + ", and the nodes are Azure's"
	}
	return ""
}

// barred follows the cloud provider: presence of the label, nodes that it does not manage, the autoscaler's taint; not
// whether a node is Ready. The label of a drain that is under way is a request, not yet a fact.
func barred(n *corev1.Node) (lbhooks.Seat, bool) {
	label := fmt.Sprintf("label %s=%q", lbhooks.ExcludeLabel, n.Labels[lbhooks.ExcludeLabel])
	claimed := lbhooks.Claimed(n)
	switch {
	case lbhooks.Virtual(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "a virtual node, no balancer can send to it"}, true
	case lbhooks.ExcludedByPresence(n) && claimed:
		return lbhooks.Seat{In: lbhooks.Unknown, Why: label + " by a drain, Azure tells whether the node left"}, true
	case lbhooks.ExcludedByPresence(n):
		return lbhooks.Seat{In: lbhooks.No, Why: label}, true
	case lbhooks.ToBeDeleted(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "tainted ToBeDeletedByClusterAutoscaler"}, true
	case n.Labels[labelManaged] == "false":
		return lbhooks.Seat{In: lbhooks.No, Why: "label " + labelManaged + "=false"}, true
	}
	return lbhooks.Seat{}, false
}

func (w *world) rotation(svc *corev1.Service, objects lbhooks.Objects, reason string) lbhooks.Rotation {
	r := lbhooks.Rotation{
		Hook: Name, Reason: reason, Removal: lbhooks.RemovalLabel, Provable: true, Shared: w.barred, Seats: map[string]lbhooks.Seat{},
		Evidence: "the cloud provider's rule: every node without the exclude label",
		Rest:     lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "in the backend pool: not excluded"},
		Timeout:  patience,
	}
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return r
	}
	hc, err := timing.Known(svc, w.sample)
	switch {
	case err != nil:
		r.Evidence += "; its probe is not known: " + err.Error()
		return r
	case hc == nil:
		return r
	}
	r.HealthCheck, r.Follows = hc, true
	r.Evidence += " whose healthCheckNodePort answers"
	r.Rest = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no ready endpoint: its probe fails"}
	for node := range lbhooks.NodesWith(objects.Slices(svc.Namespace, svc.Name), lbhooks.EndpointReady) {
		if _, out := r.Shared[node]; !out {
			r.Seats[node] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "in the backend pool, and has a ready endpoint"}
		}
	}
	return r
}
