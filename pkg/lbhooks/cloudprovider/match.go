package cloudprovider

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/pool"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// foreign reports whether the Service is fronted by something that is known not to read the exclude label, or that sends
// to pods and not to nodes.
func foreign(svc *corev1.Service) bool {
	for key := range svc.Annotations {
		if strings.HasPrefix(key, "kube-vip.io/") {
			return true
		}
	}
	return timing.TargetsPods(svc)
}

// world is the nodes as the service controller sees them, the same for all Services.
type world struct {
	sample             []*corev1.Node // one node that tells the cloud, none where no node does
	cloud              string         // scheme of the providerIDs, "" without any
	byValue, byPresent func() map[string]lbhooks.Seat
}

func newWorld(objects lbhooks.Objects) *world {
	nodes := objects.Nodes()
	leftOut := func(excluded func(*corev1.Node) bool) func() map[string]lbhooks.Seat {
		return pool.LeftOut(nodes, func(n *corev1.Node) (lbhooks.Seat, bool) { return barred(n, excluded) })
	}
	w := &world{byValue: leftOut(lbhooks.ExcludedByValue), byPresent: leftOut(lbhooks.ExcludedByPresence)}
	w.sample = pool.Sample(nodes, func(n *corev1.Node) bool { return schemeOf(n) != "" && !lbhooks.Virtual(n) })
	for _, n := range w.sample {
		w.cloud = schemeOf(n)
	}
	return w
}

// schemeOf is the scheme of a node's providerID, "" when it has none.
func schemeOf(n *corev1.Node) string {
	scheme, _, ok := strings.Cut(n.Spec.ProviderID, "://")
	if !ok {
		return ""
	}
	return scheme
}

// barred follows cloud-provider controllers/service/controller.go: the label and the autoscaler's taint take a node out,
// neither its readiness nor a cordon does.
func barred(n *corev1.Node, excluded func(*corev1.Node) bool) (lbhooks.Seat, bool) {
	return pool.Barred(n, excluded, "nothing confirms that the node left")
}

// member is a node in the rotation.
const member = "in the pool"

// excluded returns the nodes that the Service's balancer leaves out. Azure, GKE and the AWS load balancer controller look
// at the presence of the label, behind or in place of the controller's own rule.
func (w *world) excluded(svc *corev1.Service) map[string]lbhooks.Seat {
	switch timing.ProviderOf(svc, w.sample) {
	case timing.Azure, timing.GCE, timing.AWSLBC:
		return w.byPresent()
	}
	return w.byValue()
}

func (w *world) rotation(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	r := lbhooks.Rotation{Hook: Name, Removal: lbhooks.RemovalLabel, Shared: w.excluded(svc), Seats: map[string]lbhooks.Seat{}}
	r.Evidence = "the service controller's rule: every node without the exclude label"
	pool.Open(&r, member)
	pool.Checked(&r, member, svc, w.sample, objects)
	return r
}
