// Package cloudprovider is the hook cloud-provider: the service controller that every cloud provider runs, and balancers
// that nothing else recognises.
//
// It keeps in its pools every node that does not carry the exclude label, whether or not the node has endpoints. It says
// by events that it called the cloud, never that the node left: so a removal has no witness here.
package cloudprovider

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Name of the hook.
const Name = "cloud-provider"

// Hook is the hook cloud-provider.
type Hook struct {
	client kubernetes.Interface
	memo   lbhooks.Memo[*world]
}

var (
	_ lbhooks.Hook       = (*Hook)(nil)
	_ lbhooks.Assertable = (*Hook)(nil)
)

// New returns the hook; offline the client is nil.
func New(client kubernetes.Interface) *Hook { return &Hook{client: client} }

// Describe names the hook and what it needs. Events are asked for one Service at a time, while a run waits for it.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: Name, Generic: true, Needs: []lbhooks.Need{{
		Version: "v1", Resource: "events", Kind: "Event", Namespaced: true, Verbs: []string{"list"},
		Optional: true, Why: "without it nothing shows that the controller saw the label",
	}}}
}

// Withdraw does nothing: the exclude label, which the drain sets once, makes the controller drop the node.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the controller takes the node back once the label is gone.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Match takes every Service of type LoadBalancer without a class, where nodes come from a cloud or an address was given.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.LoadBalancerClass != nil || foreign(svc) {
		return lbhooks.Rotation{}, false
	}
	w := h.memo.Get(objects, newWorld)
	r := w.rotation(svc, objects)
	switch {
	case w.cloud != "":
		r.Reason = "type LoadBalancer without a class, and the nodes' providerID says " + w.cloud
	case len(svc.Status.LoadBalancer.Ingress) > 0:
		r.Reason = "type LoadBalancer without a class, and its status has an address"
	default:
		return lbhooks.Rotation{}, false
	}
	return r, true
}

// Assert returns the rotation of a Service that a user says the service controller fronts.
func (h *Hook) Assert(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	return h.memo.Get(objects, newWorld).rotation(svc, objects)
}
