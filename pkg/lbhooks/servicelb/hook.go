// Package servicelb is the hook service-lb: the balancer that k3s brings along. The addresses of nodes are the balancer:
// the status of a Service lists those whose svclb pod is Ready and, of policy Local, that have a ready endpoint.
//
// It reads no label that takes a node out, so a node leaves only after its endpoints do, and the proof comes too late to
// evict by. Rules: k3s pkg/cloudprovider/servicelb.go, getStatus and podIPs.
package servicelb

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Name of the hook.
const Name = "service-lb"

// settle is the time for clients to look up the name again; nobody here knows the real lifetime of their answer.
const settle = 60 * time.Second

// Labels of the svclb pods, which say for which Service they run.
const (
	labelService   = "svccontroller.k3s.cattle.io/svcname"
	labelNamespace = "svccontroller.k3s.cattle.io/svcnamespace"
)

// Hook is the hook service-lb.
type Hook struct {
	client kubernetes.Interface
	memo   lbhooks.Memo[*agents]
}

var _ lbhooks.Hook = (*Hook)(nil)

// New returns the hook; offline the client is nil.
func New(client kubernetes.Interface) *Hook { return &Hook{client: client} }

// Describe names the hook and what it needs.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{
		Name: Name, Witness: "status.loadBalancer, once the endpoints are gone", Settle: settle,
		Needs: []lbhooks.Need{{
			Version: "v1", Resource: "services", Kind: "Service", Namespaced: true, Verbs: []string{"get"}, Why: "its status lists the nodes",
		}, {
			Version: "v1", Resource: "pods", Kind: "Pod", Namespaced: true, Labels: labelService, Verbs: []string{"list"},
			Optional: true, Why: "without it only nodes that are listed now are known to be able to serve",
		}},
	}
}

// Withdraw does nothing: there is no lever but the endpoints themselves.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the node is listed again when it has a ready endpoint.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Match takes a Service for which svclb pods run, or on k3s nodes one whose addresses are all addresses of nodes.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.LoadBalancerClass != nil {
		return lbhooks.Rotation{}, false
	}
	return h.memo.Get(objects, newAgents).match(svc)
}
