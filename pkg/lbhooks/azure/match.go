package azure

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/pool"
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
	barred func() map[string]lbhooks.Seat
}

func newWorld(objects lbhooks.Objects) *world {
	nodes := objects.Nodes()
	onAzure := func(n *corev1.Node) bool { _, ok := machineOf(n); return ok && !lbhooks.Virtual(n) }
	return &world{sample: pool.Sample(nodes, onAzure), barred: pool.LeftOut(nodes, barred)}
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
// whether a node is Ready.
func barred(n *corev1.Node) (lbhooks.Seat, bool) {
	if seat, out := pool.Barred(n, lbhooks.ExcludedByPresence, "Azure tells whether the node left"); out {
		return seat, true
	}
	if n.Labels[labelManaged] == "false" {
		return pool.Out("label " + labelManaged + "=false")
	}
	return lbhooks.Seat{}, false
}

// member is a node in the rotation.
const member = "in the backend pool"

func (w *world) rotation(svc *corev1.Service, objects lbhooks.Objects, reason string) lbhooks.Rotation {
	r := lbhooks.Rotation{
		Hook: Name, Reason: reason, Removal: lbhooks.RemovalLabel, Provable: true, Shared: w.barred(), Seats: map[string]lbhooks.Seat{},
		Evidence: "the cloud provider's rule: every node without the exclude label", Timeout: patience,
	}
	pool.Open(&r, member)
	pool.Checked(&r, member, svc, w.sample, objects)
	return r
}
