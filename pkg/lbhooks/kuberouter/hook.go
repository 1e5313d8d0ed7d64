// Package kuberouter is the hook kube-router: its own advertisement of Service addresses by BGP.
//
// It reads no label that takes a node out. Since v2.6 a node advertises a Service of policy Local while any endpoint of
// the node is in the EndpointSlices, ready or not: a terminating pod keeps the route until it is gone, so its grace does
// not help, and nothing takes the node out before its pods. So a removal has no witness and no lever here. Rules are
// those of kube-router v2.11.
package kuberouter

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Name of the hook.
const Name = "kube-router"

// LabelSelector selects the pods of kube-router's own manifests.
const LabelSelector = "k8s-app=kube-router"

// Annotations of kube-router, pkg/controllers/routing/network_routes_controller.go.
const (
	annotationLocal    = "kube-router.io/service.local"
	annotationExternal = "kube-router.io/service.advertise.externalip"
	annotationBalancer = "kube-router.io/service.advertise.loadbalancerip"
	annotationSkip     = "kube-router.io/service.skiplbips"
)

const noLever = "nothing takes a node out before its pods are gone: kube-router reads no label, and keeps the route while an endpoint of the node is listed, ready or not"

// Hook is the hook kube-router.
type Hook struct {
	memo   lbhooks.Memo[*world]
	steady lbhooks.Memo[*installation]
}

var _ lbhooks.Hook = (*Hook)(nil)

// New returns the hook.
func New() *Hook { return &Hook{} }

// Describe names the hook and what it needs.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: Name, Needs: []lbhooks.Need{{
		Version: "v1", Resource: "pods", Kind: "Pod", Namespaced: true, Labels: LabelSelector, Verbs: []string{"list"},
		Optional: true, Why: "without it only Services with an annotation of kube-router are known to be advertised",
	}}}
}

// Match takes a Service whose outside address kube-router advertises: by its flags, or by an annotation.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	w := h.memo.Get(objects, func(o lbhooks.Objects) *world { return newWorld(o, h.steady.GetSteady(o, newInstallation)) })
	reason := w.advertises(svc)
	if reason == "" {
		return lbhooks.Rotation{}, false
	}
	r := w.rotation(svc, objects)
	r.Reason = reason
	return r, true
}

// Withdraw does nothing: there is no lever but the endpoints themselves.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the node advertises again when it has an endpoint.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Prove never says that the node is out: nothing in the API shows what kube-router advertises.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	return lbhooks.Proof{Evidence: fmt.Sprintf("nothing shows which routes %s advertises", t.Node.Name)}, ctx.Err()
}
