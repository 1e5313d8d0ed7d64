package gcp

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/pool"
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
	barred func() map[string]lbhooks.Seat
}

func newWorld(objects lbhooks.Objects) *world {
	nodes := objects.Nodes()
	onGoogle := func(n *corev1.Node) bool { _, ok := instanceOf(n); return ok }
	return &world{sample: pool.Sample(nodes, onGoogle), barred: pool.LeftOut(nodes, barred)}
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
// the node; not whether it is Ready).
func barred(n *corev1.Node) (lbhooks.Seat, bool) {
	if seat, out := pool.Barred(n, lbhooks.ExcludedByPresence, "Google tells whether the node left"); out {
		return seat, true
	}
	if operation := n.Labels[labelGKEOperation]; operation == "drain" || operation == "upgrading" {
		return pool.Out("label " + labelGKEOperation + "=" + operation)
	}
	return lbhooks.Seat{}, false
}

// member is a node in the rotation.
const member = "a backend"

func (w *world) rotation(svc *corev1.Service, objects lbhooks.Objects, reason string) lbhooks.Rotation {
	r := lbhooks.Rotation{
		Hook: Name, Reason: reason, Removal: lbhooks.RemovalLabel, Provable: true, Shared: w.barred(), Seats: map[string]lbhooks.Seat{},
		Evidence: "the controllers' rule: every node without the exclude label", Timeout: patience,
	}
	pool.Open(&r, member)
	pool.Checked(&r, member, svc, w.sample, objects)
	return r
}
