package gcp

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// What ties a Service to a load balancer of Google. Sources: ingress-gce pkg/annotations/service.go and pkg/utils/common
// (annotations, finalizers), cloud-provider-gcp pkg/controller/service (legacy classes), cloud-provider (the finalizer).
const (
	annotationBackend = "service.kubernetes.io/backend-service"
	annotationType    = "networking.gke.io/load-balancer-type"
	finalizerCleanup  = "service.kubernetes.io/load-balancer-cleanup"
	finalizerPrefix   = "gke.networking.io/l4-"
	labelGKEOperation = "operation.gke.io"
)

// world is what the objects tell of Google, the same for all Services.
type world struct {
	sample []*corev1.Node // a node on Compute Engine, none when there is none
	barred map[string]lbhooks.Seat
}

func newWorld(objects lbhooks.Objects) *world {
	w := &world{barred: map[string]lbhooks.Seat{}}
	for _, n := range objects.Nodes() {
		if _, ok := instanceOf(n); ok && len(w.sample) == 0 {
			w.sample = []*corev1.Node{n}
		}
		if seat, out := barred(n); out {
			w.barred[n.Name] = seat
		}
	}
	return w
}

// reason says why a Service is behind Google's load balancer, "" when nothing says so.
func (w *world) reason(svc *corev1.Service) string {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || len(w.sample) == 0 {
		return ""
	}
	if class := svc.Spec.LoadBalancerClass; class != nil {
		if strings.HasPrefix(*class, timing.GKEClassPrefix) {
			return "load balancer class " + *class
		}
		return ""
	}
	if name := svc.Annotations[annotationBackend]; name != "" {
		return "annotation " + annotationBackend + "=" + name
	}
	for _, f := range svc.Finalizers {
		if strings.HasPrefix(f, finalizerPrefix) || f == finalizerCleanup {
			return "finalizer " + f + ", and the nodes are on Compute Engine"
		}
	}
	return ""
}

// barred follows ingress-gce pkg/utils/zonegetter (presence of the label, the autoscaler's taint, a GKE upgrade that drains
// the node; not whether it is Ready). The label of a drain that is under way is a request, not yet a fact.
func barred(n *corev1.Node) (lbhooks.Seat, bool) {
	label := fmt.Sprintf("label %s=%q", lbhooks.ExcludeLabel, n.Labels[lbhooks.ExcludeLabel])
	claimed := lbhooks.Claimed(n)
	switch {
	case lbhooks.Virtual(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "a virtual node, no balancer can send to it"}, true
	case lbhooks.ExcludedByPresence(n) && claimed:
		return lbhooks.Seat{In: lbhooks.Unknown, Why: label + " by a drain, Google tells whether the node left"}, true
	case lbhooks.ExcludedByPresence(n):
		return lbhooks.Seat{In: lbhooks.No, Why: label}, true
	case lbhooks.ToBeDeleted(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "tainted ToBeDeletedByClusterAutoscaler"}, true
	case slices.Contains([]string{"drain", "upgrading"}, n.Labels[labelGKEOperation]):
		return lbhooks.Seat{In: lbhooks.No, Why: "label " + labelGKEOperation + "=" + n.Labels[labelGKEOperation]}, true
	}
	return lbhooks.Seat{}, false
}

func (w *world) rotation(svc *corev1.Service, objects lbhooks.Objects, reason string) lbhooks.Rotation {
	r := lbhooks.Rotation{
		Hook: Name, Reason: reason, Removal: lbhooks.RemovalLabel, Provable: true, Shared: w.barred, Seats: map[string]lbhooks.Seat{},
		Evidence: "the controllers' rule: every node without the exclude label",
		Rest:     lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "a backend: not excluded"},
		Timeout:  patience,
	}
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return r
	}
	hc, err := timing.Known(svc, w.sample)
	if err != nil || hc == nil {
		return r
	}
	r.HealthCheck, r.Follows = hc, true
	r.Evidence += " whose healthCheckNodePort answers"
	r.Rest = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no ready endpoint: its health check fails"}
	for node := range lbhooks.NodesWith(objects.Slices(svc.Namespace, svc.Name), lbhooks.EndpointReady) {
		if _, out := r.Shared[node]; !out {
			r.Seats[node] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "a backend, and has a ready endpoint"}
		}
	}
	return r
}
