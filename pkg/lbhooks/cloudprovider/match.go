package cloudprovider

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
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

// pool is the nodes as the service controller sees them, the same for all Services.
type pool struct {
	sample             []*corev1.Node // one node that tells the cloud, none where no node does
	cloud              string         // scheme of the providerIDs, "" without any
	byValue, byPresent map[string]lbhooks.Seat
}

func newPool(objects lbhooks.Objects) *pool {
	p := &pool{byValue: map[string]lbhooks.Seat{}, byPresent: map[string]lbhooks.Seat{}}
	for _, n := range objects.Nodes() {
		if scheme, _, ok := strings.Cut(n.Spec.ProviderID, "://"); ok && p.cloud == "" && !lbhooks.Virtual(n) {
			p.cloud, p.sample = scheme, []*corev1.Node{n}
		}
		if seat, out := barred(n, lbhooks.ExcludedByValue); out {
			p.byValue[n.Name] = seat
		}
		if seat, out := barred(n, lbhooks.ExcludedByPresence); out {
			p.byPresent[n.Name] = seat
		}
	}
	return p
}

// barred follows cloud-provider controllers/service/controller.go: the label and the autoscaler's taint take a node out,
// neither its readiness nor a cordon does. The label of a drain that is under way is a request, not yet a fact.
func barred(n *corev1.Node, excluded func(*corev1.Node) bool) (lbhooks.Seat, bool) {
	label := fmt.Sprintf("label %s=%q", lbhooks.ExcludeLabel, n.Labels[lbhooks.ExcludeLabel])
	claimed := lbhooks.Claimed(n)
	switch {
	case lbhooks.Virtual(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "a virtual node, no balancer can send to it"}, true
	case excluded(n) && claimed:
		return lbhooks.Seat{In: lbhooks.Unknown, Why: label + " by a drain, nothing confirms that the node left"}, true
	case excluded(n):
		return lbhooks.Seat{In: lbhooks.No, Why: label}, true
	case lbhooks.ToBeDeleted(n):
		return lbhooks.Seat{In: lbhooks.No, Why: "tainted ToBeDeletedByClusterAutoscaler"}, true
	}
	return lbhooks.Seat{}, false
}

// excluded returns the nodes that the Service's balancer leaves out. Azure, GKE and the AWS load balancer controller look
// at the presence of the label, behind or in place of the controller's own rule.
func (p *pool) excluded(svc *corev1.Service) map[string]lbhooks.Seat {
	switch timing.ProviderOf(svc, p.sample) {
	case timing.Azure, timing.GCE, timing.AWSLBC:
		return p.byPresent
	}
	return p.byValue
}

func (p *pool) rotation(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	r := lbhooks.Rotation{Hook: Name, Removal: lbhooks.RemovalLabel, Shared: p.excluded(svc), Seats: map[string]lbhooks.Seat{}}
	r.Rest = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "in the pool: not excluded"}
	r.Evidence = "the service controller's rule: every node without the exclude label"
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return r
	}
	hc, err := timing.Known(svc, p.sample)
	switch {
	case err != nil:
		r.Evidence += "; its health check is not known: " + err.Error()
	case hc != nil:
		p.probed(&r, svc, objects)
		r.HealthCheck = hc
	}
	return r
}

// probed narrows the seats to what the probe of healthCheckNodePort lets pass: nodes with a ready endpoint.
func (p *pool) probed(r *lbhooks.Rotation, svc *corev1.Service, objects lbhooks.Objects) {
	r.Follows = true
	r.Evidence += " whose healthCheckNodePort answers"
	r.Rest = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no ready endpoint: its health check fails"}
	for node := range lbhooks.NodesWith(objects.Slices(svc.Namespace, svc.Name), lbhooks.EndpointReady) {
		if _, out := r.Shared[node]; !out {
			r.Seats[node] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "in the pool, and has a ready endpoint"}
		}
	}
}
